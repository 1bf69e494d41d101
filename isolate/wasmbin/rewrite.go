package wasmbin

// Options says what Rewrite changes. The zero value changes nothing but
// custom sections, which are dropped except for module and function names.
type Options struct {
	// Meter injects the countdown described in the package comment.
	Meter bool
	// FuelExport names the mutable i64 global that is counted down. It starts
	// at zero, so the first function entry asks the host for fuel.
	FuelExport string
	// OutOfFuelModule and OutOfFuelName import a function without parameters
	// and results. It is called when the global is negative; it adds fuel to
	// the global, or ends the run by panicking.
	OutOfFuelModule, OutOfFuelName string

	// StackExport, where not empty, names a mutable i32 global that holds how
	// much stack is left, in bytes by estimate. Each call takes the caller's
	// frame from it while it lasts; a function that calls others first calls the
	// out-of-fuel function if it is negative, which has to end the run. The host sets it: it starts at zero.
	// Needs Meter.
	StackExport string

	// DropStart removes the start function's call.
	DropStart bool
	// ExportGlobals, if not empty, exports every mutable global of the module
	// under this prefix followed by its index. See Info.ExportedGlobals.
	ExportGlobals string
	// Exports are added to the module's own.
	Exports []Export
	// Dispatch, if not empty, exports a function that calls the exported
	// functions DispatchTo by their place in that list. It takes the place as an
	// i32 and then their parameters, and has their result, as i64s whatever they
	// are: an i32 in the low half, a float as its bits. Where nothing is passed
	// or returned it is zero.
	Dispatch   string
	DispatchTo []string

	// MemoryMin and MemoryMax, where not zero, replace the limits of the
	// module's own memory, in pages. MemoryMin may
	// only raise, MemoryMax only lower what the module says.
	MemoryMin, MemoryMax uint32
	// TableMax, where not zero, bounds what the module's own tables may grow
	// to, in entries. The engine itself does not bound them.
	TableMax uint32
}

// Rewrite returns the module changed as o says, and the Info of the input with
// Info.ExportedGlobals filled. Errors are *Error and *OptionError. The result
// is not validated: the engine does that when it compiles it.
func Rewrite(wasm []byte, o Options) ([]byte, *Info, error) {
	m, err := decode(wasm)
	if err != nil {
		return nil, nil, err
	}
	return m.rewrite(o)
}
