package wasmbin

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero"
)

// FuzzRewrite feeds hostile binaries. Whatever they hold, the decoder returns
// a typed error or facts; and metering neither breaks a valid module nor makes
// an invalid one valid, as it would if a binary meant one thing to this
// package and another to the engine.
func FuzzRewrite(f *testing.F) {
	for _, p := range programs() {
		f.Add(p.wasm)
	}
	for seed := range uint64(20) {
		f.Add(randomProgram(seed))
	}
	f.Add([]byte{})
	f.Add(magic)
	f.Fuzz(func(t *testing.T, wasm []byte) {
		if _, err := Inspect(wasm); err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Reason == "" || e.Section == "" || e.Offset > len(wasm) {
				t.Fatalf("untyped error %#v", err)
			}
			return
		}
		// Without options the module stays what it was, but for custom
		// sections, which cannot be trusted to be well-formed.
		plain, _, err := Rewrite(wasm, Options{})
		if err != nil {
			t.Fatalf("rewrite without options: %v", err)
		}
		with, _, err := Rewrite(wasm, testOptions)
		if err != nil {
			var o *OptionError
			var e *Error
			if !errors.As(err, &o) && !errors.As(err, &e) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if a, b := engineAccepts(t, plain), engineAccepts(t, with); (a == nil) != (b == nil) {
			t.Fatalf("plain: %v\nmetered: %v", a, b)
		}
		again, _, err := Rewrite(plain, Options{})
		if err != nil || string(again) != string(plain) {
			t.Fatalf("a second rewrite changes more: %v", err)
		}
	})
}

// engineAccepts tells whether the engine accepts wasm.
func engineAccepts(t *testing.T, wasm []byte) error {
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	defer r.Close(t.Context())
	_, err := r.CompileModule(t.Context(), wasm)
	return err
}

// checkSameVerdict rewrites wasm and compares the engine's verdicts, where the
// decoder accepts it at all.
func checkSameVerdict(t *testing.T, wasm []byte) (accepted bool) {
	with, _, err := Rewrite(wasm, testOptions)
	if err != nil {
		return false
	}
	if a, b := engineAccepts(t, wasm), engineAccepts(t, with); (a == nil) != (b == nil) {
		t.Fatalf("plain: %v\nmetered: %v\n%x", a, b, wasm)
	}
	return true
}

// Programs with a few bytes changed anywhere after the header get the same
// verdict plain and metered: that is where two readers of one binary could
// differ.
func TestMutatedPrograms(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	all := programs()
	n, accepted := 3000, 0
	if testing.Short() {
		n = 500
	}
	interesting := []byte{0, 1, 2, 0x0b, 0x0c, 0x0d, 0x40, 0x7f, 0x80, 0x81, 0xfc, 0xfd, 0xff}
	for i := range n {
		var wasm []byte
		if i%2 == 0 {
			wasm = slices.Clone(all[r.IntN(len(all))].wasm)
		} else {
			wasm = randomProgram(uint64(r.IntN(500)))
		}
		for range 1 + r.IntN(3) {
			pos := len(magic) + r.IntN(len(wasm)-len(magic))
			switch r.IntN(3) {
			case 0:
				wasm[pos] = byte(r.Uint32())
			case 1:
				wasm[pos] = interesting[r.IntN(len(interesting))]
			case 2:
				wasm[pos] += byte(r.IntN(5)) - 2
			}
		}
		if checkSameVerdict(t, wasm) {
			accepted++
		}
	}
	if accepted < n/20 {
		t.Errorf("only %d of %d mutants were decoded", accepted, n)
	}
	t.Logf("%d of %d mutants were decoded", accepted, n)
}
