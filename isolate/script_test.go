package isolate

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// TestScripts: code without a default export runs as it stands.
func TestScripts(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		lang, src, log string
		want
	}{
		"prints":         {"js", "console.log('hello');\nconst x = await Promise.resolve(2);\nconsole.log(x)", "info: hello\ninfo: 2\n", want{value: "null", phase: PhaseFinished}},
		"returns":        {"js", "const rows = await env.X.echo(1);\nreturn { rows, input }", "", want{value: `{"rows":[1],"input":"in"}`}},
		"own input":      {"js", "const input = 1, env = 2; return input + env", "", want{value: "3"}},
		"typescript":     {"ts", "interface A { a: number }\nconst a: A = { a: 1 };\nconsole.log(a.a)", "info: 1\n", want{value: "null"}},
		"fenced":         {"js", "```js\nconsole.log(1)\n```", "info: 1\n", want{value: "null"}},
		"calls its own":  {"js", "async function main2() { console.log(1) }\nawait main2()", "info: 1\n", want{value: "null"}},
		"says nothing":   {"js", "if (1 !== 1) throw new Error('x')", "", want{value: "null"}},
		"imports":        {"js", "import { a } from './a.js';\nconsole.log(a)", "info: 3\n", want{value: "null"}},
		"throws":         {"js", "const a = 1; throw new TypeError('x')", "", want{kind: KindThrown, message: "TypeError: x", file: "main.js", line: 1, column: 24}},
		"second line":    {"js", "console.log(1)\n nope()", "info: 1\n", want{kind: KindThrown, message: "nope is not defined", hint: "ReadableStream", file: "main.js", line: 2, column: 2}},
		"syntax":         {"js", "const a = ;", "", want{kind: KindRejected, message: "SyntaxError", file: "main.js", line: 1, column: 11}},
		"no end":         {"js", "if (1) {\n  console.log(1)", "", want{kind: KindRejected, message: "SyntaxError", file: "main.js", line: 2, column: 17}},
		"too many ends":  {"js", "console.log(1)\n}}", "", want{kind: KindRejected, message: "SyntaxError", file: "main.js"}},
		"forgotten":      {"js", "async function handler(input, env) { return 1 }\nconst other = (a) => a;", "", want{kind: KindRejected, message: "no default export that is a function, and as a script it printed and returned nothing", hint: "handler is there"}},
		"only imports":   {"js", "import { a } from './a.js';", "", want{kind: KindRejected, message: "no default export"}},
		"other exports":  {"js", "export function run() { console.log(1) }", "", want{kind: KindRejected, hint: "it exports run"}},
		"env of module":  {"js", "export const x = env.X", "", want{kind: KindThrown, hint: "env is the second parameter"}},
		"common js":      {"js", "module.exports = () => 1", "", want{kind: KindThrown, hint: "export default"}},
		"host error":     {"js", "await env.X.fail()", "", want{kind: KindBinding, message: "no such thing", file: "main.js", line: 1}},
		"self":           {"js", "return [self === globalThis, typeof window]", "", want{value: `[true,"undefined"]`}},
		"a comment only": {"js", "// nothing", "", want{kind: KindRejected, message: "no default export"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := js(c.src)
			if c.lang == "ts" {
				r = ts(c.src)
			}
			r.Modules["a.js"] = "export const a = 3;"
			r.Input = json.RawMessage(`"in"`)
			r.Bindings = []Binding{{Name: "X", Methods: []string{"echo", "fail"}}}
			h := &fakeHost{call: func(_ context.Context, call Call) (json.RawMessage, error) {
				if call.Method == "fail" {
					return nil, &Error{Message: "no such thing"}
				}
				return call.Args, nil
			}}
			res := run1(t, p, r, h)
			if res.Error != nil {
				if c.line == 0 {
					c.line = res.Error.Line
				}
				if c.column == 0 {
					c.column = res.Error.Column
				}
				if c.file == "" {
					c.file = res.Error.File
				}
			}
			check(t, res, h, c.want)
			if got := h.text(); !strings.HasPrefix(got, c.log) {
				t.Errorf("log %q, want %q", got, c.log)
			}
		})
	}
}
