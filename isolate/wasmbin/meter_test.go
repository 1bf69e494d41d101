package wasmbin

import (
	"slices"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

// outcome is what a run shows to the outside.
type outcome struct {
	results  []uint64
	trap     string
	memory   []byte
	imported []uint64
}

func outcomeOf(h *host, m api.Module, args []uint64) outcome {
	h.imported = nil
	var o outcome
	res, err := m.ExportedFunction("run").Call(h.ctx, args...)
	o.results, o.imported = res, h.imported
	if err != nil {
		o.trap = firstLine(err.Error())
	}
	if mem := m.ExportedMemory("memory"); mem != nil {
		b, _ := mem.Read(0, mem.Size())
		o.memory = slices.Clone(b)
	}
	return o
}

func firstLine(s string) string {
	for i := range s {
		if s[i] == '\n' {
			return s[:i]
		}
	}
	return s
}

func exportMemory(t *testing.T, wasm []byte) []byte {
	t.Helper()
	info, err := Inspect(wasm)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Memories) == 0 {
		return wasm
	}
	out, _, err := Rewrite(wasm, Options{Exports: []Export{{"memory", KindMemory, 0}}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A metered program does what the plain one does, whatever the quantum, and
// always uses the same fuel.
func TestMeteredEqualsPlain(t *testing.T) {
	for _, p := range programs() {
		t.Run(p.name, func(t *testing.T) {
			plain := exportMemory(t, p.wasm)
			with := metered(t, plain)
			for _, args := range p.args {
				h := newHost(t)
				want := outcomeOf(h, h.instantiate(plain), args)
				fuel := int64(-1)
				for _, quantum := range []int64{1, 97, 10000, 1 << 40} {
					h := newHost(t)
					h.quantum = quantum
					m := h.instantiate(with)
					got := outcomeOf(h, m, args)
					if !slices.Equal(got.results, want.results) || got.trap != want.trap {
						t.Fatalf("run%v with quantum %d: %v %q, plain %v %q", args, quantum, got.results, got.trap, want.results, want.trap)
					}
					if !slices.Equal(got.imported, want.imported) || !slices.Equal(got.memory, want.memory) {
						t.Fatalf("run%v with quantum %d: other effects", args, quantum)
					}
					used := h.used(m)
					if fuel >= 0 && used != fuel {
						t.Fatalf("run%v with quantum %d: used %d, before %d", args, quantum, used, fuel)
					}
					fuel = used
				}
				if fuel <= 0 {
					t.Errorf("run%v used %d", args, fuel)
				}
			}
		})
	}
}
