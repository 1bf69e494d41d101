package isolate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func function(t testing.TB, tenant, language string, modules ...string) *Function {
	t.Helper()
	all := map[string]string{}
	for i := 0; i+1 < len(modules); i += 2 {
		all[modules[i]] = modules[i+1]
	}
	f, err := NewFunction(tenant, language, all, modules[0])
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func jsFunction(t testing.TB, src string) *Function {
	return function(t, "alice", "js", "main.js", src)
}

func pyFunction(t testing.TB, src string) *Function {
	return function(t, "alice", "python", "main.py", src)
}

func callOf(f *Function, input string) *Request {
	return &Request{Tenant: f.tenant, Function: f, Input: json.RawMessage(input), Limits: testLimits}
}

func prepareOf(f *Function) *Request {
	r := callOf(f, "")
	r.Prepare = true
	return r
}

// deploy prepares a function that must be right.
func deploy(t testing.TB, p Pool, f *Function) *Prepared {
	t.Helper()
	res := run1(t, p, prepareOf(f), noHost{})
	if res.Status != StatusOK || res.Prepared == nil {
		t.Fatalf("status %s, %+v", res.Status, res.Error)
	}
	if !res.Prepared.Snapshot {
		f.EvaluateAnew()
	}
	return res.Prepared
}

func value(t testing.TB, p Pool, r *Request, h Host) string {
	t.Helper()
	res := run1(t, p, r, h)
	if res.Status != StatusOK {
		t.Fatalf("status %s, %+v", res.Status, res.Error)
	}
	return string(res.Value)
}

// pools calls f with a pool in this process and one of workers.
func pools(t *testing.T, f func(t *testing.T, p Pool)) {
	t.Run("in process", func(t *testing.T) { f(t, newPool(t)) })
	t.Run("workers", func(t *testing.T) { f(t, newWorkers(t, 2)) })
}

const (
	counterJS = `let n = 0; const table = new Map(); for (let i = 0; i < 1000; i++) table.set('k' + i, i);
export default (input) => { n++; table.set('x' + input, 1); return [n, table.size]; }`
	counterPython = `import json, re
n = 0
table = {f'k{i}': i for i in range(1000)}
def main(input, env):
    global n
    n += 1
    table[f'x{input}'] = 1
    return [n, len(table)]
`
	counterTS = `import { table } from './table.ts';
let n: number = 0;
export default (input: number): number[] => { n++; table.set('x' + input, 1); return [n, table.size]; }`
	tableTS = `export const table = new Map<string, number>(); for (let i = 0; i < 1000; i++) table.set('k' + i, i);`
)

func TestFunctionsShareNothing(t *testing.T) {
	pools(t, func(t *testing.T, p Pool) {
		for _, f := range []*Function{jsFunction(t, counterJS), pyFunction(t, counterPython), function(t, "alice", "ts", "main.ts", counterTS, "table.ts", tableTS)} {
			if s := deploy(t, p, f); !s.Snapshot || s.Bytes == 0 {
				t.Errorf("%s: no snapshot: %+v", f.language, s)
			}
			for i := range 6 {
				if got := value(t, p, callOf(f, fmt.Sprint(i)), nil); got != "[1,1001]" {
					t.Errorf("%s: call %d gives %s", f.language, i, got)
				}
			}
		}
	})
}

// With strict isolation a function is prepared and called in its tenant's own
// worker.
func TestStrictFunctions(t *testing.T) {
	p := newWorkers(t, 1)
	for _, f := range []*Function{jsFunction(t, counterJS), pyFunction(t, counterPython), function(t, "alice", "ts", "main.ts", counterTS, "table.ts", tableTS)} {
		r := prepareOf(f)
		r.Strict, r.Limits.Wall = true, 30*time.Second
		if res := run1(t, p, r, nil); res.Status != StatusOK || !res.Prepared.Snapshot {
			t.Errorf("%s: %+v, %+v", f.language, res.Prepared, res.Error)
		}
		for range 2 {
			r := callOf(f, "5")
			r.Strict = true
			if got := value(t, p, r, nil); got != "[1,1001]" {
				t.Errorf("%s: %s", f.language, got)
			}
		}
	}
	if n := p.Stats().TenantWorkers; n == 0 {
		t.Error("no worker of the tenant's own was started")
	}
}

// What a module does at its top level decides whether it is kept, and never
// what a call sees.
func TestImpureModules(t *testing.T) {
	for _, tc := range []struct{ name, language, src, why, want string }{
		{"pure", "js", `const a = JSON.parse('{"b":[1,2]}'); export default () => a.b.length`, "", "2"},
		{"clock", "js", `const t = Date.now(); export default () => Date.now() - t < 60e3`, whyClock, "true"},
		{"date", "js", `const t = new Date(); export default () => Date.now() - t < 60e3`, whyClock, "true"},
		{"performance", "js", `const t = performance.now(); export default () => typeof t`, whyClock, `"number"`},
		{"random", "js", `const t = Math.random(); export default () => t >= 0`, whyRandom, "true"},
		{"crypto", "js", `const t = crypto.randomUUID(); export default () => t.length`, whyRandom, "36"},
		{"timer", "js", `let n = 0; setTimeout(() => n++, 0); export default async () => { await new Promise((r) => setTimeout(r, 5)); return n; }`, whyTimers, "1"},
		{"await a timer", "js", `await new Promise((r) => setTimeout(r, 5)); export default () => 1`, whyTimers, "1"},
		{"await", "js", `const x = await Promise.resolve(7); export default () => x`, "", "7"},
		{"print", "js", `console.log('top'); export default () => 1`, whyPrints, "1"},
		{"fetch", "js", `let e; try { await fetch('http://x.example/'); } catch (x) { e = x; } export default () => typeof e`, "", `"object"`},
		{"jobs", "js", `let n = 0; (async () => { for (let i = 0; i < 50; i++) { await null; n = i; } })(); export default async () => { for (let i = 0; i < 60; i++) await null; return n; }`, whyJobs, "49"},
		{"rejection", "js", `Promise.reject(new Error('x')); export default () => 1`, whyRejects, "1"},
		{"pending", "js", `globalThis.p = new Promise(() => {}); export default () => typeof p`, "", `"object"`},
		{"encoding", "js", `const b = new TextEncoder().encode('äö'); export default () => new TextDecoder().decode(b)`, "", `"äö"`},
		{"large", "js", `const a = []; for (let i = 0; i < 20; i++) a.push(new Uint8Array(1 << 20).fill(i + 1)); export default () => a.length`, whyLarge, "20"},
		{"worker style", "js", `export default { fetch() { return new Response('hi'); } }`, "", `{"status":200,"headers":[["content-type","text/plain;charset=UTF-8"]],"body":"hi"}`},
		{"arrow", "js", `async (input) => 3`, "", "3"},

		{"pure", "python", "import json, collections, re\nA = json.loads('[1, 2]')\ndef main(input, env):\n    return len(A)\n", "", "2"},
		{"class", "python", "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int = 1\ndef main(input, env):\n    return P().x\n", "", "1"},
		{"clock", "python", "import time\nT = time.time()\ndef main(input, env):\n    return time.time() - T < 60\n", whyClock, "true"},
		{"datetime", "python", "import datetime\nT = datetime.datetime.now()\ndef main(input, env):\n    return T.year > 2000\n", whyClock, "true"},
		{"random", "python", "import random\nR = random.random()\ndef main(input, env):\n    return R >= 0\n", whyRandom, "true"},
		{"import random", "python", "import random\ndef main(input, env):\n    return random.random() >= 0\n", "", "true"},
		{"urandom", "python", "import os\nR = os.urandom(4)\ndef main(input, env):\n    return len(R)\n", whyRandom, "4"},
		{"uuid", "python", "import uuid\nR = uuid.uuid4()\ndef main(input, env):\n    return len(str(R))\n", whyRandom, "36"},
		{"print", "python", "print('top')\ndef main(input, env):\n    return 1\n", whyPrints, "1"},
		{"environment", "python", "import os\nX = os.environ.get('X', 'none')\ndef main(input, env):\n    return X\n", "its top level reads the environment", `"set"`},
		{"input", "python", "import sys\nX = sys.stdin.read()\ndef main(input, env):\n    return X\n", "its top level reads its input", `"5"`},
		{"sleep", "python", "import time\ntime.sleep(0.001)\ndef main(input, env):\n    return 1\n", whyClock, "1"},
		{"files", "python", "with open('/tmp/x', 'w') as f:\n    f.write('x')\ndef main(input, env):\n    return open('/tmp/x').read()\n", "*", `"x"`},
		{"script", "python", "x = 1\ndef main():\n    return x\n", "it is a script, all of which is run in each call", "1"},
		{"large", "python", "A = [bytes([i]) * (1 << 20) for i in range(20)]\ndef main(input, env):\n    return len(A)\n", whyLarge, "20"},
	} {
		t.Run(tc.language+" "+tc.name, func(t *testing.T) {
			p := newPool(t)
			name := "main.js"
			if tc.language == languagePython {
				name = "main.py"
			}
			f := function(t, "alice", tc.language, name, tc.src)
			s := deploy(t, p, f)
			if s.Snapshot != (tc.why == "") || tc.why != "*" && s.Reason != tc.why {
				t.Errorf("snapshot %v, %q; want %q", s.Snapshot, s.Reason, tc.why)
			}
			for range 2 {
				r := callOf(f, "5")
				r.Env = map[string]string{"X": "set"}
				if got := value(t, p, r, nil); got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
			}
		})
	}
}

// Randomness and clocks are each call's own, snapshot or not.
func TestFunctionsDrawAnew(t *testing.T) {
	for _, f := range []*Function{
		jsFunction(t, `const table = [1, 2]; export default () => [Math.random(), crypto.randomUUID(), Date.now()]`),
		jsFunction(t, `const r = Math.random(); export default () => [r, crypto.randomUUID(), Date.now()]`),
		pyFunction(t, "import random, uuid, time\ndef main(input, env):\n    return [random.random(), str(uuid.uuid4()), time.time_ns() // 1000]\n"),
		pyFunction(t, "def main(input, env):\n    import random, uuid, time\n    return [random.random(), str(uuid.uuid4()), time.time_ns() // 1000]\n"),
		pyFunction(t, "import random\nr = random.random()\ndef main(input, env):\n    import uuid, time\n    return [r, str(uuid.uuid4()), time.time_ns() // 1000]\n"),
	} {
		p := newPool(t)
		deploy(t, p, f)
		seen := map[string]bool{}
		for range 3 {
			var out []json.RawMessage
			if err := json.Unmarshal([]byte(value(t, p, callOf(f, ""), nil)), &out); err != nil {
				t.Fatal(err)
			}
			for _, x := range out[:2] {
				if seen[string(x)] {
					t.Errorf("%s: %s a second time", f.language, x)
				}
				seen[string(x)] = true
			}
		}
	}
}

// A function gives what a run of the same code gives: result, logs and usage of
// calls.
func TestFunctionIsAsARun(t *testing.T) {
	host := func() *fakeHost {
		return &fakeHost{call: func(_ context.Context, c Call) (json.RawMessage, error) {
			return json.RawMessage(`{"rows":[{"n":1}],"of":` + string(c.Args) + `}`), nil
		}}
	}
	for _, f := range []*Function{
		jsFunction(t, `const k = [1]; export default async (input, env) => { console.log('in', input, env.NAME); env.LOG.info('x', {a: 1}); const r = await env.DB.query('q', k); return { r, input, keys: Object.keys(env) }; }`),
		pyFunction(t, "import json\nK = [1]\ndef main(input, env):\n    print('in', input, env.NAME)\n    env.LOG.info('x', {'a': 1})\n    return {'r': env.DB.query('q', K), 'input': input, 'keys': list(env)}\n"),
	} {
		p := newPool(t)
		if s := deploy(t, p, f); !s.Snapshot {
			t.Errorf("%s: %+v", f.language, s)
		}
		bind := func(r *Request) *Request {
			r.Env = map[string]string{"NAME": "value"}
			r.Bindings = []Binding{{Name: "DB", Methods: []string{"query"}}, {Name: logBinding, Methods: []string{"info"}}}
			return r
		}
		plain := &Request{Tenant: "alice", Language: f.language, Main: f.main, Modules: f.modules, Input: json.RawMessage(`{"i":1}`), Limits: testLimits}
		wantHost, gotHost := host(), host()
		want := run1(t, p, bind(plain), wantHost)
		got := run1(t, p, bind(callOf(f, `{"i":1}`)), gotHost)
		if want.Status != StatusOK || string(got.Value) != string(want.Value) || gotHost.text() != wantHost.text() {
			t.Errorf("%s:\ngot  %s %+v\n%s\nwant %s %+v\n%s", f.language, got.Value, got.Error, gotHost.text(), want.Value, want.Error, wantHost.text())
		}
		if got.Usage.Calls != want.Usage.Calls || got.Usage.Output != want.Usage.Output || got.Phase != want.Phase {
			t.Errorf("%s: usage %+v, %+v", f.language, got.Usage, want.Usage)
		}
	}
}

// Errors of a function that is called from its snapshot stand where the user
// wrote them.
func TestFunctionErrors(t *testing.T) {
	pools(t, func(t *testing.T, p Pool) {
		for _, f := range []*Function{
			jsFunction(t, "const x = 1;\n\nexport default (input) => {\n  throw new TypeError('bad ' + input);\n}"),
			function(t, "alice", "ts", "main.ts", "interface A { a: number }\n\nexport default (input: A): number => {\n  throw new TypeError('bad ' + input);\n}"),
			pyFunction(t, "X = 1\n\ndef main(input, env):\n    raise TypeError(f'bad {input}')\n"),
		} {
			if s := deploy(t, p, f); !s.Snapshot {
				t.Errorf("%s: %+v", f.language, s)
			}
			for range 2 {
				res := run1(t, p, callOf(f, "1"), nil)
				if e := res.Error; e == nil || e.Kind != KindThrown || e.File != f.main || e.Line != 4 || !strings.Contains(e.Message, "bad 1") {
					t.Errorf("%s: %+v", f.language, e)
				}
			}
		}
	})
}

func TestDeployRefuses(t *testing.T) {
	p := newWorkers(t, 1)
	for _, tc := range []struct {
		name string
		f    *Function
		kind string
		line int
	}{
		{"js syntax", jsFunction(t, "const a = 1;\nexport default () => { const = 1; }"), KindRejected, 2},
		{"ts syntax", function(t, "alice", "ts", "main.ts", "const a: number = 1;\nexport default () => { const : = 1; }"), KindRejected, 2},
		{"python syntax", pyFunction(t, "a = 1\ndef main(input, env):\n    return (\n"), KindRejected, 3},
		{"no export", jsFunction(t, "export const a = 1;"), KindRejected, 0},
		{"export is a number", jsFunction(t, "export default 1;"), KindRejected, 0},
		{"no such module", jsFunction(t, "import './x.js';\nexport default () => 1"), KindRejected, 1},
		{"throws", jsFunction(t, "export default () => 1;\nnull.x;"), KindThrown, 2},
		{"python raises", pyFunction(t, "def main(input, env):\n    return 1\nx = 1 / 0\n"), KindThrown, 3},
		{"waits for ever", jsFunction(t, "await new Promise(() => {}); export default () => 1"), KindThrown, 0},
		{"loops", jsFunction(t, "for (;;); export default () => 1"), KindLimit, 0},
		{"python loops", pyFunction(t, "while True: pass\ndef main(input, env): return 1\n"), KindLimit, 0},
		{"memory", jsFunction(t, "const a = []; for (;;) a.push(new Uint8Array(1 << 20).fill(1)); export default () => 1"), KindLimit, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := prepareOf(tc.f)
			r.Limits.CPU = 300 * time.Millisecond
			res := run1(t, p, r, nil)
			if e := res.Error; e == nil || e.Kind != tc.kind || tc.line > 0 && e.Line != tc.line || res.Prepared != nil {
				t.Errorf("%s: %+v, %+v", res.Status, res.Error, res.Prepared)
			}
			// What was killed or refused is not kept for calls.
			r.Prepare = false
			if res := run1(t, p, r, nil); res.Status == StatusOK {
				t.Errorf("it runs: %s", res.Value)
			}
		})
	}
}
