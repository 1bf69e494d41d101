package isolate

import (
	"strings"
	"testing"
	"time"
)

// endlessWasm is a module whose _start calls itself.
const endlessWasm = "\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x07\x0a\x01\x06_start\x00\x00\x0a\x06\x01\x04\x00\x10\x00\x0b"

// TestStackLimit: calls that nest too deeply end the run by a limit, with a
// place; the code can catch it as the language's own error, and what it throws by
// itself is no limit.
func TestStackLimit(t *testing.T) {
	p := tenantPool(t, 2, time.Minute)
	if err := p.python.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	wasmModule := func(string) *Request {
		r := wasmRequest(t, "null")
		r.Modules["main.wasm"] = endlessWasm
		return r
	}
	for name, c := range map[string]struct {
		req  func(string) *Request
		src  string
		want want
	}{
		"js":               {js, "function f() {\n  return f() + 1\n}\nexport default () => f()", want{kind: KindLimit, file: "main.js", line: 2, column: 10, hint: hintStack}},
		"js, typed":        {ts, "type A = number;\nconst f = (): A =>\n  f() + 1;\nexport default f", want{kind: KindLimit, file: "main.ts", line: 2, column: 11}},
		"js at once":       {js, "const f = () => f() + 1;\nf()", want{kind: KindLimit, file: "main.js", line: 1, column: 16}},
		"js, later":        {js, "const f = () => f() + 1;\nexport default async () => { await null; f() }", want{kind: KindLimit, file: "main.js", line: 1, column: 16}},
		"js in a timer":    {js, "const f = () => f() + 1;\nexport default () => new Promise(() => setTimeout(f, 1))", want{kind: KindLimit, file: "main.js", line: 1, column: 16}},
		"js of built-ins":  {js, "export default () => JSON.parse('['.repeat(1e6))", want{kind: KindLimit, file: "main.js", line: 1, column: 36}},
		"js by a getter":   {js, "export default () => { const o = { get x() { return this.x } }; o.x }", want{kind: KindLimit}},
		"js, caught":       {js, "const f = () => f() + 1;\nexport default () => { try { f() } catch (e) { return e instanceof RangeError } }", want{value: "true"}},
		"js by hand":       {js, "export default () => { throw new RangeError('Maximum call stack size exceeded') }", want{kind: KindThrown, message: "RangeError"}},
		"js, of another":   {js, "export default () => new Array(-1)", want{kind: KindThrown, message: "RangeError"}},
		"python":           {python, "def f(x):\n    return f(x + 1)\nf(0)", want{kind: KindLimit, message: "RecursionError", file: "main.py", line: 2, column: 12, stack: "more times", hint: hintStack}},
		"python in C":      {python, "class A:\n    def __getattr__(self, n):\n        return getattr(self, n + 'x')\nA().y", want{kind: KindLimit, message: "RecursionError", file: "main.py", line: 3, column: 16}},
		"python's library": {python, "import json\ndef main(i, env):\n    return json.loads('[' * 100000)", want{kind: KindLimit, file: "main.py", line: 3, column: 12}},
		"python, again":    {python, "def f(): f()\ndef main(i, env):\n    try:\n        f()\n    except RecursionError:\n        raise", want{kind: KindLimit, file: "main.py", line: 1, column: 10}},
		"python, caught":   {python, "def f(): f()\ndef main(i, env):\n    try:\n        f()\n    except RecursionError:\n        return 1", want{value: "1"}},
		"python by hand":   {python, "def main(i, env):\n    raise RecursionError('maximum recursion depth exceeded')", want{kind: KindThrown, message: "RecursionError"}},
		"wasm":             {wasmModule, "", want{kind: KindLimit, message: "nest too deeply"}},
	} {
		t.Run(name, func(t *testing.T) {
			res := run1(t, p, c.req(c.src), nil)
			check(t, res, &fakeHost{}, c.want)
			if c.want.kind != KindLimit {
				return
			}
			if e := res.Error; res.Status != StatusKilled || e.Limit != "stack" || e.Used == "" || e.Allowed == "" || strings.Contains(e.Message, ": :") {
				t.Errorf("%s: %+v", res.Status, e)
			}
		})
	}
	t.Run("the next run", func(t *testing.T) { // whose VM was at the end of its stack before
		for range 5 {
			run1(t, p, js("const f = () => f() + 1; f()"), nil)
			check(t, run1(t, p, js("throw new RangeError('Maximum call stack size exceeded')"), nil), &fakeHost{}, want{kind: KindThrown})
		}
	})
}
