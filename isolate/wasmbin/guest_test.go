package wasmbin

import (
	"context"
	"math"
	"os"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

// The real guest is fetched by the Makefile, not kept in the repository.
const quickjsPath = "../../build/guests/quickjs.wasm"

func quickjs(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile(quickjsPath)
	if err != nil {
		t.Fatalf("%v: run `make guests` first", err)
	}
	return b
}

// stubImports gives the module's function imports, save the metering's own, a
// host function that answers zero.
func (h *host) stubImports(info *Info) {
	h.t.Helper()
	modules := map[string][]Import{}
	for _, im := range info.Imports {
		modules[im.Module] = append(modules[im.Module], im)
	}
	for name, imports := range modules {
		if h.rt.Module(name) != nil {
			if err := h.rt.Module(name).Close(h.ctx); err != nil {
				h.t.Fatal(err)
			}
		}
		b := h.rt.NewHostModuleBuilder(name)
		for _, im := range imports {
			results := len(im.Func.Results)
			b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(_ context.Context, stack []uint64) {
				if results > 0 {
					stack[0] = 0
				}
			}), apiTypes(im.Func.Params), apiTypes(im.Func.Results)).Export(im.Name)
		}
		if _, err := b.Instantiate(h.ctx); err != nil {
			h.t.Fatal(err)
		}
	}
}

func apiTypes(ts []ValueType) (out []api.ValueType) {
	for _, t := range ts {
		out = append(out, api.ValueType(t))
	}
	return out
}

// A js is a QuickJS instance.
type js struct {
	h *host
	m api.Module
}

func newJS(h *host, wasm []byte, info *Info) *js {
	h.t.Helper()
	h.stubImports(info)
	v := &js{h: h, m: h.instantiate(wasm)}
	v.call("_initialize")
	v.call("qjs_init")
	return v
}

func (v *js) call(name string, args ...uint64) uint64 {
	v.h.t.Helper()
	res, err := v.m.ExportedFunction(name).Call(v.h.ctx, args...)
	if err != nil {
		v.h.t.Fatalf("%s: %v", name, err)
	}
	if len(res) == 0 {
		return 0
	}
	return res[0]
}

func (v *js) str(s string) uint64 {
	v.h.t.Helper()
	p := v.call("wasm_malloc", uint64(len(s)+1))
	if !v.m.Memory().WriteString(uint32(p), s+"\x00") {
		v.h.t.Fatal("no memory")
	}
	return p
}

// eval runs code and returns the number that it evaluates to.
func (v *js) eval(code string) float64 {
	v.h.t.Helper()
	src, file := v.str(code), v.str("t.js")
	p := v.call("qjs_eval", src, uint64(len(code)), file, 0)
	if v.call("qjs_is_exception", p) != 0 {
		v.h.t.Fatalf("exception in %.60q", code)
	}
	f := math.Float64frombits(v.call("qjs_get_float64", p))
	for _, x := range []uint64{src, file} {
		v.call("wasm_free", x)
	}
	v.call("qjs_free_value", p)
	return f
}

var scripts = []struct{ name, code string }{
	{"arithmetic", `let s = 0; for (let i = 0; i < 300000; i++) s = (s * 31 + i) % 65521; s`},
	{"calls", `function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) } fib(20)`},
	{"strings", `let t = ""; for (let i = 0; i < 20000; i++) t += i.toString(36); t.split("a").join("bb").length`},
	{"json", `JSON.stringify(JSON.parse(JSON.stringify(Array.from({length: 3000}, (_, i) => ({i, s: "x" + i}))))).length`},
	{"regexp", `"foo@bar.com hello ".repeat(2000).match(/(\w+)@(\w+)\.com/g).length`},
	{"sort", `let x = 1; Array.from({length: 20000}, () => x = x * 16807 % 2147483647).sort((a, b) => a - b)[777]`},
	{"typed", `let u = new Uint8Array(200000); u.fill(3); let h = 0; for (let i = 0; i < u.length; i += 2) h = (h + u[i] * i) | 0; h`},
	{"map", `let m = new Map(); for (let i = 0; i < 20000; i++) m.set("k" + i, i); let q = 0; for (const [k, v] of m) q += v; q`},
	{"bigint", `let b = 1n; for (let i = 1n; i < 400n; i++) b *= i; Number(b % 1000003n)`},
	{"gc", `let r = null; for (let i = 0; i < 30000; i++) r = {r: i % 100 ? r : null, a: [i]}; r.a[0]`},
}

// wrapped runs each script in a block of its own, so that names may repeat.
func wrapScript(code string) string { return "{" + code + "}" }

func TestQuickJS(t *testing.T) {
	wasm := quickjs(t)
	with, info, err := Rewrite(wasm, testOptions)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Imports) == 0 || info.Functions < 1000 || info.MutatesTable {
		t.Errorf("unlikely facts: %d imports, %d functions, mutates table %v", len(info.Imports), info.Functions, info.MutatesTable)
	}
	plain, metered := newJS(newHost(t), wasm, info), newJS(newHost(t), with, info)
	again := newJS(newHost(t), with, info)
	again.h.quantum = 1_000_000
	for _, s := range scripts {
		want, before := plain.eval(wrapScript(s.code)), metered.h.used(metered.m)
		if got := metered.eval(wrapScript(s.code)); got != want {
			t.Errorf("%s: %v, plain %v", s.name, got, want)
		}
		if again.eval(wrapScript(s.code)); again.h.used(again.m) != metered.h.used(metered.m) {
			t.Errorf("%s: fuel differs between runs", s.name)
		}
		if metered.h.used(metered.m)-before < 10000 {
			t.Errorf("%s used %d", s.name, metered.h.used(metered.m)-before)
		}
	}
}

func BenchmarkQuickJS(b *testing.B) {
	wasm := quickjs(b)
	with, info, err := Rewrite(wasm, testOptions)
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range scripts {
		for _, x := range []struct {
			name string
			wasm []byte
		}{{"plain", wasm}, {"metered", with}} {
			b.Run(s.name+"/"+x.name, func(b *testing.B) {
				h := newHost(b)
				h.quantum = 1_000_000
				v := newJS(h, x.wasm, info)
				var units int64
				for b.Loop() {
					if x.name == "plain" {
						v.eval(wrapScript(s.code))
						continue
					}
					before := h.used(v.m)
					v.eval(wrapScript(s.code))
					units += h.used(v.m) - before
				}
				if units > 0 {
					b.ReportMetric(float64(units)/float64(b.Elapsed().Microseconds()), "units/us")
				}
			})
		}
	}
}
