package isolate

import "testing"

// TestFetchObjects holds what the Fetch and XMLHttpRequest Standards say of these
// objects: the public tests of that (fetch/api, xhr/formdata) are in no package
// that could be pinned.
func TestFetchObjects(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct{ src, want string }{
		"headers are sorted, joined, in lower case": {`const h = new Headers([['B', '2'], ['a', '1'], ['b', '3']]); return [...h]`, `[["a","1"],["b","2, 3"]]`},
		"each set-cookie stands alone":              {`const h = new Headers(); h.append('Set-Cookie', 'a=1'); h.append('set-cookie', 'b=2'); return [h.getSetCookie(), [...h].length, h.get('set-cookie')]`, `[["a=1","b=2"],2,"a=1, b=2"]`},
		"values lose white space around them":       {`return new Headers({a: ' \t1 \r\n'}).get('A')`, `"1"`},
		"bad names and values":                      {`return [['a b', '1'], ['', '1'], ['a', '1\n2'], ['a', '\u0100']].map(([n, v]) => { try { new Headers([[n, v]]); return 'ok' } catch (e) { return e.name } })`, `["TypeError","TypeError","TypeError","TypeError"]`},
		"a request's method":                        {`return [new Request('http://a/', {method: 'post'}).method, new Request('http://a/', {method: 'patch'}).method, new Request('http://a/').method]`, `["POST","patch","GET"]`},
		"refused requests":                          {`return [['http://u:p@a/'], ['/x'], ['http://a/', {method: 'TRACE'}], ['http://a/', {method: 'a b'}], ['http://a/', {body: 'x'}], ['http://a/', {mode: 'navigate'}]].map((a) => { try { new Request(...a); return 'ok' } catch (e) { return e.name } })`, `["TypeError","TypeError","TypeError","TypeError","TypeError","TypeError"]`},
		"a request of a request takes its body":     {`const a = new Request('http://a/', {method: 'POST', body: 'x', headers: {k: 'v'}}), b = new Request(a); return [a.bodyUsed, await b.text(), b.headers.get('k'), b.method]`, `[true,"x","v","POST"]`},
		"a clone is its own":                        {`const a = new Request('http://a/', {method: 'POST', body: 'x'}), b = a.clone(); b.headers.set('k', 'v'); return [await a.text(), await b.text(), a.headers.has('k')]`, `["x","x",false]`},
		"types of bodies":                           {`return ['x', new URLSearchParams('a=1'), new Blob(['x'], {type: 'a/b'}), new Uint8Array(1), new ArrayBuffer(1)].map((body) => new Response(body).headers.get('content-type'))`, `["text/plain;charset=UTF-8","application/x-www-form-urlencoded;charset=UTF-8","a/b",null,null]`},
		"a body is read once":                       {`const r = new Response('x'); await r.text(); return [r.bodyUsed, await r.text().catch((e) => e.name), await new Response().text(), new Response().bodyUsed]`, `[true,"TypeError","",false]`},
		"a locked body":                             {`const r = new Response('x'); r.body.getReader(); try { r.clone(); return 'cloned' } catch (e) { return [e.name, await r.text().catch((e) => e.name)] }`, `["TypeError","TypeError"]`},
		"statuses":                                  {`return [199, 200, 599, 600].map((status) => { try { return new Response(null, {status}).status } catch (e) { return e.name } })`, `["RangeError",200,599,"RangeError"]`},
		"no body with some statuses":                {`return [204, 205, 304].map((status) => { try { new Response('', {status}); return 'ok' } catch (e) { return e.name } })`, `["TypeError","TypeError","TypeError"]`},
		"Response.json, redirect, error":            {`const j = Response.json({a: 1}, {status: 201}), r = Response.redirect('http://a/b', 307), e = Response.error(); return [await j.json(), j.status, j.headers.get('content-type'), r.status, r.headers.get('location'), e.type, e.status, e.ok]`, `[{"a":1},201,"application/json",307,"http://a/b","error",0,false]`},
		"guarded headers":                           {`const h = Response.redirect('http://a/').headers; try { h.set('a', '1'); return 'set' } catch (e) { return e.name }`, `"TypeError"`},
		"form data: order, set, delete":             {`const f = new FormData(); f.append('a', 1); f.append('b', 2); f.append('a', 3); f.set('a', 4); f.append('c', null); f.delete('b'); return [...f]`, `[["a","4"],["c","null"]]`},
		"form data: all, has, first":                {`const f = new FormData(); f.append('a', 1); f.append('a', 2); return [f.get('a'), f.getAll('a'), f.has('a'), f.get('x'), f.getAll('x')]`, `["1",["1","2"],true,null,[]]`},
		"form data: a blob is a file":               {`const f = new FormData(); f.append('a', new Blob(['x'])); f.append('b', new File(['y'], 'n.txt'), 'm.txt'); const a = f.get('a'), b = f.get('b'); return [a instanceof File, a.name, b.name, await b.text()]`, `[true,"blob","m.txt","y"]`},
		"form data: a name needs a blob":            {`try { new FormData().append('a', 'b', 'c'); return 'ok' } catch (e) { return e.name }`, `"TypeError"`},
		"form data there and back":                  {`const f = new FormData(); f.append('a"\r\n', 'line\nend'); f.append('f', new File([new Uint8Array([0, 255, 13, 10])], 'ü".bin', {type: 'a/b'})); const g = await new Response(f).formData(), file = g.get('f'); return [[...g.keys()], g.get('a"\r\n'), file.name, file.type, [...new Uint8Array(await file.arrayBuffer())]]`, `[["a\"\r\n","f"],"line\r\nend","ü\".bin","a/b",[0,255,13,10]]`},
		"form data from a query":                    {`return [...await new Response(new URLSearchParams('a=1&b=%20&a=2')).formData()]`, `[["a","1"],["b"," "],["a","2"]]`},
		"form data of another type":                 {`return await new Response('a=1').formData().catch((e) => e.name)`, `"TypeError"`},
		"a multipart body that is none":             {`return await new Response('--x\r\nno', {headers: {'content-type': 'multipart/form-data; boundary=x'}}).formData().catch((e) => e.name)`, `"TypeError"`},
		"an aborted request":                        {`const c = new AbortController(), r = new Request('http://a/', {signal: c.signal}); c.abort(); return [r.signal.aborted, r.signal.reason.name, r.clone().signal.aborted]`, `[true,"AbortError",true]`},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, run1(t, p, js(`export default async () => { `+c.src+` }`), nil), &fakeHost{}, want{value: c.want})
		})
	}
}
