package wasmbin

// Limits bound a tenant's module before it is compiled. Each is a maximum, and
// zero allows none: a limit that is not set refuses.
type Limits struct {
	// Size, CodeBytes, DataBytes and CustomBytes are in bytes. The caller
	// checks Size before Inspect as well, whose memory grows with it.
	Size, CodeBytes, DataBytes, CustomBytes int

	Types, Functions, Globals, Exports int
	DataSegments, Elements             int // segments
	ElementEntries                     int

	// Imports are the functions that may be imported, as "module.name". Other
	// kinds of imports are never allowed.
	Imports map[string]bool

	// Tables counts them, TableMin is the sum of what they begin with. What
	// they grow to, the engine does not bound: see Options.TableMax.
	Tables   int
	TableMin uint64
	// MemoryMin is in pages. What memory grows to, the engine bounds.
	MemoryMin uint64

	// Per function, what the time and memory of compiling it grow with.
	// Product is locals × blocks, Volume locals × loops × nesting: with either,
	// a few kilobytes of code kept the compiler busy for minutes.
	Body, Locals, Nesting, Blocks, BrTable uint64
	Product, Volume                        uint64
}

// DefaultLimits admits what compilers make of sizeable programs (CPython and
// QuickJS pass, with their own imports allowed) and keeps the compilation of
// any one function to a few seconds.
func DefaultLimits() Limits {
	return Limits{
		Size: 32 << 20, CodeBytes: 16 << 20, DataBytes: 16 << 20, CustomBytes: 16 << 20,
		Types: 10_000, Functions: 50_000, Globals: 1_000, Exports: 1_000,
		DataSegments: 50_000, Elements: 1_000, ElementEntries: 100_000,
		Tables: 4, TableMin: 100_000, MemoryMin: 1024,
		Body: 256 << 10, Locals: 2_000, Nesting: 500, Blocks: 10_000, BrTable: 5_000,
		Product: 300_000, Volume: 3_000_000,
	}
}

// Admit checks info against l. The error is *AdmissionError.
func Admit(info *Info, l Limits) error {
	if err := admitImports(info, l); err != nil {
		return err
	}
	var entries, pages uint64
	for _, t := range info.Tables {
		entries += uint64(t.Min)
	}
	for _, m := range info.Memories {
		pages += uint64(m.Min)
	}
	for _, x := range []struct {
		limit         string
		used, allowed uint64
	}{
		{"Size", n(info.Size), n(l.Size)},
		{"CodeBytes", n(info.CodeBytes), n(l.CodeBytes)},
		{"DataBytes", n(info.DataBytes), n(l.DataBytes)},
		{"CustomBytes", n(info.CustomBytes), n(l.CustomBytes)},
		{"Types", n(info.Types), n(l.Types)},
		{"Functions", n(info.Functions), n(l.Functions)},
		{"Globals", n(len(info.Globals)), n(l.Globals)},
		{"Exports", n(len(info.Exports)), n(l.Exports)},
		{"DataSegments", n(info.DataSegments), n(l.DataSegments)},
		{"Elements", n(info.Elements), n(l.Elements)},
		{"ElementEntries", n(info.ElementEntries), n(l.ElementEntries)},
		{"Tables", n(len(info.Tables)), n(l.Tables)},
		{"TableMin", entries, l.TableMin},
		{"MemoryMin", pages, l.MemoryMin},
	} {
		if x.used > x.allowed {
			return &AdmissionError{Limit: x.limit, Func: NoFunc, Used: x.used, Allowed: x.allowed}
		}
	}
	return admitFunctions(&info.Largest, l)
}

// n makes an unsigned number of a count; a negative limit allows none.
func n(i int) uint64 { return uint64(max(i, 0)) }

func admitImports(info *Info, l Limits) error {
	for _, im := range info.Imports {
		name := im.Module + "." + im.Name
		if im.Kind != KindFunc || !l.Imports[name] {
			return &AdmissionError{
				Limit: "Imports", Func: NoFunc, Used: 1,
				Detail: im.Kind.String() + " " + quote(name) + " may not be imported",
			}
		}
	}
	return nil
}

func admitFunctions(max *Largest, l Limits) error {
	for _, x := range []struct {
		limit   string
		max     Max
		allowed uint64
	}{
		{"Body", max.Body, l.Body},
		{"Locals", max.Locals, l.Locals},
		{"Nesting", max.Nesting, l.Nesting},
		{"Blocks", max.Blocks, l.Blocks},
		{"BrTable", max.BrTable, l.BrTable},
		{"Product", max.Product, l.Product},
		{"Volume", max.Volume, l.Volume},
	} {
		if x.max.Value > x.allowed {
			return &AdmissionError{Limit: x.limit, Func: x.max.Func, Used: x.max.Value, Allowed: x.allowed}
		}
	}
	return nil
}
