package wasm

import (
	"context"
	"strings"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasmbin"
	"sandboxd/isolate/wasmvm"
)

const (
	// StackSize is what the calls of a run may nest to, in bytes by estimate.
	StackSize = 16 << 20

	stackExport = "isolate_stack"
	startExport = "isolate_start"

	// tableMax is what one table may grow to, in entries of entrySize bytes.
	tableMax  = 1 << 17
	entrySize = 8
)

// A Module is one that was admitted and compiled.
type Module struct {
	code  *wasmvm.Code
	state wasmvm.State

	calls  []string // what a run calls, the last one gives its status
	memory uint64   // what it begins with, in bytes
	tables uint64   // what its tables can grow to, in bytes
}

// Compile admits, meters and compiles a module, which can take long and much
// memory however ctx is: do it where it can be killed. The error is
// *RejectedError if it is the module's fault.
func Compile(ctx context.Context, wasm []byte) (*Module, error) {
	info, err := admit(wasm)
	if err != nil {
		return nil, err
	}
	m := &Module{state: wasmvm.State{Fuel: wasmvm.FuelExport}, tables: tableBytes(info)}
	if m.calls, err = entry(info); err != nil {
		return nil, err
	}
	for _, x := range info.Memories {
		m.memory += uint64(x.Min) * memimage.PageSize
	}
	o := wasmvm.Rewriting(true)
	o.ExportGlobals, o.StackExport, o.TableMax, o.DropStart = "", stackExport, tableMax, true
	if info.HasStart {
		// It is called as everything else, once the run is set up.
		o.Exports = []wasmbin.Export{{Name: startExport, Kind: wasmbin.KindFunc, Index: info.Start}}
		m.calls = append([]string{startExport}, m.calls...)
	}
	metered, _, err := wasmbin.Rewrite(wasm, o)
	if err != nil {
		return nil, &RejectedError{Message: err.Error()}
	}
	if m.code, err = wasmvm.Compile(ctx, metered, nil, hostModules); err != nil {
		return nil, &RejectedError{Message: "the module is not valid: " + cut(strings.TrimPrefix(err.Error(), "compile: "), 500), Hint: "a tool such as wasm-validate says more"}
	}
	return m, nil
}

// tableBytes is what tables take, those that can grow as if they had.
func tableBytes(info *wasmbin.Info) (n uint64) {
	for _, t := range info.Tables {
		entries := t.Min
		if info.GrowsTable {
			entries = max(entries, tableMax)
			if t.HasMax {
				entries = max(t.Min, min(entries, t.Max))
			}
		}
		n += uint64(entries) * entrySize
	}
	return n
}

// Memory is the least that a run needs, in bytes.
func (m *Module) Memory() uint64 { return m.memory + m.tables }

// Close frees the code. There must be no run of it under way.
func (m *Module) Close() error { return m.code.Close() }

// A Job is what a run of a module is given.
type Job struct {
	// Args are the program's name and its arguments, Env is NAME=VALUE.
	Args, Env []string
	// Input is on descriptor 0.
	Input []byte
	// Files are there beside an empty /tmp.
	Files map[string]string
	// Memory is the limit of linear memory, tables, files and what the host
	// holds for the run, together.
	Memory uint64
}

// A Run is one call of a module, with its own instance.
type Run struct {
	*vm
	module *Module
	job    Job
}

// NewRun prepares a run; nothing has happened yet.
func (m *Module) NewRun(hooks Hooks, job Job) *Run {
	return &Run{vm: newVM(hooks, job, m.tables), module: m, job: job}
}

// Do makes the instance and calls it. The status is that of proc_exit or of
// run; the error is what Hooks ended the run with, *MemoryError, *TrapError or
// the engine's own.
func (r *Run) Do() (status uint32, err error) {
	m := r.module
	if m.Memory() > r.job.Memory {
		return 0, &MemoryError{Want: m.Memory(), Limit: r.job.Memory}
	}
	mem := memimage.NewMemory(nil, max(r.job.Memory-m.tables, memimage.PageSize))
	inst, err := m.code.New(context.Background(), mem, &m.state, wasmvm.DefaultQuantum)
	if err != nil {
		return 0, instantiation(err)
	}
	defer inst.Close()
	if err := r.attach(inst); err != nil {
		return 0, err
	}
	for _, name := range m.calls {
		if status, err = r.call(name); err != nil || r.exited {
			break
		}
	}
	return status, err
}
