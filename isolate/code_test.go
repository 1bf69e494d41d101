package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// want is what a test expects of a Result; empty fields are not compared, and
// texts need only be contained.
type want struct {
	value, kind, message, file, hint, stack, logs string
	line, column                                  int
	phase                                         string
}

func check(t *testing.T, res *Result, h *fakeHost, w want) {
	t.Helper()
	e := res.Error
	if e == nil {
		e = &Error{}
	}
	if w.kind == "" && res.Status != StatusOK || w.kind != e.Kind {
		t.Fatalf("status %s, error %+v; want kind %q", res.Status, res.Error, w.kind)
	}
	if w.value != "" && string(res.Value) != w.value {
		t.Errorf("value %s, want %s", res.Value, w.value)
	}
	for _, c := range []struct{ what, got, want string }{
		{"message", e.Message, w.message}, {"hint", e.Hint, w.hint}, {"stack", e.Stack, w.stack}, {"logs", h.text(), w.logs},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("%s %q, want in it %q", c.what, c.got, c.want)
		}
	}
	if w.file != "" && e.File != w.file {
		t.Errorf("file %q, want %q", e.File, w.file)
	}
	if w.line != 0 && (e.Line != w.line || e.Column != w.column) {
		t.Errorf("position %d:%d, want %d:%d", e.Line, e.Column, w.line, w.column)
	}
	if w.phase != "" && res.Phase != w.phase {
		t.Errorf("phase %q, want %q", res.Phase, w.phase)
	}
}

func TestShapes(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		lang, src string
		want
	}{
		"module":          {"js", `export default async function (input, env) { return input.a + 1 }`, want{value: "42", phase: PhaseFinished}},
		"not async":       {"js", `export default (input) => input.a`, want{value: "41"}},
		"top-level await": {"js", `const x = await Promise.resolve(7); export default () => x`, want{value: "7"}},
		"arrow":           {"js", `async () => { return 1 }`, want{value: "1"}},
		"arrow and semi":  {"js", "  // a tool\nasync (input) => input.a * 2;\n", want{value: "82"}},
		"bare parameter":  {"js", `input => input.a`, want{value: "41"}},
		"function":        {"js", `async function (input) { return input.a }`, want{value: "41"}},
		"called arrow":    {"js", `(async () => { return 5 })()`, want{value: "5"}},
		"main":            {"js", "const k = 2;\nfunction main(input) { return input.a * k }", want{value: "82"}},
		"fence":           {"js", "```js\nexport default () => 3\n```\n", want{value: "3"}},
		"fence around ts": {"ts", "```ts\n\nconst a: number = 4\nexport default () => a\n```", want{value: "4"}},
		"worker style":    {"js", `export default { async fetch(request, env, ctx) { return Response.json({m: request.method, b: await request.text()}, {status: 201}) } }`, want{value: `{"status":201,"headers":[["content-type","application/json"]],"body":"{\"m\":\"POST\",\"b\":\"x\"}"}`}},
		"ts":              {"ts", "interface A { a: number }\nenum E { X = 5 }\nexport default async function (input: A): Promise<number> { return input.a + E.X as number }", want{value: "46"}},
		"ts arrow":        {"ts", `async (input: {a: number}): Promise<number> => input.a!`, want{value: "41"}},
		"ts main":         {"ts", `async function main(input: any): Promise<number> { return input.a }`, want{value: "41"}},
		"nothing":         {"js", `export default () => {}`, want{value: "null"}},
		"no export":       {"js", `export const x = 1; export function run() {}`, want{kind: KindRejected, message: "no default export", hint: "it exports run, x"}},
		"empty":           {"js", ``, want{kind: KindRejected, message: "no default export"}},
		"number":          {"js", `export default 3`, want{kind: KindRejected, message: "no default export"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := js(c.src)
			if c.lang == "ts" {
				r = ts(c.src)
			}
			r.Input = json.RawMessage(`{"a":41}`)
			if name == "worker style" {
				r.Input = json.RawMessage(`{"method":"post","body":"x"}`)
			}
			h := &fakeHost{}
			check(t, run1(t, p, r, h), h, c.want)
		})
	}
}

func TestModules(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		modules map[string]string
		main    string
		want
	}{
		"relative":     {map[string]string{"a/main.js": `import {x} from "../b/x.js"; import y from "./y"; export default () => x + y`, "b/x.js": `export const x = 1`, "a/y.js": `export default 2`}, "a/main.js", want{value: "3"}},
		"typescript":   {map[string]string{"main.ts": `import {f} from "./lib/util"; import g from "./lib/other.js"; export default (): number => f(1) + g`, "lib/util.ts": `import type {N} from "./types"; export const f = (n: number): number => n + 1`, "lib/other.ts": `export default 10 as number`}, "main.ts", want{value: "12"}},
		"json":         {map[string]string{"main.js": `import d from "./d.json"; export default () => d.k`, "d.json": `{"k": [1]}`}, "main.js", want{value: "[1]"}},
		"bad json":     {map[string]string{"main.js": `import d from "./d.json"; export default () => d.k`, "d.json": `{k}`}, "main.js", want{kind: KindRejected, message: "d.json is not JSON", file: "d.json"}},
		"bare name":    {map[string]string{"main.js": `import {x} from "lib"; export default () => x`, "lib.js": `export const x = 1`}, "main.js", want{value: "1"}},
		"index":        {map[string]string{"main.js": `import {x} from "./lib"; export default () => x`, "lib/index.js": `export const x = 1`}, "main.js", want{value: "1"}},
		"cycle":        {map[string]string{"main.js": `import {f} from "./b.js"; export const k = 5; export default () => f()`, "b.js": `import {k} from "./main.js"; export const f = () => k`}, "main.js", want{value: "5"}},
		"dynamic":      {map[string]string{"main.js": `export default async () => (await import("./b.js")).default`, "b.js": `export default 9`}, "main.js", want{value: "9"}},
		"missing":      {map[string]string{"main.js": "\n  import x from './nope.js'; export default () => x"}, "main.js", want{kind: KindRejected, message: `cannot find module "./nope.js"`, file: "main.js", line: 2, column: 17, hint: "main.js", phase: PhaseNotStarted}},
		"package":      {map[string]string{"main.js": `import _ from "lodash"; export default () => 1`}, "main.js", want{kind: KindRejected, message: `"lodash"`, hint: "jail"}},
		"no such name": {map[string]string{"main.js": `import {y} from "./b.js"; export default () => y`, "b.js": `export const x = 1`}, "main.js", want{kind: KindRejected, message: "y"}},
		"outside":      {map[string]string{"main.js": `import x from "../../etc/passwd"; export default () => x`}, "main.js", want{kind: KindRejected, message: "cannot find module"}},
		"in b":         {map[string]string{"main.ts": `import "./b"; export default () => 1`, "b.ts": "let a = 1;\nlet b: = 2;"}, "main.ts", want{kind: KindRejected, message: "SyntaxError", file: "b.ts", line: 2, column: 8, phase: PhaseNotStarted}},
	} {
		t.Run(name, func(t *testing.T) {
			r := js("")
			r.Modules, r.Main = c.modules, c.main
			h := &fakeHost{}
			check(t, run1(t, p, r, h), h, c.want)
		})
	}
}

func TestErrors(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		lang, src string
		want
	}{
		"throw":             {"js", "export default function () {\n  throw new TypeError('x')\n}", want{kind: KindThrown, message: "TypeError: x", file: "main.js", line: 2, column: 13, phase: PhaseFinished}},
		"throw in ts":       {"ts", "type A = { a: string }\n\ninterface B extends A {}\nfunction f(b: B): never {\n  throw new Error('in ' + b.a)\n}\nexport default (input: B) => f({ a: 'f' })", want{kind: KindThrown, message: "Error: in f", file: "main.ts", line: 5, column: 27, stack: "main.ts:7:"}},
		"throw at the top":  {"js", "const a = 1;\nnull.x;\nexport default () => 1", want{kind: KindThrown, message: "cannot read property 'x' of null", file: "main.js", line: 2, column: 1}},
		"first line shift":  {"js", "() => { throw new Error('e') }", want{kind: KindThrown, file: "main.js", line: 1, column: 19}},
		"later throw":       {"js", "export default async () => {\n  await null;\n  undefinedName;\n}", want{kind: KindThrown, message: "ReferenceError", line: 3, column: 3, file: "main.js", hint: "console"}},
		"a string":          {"js", "export default () => { throw 'text' }", want{kind: KindThrown, message: "the code threw text"}},
		"an object":         {"js", "export default () => { throw {code: 5} }", want{kind: KindThrown, message: "the code threw { code: 5 }"}},
		"null":              {"js", "export default () => { throw null }", want{kind: KindThrown, message: "the code threw null"}},
		"cause":             {"js", "export default () => { throw new Error('a', {cause: new Error('b')}) }", want{kind: KindThrown, message: "Error: b"}},
		"nasty error":       {"js", "export default () => { throw { get message() { throw 1 } } }", want{kind: KindThrown, message: "cannot be shown"}},
		"syntax js":         {"js", "let a = 1;\n  let = ;\nexport default () => a", want{kind: KindRejected, message: "SyntaxError", file: "main.js", line: 2, column: 7, phase: PhaseNotStarted}},
		"syntax ts":         {"ts", "let a: number = 1;\nlet b: string == 2;\nexport default () => a", want{kind: KindRejected, message: "SyntaxError", file: "main.ts", line: 2, column: 15}},
		"syntax shifted":    {"js", "() => { let = ; }", want{kind: KindRejected, file: "main.js", line: 1, column: 13}},
		"require":           {"js", "const fs = require('fs'); export default () => 1", want{kind: KindThrown, hint: "use import"}},
		"process":           {"js", "export default () => process.env", want{kind: KindThrown, hint: "there is no process"}},
		"fetch not granted": {"js", "export default async () => { await fetch('https://example.com') }", want{kind: KindThrown, message: "fetch is not granted", hint: ""}},
		"binding unknown":   {"js", "export default async (i, env) => env.KV.get('x')", want{kind: KindThrown, hint: "what is granted to this run is env.DB"}},
		"method unknown":    {"js", "export default async (i, env) => env.DB.exec('x')", want{kind: KindThrown, message: "env.DB has no method exec; it has query"}},
		"binding by name":   {"js", "export default async (i, env) => DB.query('x')", want{kind: KindThrown, hint: "env.DB"}},
		"binding fails":     {"js", "export default async (i, env) => {\n  return await env.DB.query('bad')\n}", want{kind: KindBinding, message: "no such table", file: "main.js", line: 2, column: 23, phase: PhaseFinished}},
		"caught":            {"js", "export default async (i, env) => { try { await env.DB.query('bad') } catch (e) { return [e.name, e.message, e.binding] } }", want{value: `["BindingError","no such table","DB"]`}},
		"never settles":     {"js", "export default () => new Promise(() => {})", want{kind: KindThrown, message: "nothing will settle"}},
		"deep js":           {"js", "export default () => " + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000), want{kind: KindRejected, message: "stack"}},
		"unhandled":         {"js", "export default async () => { Promise.reject(new Error('lost')); await null; return 1 }", want{value: "1", logs: "error: unhandled promise rejection: Error: lost"}},
		"handled late":      {"js", "export default async () => { const p = Promise.reject(new Error('lost')); await null; await null; p.catch(() => {}); return 1 }", want{value: "1"}},
		"error in timer":    {"js", "export default () => new Promise((r) => { setTimeout(() => { throw new Error('in timer') }, 1); setTimeout(r, 50) })", want{kind: KindThrown, message: "in timer"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := js(c.src)
			if c.lang == "ts" {
				r = ts(c.src)
			}
			r.Bindings = []Binding{{Name: "DB", Methods: []string{"query"}}}
			h := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) { return nil, errors.New("no such table") }}
			check(t, run1(t, p, r, h), h, c.want)
			if name == "handled late" && strings.Contains(h.text(), "unhandled") {
				t.Errorf("reported: %s", h.text())
			}
		})
	}
}

func TestResults(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		expr string
		want
	}{
		"scalars":       {`[1, -0, 1.5, "ä\ud83d\ude00", true, null, undefined]`, want{value: "[1,0,1.5,\"ä😀\",true,null,null]"}},
		"nan":           {`({a: [0 / 0]})`, want{kind: KindThrown, message: "result.a[0] is NaN: only JSON"}},
		"infinity":      {`-1 / 0`, want{kind: KindThrown, message: "result is -Infinity"}},
		"nested":        {`({a: {b: [{c: 1}]}, u: undefined})`, want{value: `{"a":{"b":[{"c":1}]}}`}},
		"date":          {`({d: new Date(0)})`, want{value: `{"d":"1970-01-01T00:00:00.000Z"}`}},
		"error":         {`[new RangeError("r")]`, want{value: `[{"name":"RangeError","message":"r"}]`}},
		"lone half":     {`"\ud800"`, want{value: `"\ud800"`}},
		"class":         {`new (class A { x = 1; #y = 2; get z() { return 3 } })()`, want{value: `{"x":1}`}},
		"proto key":     {`JSON.parse('{"__proto__": 1}')`, want{value: `{"__proto__":1}`}},
		"same twice":    {`(() => { const a = [1]; return [a, a] })()`, want{value: `[[1],[1]]`}},
		"function":      {`({items: [1, {go() {}}]})`, want{kind: KindThrown, message: "result.items[1].go is a function"}},
		"odd key":       {`({"a-b": {"": Symbol()}})`, want{kind: KindThrown, message: `result["a-b"][""] is a symbol`}},
		"bigint":        {`({n: 1n})`, want{kind: KindThrown, message: "result.n is a BigInt", hint: ""}},
		"cycle":         {`(() => { const a = {b: {}}; a.b.c = a; return a })()`, want{kind: KindThrown, message: "result.b.c is one of the objects that hold it"}},
		"promise":       {`({list: [Promise.resolve(1)]})`, want{kind: KindThrown, message: "result.list[0] is a promise", hint: ""}},
		"map":           {`({m: new Map()})`, want{kind: KindThrown, message: "result.m is a Map"}},
		"bytes":         {`({b: new Uint8Array(2)})`, want{value: `{"b":{"$bytes":"AAA="}}`}},
		"floats":        {`({b: new Float64Array(2)})`, want{kind: KindThrown, message: "result.b is a Float64Array"}},
		"set":           {`new Set()`, want{kind: KindThrown, message: "result is a Set: only JSON values can leave the isolate; use Array.from"}},
		"regexp":        {`[/x/]`, want{kind: KindThrown, message: "result[0] is a RegExp"}},
		"response":      {`({r: new Response("x")})`, want{kind: KindThrown, message: "result.r is a Response: only JSON values can leave the isolate; await its text()"}},
		"headers":       {`new Headers()`, want{kind: KindThrown, message: "result is a Headers"}},
		"deep":          {`(() => { let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return a })()`, want{kind: KindThrown, message: "nested too deeply"}},
		"patched JSON":  {`(() => { JSON.stringify = () => "evil"; return {a: 1} })()`, want{value: `{"a":1}`}},
		"patched proto": {`(() => { Array.prototype.push = Object.keys = () => { throw 1 }; Promise.prototype.then = null; return {a: [1]} })()`, want{value: `{"a":[1]}`}},
	} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHost{}
			check(t, run1(t, p, js("export default () => "+c.expr), h), h, c.want)
		})
	}
}

func TestURL(t *testing.T) {
	p := newPool(t)
	for _, c := range []struct{ expr, value string }{
		{`new URL("HTTPS://User:p%20w@Example.COM:443/a/./b/../c%20d?q=1&q=2#f").href`, `"https://User:p%20w@example.com/a/c%20d?q=1&q=2#f"`},
		{`(({protocol, host, hostname, port, pathname, search, hash, origin}) => [protocol, host, hostname, port, pathname, search, hash, origin])(new URL("http://h:8080/p?x#y"))`, `["http:","h:8080","h","8080","/p","?x","#y","http://h:8080"]`},
		{`["d", "/d", "../d", "?q", "#h", "//o/d", "", "./", "..", "http:e"].map((s) => new URL(s, "http://h/a/b/c?x#y").href)`, `["http://h/a/b/d","http://h/d","http://h/a/d","http://h/a/b/c?q","http://h/a/b/c?x#h","http://o/d","http://h/a/b/c?x","http://h/a/b/","http://h/a/","http://h/a/b/e"]`},
		{`new URL("https://h").href`, `"https://h/"`},
		{`new URL("https:\\\\h\\a").href`, `"https://h/a"`},
		{`new URL("http://h/ä b\"?ü='#ö").href`, `"http://h/%C3%A4%20b%22?%C3%BC=%27#%C3%B6"`},
		{`new URL("mailto:a@b").pathname`, `"a@b"`},
		{`new URL("data:text/plain,hi").protocol`, `"data:"`},
		{`new URL("file:///a/b").href`, `"file:///a/b"`},
		{`new URL("http://[::1]:80/").host`, `"[::1]"`},
		{`["", "h", "/a", "http://", "http://a b/", "http://h:99999/", "http://h:x/", "http://%2f/", "http://a@/", "//h"].map((s) => URL.canParse(s))`, `[false,false,false,false,false,false,false,false,false,false]`},
		{`(() => { const u = new URL("http://h/a?x=1"); u.searchParams.append("y", "a b&c=ä"); u.searchParams.set("x", "2"); u.pathname = "/p q"; u.hash = "z"; u.port = "81"; u.protocol = "https"; return [u.href, u.searchParams.get("y")] })()`, `["https://h:81/p%20q?x=2&y=a+b%26c%3D%C3%A4#z","a b&c=ä"]`},
		{`(() => { const u = new URL("http://h/?a=1"); const p = u.searchParams; u.search = "?b=2"; return [p.get("a"), p.get("b"), JSON.stringify({u})] })()`, `[null,"2","{\"u\":\"http://h/?b=2\"}"]`},
		{`Array.from(new URLSearchParams("?a=1&b=%20+%zz&a=&=x&c"))`, `[["a","1"],["b","  %zz"],["a",""],["","x"],["c",""]]`},
		{`String(new URLSearchParams({a: "1 2", "ä": "*-._~!"}))`, `"a=1+2&%C3%A4=*-._%7E%21"`},
		{`(() => { const p = new URLSearchParams([["b", "1"], ["a", "2"], ["b", "3"]]); p.sort(); p.delete("b", "1"); return [String(p), p.has("a"), p.has("a", "3"), p.getAll("b"), p.size] })()`, `["a=2&b=3",true,false,["3"],2]`},
		{`new Request(new URL("http://h/x"), {method: "POST", body: new URLSearchParams({a: 1})}).text()`, `"a=1"`},
	} {
		check(t, run1(t, p, js("export default () => "+c.expr), nil), &fakeHost{}, want{value: c.value})
	}
}

// TestPatched: code may change what the prelude would use. That is its own
// affair, and never an internal error.
func TestPatched(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		src string
		want
	}{
		"array iterator":  {`Array.prototype[Symbol.iterator] = function* () { yield "drop" }; export default async (i, env) => [await env.X.echo(1, 2), env.NAME]`, want{value: `[[1,2],"value"]`}},
		"reflect":         {`Reflect.apply = () => { throw 1 }; export default async (i, env) => env.X.echo(1)`, want{value: `[1]`}},
		"map":             {`Map.prototype.get = Map.prototype.set = () => { throw 1 }; export default async (i, env) => env.X.echo(1)`, want{value: `[1]`}},
		"promise":         {`globalThis.Promise = null; export default async (i, env) => env.X.echo(1)`, want{value: `[1]`}},
		"then":            {`Promise.prototype.then = () => { throw 1 }; export default (i, env) => 1`, want{value: `1`}},
		"object":          {`Object.keys = Object.freeze = Object.create = null; globalThis.Object = null; export default async (i, env) => env.X.echo({a: 1})`, want{value: `[{"a":1}]`}},
		"prototype":       {`Object.prototype.get = () => 5; Object.prototype.toJSON = undefined; export default async (i, env) => env.X.echo({a: 1})`, want{value: `[{"a":1}]`}},
		"everything":      {`for (const k of Object.getOwnPropertyNames(globalThis)) { try { if (typeof globalThis[k] === 'function' && globalThis[k].prototype) for (const m of Reflect.ownKeys(globalThis[k].prototype)) try { globalThis[k].prototype[m] = () => { throw new Error('patched') } } catch {} } catch {} } export default () => 1`, want{kind: KindThrown}},
		"deleted globals": {`for (const k of Object.getOwnPropertyNames(globalThis)) try { delete globalThis[k] } catch {}; export default async (i, env) => env.X.echo(1)`, want{value: `[1]`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := js(c.src)
			r.Env = map[string]string{"NAME": "value"}
			r.Bindings = []Binding{{Name: "X", Methods: []string{"echo"}}}
			h := &fakeHost{call: func(_ context.Context, c Call) (json.RawMessage, error) { return c.Args, nil }}
			res := run1(t, p, r, h)
			if name == "everything" && res.Status == StatusOK {
				return
			}
			check(t, res, h, c.want)
		})
	}
}

// TestGlobals compares what a run finds.
func TestGlobals(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct{ expr, value string }{
		"encoder":        {`Array.from(new TextEncoder().encode("aä€😀"))`, "[97,195,164,226,130,172,240,159,152,128]"},
		"encode into":    {`(() => { const b = new Uint8Array(4); return [new TextEncoder().encodeInto("a€😀", b), Array.from(b)] })()`, `[{"read":2,"written":4},[97,226,130,172]]`},
		"decoder":        {`new TextDecoder().decode(new Uint8Array([0xef, 0xbb, 0xbf, 97, 0xff, 0xe2, 0x82, 0xac]))`, `"a` + "\uFFFD" + `€"`},
		"decoder fatal":  {`(() => { try { new TextDecoder("utf-8", {fatal: true}).decode(new Uint8Array([0xff])) } catch (e) { return e.name } })()`, `"TypeError"`},
		"decoder stream": {`(() => { const d = new TextDecoder(); return [d.decode(new Uint8Array([0xe2, 0x82]), {stream: true}), d.decode(new Uint8Array([0xac]))] })()`, `["","€"]`},
		"nul in text":    {`new TextDecoder().decode(new TextEncoder().encode("a\0b")).length`, "3"},
		"uuid":           {`/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(crypto.randomUUID())`, "true"},
		"random":         {`new Set(crypto.getRandomValues(new Uint32Array(8))).size`, "8"},
		"base64":         {`[atob("aGk="), btoa("hi")]`, `["hi","aGk="]`},
		"performance":    {`(() => { const a = performance.now(); return a >= 0 && a < 5000 })()`, "true"},
		"clock":          {`Math.abs(Date.now() - ` + fmt.Sprint(time.Now().UnixMilli()) + `) < 60000`, "true"},
		"zone":           {`new Date(2020, 0, 1).getTimezoneOffset()`, "0"},
		"headers":        {`Array.from(new Headers([["B", "2"], ["a", " 1 "], ["A", "3"]]))`, `[["a","1, 3"],["b","2"]]`},
		"response":       {`Response.json({a: 1}).json()`, `{"a":1}`},
		"abort":          {`(async () => { const s = AbortSignal.timeout(5); await new Promise((r) => s.addEventListener("abort", r)); return [s.aborted, s.reason.name] })()`, `[true,"TimeoutError"]`},
		"timers":         {`(async () => { const a = []; setTimeout(() => a.push(2), 5); setTimeout(() => a.push(1), 1); const i = setInterval(() => { a.push(0); if (a.length > 3) clearInterval(i) }, 10); clearTimeout(setTimeout(() => a.push(9), 1)); await new Promise((r) => setTimeout(r, 60)); return a })()`, "[1,2,0,0]"},
		"microtasks":     {`(async () => { const a = []; queueMicrotask(() => a.push(1)); await null; a.push(2); return a })()`, "[1,2]"},
		"env":            {`[env.NAME, Object.keys(env), Object.isFrozen(env)]`, `["value",["NAME","DB","LOG"],true]`},
		"no host":        {`["host", "process", "require", "Deno", "std", "os", "scriptArgs", "print"].filter((n) => n in globalThis)`, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHost{}
			r := js("export default (input, env) => " + c.expr)
			r.Env = map[string]string{"NAME": "value"}
			r.Bindings = []Binding{{Name: "DB", Methods: []string{"query"}}, {Name: "LOG", Methods: []string{"info"}}}
			check(t, run1(t, p, r, h), h, want{value: c.value})
		})
	}
}

func TestConsole(t *testing.T) {
	p := newPool(t)
	r := js(`console.log("a %s %d %j %%", "s", 4.5, {a: 1}, "rest");
console.warn({a: [1, "x", {b: {c: {d: {e: 1}}}}], f() {}, m: new Map([["k", 1]])});
const c = {}; c.c = c; console.error(c, new Date(0), [undefined, null, 1n, Symbol("s")]);
console.debug(new Error("boom"));
console.group("g"); console.info("in"); console.groupEnd(); console.assert(1 === 2, "no");
console.log({get x() { throw new Error("getter") }});
export default (i, env) => { env.LOG.info("logged", {n: 1}); env.LOG.error({o: 1}) }`)
	r.Bindings = []Binding{{Name: "LOG"}}
	h := &fakeHost{}
	check(t, run1(t, p, r, h), h, want{})
	for _, line := range []string{
		"info: a s 4.5 {\"a\":1} % rest\n",
		`warn: { a: [ 1, "x", { b: { c: { d: {…} } } } ], f: [Function: f], m: Map { "k" => 1 } }` + "\n",
		"error: { c: [Circular] } 1970-01-01T00:00:00.000Z [ undefined, null, 1n, Symbol(s) ]\n",
		"debug: Error: boom\n    at <anonymous> (main.js:4:", "info: g\ninfo:   in\nerror: Assertion failed no\n",
		"cannot be shown", `info: logged {"n":1}`, "error: { o: 1 }",
	} {
		if !strings.Contains(h.text(), line) {
			t.Errorf("no %q in\n%s", line, h.text())
		}
	}
}

func TestHostCalls(t *testing.T) {
	p := newPool(t)
	var at, most atomic.Int32
	h := &fakeHost{call: func(ctx context.Context, c Call) (json.RawMessage, error) {
		n := at.Add(1)
		defer at.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		switch c.Method {
		case "slow":
			select {
			case <-time.After(30 * time.Millisecond):
			case <-ctx.Done():
			}
		case "hang":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return c.Args, nil
	}}
	bindings := []Binding{{Name: "X", Methods: []string{"echo", "slow", "hang"}}}
	t.Run("values", func(t *testing.T) {
		r := js(`export default (i, env) => env.X.echo(1, "ä", [null], {a: {b: 1}}, undefined)`)
		r.Bindings = bindings
		res := run1(t, p, r, h)
		check(t, res, h, want{value: `[1,"ä",[null],{"a":{"b":1}},null]`})
		if res.Usage.Calls != 1 {
			t.Errorf("calls %d", res.Usage.Calls)
		}
	})
	t.Run("overlap", func(t *testing.T) {
		most.Store(0)
		r := js(`export default async (i, env) => (await Promise.all(Array.from({length: 20}, (_, i) => env.X.slow(i)))).flat()`)
		r.Bindings = bindings
		r.Limits.Concurrency = 5
		check(t, run1(t, p, r, h), h, want{value: "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]"})
		if most.Load() != 5 {
			t.Errorf("%d at once, want 5", most.Load())
		}
	})
	t.Run("bad argument", func(t *testing.T) {
		r := js(`export default (i, env) => env.X.echo({f: () => 1})`)
		r.Bindings = bindings
		check(t, run1(t, p, r, h), h, want{kind: KindThrown, message: "X.echo argument [0].f is a function"})
	})
	t.Run("left behind", func(t *testing.T) {
		r := js(`export default (i, env) => { env.X.hang(); return 1 }`)
		r.Bindings = bindings
		check(t, run1(t, p, r, h), h, want{value: "1"})
		if n := at.Load(); n != 0 {
			t.Errorf("%d host calls after the run", n)
		}
	})
	t.Run("large", func(t *testing.T) {
		r := js(`export default async (i, env) => { try { await env.X.echo("x".repeat(9e6)) } catch (e) { return e.message } }`)
		r.Bindings = bindings
		check(t, run1(t, p, r, h), h, want{value: `"the arguments have 9000004 bytes, at most 8388608 are taken (16777216 for all calls that wait)"`})
	})
}

func TestFetch(t *testing.T) {
	p := newPool(t)
	h := &fakeHost{call: func(ctx context.Context, c Call) (json.RawMessage, error) {
		var args []FetchRequest
		if c.Binding != "fetch" || c.Method != "fetch" || json.Unmarshal(c.Args, &args) != nil || len(args) != 1 {
			return nil, fmt.Errorf("call %s", c.Args)
		}
		a := args[0]
		switch {
		case strings.HasSuffix(a.URL, "/hang"):
			<-ctx.Done()
			return nil, ctx.Err()
		case strings.HasSuffix(a.URL, "/denied"):
			return nil, errors.New("the host example.org is not granted")
		}
		res := FetchResponse{Status: 200, StatusText: "OK", URL: a.URL, Headers: [][2]string{{"X-Method", a.Method}, {"x-type", fmt.Sprint(a.Headers)}}, Body: append([]byte(`{"got":`), append(a.Body, '}')...)}
		if strings.HasSuffix(a.URL, "/binary") {
			res.Status, res.Body = 404, []byte{0, 255, 1}
		}
		return json.Marshal(res)
	}}
	for name, c := range map[string]struct {
		src string
		want
	}{
		"json":     {`const r = await fetch("https://h/a", {method: "post", body: "[1,2]", headers: {"X-A": "1"}}); return [r.ok, r.status, r.statusText, r.url, r.headers.get("x-method"), r.headers.get("X-Type"), await r.json()]`, want{value: `[true,200,"OK","https://h/a","POST","[[content-type text/plain;charset=UTF-8] [x-a 1]]",{"got":[1,2]}]`}},
		"binary":   {`const r = await fetch("https://h/binary", {method: "PUT", body: new Uint8Array([1, 2])}); return [r.ok, r.status, Array.from(new Uint8Array(await r.arrayBuffer()))]`, want{value: `[false,404,[0,255,1]]`}},
		"twice":    {`const r = await fetch("https://h/binary"); await r.text(); return r.text()`, want{kind: KindThrown, message: "read already"}},
		"request":  {`const r = await fetch(new Request("https://h/x", {method: "DELETE"})); return r.headers.get("x-method")`, want{value: `"DELETE"`}},
		"abort":    {`const c = new AbortController(); setTimeout(() => c.abort(), 5); try { await fetch("https://h/hang", {signal: c.signal}) } catch (e) { return e.name }`, want{value: `"AbortError"`}},
		"timeout":  {`try { await fetch("https://h/hang", {signal: AbortSignal.timeout(5)}) } catch (e) { return e.name }`, want{value: `"TimeoutError"`}},
		"denied":   {"await fetch('https://example.org/denied')", want{kind: KindBinding, message: "example.org is not granted", file: "main.js", line: 1}},
		"header":   {`await fetch("https://h/", {headers: {"a\nb": "1"}})`, want{kind: KindThrown, message: "is not a header name"}},
		"too many": {`for (let i = 0; i < 10; i++) await fetch("https://h/")`, want{kind: KindLimit, message: "too many requests"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := js("export default async () => { " + c.src + " }")
			r.Fetch = true
			res := run1(t, p, r, h)
			if c.line != 0 {
				c.column = res.Error.Column
			}
			check(t, res, h, c.want)
		})
	}
}
