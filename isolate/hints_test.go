package isolate

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// A slip is a usual mistake, and what helps against it.
type slip struct {
	src    string
	kind   string
	line   int
	column int
	say    string // in message or hint
	fetch  bool   // it is granted
}

func (s *slip) check(t *testing.T, req *Request, pool Pool) {
	t.Helper()
	req.Bindings = []Binding{{Name: "KV", Methods: []string{"get", "put", "delete", "list"}}, {Name: "search", Methods: []string{"find"}}}
	req.Env, req.Fetch = map[string]string{"REGION": "eu"}, s.fetch
	host := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) { return json.RawMessage(`{"a":1}`), nil }}
	res := run1(t, pool, req, host)
	e := res.Error
	if e == nil {
		t.Errorf("%q gives %s", s.src, res.Value)
		return
	}
	source := strings.Split(req.Modules[req.Main], "\n")[max(s.line, 1)-1]
	if text := e.Message + "\n" + e.Hint; e.Kind != s.kind || !strings.Contains(text, s.say) {
		t.Errorf("%q:\n  got  %s: %s\n  hint %s\n  want %s: %s", s.src, e.Kind, e.Message, e.Hint, s.kind, s.say)
	}
	if e.File != req.Main || e.Line != s.line || e.Column != s.column || e.Source != source {
		t.Errorf("%q: at %s:%d:%d %q, want %d:%d %q", s.src, e.File, e.Line, e.Column, e.Source, s.line, s.column, source)
	}
}

const (
	refusedKind = KindRejected
	threw       = KindThrown
)

func TestHintsInJavaScript(t *testing.T) {
	for _, s := range []slip{
		// No export that can be called.
		{src: "export const x = 1;", kind: refusedKind, line: 1, column: 1, say: "write `export default async function"},
		{src: "\nexports.handler = async () => 1", kind: threw, line: 2, column: 1, say: "ES modules: use export default"},
		{src: "module.exports = { run() {} }", kind: threw, line: 1, column: 1, say: "ES modules: use export default"},
		{src: "// x\nasync function handler(event) { return 1 }", kind: refusedKind, line: 2, column: 1, say: "add `export default handler;`"},
		{src: "const a = 1;\nexport const handler = async (event) => 1", kind: refusedKind, line: 2, column: 1, say: "add `export default handler;`, or write"},
		{src: "export function run() {}", kind: refusedKind, line: 1, column: 1, say: "it exports run"},
		{src: "export default { handler() {} }", kind: refusedKind, line: 1, column: 1, say: "only fetch(request, env, ctx) is called, and it has handler"},
		{src: "\n export default 5", kind: refusedKind, line: 2, column: 2, say: "but one that is a number"},
		{src: "export const a = 1; return 1", kind: refusedKind, line: 1, column: 21, say: "return stands outside of a function"},
		{src: "export const a = 1;\nreturn 2", kind: refusedKind, line: 2, column: 1, say: "export default async function (input, env)"},
		// Names that do not exist.
		{src: "export default () => consol.log(1)", kind: threw, line: 1, column: 22, say: "did you mean console?"},
		{src: "const total = 1;\nexport default () => totl + 1", kind: threw, line: 2, column: 22, say: "did you mean total?"},
		{src: "export default () => structuredClon({})", kind: threw, line: 1, column: 22, say: "did you mean structuredClone?"},
		{src: "export default () => qwertyuiop", kind: threw, line: 1, column: 22, say: "beside the language there are console, fetch"},
		{src: "export default () => process.env.X", kind: threw, line: 1, column: 22, say: "there is no process"},
		{src: "export default () => Buffer.from('a')", kind: threw, line: 1, column: 22, say: "use Uint8Array"},
		{src: "export default () => {\n  const fs = require('fs');\n}", kind: threw, line: 2, column: 14, say: "there is no require"},
		{src: "export default () => new XMLHttpRequest()", kind: threw, line: 1, column: 26, say: "use fetch"},
		{src: "export default () => document.title", kind: threw, line: 1, column: 22, say: "not a browser"},
		{src: "export default () => input.x", kind: threw, line: 1, column: 22, say: "input is the first parameter"},
		{src: "input.a + 1", kind: threw, line: 1, column: 1, say: "the request came without \"input\""},
		{src: "export default () => env.KV.get('a')", kind: threw, line: 1, column: 22, say: "env is the second parameter"},
		{src: "export default () => KV.get('a')", kind: threw, line: 1, column: 22, say: "the binding is env.KV"},
		{src: "export default () => REGION", kind: threw, line: 1, column: 22, say: "the string is env.REGION"},
		{src: "export default () => { let x = y;\n let y = 1 }", kind: threw, line: 1, column: 32, say: "y is used before the line"},
		{src: "export default () => {\n  const a = 1;\n  a = 2 }", kind: threw, line: 3, column: 3, say: "declare it with let"},
		// Modules.
		{src: "import fs from 'fs';\nexport default () => 1", kind: refusedKind, line: 1, column: 16, say: `"needs": ["filesystem"]`},
		{src: "import cp from \"node:child_process\"; export default () => 1", kind: refusedKind, line: 1, column: 16, say: `"needs": ["process"]`},
		{src: "\nimport _ from 'lodash'; export default () => 1", kind: refusedKind, line: 2, column: 15, say: "an isolate has no packages"},
		{src: "import x from './mian.js'; export default () => 1", kind: refusedKind, line: 1, column: 15, say: "did you mean ./main.js?"},
		// Bindings.
		{src: "export default (i, env) => env.DB.query('x')", kind: threw, line: 1, column: 28, say: `env.DB is not granted to this run: what is granted to this run is env.KV, env.search; the request asks for bindings in "bindings"`},
		{src: "export default (i, env) => env.kv.get('x')", kind: threw, line: 1, column: 28, say: "did you mean env.KV?"},
		{src: "export default (i, e) => e.serach.find('x')", kind: threw, line: 1, column: 26, say: "did you mean env.search?"},
		{src: "export default (i, env) =>\n  env.KV.gett('k')", kind: threw, line: 2, column: 3, say: "did you mean env.KV.get?"},
		{src: "export default (i, env) => env.KV('x')", kind: threw, line: 1, column: 31, say: "env.KV has methods: get, put, delete, list"},
		{src: "export default () => fetch('https://x')", kind: threw, line: 1, column: 21, say: `ask for the host in "outbound"`},
		// A forgotten await.
		{src: "export default async (i, env) => env.KV.get('k').length", kind: threw, line: 1, column: 40, say: "write (await env.KV.get(…)).length"},
		{src: "export default async (i, env) => {\n  const v = env.KV.get('k');\n  return v.map(x => x) }", kind: threw, line: 3, column: 10, say: "write (await env.KV.get(…)).map"},
		{src: "export default (i, env) => { for (const x of env.KV.list()) {} }", kind: threw, line: 1, column: 52, say: "env.KV.list(…) gives a promise"},
		{src: "export default (i, env) => `${env.KV.get('k')}`", kind: threw, line: 1, column: 37, say: "write (await env.KV.get(…))"},
		{src: "export default (i, env) => JSON.parse(env.KV.get('k'))", kind: threw, line: 1, column: 45, say: "write (await env.KV.get(…))"},
		{src: "export default async () => { const r = fetch('https://a.test'); return r.json() }", kind: threw, line: 1, column: 72, say: "write (await fetch(…)).json", fetch: true},
		{src: "export default (i, env) => ({ v: env.KV.get('k') })", kind: threw, line: 1, column: 1, say: "result.v is a promise"},
		{src: "export default function () {\n  await 1 }", kind: refusedKind, line: 2, column: 3, say: "write async before that function"},
		{src: "export default () => undefined.then()", kind: threw, line: 1, column: 22, say: "is no promise but undefined"},
		// Values.
		{src: "export default (input) => input.items.map(x => x)", kind: threw, line: 1, column: 27, say: `the request came without "input"`},
		{src: "export default (input, env, ctx) => ctx.waitUntil(1)", kind: threw, line: 1, column: 37, say: "third parameter, ctx"},
		{src: "export default () => { const list = {}; list.push(1) }", kind: threw, line: 1, column: 45, say: "list has no function push"},
		{src: "\nexport default () => ({ f() {} })", kind: threw, line: 2, column: 1, say: "result.f is a function"},
		{src: "async (input, env) => new Map()", kind: threw, line: 1, column: 1, say: "Object.fromEntries"},
		{src: "export default () => { for (const x of {}) {} }", kind: threw, line: 1, column: 15, say: "Object.entries"},
		// Another language.
		{src: "def main(input, env):\n  return 1", kind: refusedKind, line: 1, column: 5, say: `send "language": "python"`},
		{src: "print('x')", kind: threw, line: 1, column: 1, say: "console.log(…) writes a line"},
		{src: "export default (n: number) => n", kind: refusedKind, line: 1, column: 18, say: `send "language": "ts"`},
		{src: "export default () => { return { a: 1 ", kind: refusedKind, line: 1, column: 38, say: "is not closed"},
	} {
		s.check(t, js(s.src), newPool(t))
	}
}

// TestHintsInTypeScript: positions are those of the user's own file.
func TestHintsInTypeScript(t *testing.T) {
	const head = "interface A { n: number }\n\ntype B = { a: A };\n"
	for _, s := range []slip{
		{src: head + "export default (i: B, env: any): unknown => env.DB.query('x')", kind: threw, line: 4, column: 45, say: "env.DB is not granted"},
		{src: head + "export default async (i: B, env: any) => {\n  const v: string = 'x';\n  return consol.log(v);\n}", kind: threw, line: 6, column: 10, say: "did you mean console?"},
		{src: head + "export const handler = (i: B): number => 1;", kind: refusedKind, line: 4, column: 1, say: "add `export default handler;`"},
		{src: head + "export default (i: B) => ({ f() {} });", kind: threw, line: 4, column: 1, say: "result.f is a function"},
		{src: head + "export default function (i: B) {\n  return await 1;\n}", kind: refusedKind, line: 5, column: 10, say: "async"},
		{src: head + "import fs from 'node:fs';\nexport default () => fs.readFileSync('x')", kind: refusedKind, line: 4, column: 16, say: `"needs": ["filesystem"]`},
	} {
		s.check(t, ts(s.src), newPool(t))
	}
}

func TestHintsInPython(t *testing.T) {
	for _, s := range []slip{
		{src: "import json\n\ndef handler(event, context):\n    return 1\n", kind: refusedKind, line: 3, column: 1, say: "handler is there, but nothing calls it"},
		{src: "def run(input):\n    return 1", kind: refusedKind, line: 1, column: 1, say: "def main(input, env)"},
		{src: "class A:\n    pass\n\nasync def process(x):\n    return 1", kind: refusedKind, line: 4, column: 1, say: "process is there"},
		{src: "x = 1\nreturn x", kind: refusedKind, line: 2, column: 1, say: "put the code into def main(input, env)"},
		{src: "def main(input, env):\n    return await env.KV.get('k')", kind: refusedKind, line: 2, column: 12, say: "leave await out"},
		{src: "async def main(input, env):\n    return await env.KV.get('k')", kind: threw, line: 2, column: 12, say: "leave await out"},
		{src: "def main(input, env):\n    return requsts", kind: threw, line: 2, column: 12, say: "name 'requsts' is not defined"},
		{src: "import math\ndef main(input, env):\n    return mth.pi", kind: threw, line: 3, column: 12, say: "Did you mean: 'math'"},
		{src: "def main(input):\n    return env.KV", kind: threw, line: 2, column: 12, say: "env is the second parameter"},
		{src: "def main():\n    return input['x']", kind: threw, line: 2, column: 12, say: "input is the first parameter of main(input, env)"},
		{src: "def main():\n    return input.get('x')", kind: threw, line: 2, column: 12, say: "input is the first parameter of main(input, env)"},
		{src: "def main(input, env):\n    return KV.get('x')", kind: threw, line: 2, column: 12, say: "the binding is env.KV"},
		{src: "def main(input, env):\n    return REGION", kind: threw, line: 2, column: 12, say: "the string is env.REGION"},
		{src: "import requests\n", kind: threw, line: 1, column: 1, say: "use fetch(url"},
		{src: "def main(input, env):\n    import numpy as np\n", kind: threw, line: 2, column: 5, say: `"needs": ["packages"]`},
		{src: "import os\nos.system('ls')", kind: threw, line: 2, column: 1, say: `"needs": ["process"]`},
		{src: "import subprocess\nsubprocess.run(['ls'])", kind: threw, line: 2, column: 1, say: `"needs": ["process"]`},
		{src: "def main(input, env):\n    return open('/etc/x').read()", kind: threw, line: 2, column: 12, say: `"needs": ["filesystem"]`},
		{src: "import socket\nsocket.create_connection(('a.test', 80))", kind: threw, line: 2, column: 1, say: "use fetch(url)"},
		{src: "import urllib.request\nurllib.request.urlopen('https://a.test')", kind: threw, line: 2, column: 1, say: "use fetch(url)"},
		{src: "def main(input, env):\n    return fetch('https://a.test')", kind: threw, line: 2, column: 12, say: `in "outbound"`},
		{src: "def main(input, env):\n    return env.DB.query('x')", kind: threw, line: 2, column: 12, say: `the request asks for bindings in "bindings"`},
		{src: "def main(input, env):\n    return env.kv.get('x')", kind: threw, line: 2, column: 12, say: "Did you mean: 'KV'"},
		{src: "def main(input, env):\n    return env['DB'].query('x')", kind: threw, line: 2, column: 12, say: `the request asks for bindings in "bindings"`},
		{src: "def main(input, env):\n    return env.KV.gett('x')", kind: threw, line: 2, column: 12, say: "Did you mean: 'get'"},
		{src: "def main(input, env):\n    return input['x']", kind: threw, line: 2, column: 12, say: `the request came without "input"`},
		{src: "def main(input, env):\n    return {'a': {1, 2}}", kind: threw, line: 1, column: 1, say: "result.a is a set: only JSON values can leave the isolate; use list"},
		{src: "x = 1\ndef main(input, env):\n    return [float('nan')]", kind: threw, line: 2, column: 1, say: "result[0] is nan"},
		{src: "const x = 1;\n", kind: refusedKind, line: 1, column: 7, say: `send "language": "js"`},
		{src: "export default async (input) => 1", kind: refusedKind, line: 1, column: 8, say: `send "language": "js"`},
		{src: "def main(input, env)\n    return 1", kind: refusedKind, line: 1, column: 21, say: "expected ':'"},
		{src: "console.log(1)", kind: threw, line: 1, column: 1, say: "print(…) writes a line"},
	} {
		s.check(t, python(s.src), newPool(t))
	}
}

// TestNoHintWhereNoneIsNeeded: what a check could take for a mistake and is none.
func TestNoHintWhereNoneIsNeeded(t *testing.T) {
	for _, tt := range []struct{ src, want string }{
		{"def helper(x):\n    return x + 1\n\ndef main():\n    return helper(1)\n", "2"},
		{"def helper(x):\n    print(x)\n\nhelper(1)\n", "null"},
		{"def helper(x):\n    return x\n\nif __name__ == '__main__':\n    helper(1)\n", "null"},
		{"x = 1\n", "null"},
	} {
		if res := run1(t, newPool(t), python(tt.src), nil); res.Error != nil || string(res.Value) != tt.want {
			t.Errorf("%q: got %s %+v", tt.src, res.Value, res.Error)
		}
	}
	for _, tt := range []struct{ src, want string }{
		{"export default async (i, env) => { const p = env.KV.get('a'); return [p instanceof Promise, p.constructor === Promise, typeof p.then, !!p, p === p, await p, await Promise.all([p]), (await p).a] }",
			`[true,true,"function",true,true,{"a":1},[{"a":1}],1]`},
		{"export default async (i, env) => Object.prototype.toString.call(env.KV.get('a'))", `"[object Promise]"`},
		{"export default (i, env) => env.KV.get('a').then(v => v.a).catch(() => 2).finally(() => 3)", "1"},
		{"class P extends Promise {}; export default async (i, env) => P.resolve(env.KV.get('a')).then(v => v.a)", "1"},
	} {
		req := js(tt.src)
		req.Bindings = []Binding{{Name: "KV", Methods: []string{"get"}}}
		host := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) { return json.RawMessage(`{"a":1}`), nil }}
		if res := run1(t, newPool(t), req, host); res.Error != nil || string(res.Value) != tt.want {
			t.Errorf("%q: got %s %+v", tt.src, res.Value, res.Error)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, tt := range []struct{ name, want string }{{"gett", "get"}, {"pt", "put"}, {"GET", "get"}, {"lits", "list"}, {"query", ""}, {"x", ""}, {"", ""}} {
		if got := nearest(tt.name, []string{"get", "put", "delete", "list"}); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if d := distance(strings.Repeat("a", 1000), "b"); d != 64 {
		t.Errorf("long names differ by %d", d)
	}
}
