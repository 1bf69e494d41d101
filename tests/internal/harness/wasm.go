package harness

import "encoding/binary"

// Modules that need no compiler to make and next to no time to compile, also
// where the machine is emulated.

// WasmCat is a command that copies its standard input to its standard output.
func WasmCat() []byte {
	const read, write = "\x10\x00", "\x10\x01"
	code := i32(0) + i32(1024) + store + i32(4) + i32(60000) + store + // where to read to
		i32(8) + i32(1024) + store + // where to write from
		"\x03\x40" + i32(0) + i32(0) + i32(1) + i32(12) + read + "\x1a" + // loop: read
		i32(12) + load + "\x04\x40" + // if there was something
		i32(1) + i32(8) + i32(1) + i32(16) + write + "\x1a" + "\x0c\x01" + "\x0b\x0b"
	return wasmModule("_start", "\x60\x00\x00", code, "fd_read", "fd_write")
}

// WasmCall is a reactor that makes the call that its input is, and has the
// answer as its result.
func WasmCall() []byte {
	const input, call, read, result = "\x10\x00", "\x10\x01", "\x10\x02", "\x10\x03"
	code := i32(0) + i32(0) + i32(60000) + input + call + "\x21\x00" + // local 0: the answer's length
		i32(0) + "\x20\x00" + read + "\x1a" + i32(0) + "\x20\x00" + result + i32(0)
	return wasmModule("run", "\x60\x00\x01\x7f", code, "input", "call", "read", "result")
}

// WasmLoop is a command that does not end.
func WasmLoop() []byte { return wasmModule("_start", "\x60\x00\x00", "\x03\x40\x0c\x00\x0b") }

// WasmForeign imports what there is not.
func WasmForeign() []byte { return wasmModule("_start", "\x60\x00\x00", "", "emscripten_resize_heap") }

// WasmNest is a command that calls itself.
func WasmNest() []byte { return wasmModule("_start", "\x60\x00\x00", "\x10\x00") }

// WasmLog is a command that writes one empty line to the log after the other.
func WasmLog() []byte {
	return wasmModule("_start", "\x60\x00\x00", "\x03\x40"+i32(1)+i32(0)+i32(0)+"\x10\x00\x0c\x00\x0b", "log")
}

// WasmCalls is a command that makes the call that its input is, again and again.
func WasmCalls() []byte {
	const input, call = "\x10\x00", "\x10\x01"
	return wasmModule("_start", "\x60\x00\x00", "\x03\x40"+i32(0)+i32(0)+i32(60000)+input+call+"\x1a\x0c\x00\x0b", "input", "call")
}

// WasmResult is a command whose result has so many bytes, all zero.
func WasmResult(n int) []byte {
	return wasmModule("_start", "\x60\x00\x00", i32(n>>16+1)+"\x40\x00\x1a"+i32(0)+i32(n)+"\x10\x00", "result")
}

const (
	store = "\x36\x02\x00"
	load  = "\x28\x02\x00"
)

func i32(v int) string {
	b := []byte{0x41}
	for v > 0x3f {
		b = append(b, byte(v&0x7f|0x80))
		v >>= 7
	}
	return string(append(b, byte(v)))
}

func number(n int) string { return string(binary.AppendUvarint(nil, uint64(n))) }

func sized(s string) string { return number(len(s)) + s }

// wasmModule exports one function of a type, with a local, beside a page of
// memory. Functions that it imports are ours or WASI's by their names.
func wasmModule(export, typ, code string, imports ...string) []byte {
	const i, ii, iii, iiii, log = "\x60\x01\x7f\x01\x7f", "\x60\x02\x7f\x7f\x01\x7f", "\x60\x02\x7f\x7f\x00", "\x60\x04\x7f\x7f\x7f\x7f\x01\x7f", "\x60\x03\x7f\x7f\x7f\x00"
	types := number(6) + typ + i + ii + iii + iiii + log
	list := number(len(imports))
	for _, name := range imports {
		module, t := "sandboxd", "\x02"
		switch name {
		case "result":
			t = "\x03"
		case "log":
			t = "\x05"
		case "fd_read", "fd_write":
			module, t = "wasi_snapshot_preview1", "\x04"
		case "emscripten_resize_heap":
			module, t = "env", "\x01"
		}
		list += sized(module) + sized(name) + "\x00" + t
	}
	return []byte("\x00asm\x01\x00\x00\x00\x01" + sized(types) + "\x02" + sized(list) + "\x03\x02\x01\x00\x05\x03\x01\x00\x01" +
		"\x07" + sized("\x01"+sized(export)+"\x00"+number(len(imports))) + "\x0a" + sized("\x01"+sized("\x01\x01\x7f"+code+"\x0b")))
}

// WasmGrow is a command that wants one page after the other.
func WasmGrow() []byte {
	return wasmModule("_start", "\x60\x00\x00", "\x03\x40"+i32(1)+"\x40\x00\x1a\x0c\x00\x0b")
}
