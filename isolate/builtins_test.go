//go:build !race

// The race detector takes memory and time of its own: `make test-measure` runs
// what is measured here.

package isolate

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A greedy is code most of whose work is done by one built-in function, or by the
// host for it.
type greedy struct {
	src string
	// end is the limit that ends it; "thrown": it is told that it wants too much;
	// "ok": it comes to its end.
	end string
	// host: functions of ours do the work. Those give way to the garbage collector
	// by themselves; compiled code does between two quanta only.
	host bool
}

const cpuOrMemory = "cpu memory"

var greedyJS = map[string]greedy{
	"bigint power":     {`export default () => 2n ** (2n ** 26n) % 7n`, "cpu thrown", false},
	"bigint to text":   {`export default () => { for (;;) String(7n ** 300000n) }`, "cpu", false},
	"bigint parse":     {`export default () => { for (;;) BigInt('9'.repeat(300000)) }`, "cpu", false},
	"repeat":           {`export default () => { for (;;) 'x'.repeat(2 ** 24) }`, "cpu", false},
	"repeat at once":   {`export default () => 'x'.repeat(2 ** 29)`, "memory", false},
	"index of":         {`export default () => { const s = 'x'.repeat(2 ** 24); for (;;) s.indexOf('x'.repeat(1000) + 'y') }`, "cpu", false},
	"sort":             {`export default () => Array.from({length: 1e6}, (_, i) => -i).sort((a, b) => a - b)`, cpuOrMemory, false},
	"stringify wide":   {`export default () => { const a = new Array(3e5).fill('abc'); for (;;) JSON.stringify(a) }`, "cpu", false},
	"stringify deep":   {`export default () => { let o = {}; for (let i = 0; i < 15; i++) o = {a: o, b: o}; for (;;) JSON.stringify(o) }`, "cpu", false},
	"array to text":    {`export default () => { for (;;) new Array(1e6) + '' }`, "cpu", false},
	"array at once":    {`export default () => Array(1e9) + ''`, cpuOrMemory, false},
	"array fill":       {`export default () => new Array(4294967295).fill(0).length`, cpuOrMemory, false},
	"flat":             {`export default () => { let a = [1]; for (let i = 0; i < 18; i++) a = [a, a]; for (;;) a.flat(Infinity) }`, cpuOrMemory, false},
	"proxy":            {`export default () => { const p = new Proxy({}, {get: (t, k, r) => r[k + 'x']}); for (;;) try { p.a } catch {} }`, "cpu", false},
	"proxy keys":       {`export default () => { const p = new Proxy({}, {ownKeys: () => Array.from({length: 1e5}, (_, i) => 'k' + i)}); for (;;) Reflect.ownKeys(p) }`, "cpu", false},
	"no atomics":       {`export default () => { for (;;) Atomics.add(new Int32Array(1), 0, 1) }`, "thrown", false},
	"promises":         {`export default async () => { const a = []; for (let i = 0; i < 1e6; i++) a.push(new Promise(() => {})); await Promise.race(a); for (;;); }`, cpuOrMemory, false},
	"regexp":           {`export default () => /^(a+)+$/.test("a".repeat(40) + "b")`, "cpu", false},
	"replace":          {`export default () => { const s = 'ab'.repeat(1e6); for (;;) s.replace(/a(?=b)/g, '$&$&') }`, "cpu", false},
	"regexp compile":   {`export default () => { for (;;) try { new RegExp('('.repeat(1e4) + ')'.repeat(1e4)) } catch {} }`, "cpu", false},
	"regexp class":     {`export default () => { for (;;) new RegExp('[' + '\\p{L}\\p{N}'.repeat(5000) + ']', 'u') }`, "cpu", false},
	"normalize":        {`export default () => { const s = '\u1e9b\u0323'.repeat(2e5); for (;;) s.normalize('NFKD') }`, "cpu", false},
	"parse JSON":       {`export default () => { const s = '[' + '1,'.repeat(1e6) + '1]'; for (;;) JSON.parse(s) }`, "cpu", false},
	"compile wide":     {`export default () => { for (;;) new Function('return [' + '{},'.repeat(1e5) + ']') }`, "cpu", false},
	"compile long":     {`export default () => { const s = 'x=>' + '1+'.repeat(3e5) + '1'; for (;;) (0, eval)(s) }`, "cpu", false},
	"compile deep":     {`export default () => { const s = '('.repeat(1e5); for (;;) try { (0, eval)(s) } catch {} }`, "cpu", false},
	"fill":             {`export default () => { const a = new Uint8Array(200e6); for (;;) a.fill(1) }`, "cpu", false},
	"copyWithin":       {`export default () => { const a = new Uint8Array(200e6); for (;;) a.copyWithin(1, 0) }`, "cpu", false},
	"slice":            {`export default () => { const a = new Uint8Array(100e6); for (;;) a.slice() }`, "cpu", false},
	"first touch":      {`export default () => { const a = new Uint8Array(240e6); for (let i = 0; i < a.length; i += 4096) a[i] = 1; for (;;); }`, "cpu", false},
	"structuredClone":  {`export default () => { const a = new Array(1e5).fill({a: 1}); for (;;) structuredClone(a) }`, "cpu memory", false},
	"log":              {`export default () => console.log('x'.repeat(60e6))`, "output cpu", true},
	"log surrogates":   {`export default () => { const s = '\ud800'.repeat(300000); for (;;) console.log(s) }`, "output cpu", true},
	"log a stack":      {`export default () => { const s = 'x\n    at a (main.js:1:1)'.repeat(600); for (;;) console.log(s) }`, "output cpu", true},
	"throw":            {`export default () => { throw new Error('x'.repeat(30e6)) }`, "thrown cpu", true},
	"encode":           {`export default () => { const s = 'x'.repeat(30e6), e = new TextEncoder; for (;;) e.encode(s) }`, cpuOrMemory, true},
	"encode surrogate": {`export default () => { const s = '\ud800'.repeat(5e6), e = new TextEncoder; for (;;) e.encode(s) }`, "cpu", true},
	"decode bad":       {`export default () => { const s = new Uint8Array(20e6).fill(0xff), e = new TextDecoder; for (;;) e.decode(s) }`, cpuOrMemory, true},
	"decode a legacy":  {`export default () => { const s = new Uint8Array(20e6).fill(0x81), e = new TextDecoder('windows-1252'); for (;;) e.decode(s) }`, cpuOrMemory, true},
	"decode UTF-16":    {`export default () => { const s = new Uint8Array(30e6).fill(0xd8), e = new TextDecoder('utf-16le'); for (;;) e.decode(s) }`, cpuOrMemory, true},
	"decode a stream":  {`export default () => { const s = new Uint8Array(20e6).fill(0x81), e = new TextDecoder('gb18030'); for (;;) e.decode(s, {stream: true}) }`, cpuOrMemory, true},
	"encoding's name":  {`export default () => { for (;;) try { new TextDecoder('x'.repeat(1e7)) } catch {} }`, "cpu", true},
	"URL path":         {`export default () => { for (;;) try { new URL('http://a/' + 'a/'.repeat(4000)) } catch {} }`, "cpu", true},
	"URL query":        {`export default () => { for (;;) try { new URL('http://a/?' + '\u1e9b'.repeat(8e4)) } catch {} }`, "cpu", true},
	"URL set":          {`export default () => { const u = new URL('http://a/'); for (;;) u.pathname = '%41/'.repeat(3000) }`, "cpu", true},
	"digest":           {`export default async () => { const b = new Uint8Array(50e6); for (;;) await crypto.subtle.digest('SHA-512', b) }`, "cpu", true},
	"HMAC key":         {`export default async () => { const k = await crypto.subtle.importKey('raw', new Uint8Array(30e6), {name: 'HMAC', hash: 'SHA-512'}, false, ['sign']); for (;;) await crypto.subtle.sign('HMAC', k, new Uint8Array(1)) }`, "cpu", true},
	"random":           {`export default () => { const b = new Uint8Array(65536); for (;;) crypto.getRandomValues(b) }`, "cpu", true},
	"arguments":        {`export default async (i, env) => { const s = 'x'.repeat(30e6); for (;;) try { await env.X.now(s) } catch {} }`, "cpu calls", true},
}

var greedyPython = map[string]greedy{
	"power":           {"  return len(str(10**10**8))", "cpu", false},
	"int":             {"  import sys\n  sys.set_int_max_str_digits(0)\n  return int('9'*3000000) % 7", "cpu", false},
	"multiply":        {"  a=3**2000000\n  while 1: a*a", "cpu", false},
	"factorial":       {"  import math\n  return math.factorial(10**7) % 3", "cpu", false},
	"sum":             {"  return sum(range(10**12))", "cpu", false},
	"find":            {"  s=b'a'*40000000\n  while 1: s.find(b'a'*500+b'b'+b'a'*499)", "cpu", false},
	"sorted":          {"  a=list(range(500000,0,-1))\n  while 1: sorted(a, key=lambda x: x % 1000)", "cpu", false},
	"list":            {"  while 1: [0]*10000000", "cpu", false},
	"list at once":    {"  return len([0]*10**9)", "thrown", false},
	"bytes":           {"  while 1: b'a'*80000000", "cpu", false},
	"zlib":            {"  import zlib\n  b=bytes(20000000)\n  while 1: zlib.compress(b, 9)", "cpu", false},
	"hashlib":         {"  import hashlib\n  b=bytes(50000000)\n  while 1: hashlib.sha256(b).digest()", "cpu", false},
	"re":              {"  import re\n  return bool(re.match(r'^(a+)+$', 'a'*40+'b'))", "cpu", false},
	"re compile":      {"  import re\n  while 1:\n    re.compile('|'.join(str(i) for i in range(100000))); re.purge()", "cpu", false},
	"json":            {"  import json\n  a=[1]*1000000\n  while 1: json.loads(json.dumps(a))", "cpu", false},
	"itertools":       {"  import itertools, collections\n  collections.deque(itertools.repeat(1), maxlen=0)", "cpu", false},
	"count":           {"  import itertools\n  return 5.5 in itertools.count()", "cpu", false},
	"deque":           {"  import collections\n  d=collections.deque(range(300000))\n  while 1: d.rotate(150000)", "cpu", false},
	"calls":           {"  def f(n): return f(n-1)+f(n-1) if n else 1\n  return f(60)", "cpu", false},
	"compile nested":  {"  while 1:\n    try: compile('('*150+')'*150, 'x', 'eval')\n    except Exception: pass", "cpu", false},
	"compile literal": {"  while 1: compile('['+'1,'*300000+']', 'x', 'eval')", "cpu", false},
	"ast":             {"  import ast\n  while 1:\n    try: ast.parse('-'*80000+'1')\n    except Exception: pass", "cpu", false},
	"format":          {"  while 1: '%50000000d' % 1", "cpu", false},
	"unicodedata":     {"  import unicodedata\n  s='\\u1e9b\\u0323'*1000000\n  while 1: unicodedata.normalize('NFKD', s)", "cpu", false},
	"decimal":         {"  import decimal\n  decimal.getcontext().prec=1000000\n  while 1: decimal.Decimal(2).sqrt()", "cpu", false},
	"memory":          {"  a=[]\n  while 1: a.append(bytearray(1000000))", "memory", false},
	"collector":       {"  import gc\n  a=[[k] for k in range(300000)]\n  while 1: gc.collect()", "cpu", false},
	"urandom":         {"  import os\n  while 1: os.urandom(80000000)", "cpu", true},
	"print":           {"  s='x'*80000000\n  while 1: print(s)", "output", true},
	"log":             {"  env.LOG.info('x'*60000000)", "output cpu", true},
	"result":          {"  return 'x'*60000000", "result cpu", true},
	"raise":           {"  raise ValueError('x'*20000000)", "thrown cpu memory", true},
	"arguments":       {"  s='x'*30000000\n  while 1:\n    try: env.X.now(s)\n    except Exception: pass", "cpu calls", true},
	"file":            {"  b=bytes(20000000)\n  while 1: open('/tmp/x','wb').write(b)", "cpu", true},
	"file truncate":   {"  f=open('/tmp/x','wb',buffering=0)\n  while 1:\n    f.truncate(80000000); f.truncate(30000000)", "cpu", true},
	"file append":     {"  f=open('/tmp/x','ab',buffering=0)\n  f.truncate(50000000)\n  while 1: f.write(b'x'*100)", "cpu", true},
	"listdir":         {"  import os\n  for k in range(1000): open('/tmp/%d'%k,'w').close()\n  while 1: os.listdir('/tmp')", "cpu", true},
	"stat":            {"  import os\n  while 1:\n    try: os.stat('/tmp/'+'../tmp/'*500)\n    except OSError: pass", "cpu", true},
	"sleep":           {"  import time\n  while 1: time.sleep(0)", "cpu", true},
}

// TestGreedy: one built-in does not work past a limit, wherever it is written,
// and compiled code lets the collector and its neighbours in. What is measured is
// the processor time of the run, which does not depend on who else has the cores.
func TestGreedy(t *testing.T) {
	p := newPool(t).(*inProcess)
	limits := Limits{Wall: time.Minute, CPU: 300 * time.Millisecond, Memory: 256 << 20, Output: 1 << 20, Result: 1 << 20, Calls: 1000, Requests: 1, Concurrency: 8}
	ready := func(r *Request) *jobMessage {
		r.Limits = limits
		r.Bindings = []Binding{{Name: "X", Methods: []string{"now"}}, {Name: "LOG", Methods: []string{"info"}}}
		return &jobMessage{Request: r}
	}
	for name, g := range greedyJS {
		t.Run("js "+name, func(t *testing.T) {
			g.judge(t, &limits, func(s *stretch) *Result {
				vm, err := p.engines.js.Get(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer p.engines.js.Put(vm)
				return executeBy(context.Background(), vm, ready(js(g.src)), limitHost(), func(r *run) error {
					r.time.look = s.look
					return r.main()
				})
			})
		})
	}
	engine, err := p.engines.forPython(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, g := range greedyPython {
		t.Run("python "+name, func(t *testing.T) {
			g.judge(t, &limits, func(s *stretch) *Result {
				vm, err := engine.Get(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer engine.Put(vm)
				return executePythonBy(context.Background(), vm, ready(python("def main(i, env):\n"+g.src)), limitHost(), func(r *pythonRun) error {
					r.time.look = s.look
					return r.main()
				})
			})
		})
	}
}

// A stretch is the longest time between two looks at the clock.
type stretch struct{ last, longest time.Duration }

func (s *stretch) look(used time.Duration) {
	s.longest = max(s.longest, used-s.last)
	s.last = used
}

// judge runs the code and looks how it ended, and when. A machine that is busy
// counts something of others to a thread now and then, so what took long in one go
// is measured again: if it is the code's, it takes as long the next time.
func (g *greedy) judge(t *testing.T, limits *Limits, run func(*stretch) *Result) {
	t.Helper()
	most := 5 * time.Millisecond
	if g.host {
		most = 100 * time.Millisecond
	}
	var over, longest time.Duration
	for range 5 {
		s := &stretch{}
		res := run(s)
		s.look(res.Usage.CPU)
		g.wantEnd(t, res)
		over, longest = max(0, res.Usage.CPU-limits.CPU), s.longest
		if over <= 100*time.Millisecond && longest <= most {
			t.Logf("%v over, longest stretch %v", over, longest)
			return
		}
	}
	t.Errorf("worked %v longer than it may, and %v in one go, where %v is the most", over, longest, most)
}

func (g *greedy) wantEnd(t *testing.T, res *Result) {
	t.Helper()
	end := res.Status
	if e := res.Error; e != nil {
		switch end = e.Limit; e.Kind {
		case KindThrown:
			end = "thrown"
		case KindLimit:
			if e.Used == "" || e.Allowed == "" {
				t.Errorf("no numbers: %+v", e)
			}
		}
	}
	if !strings.Contains(" "+g.end+" ", " "+end+" ") {
		t.Fatalf("ended by %q, want %s: %+v", end, g.end, res.Error)
	}
}
