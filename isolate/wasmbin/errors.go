package wasmbin

import "fmt"

// NoFunc is Error.Func when the error lies in no function body.
const NoFunc = -1

// An Error says where and why a binary was refused. The binary is hostile, so
// nothing of its content stands in the text except names, quoted and cut.
type Error struct {
	// Section names the part of the module, as in "code" or "element".
	Section string
	// Func is the function's index in the input module (imports counted), or
	// NoFunc.
	Func int
	// Offset is the byte offset in the input.
	Offset int
	// Reason says what is wrong.
	Reason string
}

func (e *Error) Error() string {
	if e.Func != NoFunc {
		return fmt.Sprintf("wasm: %s section, function %d, offset %#x: %s", e.Section, e.Func, e.Offset, e.Reason)
	}
	return fmt.Sprintf("wasm: %s section, offset %#x: %s", e.Section, e.Offset, e.Reason)
}

// An OptionError says that a rewrite was asked for which this module does not
// allow: an export name that is taken, data that cannot be dropped.
type OptionError struct {
	// Option is the field of Options.
	Option string
	Reason string
}

func (e *OptionError) Error() string { return "wasm rewrite: " + e.Option + ": " + e.Reason }

// quote renders a name from a module for a message: cut, and nothing in it can
// end a line.
func quote(s string) string { return fmt.Sprintf("%.80q", s) }

// An AdmissionError says which limit a module exceeds.
type AdmissionError struct {
	// Limit is the field of Limits.
	Limit string
	// Func is the function's index where one function is too much, else NoFunc.
	Func    int
	Used    uint64
	Allowed uint64
	// Detail adds what a number cannot say, as the name of a refused import.
	Detail string
}

func (e *AdmissionError) Error() string {
	s := "wasm module refused: " + e.Limit
	if e.Detail != "" {
		s += ": " + e.Detail
	} else {
		s += fmt.Sprintf(": has %d, allowed %d", e.Used, e.Allowed)
	}
	if e.Func != NoFunc {
		s += fmt.Sprintf(" (function %d)", e.Func)
	}
	return s
}
