package wasmbin

// Kind is the kind of an import or export, as in the binary format.
type Kind byte

// The kinds of imports and exports.
const (
	KindFunc   Kind = 0
	KindTable  Kind = 1
	KindMemory Kind = 2
	KindGlobal Kind = 3
)

func (k Kind) String() string {
	switch k {
	case KindFunc:
		return "func"
	case KindTable:
		return "table"
	case KindMemory:
		return "memory"
	case KindGlobal:
		return "global"
	}
	return "unknown"
}

// ValueType is a Wasm value type, as in the binary format.
type ValueType byte

// The value types.
const (
	I32       ValueType = 0x7f
	I64       ValueType = 0x7e
	F32       ValueType = 0x7d
	F64       ValueType = 0x7c
	V128      ValueType = 0x7b
	FuncRef   ValueType = 0x70
	ExternRef ValueType = 0x6f
)

func (t ValueType) String() string {
	switch t {
	case I32:
		return "i32"
	case I64:
		return "i64"
	case F32:
		return "f32"
	case F64:
		return "f64"
	case V128:
		return "v128"
	case FuncRef:
		return "funcref"
	case ExternRef:
		return "externref"
	}
	return "unknown"
}

// A FuncType is a signature.
type FuncType struct {
	Params, Results []ValueType
}

// An Import is one import of a module.
type Import struct {
	Module, Name string
	Kind         Kind
	// Func, Table, Memory, Global: the one that Kind names.
	Func   FuncType
	Table  Table
	Memory Memory
	Global Global
}

// An Export is one export of a module, or one to add to it. Index counts
// imports, in the index space of the input module.
type Export struct {
	Name  string
	Kind  Kind
	Index uint32
}

// A Table is a table's type.
type Table struct {
	Type   ValueType
	Min    uint32
	Max    uint32
	HasMax bool
}

// A Memory is a memory's type, in pages of 64 KiB.
type Memory struct {
	Min    uint32
	Max    uint32
	HasMax bool
	Shared bool
}

// A Global is a global's type.
type Global struct {
	Type    ValueType
	Mutable bool
}

// Info is what the admission of a module and the restoring of an instance
// need to know. Rewrite returns that of its input, with Fuel* and Exported
// telling what it added.
type Info struct {
	Size    int
	Types   int
	Imports []Import
	Exports []Export
	// ExportedFuncs are the signatures of exported functions.
	ExportedFuncs map[string]FuncType
	// Functions counts the defined ones, ImportedFunctions the others.
	Functions, ImportedFunctions int
	// Tables, Memories and Globals include imported ones, which come first.
	Tables   []Table
	Memories []Memory
	Globals  []Global

	HasStart       bool
	Start          uint32 // the start function's index, if HasStart
	DataSegments   int
	PassiveData    int // of DataSegments
	DataBytes      int
	Elements       int // element segments
	ElementEntries int
	CustomBytes    int

	CodeBytes int
	// Largest is what the most demanding functions ask of a compiler, each
	// maximum with the function that has it.
	Largest Largest

	// What the code does, wherever it stands.
	GrowsMemory  bool // memory.grow
	MutatesTable bool // table.set, grow, fill, copy, init, or elem.drop
	GrowsTable   bool // table.grow
	InitsMemory  bool // memory.init
	DropsData    bool // data.drop
	UsesSIMD     bool

	// ExportedGlobals are the names that Options.ExportGlobals added.
	ExportedGlobals []ExportedGlobal
}

// An ExportedGlobal is a mutable global under the name that Rewrite gave it.
type ExportedGlobal struct {
	Name  string
	Index uint32
	Type  ValueType
}

// A Max is a maximum and the index of the function that has it (imports
// counted).
type Max struct {
	Value uint64
	Func  int
}

// Largest gathers per-function maxima.
type Largest struct {
	Body    Max // bytes
	Locals  Max // parameters and locals
	Nesting Max // open blocks, loops and ifs
	Blocks  Max // blocks, loops and ifs
	BrTable Max // entries of one br_table
	// Product is locals × blocks; Volume is locals × loops × nesting: what
	// compile time was seen to grow with.
	Product, Volume Max
}

// Inspect decodes the module and returns what is in it. The error is *Error.
func Inspect(wasm []byte) (*Info, error) {
	m, err := decode(wasm)
	if err != nil {
		return nil, err
	}
	return m.info, nil
}
