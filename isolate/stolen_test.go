package isolate

import (
	"context"
	"strings"
	"testing"
	"time"

	"sandboxd/isolate/quickjs"
)

// TestPreludeIsClosed looks for a way from the code of a run to the function
// that the prelude was given.
func TestPreludeIsClosed(t *testing.T) {
	p := newPool(t)
	r := js(`const found = new Set();
	Error.prepareStackTrace = (e, frames) => { for (const f of frames) { const g = f.getFunction && f.getFunction(); if (g) found.add(g.name) } return '' };
	const look = (f) => { try { return f() } catch (e) { e.stack } };
	export default async (i, env) => {
		look(() => setTimeout(() => {}, {valueOf() { throw new Error('v') }}));
		look(() => console.log({get x() { throw new Error('g') }}));
		try { await env.X.now({toJSON() { throw new Error('j') }}) } catch (e) { e.stack }
		look(() => crypto.getRandomValues(Object.defineProperty(new Uint8Array(1), 'byteLength', {value: {valueOf() { throw new Error('b') }}})));
		look(() => { const g = setTimeout.caller || setTimeout.arguments; if (g) found.add('caller') });
		look(() => { delete Error.prepareStackTrace; Object.defineProperty(Error, 'prepareStackTrace', {value: () => found.add('redefined')}) });
		for (const o of [globalThis, Error, Function.prototype, console, crypto, env, env.X]) for (const k of Reflect.ownKeys(o)) if (/^host$/i.test(String(k))) found.add(k);
		return [...found];
	}`)
	r.Bindings = []Binding{{Name: "X", Methods: []string{"now"}}}
	check(t, run1(t, p, r, limitHost()), &fakeHost{}, want{value: "[]"})
}

// TestStolenHost gives that function away: nothing is gained by it, and the
// process lives.
func TestStolenHost(t *testing.T) {
	g, err := loadJS(guestDir)
	if err != nil {
		t.Fatal(err)
	}
	o := engineOptions(g, workersCache)
	o.Prelude = strings.Replace(o.Prelude, "function (host) {", "function (host) { globalThis.f = host;", 1)
	e, err := quickjs.New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	const odd = `const odd = {toString() { console.log('in'); return 'x' }, valueOf() { console.log('in'); return 1 }};`
	for name, c := range map[string]struct{ src, kind, limit string }{
		"call of another": {`f(4, 1e6, 'Y', 'drop', '[]')`, KindThrown, ""},
		"fetch":           {`f(4, 1e6, 'fetch', 'fetch', '[{}]')`, KindThrown, ""},
		"same number":     {`for (let i = 0; i < 50; i++) f(4, 1e6, 'X', 'hang', '[]')`, KindThrown, ""},
		"odd values":      {`for (let op = -1; op < 40; op++) if (op != 4) f(op, odd, odd, odd, odd, odd, odd, odd)`, KindThrown, ""},
		"bad arguments":   {`f(4, 1e6, 'X', 'now', '[')`, "", ""},
		"level":           {`f(3, '<b>', 'x', '{')`, "", ""},
		"many timers":     {`for (let i = 0; i < 1e6; i++) f(5, i, 1e9)`, KindLimit, "timers"},
		"bad result":      {`f(1, '{')`, KindThrown, ""},
		"large result":    {`f(1, 'x'.repeat(2e6))`, KindLimit, "result"},
		"bad failure":     {`f(2, '{')`, KindThrown, ""},
		"nothing":         {`f(); f(NaN); f(7); f(7, {}, 1); f(8); f(9, 1e12); f(9, -1); f(10, 5); f(6)`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := js(odd + `export default () => { ` + c.src + `; return 1 }`)
			r.Bindings = []Binding{{Name: "X", Methods: []string{"now", "hang"}}}
			r.Limits.CPU, r.Limits.Wall = 5*time.Second, 10*time.Second
			vm, err := e.Get(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			defer e.Put(vm)
			h := limitHost()
			res := execute(context.Background(), vm, &jobMessage{Request: r}, h)
			check(t, res, h, want{kind: c.kind})
			if c.limit != "" && res.Error.Limit != c.limit {
				t.Errorf("limit %s", res.Error.Limit)
			}
			for _, e := range h.events {
				if e.Level != "info" {
					t.Errorf("level %q", e.Level)
				}
			}
		})
	}
}
