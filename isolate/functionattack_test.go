package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// keptOf is what the in-process pool keeps of a function's call.
func keptOf(t *testing.T, p Pool, r *Request) keptState {
	t.Helper()
	e := p.(*inProcess).engines
	k := e.kept.get(r.Function.key(r))
	if k == nil {
		t.Fatal("the function is not kept")
	}
	return e.kept.look(k)
}

// Nothing of the call that happened to evaluate the module is in the pages that
// later ones begin with.
func TestSnapshotHoldsNoCall(t *testing.T) {
	p := newPool(t)
	for _, f := range []*Function{
		jsFunction(t, `const own = ['in-the', 'module'].join('-'); export default async (input, env) => { const r = await env.X.ask(input); return [own, r, env.SECRET.length]; }`),
		pyFunction(t, "own = '-'.join(['in-the', 'module'])\ndef main(input, env):\n    return [own, env.X.ask(input), len(env.SECRET)]\n"),
	} {
		mark := func(part string) string { return "MARKER-" + part + "-of-the-call" }
		h := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) {
			return json.RawMessage(`"` + mark("answer") + `"`), nil
		}}
		r := callOf(f, `"`+mark("input")+`"`)
		r.Env = map[string]string{"SECRET": mark("env")}
		r.Bindings = []Binding{{Name: "X", Methods: []string{"ask"}}}
		want := fmt.Sprintf(`["in-the-module",%q,%d]`, mark("answer"), len(mark("env")))
		// The first call is not preceded by a deployment.
		for range 2 {
			if got := value(t, p, r, h); got != want {
				t.Fatalf("%s: %s, want %s", f.language, got, want)
			}
		}
		s, ok := keptOf(t, p, r).snapshot.(interface{ Contains([]byte) bool })
		if !ok {
			t.Fatalf("%s: there is no snapshot", f.language)
		}
		if !s.Contains([]byte("in-the-module")) {
			t.Errorf("%s: the search does not even find what is there", f.language)
		}
		for _, part := range []string{"answer", "input", "env"} {
			if s.Contains([]byte(mark(part))) {
				t.Errorf("%s: the call's %s is in the snapshot", f.language, part)
			}
		}
	}
}

// What a module does to its world is there in each call of it, and nowhere else.
func TestPoisonedModule(t *testing.T) {
	p := newWorkers(t, 1)
	poison := jsFunction(t, `
Object.prototype.toJSON = function () { return 'poisoned'; };
Object.prototype.evil = 1;
Array.prototype.push = () => { throw new Error('push'); };
Promise.prototype.then = function () { throw new Error('then'); };
Map.prototype.get = Map.prototype.set = () => undefined;
JSON.stringify = JSON.parse = () => 'poisoned';
globalThis.console = globalThis.Promise = undefined;
export default (input) => 'mine ' + [].evil + input;`)
	if s := deploy(t, p, poison); !s.Snapshot {
		t.Errorf("%+v", s)
	}
	clean := jsFunction(t, `export default (input) => { console.log('x'); return { evil: [].evil === undefined, text: JSON.stringify([input]) }; }`)
	deploy(t, p, clean)
	pyPoison := pyFunction(t, "import json, sys, builtins\njson.dumps = lambda *a: 'poisoned'\nbuiltins.len = lambda x: 7\nsys.path.append('evil')\ndef main(input, env):\n    return f'mine {len([])}'\n")
	deploy(t, p, pyPoison)
	pyClean := pyFunction(t, "import json, sys\ndef main(input, env):\n    return [len([]), json.dumps([input]), 'evil' in sys.path]\n")
	deploy(t, p, pyClean)
	for range 3 {
		for _, c := range []struct {
			r    *Request
			want string
		}{
			{callOf(poison, "5"), `"mine 15"`},
			{callOf(clean, "5"), `{"evil":true,"text":"[5]"}`},
			{js(`export default () => [].evil === undefined`), "true"},
			{callOf(pyPoison, "5"), `"mine 7"`},
			{callOf(pyClean, "5"), `[0,"[5]",false]`},
		} {
			if got := value(t, p, c.r, nil); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		}
	}
}

// The memory of the module is a part of the call's.
func TestFunctionMemory(t *testing.T) {
	p := newPool(t)
	for _, tc := range []struct {
		f     *Function
		limit int64
	}{
		{jsFunction(t, `const table = new Uint8Array(12 << 20).fill(1); export default (n) => table.length + new Uint8Array(n).fill(2).length`), 16 << 20},
		{pyFunction(t, "table = [bytes([i]) * (1 << 20) for i in range(12)]\ndef main(n, env):\n    return len(table) + len(bytearray(n))\n"), 48 << 20},
	} {
		if s := deploy(t, p, tc.f); !s.Snapshot || s.Bytes < 11<<20 {
			t.Errorf("%s: %+v", tc.f.language, s)
		}
		r := callOf(tc.f, "100")
		res := run1(t, p, r, nil)
		if res.Status != StatusOK || res.Usage.MemoryPeak < 12<<20 {
			t.Errorf("%s: %s, %+v, %d bytes", tc.f.language, res.Status, res.Error, res.Usage.MemoryPeak)
		}
		// What it may have beside the module is what is left.
		r.Input, r.Limits.Memory = json.RawMessage(fmt.Sprint(30<<20)), tc.limit
		if e := run1(t, p, r, nil).Error; e == nil || e.Limit != "memory" || e.Allowed != fmt.Sprint(tc.limit) {
			t.Errorf("%s: a call that wants more: %+v", tc.f.language, e)
		}
	}
	// Less than the module has.
	small := jsFunction(t, `const table = new Uint8Array(12 << 20).fill(1); export default () => 1`)
	deploy(t, p, small)
	r := callOf(small, "")
	r.Limits.Memory = 10 << 20
	if e := run1(t, p, r, nil).Error; e == nil || e.Limit != "memory" {
		t.Errorf("a limit below the module's memory: %+v", e)
	}
}

// Calls that are killed leave the snapshot as it was.
func TestKilledCalls(t *testing.T) {
	pools(t, func(t *testing.T, p Pool) {
		for _, f := range []*Function{
			jsFunction(t, `const keep = [1]; export default (how) => {
	keep.push(2);
	if (how === 'loop') for (;;);
	if (how === 'memory') for (;;) keep.push(new Uint8Array(1 << 20).fill(1));
	if (how === 'stack') (function f() { f(); f(); })();
	return keep.length;
}`),
			pyFunction(t, "keep = [1]\ndef main(how, env):\n    keep.append(2)\n    while how == 'loop':\n        pass\n    while how == 'memory':\n        keep.append(bytes(1 << 20))\n    return len(keep)\n"),
		} {
			deploy(t, p, f)
			for _, how := range []string{"loop", "memory", "stack", ""} {
				r := callOf(f, `"`+how+`"`)
				r.Limits.CPU = 100 * time.Millisecond
				if how == "" {
					break
				}
				if res := run1(t, p, r, nil); res.Status == StatusOK && f.language == "js" {
					t.Errorf("%s is not ended: %s", how, res.Value)
				}
				if got := value(t, p, callOf(f, `""`), nil); got != "2" {
					t.Errorf("after %s: %s", how, got)
				}
			}
		}
	})
}

// Two tenants with the same code have two snapshots; what is asked for in
// another's name is refused.
func TestFunctionsOfTwoTenants(t *testing.T) {
	p := newPool(t)
	a, b := function(t, "tenant-a", "js", "main.js", counterJS), function(t, "tenant-b", "js", "main.js", counterJS)
	deploy(t, p, a)
	deploy(t, p, b)
	if sa, sb := keptOf(t, p, callOf(a, "")), keptOf(t, p, callOf(b, "")); sa.snapshot == sb.snapshot {
		t.Error("they share a snapshot")
	}
	r := callOf(a, "")
	r.Tenant = "tenant-b"
	var bad *RequestError
	if _, err := p.Run(context.Background(), r, nil); !errors.As(err, &bad) || bad.Field != "function" {
		t.Errorf("in another's name: %v", err)
	}
}

// Many first calls at the same time evaluate as often as they like, and agree.
func TestFirstCallsTogether(t *testing.T) {
	pools(t, func(t *testing.T, p Pool) {
		f := jsFunction(t, counterJS)
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				for range 5 {
					res, err := p.Run(context.Background(), callOf(f, fmt.Sprint(i)), &fakeHost{})
					if err != nil || string(res.Value) != "[1,1001]" {
						t.Errorf("%+v, %v", res, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// What is dropped while a call uses it lasts as long as the call.
func TestDropDuringCall(t *testing.T) {
	p := newPool(t)
	f := jsFunction(t, `const table = [1, 2, 3]; export default async (input, env) => { await env.X.wait(); return table.length; }`)
	r := callOf(f, "")
	r.Bindings = []Binding{{Name: "X", Methods: []string{"wait"}}}
	for range 2 {
		h := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) {
			p.(*inProcess).engines.kept.close()
			return json.RawMessage("1"), nil
		}}
		if got := value(t, p, r, h); got != "3" {
			t.Errorf("got %s", got)
		}
	}
}

// A worker that was taken over learns no code but that of its own runs, and
// says of a function no more than can be shown.
func TestHostileWorkerAndFunctions(t *testing.T) {
	for _, tc := range []struct {
		mode string
		r    *Request
		ok   bool
	}{
		{"need without a function", hostileRequest(), false},
		{"need twice", callOf(jsFunction(t, trivial), ""), false},
		{"prepared unasked", callOf(jsFunction(t, trivial), ""), false},
		{"not prepared", prepareOf(jsFunction(t, trivial)), false},
		{"prepared", prepareOf(jsFunction(t, trivial)), true},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			p := hostilePool(t, tc.mode)
			res, err := p.Run(context.Background(), tc.r, limitHost())
			var w *WorkerError
			switch {
			case !tc.ok && !errors.As(err, &w):
				t.Errorf("%+v, %v", res, err)
			case tc.ok && (err != nil || len(res.Prepared.Reason) > 2*maxMessage || !utf8.ValidString(res.Prepared.Reason)):
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
}

// The code goes to a worker that asks for it, and not again.
func TestCodeIsSentOnce(t *testing.T) {
	p := newWorkers(t, 1)
	f := jsFunction(t, "// "+strings.Repeat("x", 500_000)+"\nexport default () => 1")
	job := functionJob(&Request{Tenant: f.tenant, Function: f, Language: f.language, Main: f.main, Modules: f.modules})
	b, err := (&frame{kind: frameRun}).encodeWith(job)
	if err != nil || len(b) > 1000 {
		t.Errorf("a job without its code has %d bytes, %v", len(b), err)
	}
	deploy(t, p, f)
	if got := value(t, p, callOf(f, ""), nil); got != "1" {
		t.Errorf("got %s", got)
	}
	// A worker that does not know it any more is sent it again.
	p.workers[0].kill("a test says so", nil)
	waitFor(t, func() bool {
		res, err := p.Run(context.Background(), callOf(f, ""), &fakeHost{})
		return err == nil && string(res.Value) == "1"
	})
}
