package isolate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// What the public tests (tests/wpt) do not look at.
func TestWebGlobals(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct{ expr, value string }{
		"headers":          {`(() => { const h = new Headers({b: "1", A: "2"}); h.append("a", "3"); h.append("Set-Cookie", "x"); h.append("set-cookie", "y"); return [[...h], h.get("a"), h.getSetCookie(), h.has("B"), Object.prototype.toString.call(h)] })()`, `[[["a","2, 3"],["b","1"],["set-cookie","x"],["set-cookie","y"]],"2, 3",["x","y"],true,"[object Headers]"]`},
		"bad headers":      {`[() => new Headers([["a"]]), () => new Headers({"a b": "1"}), () => new Headers({a: "\n1\nx"}), () => new Headers({a: "€"}), () => Response.redirect("http://h/").headers.set("a", "b"), () => Headers.prototype.get.call({}, "a")].map((f) => { try { return f() } catch (e) { return e.name } })`, `["TypeError","TypeError","TypeError","TypeError","TypeError","TypeError"]`},
		"response":         {`(async () => { const r = new Response("aä", {status: 201, statusText: "Made", headers: {x: "1"}}); const c = r.clone(); return [r.status, r.ok, r.statusText, r.headers.get("content-type"), await r.text(), r.bodyUsed, c.bodyUsed, (await c.bytes()).length] })()`, `[201,true,"Made","text/plain;charset=UTF-8","aä",true,false,3]`},
		"response statics": {`(async () => [await Response.json({a: 1}, {status: 202}).json(), Response.json(1).headers.get("content-type"), Response.error().type, Response.redirect("http://h/a", 301).headers.get("location"), Response.redirect("http://h/").status])()`, `[{"a":1},"application/json","error","http://h/a",302]`},
		"bad responses":    {`[() => new Response("x", {status: 204}), () => new Response("", {status: 600}), () => Response.redirect("/a"), () => Response.redirect("http://h/", 200), () => Response.json(undefined), () => new Response("", {statusText: "\n"})].map((f) => { try { return f() } catch (e) { return e.name } })`, `["TypeError","RangeError","TypeError","RangeError","TypeError","TypeError"]`},
		"request":          {`(() => { const r = new Request("HTTP://h:80/a b", {method: "post", body: "x", headers: {a: "b"}}); const s = new Request(r, {method: "PUT"}); return [r.url, r.method, r.bodyUsed, s.method, s.headers.get("a"), s.bodyUsed, r.redirect, r.signal.aborted] })()`, `["http://h/a%20b","POST",true,"PUT","b",false,"follow",false]`},
		"bad requests":     {`[() => new Request("/a"), () => new Request("http://u:p@h/"), () => new Request("http://h/", {method: "TRACE"}), () => new Request("http://h/", {method: "a b"}), () => new Request("http://h/", {body: "x"}), () => new Request("http://h/", {method: "POST", body: new ReadableStream()}), () => new Request("http://h/", {mode: "odd"}), () => new Request("http://h/", {signal: {}})].map((f) => { try { return f() } catch (e) { return e.name } })`, `["TypeError","TypeError","TypeError","TypeError","TypeError","TypeError","TypeError","TypeError"]`},
		"request signal":   {`(() => { const c = new AbortController(); const r = new Request("http://h/", {signal: c.signal}); const d = r.clone(); c.abort(7); return [r.signal.aborted, r.signal.reason, d.signal.aborted, r.signal === c.signal] })()`, `[true,7,true,false]`},
		"body stream":      {`(async () => { const r = new Response("abc"); const out = []; for await (const c of r.body) out.push(new TextDecoder().decode(c)); return [out, r.bodyUsed, await r.text().catch((e) => e.name)] })()`, `[["abc"],true,"TypeError"]`},
		"stream body":      {`(async () => { const {readable, writable} = new TransformStream(); const w = writable.getWriter(); (async () => { for (const s of ["a", "b"]) await w.write(new TextEncoder().encode(s)); await w.close() })(); const [a, b] = new Response(readable).body.tee(); return [await new Response(a).text(), await new Response(b).text()] })()`, `["ab","ab"]`},
		"cloned stream":    {`(async () => { const r = new Response("xyz".repeat(9)); r.body; const c = r.clone(); return [(await r.text()).length, (await c.text()).length] })()`, `[27,27]`},
		"text streams":     {`new Response(ReadableStream.from(["ä", "€"]).pipeThrough(new TextEncoderStream()).pipeThrough(new TextDecoderStream()).pipeThrough(new TextEncoderStream())).text()`, `"ä€"`},
		"bad stream body":  {`new Response(ReadableStream.from(["text"])).text().catch((e) => e.name)`, `"TypeError"`},
		"form data":        {`(async () => { const f = new FormData(); f.append("a", "1\n2"); f.append("f", new Blob(["x\r\n--y"], {type: "text/x"}), 'n"ä.txt'); f.append("a", "3"); const r = new Request("http://h/", {method: "POST", body: f}); const g = await r.formData(); const b = g.get("f"); return [r.headers.get("content-type").startsWith("multipart/form-data; boundary="), g.getAll("a"), b.name, b.type, await b.text(), b instanceof File] })()`, `[true,["1\r\n2","3"],"n\"ä.txt","text/x","x\r\n--y",true]`},
		"urlencoded form":  {`(async () => [...await new Response(new URLSearchParams({a: "1 ä", b: "&"})).formData()])()`, `[["a","1 ä"],["b","&"]]`},
		"bad forms":        {`(async () => { const out = []; for (const [type, body] of [["text/plain", "x"], ["multipart/form-data; boundary=b", "x"], ["multipart/form-data; boundary=b", "--b\r\n"], ["multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"], ["multipart/form-data", ""]]) out.push(await new Response(body, {headers: {"content-type": type}}).formData().catch((e) => e.name)); return out })()`, `["TypeError","TypeError","TypeError","TypeError","TypeError"]`},
		"blob":             {`(async () => { const b = new Blob(["aä", new Uint8Array([98]), new Blob(["c"])], {type: "Text/X"}); return [b.size, b.type, await b.slice(1, -1).text(), (await b.stream().getReader().read()).value.length, new File([b], "n", {lastModified: 5}).lastModified] })()`, `[5,"text/x","äb",5,5]`},
		"clone":            {`(() => { const a = {m: new Map([[1, new Set([2])]]), d: new Date(3), r: /x/gi, e: new RangeError("m", {cause: 1}), n: null, b: new Uint8Array([1, 2]).subarray(1), u: undefined}; a.self = a; const c = structuredClone(a); return [c !== a, c.self === c, [...c.m.get(1)], +c.d, String(c.r), c.e instanceof RangeError, c.e.message, c.e.cause, c.b[0], c.b.buffer.byteLength, "u" in c] })()`, `[true,true,[2],3,"/x/gi",true,"m",1,2,2,true]`},
		"transfer":         {`(() => { const b = new ArrayBuffer(4); new Uint8Array(b)[0] = 7; const c = structuredClone({b}, {transfer: [b]}); return [b.byteLength, c.b.byteLength, new Uint8Array(c.b)[0]] })()`, `[0,4,7]`},
		"no clone":         {`[() => {}, Symbol(), new WeakMap(), Promise.resolve(), new Response(), {a: [() => 1]}].map((v) => { try { return structuredClone(v) } catch (e) { return [e.name, e.code] } })`, `[["DataCloneError",25],["DataCloneError",25],["DataCloneError",25],["DataCloneError",25],["DataCloneError",25],["DataCloneError",25]]`},
		"digest":           {`(async () => Promise.all(["SHA-1", "sha-256", {name: "SHA-384"}, "SHA-512"].map(async (n) => new Uint8Array(await crypto.subtle.digest(n, new TextEncoder().encode("abc"))).toHex().slice(0, 8))))()`, `["a9993e36","ba7816bf","cb00753f","ddaf35a1"]`},
		"hmac":             {`(async () => { const k = await crypto.subtle.importKey("raw", new TextEncoder().encode("key"), {name: "HMAC", hash: "SHA-256"}, true, ["sign", "verify"]); const d = new TextEncoder().encode("The quick brown fox jumps over the lazy dog"); const s = await crypto.subtle.sign("HMAC", k, d); return [new Uint8Array(s).toHex().slice(0, 8), await crypto.subtle.verify("HMAC", k, s, d), await crypto.subtle.verify("HMAC", k, s, new Uint8Array(1)), (await crypto.subtle.exportKey("jwk", k)).k] })()`, `["f7bc83f4",true,false,"a2V5"]`},
		"no algorithm":     {`crypto.subtle.digest("MD5", new Uint8Array()).catch((e) => [e.name, e.message])`, `["NotSupportedError","there is no algorithm MD5 here; there is SHA-1, SHA-256, SHA-384, SHA-512"]`},
		"events":           {`(() => { const t = new EventTarget(), out = []; t.addEventListener("a", (e) => out.push(e.detail), {once: true}); t.addEventListener("a", {handleEvent(e) { out.push(e.type); e.preventDefault() }}); return [t.dispatchEvent(new CustomEvent("a", {detail: 1, cancelable: true})), t.dispatchEvent(new CustomEvent("a")), out] })()`, `[false,true,[1,"a","a"]]`},
		"abort any":        {`(async () => { const c = new AbortController(); const s = AbortSignal.any([AbortSignal.timeout(1e6), c.signal]); let n = 0; s.onabort = () => n++; c.abort("why"); c.abort("again"); return [s.aborted, s.reason, n, AbortSignal.abort().reason.name] })()`, `[true,"why",1,"AbortError"]`},
		"performance":      {`Math.abs(performance.timeOrigin + performance.now() - Date.now()) < 1000`, `true`},
		"idna":             {`[new URL("http://bücher.example/").host, new URL("http://xn--bcher-kva.example/").hostname, new URL("http://①.2.3.4/").host, new URL("http://[1:0::2]/").host, URL.canParse("http://xn--a/"), URL.parse("http://256.256.256.256/")]`, `["xn--bcher-kva.example","xn--bcher-kva.example","1.2.3.4","[1::2]",false,null]`},
		"sources":          {`[fetch, URL, structuredClone, console.log, setTimeout, ReadableStream].map((f) => /host|OP\./.test(String(f)))`, `[false,false,false,false,false,false]`},
	} {
		t.Run(name, func(t *testing.T) {
			h := &fakeHost{}
			check(t, run1(t, p, js("export default () => "+c.expr), h), h, want{value: c.value})
		})
	}
}

// TestWorker: a module as people write it for a worker, with streams and a form.
func TestWorker(t *testing.T) {
	p := newPool(t)
	r := js(`export default { async fetch(request, env, ctx) {
		const url = new URL(request.url);
		if (url.pathname === '/form') {
			const form = await request.formData();
			const upper = new TransformStream({ transform(chunk, c) { c.enqueue(chunk.toUpperCase()); } });
			const body = form.get('f').stream().pipeThrough(new TextDecoderStream()).pipeThrough(upper).pipeThrough(new TextEncoderStream());
			ctx.waitUntil(Promise.resolve().then(() => console.log('waited')));
			return new Response(body, { status: 201, headers: { 'x-name': form.get('n') } });
		}
		return new Response(new Uint8Array([0, 255]), { status: 200 });
	} }`)
	r.Input = json.RawMessage(`{"url":"/form","method":"POST","headers":{"content-type":"multipart/form-data; boundary=b"},
		"body":"--b\r\ncontent-disposition: form-data; name=\"n\"\r\n\r\nv\r\n--b\r\ncontent-disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\nhello\r\n--b--\r\n"}`)
	h := &fakeHost{}
	check(t, run1(t, p, r, h), h, want{value: `{"status":201,"headers":[["x-name","v"]],"body":"HELLO"}`})
	if !strings.Contains(h.text(), "waited") {
		t.Errorf("log %q", h.text())
	}
	r.Input = json.RawMessage(`{"url":"http://h/binary"}`)
	check(t, run1(t, p, r, h), h, want{value: `{"status":200,"headers":[],"body":{"$bytes":"AP8="}}`})
}

// TestPatchedWeb: code that changes what the interfaces use harms itself alone.
func TestPatchedWeb(t *testing.T) {
	p := newPool(t)
	for _, name := range []string{"Array.prototype.push", "Array.prototype.filter", "Array.prototype.map", "Array.prototype[Symbol.iterator]", "RegExp.prototype.exec", "RegExp.prototype[Symbol.replace]",
		"String.prototype.replace", "String.prototype.split", "Map.prototype.get", "Promise.prototype.then", "Function.prototype.call", "Object.prototype.constructor", "Uint8Array.prototype.set", "globalThis.Uint8Array", "globalThis.AbortSignal"} {
		t.Run(name, func(t *testing.T) {
			r := js(`const seen = [];
			const all = (f) => { try { return f() } catch {} };
			const spy = new Proxy(function () {}, { apply(_, self, args) { seen.push(self, ...args); throw 1 }, construct(_, args) { seen.push(...args); throw 1 } });
			` + name + ` = spy;
			export default async (i, env) => {
				for (const f of [() => new URL('http://h/'), () => new Response('x').text(), () => new Headers({a: 'b'}).get('a'), () => crypto.subtle.digest('SHA-1', new ArrayBuffer(1)), () => structuredClone([1]),
					() => new TextDecoder('sjis').decode(new ArrayBuffer(2)), () => fetch('http://h/'), () => new FormData().append('a', 'b'), () => AbortSignal.abort(), () => new Blob(['x']).text(), () => setTimeout(() => {}, 1), () => env.X.echo(1)]) all(f);
				let found = 0;
				const walk = (v, depth) => { if (typeof v === 'function' && v.name === 'host') found++; if (depth > 0 && v !== null && typeof v === 'object') for (const k of Reflect.ownKeys(v)) all(() => walk(v[k], depth - 1)) };
				for (let i = 0; i < seen.length && i < 500; i++) walk(seen[i], 3);
				return found;
			}`)
			r.Fetch, r.Bindings = true, []Binding{{Name: "X", Methods: []string{"echo"}}}
			h := &fakeHost{call: func(_ context.Context, c Call) (json.RawMessage, error) { return c.Args, nil }}
			res := run1(t, p, r, h)
			// A spy that the interfaces' own code comes across may nest for ever.
			ended := res.Error == nil || res.Error.Kind == KindThrown || res.Error.Kind == KindRejected || res.Error.Limit == "stack"
			if res.Status == StatusOK && string(res.Value) != "0" || !ended {
				t.Errorf("%s %s %v", res.Status, res.Value, res.Error)
			}
		})
	}
}

// TestHostWorkIsLimited: what the host does for the code counts as its work.
func TestHostWorkIsLimited(t *testing.T) {
	p := newPool(t)
	for name, work := range map[string]string{
		"url":       `new URL("http://h/" + "é/".repeat(4e3))`,
		"at signs":  `URL.canParse("http://" + "@".repeat(1e6))`,
		"digest":    `crypto.subtle.digest("SHA-512", big)`,
		"hmac":      `crypto.subtle.sign("HMAC", key, big)`,
		"decode":    `new TextDecoder().decode(big)`,
		"legacy":    `new TextDecoder("gb18030").decode(big)`,
		"encode":    `new TextEncoder().encode(text)`,
		"multipart": `new Response(big, {headers: {"content-type": "multipart/form-data; boundary=b"}}).formData().catch(() => {})`,
	} {
		for _, seed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				r := js(`const big = new Uint8Array(2e6), text = "é".repeat(1e6); export default async () => {
					const key = await crypto.subtle.generateKey({name: "HMAC", hash: "SHA-1"}, false, ["sign"]);
					for (;;) await ` + work + ` }`)
				r.Limits.CPU, r.Limits.Wall, r.Limits.Memory = 100*time.Millisecond, 60*time.Second, 256<<20
				if seed {
					r.Seed = new(uint64)
				}
				h := &fakeHost{}
				res := run1(t, p, r, h)
				if res.Error == nil || res.Error.Limit != "cpu" {
					t.Errorf("%s %+v", res.Status, res.Error)
				}
			})
		}
	}
}

// TestLeastMemory: the interfaces leave room in the least memory that there is.
func TestLeastMemory(t *testing.T) {
	p := newPool(t)
	r := js(`export default async () => {
		const r = await new Response(new Blob(["x".repeat(1e5)]).stream().pipeThrough(new TextDecoderStream()).pipeThrough(new TextEncoderStream())).text();
		return [r.length, new URL("http://h/").href, structuredClone(new Array(1e4).fill(1)).length];
	}`)
	r.Limits.Memory = MinMemory
	h := &fakeHost{}
	check(t, run1(t, p, r, h), h, want{value: `[100000,"http://h/",10000]`})
}
