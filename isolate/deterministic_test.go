package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// An orderedHost answers echo calls in a random order when it has no order, and
// else in that.
type orderedHost struct {
	fakeHost
	shuffle bool

	omu      sync.Mutex
	called   []int
	answered []int
	order    []int
	changed  chan struct{}
}

func newOrderedHost(order []int) *orderedHost {
	return &orderedHost{order: order, shuffle: order == nil, changed: make(chan struct{})}
}

func (h *orderedHost) Called(nth int) {
	h.omu.Lock()
	defer h.omu.Unlock()
	h.called = append(h.called, nth)
}

func (h *orderedHost) Answered(nth int, _ json.RawMessage, _ error) {
	h.omu.Lock()
	defer h.omu.Unlock()
	h.answered = append(h.answered, nth)
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *orderedHost) Waiting(int) {}

func (h *orderedHost) Call(ctx context.Context, c Call) (json.RawMessage, error) {
	if h.shuffle {
		select {
		case <-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond):
		case <-ctx.Done():
			return nil, errors.New("nobody wants it any more")
		}
	}
	for !h.shuffle {
		h.omu.Lock()
		n, changed := len(h.answered), h.changed
		h.omu.Unlock()
		if n < len(h.order) && h.order[n] == c.Nth {
			break
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			return nil, fmt.Errorf("call %d never comes to its turn", c.Nth)
		}
	}
	switch c.Method {
	case "fail":
		return nil, errors.New("no rows")
	case "fetch":
		if ctx.Err() != nil || strings.Contains(string(c.Args), "aborted") {
			return nil, errors.New("nobody wants it any more")
		}
		return json.Marshal(FetchResponse{Status: 200, URL: "https://a.test/", Headers: [][2]string{{"x", "y"}}, Body: []byte("body")})
	}
	return c.Args, nil
}

// seen is all that a run shows, but for how long it took.
func seen(res *Result, h *orderedHost) string {
	r := *res
	r.Usage.Wall = 0
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var all strings.Builder
	fmt.Fprintf(&all, "%s\n", b)
	for _, e := range h.events {
		fmt.Fprintf(&all, "%s %s %s %q %s\n", e.Time, e.Kind, e.Level, e.Message, e.Data)
	}
	return all.String()
}

var deterministicPrograms = map[string]struct {
	language, code string
	change         func(*Request)
}{
	"js/world": {"js", `
const at = [Date.now(), performance.now(), new Date().toString()];
export default async (input, env) => {
	const weak = new WeakRef({}); const gone = [];
	const registry = new FinalizationRegistry((v) => gone.push(v));
	for (let i = 0; i < 100; i++) registry.register({i}, i);
	console.time("t");
	await new Promise((r) => setTimeout(r, 1234));
	console.timeEnd("t");
	const order = [];
	setTimeout(() => order.push("b"), 20); setTimeout(() => order.push("a"), 10); setTimeout(() => order.push("c"), 20);
	const tick = setInterval(() => { order.push("tick"); if (order.length > 12) clearInterval(tick) }, 7);
	await new Promise((r) => setTimeout(r, 200));
	Promise.reject(new Error("first")); Promise.reject(new Error("second")); Promise.reject(3); Promise.reject({x: 1});
	let deep = 0; try { (function f() { deep++; f() })() } catch (e) { console.log(e.message, deep, e.stack.split("\n").length) }
	return {at, random: [Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new Uint8Array(9))]], order, gone: gone.length,
		weak: weak.deref() === undefined, now: [Date.now(), performance.now()], zone: new Date().getTimezoneOffset(), keys: Object.keys(globalThis).join()};
}`, nil},
	"js/calls": {"js", `export default async (input, env) => {
	const order = [];
	const all = Promise.all(Array.from({length: 50}, (_, i) => env.X[i % 9 ? "echo" : "fail"](i).then((v) => { order.push(v[0]); return Math.random() }, (e) => order.push(e.message))));
	setTimeout(() => order.push("timer"), 1);
	const race = await Promise.race([env.X.echo("one"), env.X.echo("two"), new Promise((r) => setTimeout(r, 2, "late"))]);
	const c = new AbortController();
	const fetched = fetch("https://a.test/aborted", {signal: c.signal}).catch((e) => e.name);
	queueMicrotask(() => c.abort());
	const r = await fetch("https://a.test/x");
	order.push(await r.text(), await fetched, race, Date.now());
	console.log(order.join());
	return [await all, order];
}`, nil},
	"js/web": {"js", `export default async () => {
	const out = [performance.timeOrigin, new Event("x").timeStamp, structuredClone(new Date())];
	const key = await crypto.subtle.generateKey({name: "HMAC", hash: "SHA-256"}, true, ["sign"]).catch((e) => e.name);
	if (typeof key === "object") out.push(new Uint8Array(await crypto.subtle.sign("HMAC", key, new TextEncoder().encode("x"))).toHex());
	out.push(new Uint8Array(await crypto.subtle.digest("SHA-256", new Uint8Array(3))).toHex());
	const form = new FormData(); form.append("a", new Blob(["text"]), "f.txt");
	out.push(await new Response(form).text());
	const chunks = []; for await (const c of new Response("streamed").body) chunks.push(c.length);
	const signal = AbortSignal.timeout(50);
	await new Promise((r) => signal.addEventListener("abort", r));
	out.push(chunks, signal.reason.name, Date.now(), new URL("https://ä.test/?b=1").href, new Response(null).headers.has("x"));
	return out;
}`, nil},
	"js/storm": {"js", `export default async (i, env) => {
 const out = [];
 const ws = new WeakSet(), wm = new WeakMap(); let refs = [];
 for (let k = 0; k < 2000; k++) { const o = {k}; o.self = o; ws.add(o); wm.set(o, {back: o}); if (k % 100 === 0) refs.push(new WeakRef(o)); }
 await 0; await new Promise(r => setTimeout(r, 1));
 out.push(refs.map(r => r.deref() === undefined));
 const fr = new FinalizationRegistry((v) => out.push("f" + v)); for (let k = 0; k < 50; k++) { const o = {}; o.o = o; fr.register(o, k) }
 for (let k = 0; k < 20; k++) { const a = []; a.push(a); for (let j = 0; j < 2000; j++) a.push({a}); }
 await new Promise(r => setTimeout(r, 1));
 const arr = Array.from({length: 5000}, (_, x) => (x * 7919) % 5003); arr.sort(() => Math.random() - 0.5); out.push(arr.slice(0, 20).join());
 out.push((2n ** 3000n % 1000003n).toString(), new Map([[{}, 1], ["a", 2]]).size);
 out.push(await Promise.all(Array.from({length: 60}, async (_, x) => { await null; if (x % 3) await env.X.echo(x); return x })).then(a => a.length));
 out.push(await Promise.allSettled(Array.from({length: 60}, (_, x) => env.X[x % 2 ? "echo" : "fail"](x))).then(a => a.map(x => x.status[0]).join("")));
 async function* g() { for (let k = 0; k < 10; k++) { yield (await env.X.echo(k))[0]; } }
 for await (const v of g()) out.push(v);
 const rs = new ReadableStream({async pull(c) { const v = await env.X.echo("s"); c.enqueue(v[0]); if (out.length > 40) c.close() }});
 let n = 0; for await (const v of rs) { n++; if (n > 20) break }
 out.push(n, "a😀ü".localeCompare("b"), /(\p{L}+)/u.exec("äöü")[0]);
 return out;
}`, nil},
	"python/storm": {"python", `
import gc, re, json, decimal, sqlite3, zlib, asyncio, hashlib, random, datetime, tempfile, warnings, os, sys, traceback, weakref, collections, concurrent.futures
class N:
    pass
def main(input, env):
    out = []
    for i in range(1000):
        a, b = N(), N(); a.b = b; b.a = a
    out.append(gc.get_count()); out.append(gc.collect()); out.append(gc.get_stats()[2]['collections'])
    objs = {N() for _ in range(50)}
    out.append([hex(id(o)) for o in objs][:5])
    db = sqlite3.connect(':memory:'); db.execute('create table t(a, b default current_timestamp)'); db.execute('insert into t(a) values (random())')
    out.append(db.execute('select * from t').fetchall())
    fdb = sqlite3.connect('/tmp/x.db'); fdb.execute('create table t(a)'); fdb.execute('insert into t values (1)'); fdb.commit(); out.append(hashlib.sha256(open('/tmp/x.db','rb').read()).hexdigest())
    out.append(zlib.crc32(json.dumps({str(i): i for i in range(1000)}).encode()))
    async def w(i):
        await asyncio.sleep(random.random()); return env.X.echo(i)[0]
    async def many():
        return await asyncio.gather(*[w(i) for i in range(40)])
    out.append(asyncio.run(many()))
    with concurrent.futures.ThreadPoolExecutor() as ex:
        out.append(list(ex.map(lambda x: x * 2, range(5))))
    out.append(random.SystemRandom().random()); out.append(tempfile.mkdtemp()); out.append(str(decimal.Decimal(2).sqrt()))
    out.append(re.sub(r'(\w+)', lambda m: m[1][::-1], 'hello world'))
    try:
        {}['x']
    except KeyError:
        out.append(traceback.format_exc())
    warnings.warn('careful')
    out.append(sys.getrefcount(None)); out.append(sys.getsizeof(out)); out.append(str(datetime.datetime.now(datetime.timezone.utc)))
    out.append([str(f) for f in os.scandir('/tmp')]); out.append(os.times()[:]); out.append(sys.getallocatedblocks())
    print(out, flush=True)
    return json.loads(json.dumps(out, default=str))
`, nil},
	// Both leave a VM that has grown.
	"js/grows":     {"js", `export default () => { const keep = []; for (let i = 0; i < 20; i++) keep.push(new Uint8Array(1e6).fill(i)); return keep.length }`, nil},
	"python/grows": {"python", "def main():\n    keep = [bytearray(10**6) for i in range(25)]\n    return [len(keep), id(keep)]\n", nil},
	"js/cpu":       {"js", `export default (input) => { let s = ""; for (let i = 0; ; i++) { s = s.slice(-20) + i; if (i % 20000 === 0) console.log(i, s) } }`, nil},
	"js/regexp":    {"js", `export default () => { console.log("begin"); /^(a+)+$/.test("a".repeat(60) + "b") }`, nil},
	"js/memory":    {"js", `const keep = []; export default () => { for (let i = 0; ; i++) { keep.push(new Array(1000).fill(i)); if (i % 100 === 0) console.log(i) } }`, func(r *Request) { r.Limits.Memory = 16 << 20 }},
	"js/output":    {"js", `export default () => { for (let i = 0; ; i++) console.log("x".repeat(i)) }`, func(r *Request) { r.Limits.Output = 5000 }},
	"js/throw":     {"js", "export default () => {\n  const o = {};\n  return o.a.b;\n}", nil},
	"ts/throw":     {"ts", "interface A { n: number }\nexport default (a: A): number => {\n  if (a === null) throw new TypeError('no input');\n  return a.n;\n}", nil},
	"python/world": {"python", `
import time, random, os, uuid, secrets, tempfile, threading, gc, weakref, datetime, sys, hashlib
class A: pass
def main(input, env):
    start = time.perf_counter()
    time.sleep(1.5)
    rng = random.Random()
    with tempfile.NamedTemporaryFile('w', delete=False) as f:
        f.write('x')
    st = os.stat(f.name)
    print('to stdout', id(A()), object())
    print('to stderr', file=sys.stderr)
    a = A(); w = weakref.ref(a); a.me = a; del a
    n = gc.collect()
    names = {hash(s) for s in ('a', 'b', 'c', 'dd', 'ee')}
    try:
        threading.Thread(target=lambda: None).start()
    except RuntimeError as e:
        print(e)
    env.LOG.info('line', {'a': random.random()})
    return [time.time(), time.monotonic(), time.perf_counter() - start, time.process_time(), time.localtime()[:], str(datetime.datetime.now()),
            random.random(), rng.random(), random.sample(range(1000), 5), os.urandom(8).hex(), secrets.token_hex(8), str(uuid.uuid4()), str(uuid.uuid1()),
            os.getpid(), dict(os.environ), st.st_mtime, st.st_ino, f.name, id(A), hash('text'), list(names), [str(x) for x in {'p', 'q', 'r', 's'}],
            n, w() is None, sys.flags.hash_randomization, hashlib.sha256(repr(sorted(sys.modules)).encode()).hexdigest()]
`, nil},
	"python/calls": {"python", `
import random
def main(input, env):
    out = []
    for i in range(30):
        print('call', i)
        try:
            out.append((env.X.echo(i) if i % 7 else env.X.fail(i)) + [random.random()])
        except BindingError as e:
            out.append(str(e))
    r = fetch('https://a.test/x')
    return [out, r.text, dict(r.headers)]
`, nil},
	"python/cpu":    {"python", "def main():\n    n = 0\n    while True:\n        n += 1\n        if n % 50000 == 0:\n            print(n)\n", nil},
	"python/c loop": {"python", "def main():\n    print('begin')\n    return len(str(10**10**8))\n", nil},
	"python/memory": {"python", "def main():\n    keep = []\n    while True:\n        keep.append(bytearray(100000))\n        print(len(keep), end=' ')\n", nil},
	"python/throw":  {"python", "class Odd:\n    pass\n\ndef main():\n    d = {'o': Odd()}\n    print(d)\n    return d['nothing']\n", nil},
	"python/print":  {"python", "def main():\n    for i in range(20000):\n        print('a line of some length', i)\n", nil},
	"python/files":  {"python", "import os\ndef main():\n    print('a')\n    for i in range(3000):\n        open(f'/tmp/{i}', 'w').write('x' * i)\n    return [os.listdir('/tmp')[:5], os.stat('/tmp').st_mtime]\n", nil},
}

func deterministicRequest(name string) *Request {
	p := deterministicPrograms[name]
	ending := map[string]string{"js": "main.js", "ts": "main.ts", "python": "main.py"}[p.language]
	seed, clock := uint64(77), time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	r := &Request{Tenant: "alice", Language: p.language, Main: ending, Modules: map[string]string{ending: p.code}, Limits: testLimits,
		Env: map[string]string{"ONE": "1", "TWO": "2"}, Seed: &seed, Clock: &clock, Fetch: true,
		Bindings: []Binding{{Name: "X", Methods: []string{"echo", "fail"}}, {Name: logBinding, Methods: []string{"info"}}}}
	r.Limits.Wall, r.Limits.CPU, r.Limits.Calls = time.Minute, 300*time.Millisecond, 300
	if p.change != nil {
		p.change(r)
	}
	return r
}

// TestSameEachTime: a deterministic run shows the same in a new VM and in one
// that was used, alone and among others, in each worker. The order of answers is
// that of the first time.
func TestSameEachTime(t *testing.T) {
	p := newWorkers(t, 2)
	local := newPool(t)
	names := slices.Sorted(maps.Keys(deterministicPrograms))
	first, orders := map[string]string{}, map[string][]int{}
	for _, name := range names {
		h := newOrderedHost(nil)
		first[name] = seen(run1(t, p, deterministicRequest(name), h), h)
		orders[name] = append([]int{}, h.answered...)
		if strings.Contains(name, "calls") && len(h.answered) < 30 {
			t.Errorf("%s: %d answers: %s", name, len(h.answered), first[name])
		}
		// What is to be the same is what the program was written for.
		_, kind, _ := strings.Cut(name, "/")
		want := map[string]string{"cpu": "cpu", "c loop": "cpu", "regexp": "cpu", "memory": "memory", "output": "output"}[kind]
		switch {
		case want != "" && strings.Contains(first[name], `"Limit":"`+want+`"`):
		case kind == "throw" && strings.Contains(first[name], `"Kind":"code_error"`):
		case want == "" && kind != "throw" && strings.Contains(first[name], `"Status":"ok"`):
		default:
			t.Errorf("%s: %s", name, first[name])
		}
	}
	again := func(pool Pool, name string) {
		h := newOrderedHost(orders[name])
		res, err := pool.Run(t.Context(), deterministicRequest(name), h)
		if err != nil {
			t.Error(err)
			return
		}
		if got := seen(res, h); got != first[name] {
			t.Errorf("%s: another time\n%s\nthe first time\n%s", name, got, first[name])
		}
	}
	for round := range 4 {
		var group sync.WaitGroup
		for i := range names {
			name := names[(i*5+round)%len(names)]
			group.Go(func() { again(p, name) })
		}
		group.Wait()
	}
	for _, name := range names {
		again(local, name)
	}
}

// TestSameEachTimeWasm: a tenant's own module, which brings its own runtime.
func TestSameEachTimeWasm(t *testing.T) {
	first := map[string]string{}
	for round := range 3 {
		p := tenantPool(t, 2, time.Minute) // new workers each time
		for _, input := range []string{`{"do":"random"}`, `{"do":"sleep","n":1500}`, `{"do":"spin"}`, `{"do":"grow"}`, `{"do":"files"}`, `{"do":"recurse"}`, `{"do":"panic"}`, `{"do":"echo"}`} {
			r := wasmRequest(t, input)
			r.Modules["data/words.txt"] = "alpha\nbeta\n"
			seed, clock := uint64(77), time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
			r.Seed, r.Clock, r.Env = &seed, &clock, map[string]string{"B": "2", "A": "1"}
			r.Limits.Wall, r.Limits.CPU = time.Minute, 300*time.Millisecond
			h := newOrderedHost(nil)
			got := seen(run1(t, p, r, h), h)
			if round == 0 {
				first[input] = got
			} else if got != first[input] {
				t.Errorf("%s: another time\n%s\nthe first time\n%s", input, got, first[input])
			}
		}
	}
}
