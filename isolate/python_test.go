package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func python(src string) *Request {
	l := testLimits
	l.Memory = 96 << 20
	return &Request{Tenant: "alice", Language: "python", Main: "main.py", Modules: map[string]string{"main.py": src}, Limits: l}
}

func (h *fakeHost) stream(kind string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, e := range h.events {
		if e.Kind == kind {
			b.WriteString(e.Message)
		}
	}
	return b.String()
}

func TestPythonShapes(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		src, stdout string
		want
	}{
		"main":          {src: "def main(input, env):\n    return input['a'] + 1", want: want{value: "42", phase: PhaseFinished}},
		"input only":    {src: "def main(input):\n    return input['a']", want: want{value: "41"}},
		"no parameter":  {src: "def main():\n    return [1, 'ü', None, True, 1.5]", want: want{value: `[1,"ü",null,true,1.5]`}},
		"lambda":        {src: "main = lambda input, env: input", want: want{value: `{"a":41}`}},
		"async":         {src: "import asyncio\nasync def main(input, env):\n    await asyncio.sleep(0.001)\n    return (await asyncio.gather(f(1), f(2)))\nasync def f(x):\n    return x", want: want{value: "[1,2]"}},
		"script":        {src: "print('hello')\nprint(sum(range(10)))", stdout: "hello\n45\n", want: want{value: "null", phase: PhaseFinished}},
		"guard":         {src: "def main():\n    print('once')\nif __name__ == '__main__':\n    main()", stdout: "once\n", want: want{value: "null"}},
		"guard beside":  {src: "def main(input, env):\n    return 1\nif __name__ == '__main__':\n    main({}, None)\n    print('not')", want: want{value: "1"}},
		"fence":         {src: "```python\ndef main(input, env):\n    return 3\n```\n", want: want{value: "3"}},
		"stdin":         {src: "import sys, json\nprint(json.load(sys.stdin)['a'])", stdout: "41\n", want: want{value: "null"}},
		"exit":          {src: "import sys\nprint('x', end='')\nsys.exit(0)", stdout: "x", want: want{value: "null"}},
		"exit 3":        {src: "exit(3)", want: want{kind: KindThrown, message: "exit status 3", file: "main.py"}},
		"env in script": {src: "print(env)", stdout: "<env: >\n", want: want{value: "null"}},
		"executor":      {src: "from concurrent.futures import ThreadPoolExecutor, as_completed\ndef main(input, env):\n    with ThreadPoolExecutor(max_workers=4) as e:\n        return [list(e.map(abs, [-1, 2])), [f.result() for f in as_completed([e.submit(max, 3, 4)])]]", want: want{value: "[[1,2],[4]]"}},
		"big number":    {src: "def main(input, env):\n    return 2**100", want: want{value: "1267650600228229401496703205376"}},
		"dates":         {src: "import datetime, enum, uuid, dataclasses\nclass E(enum.Enum):\n    A = 'a'\n@dataclasses.dataclass\nclass D:\n    x: int\ndef main(input, env):\n    return [datetime.date(2026, 1, 2), E.A, D(1), (1, 2)]", want: want{value: `["2026-01-02","a",{"x":1},[1,2]]`}},
		"clocks":        {src: "import time, os, timeit\ndef main(input, env):\n    t = [time.monotonic(), time.process_time(), os.times().user, timeit.default_timer(), time.monotonic()]\n    return sorted(t) == t and t[-1] - t[0] < 5", want: want{value: "true"}},
		"surrogate":     {src: "def main(input, env):\n    return 'a\\udc80'", want: want{value: `"a\udc80"`}},
		"empty":         {src: "", want: want{value: "null"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := python(c.src)
			r.Input = json.RawMessage(`{"a":41}`)
			h := &fakeHost{}
			check(t, run1(t, p, r, h), h, c.want)
			if got := h.stream(eventStdout); got != c.stdout {
				t.Errorf("stdout %q, want %q", got, c.stdout)
			}
		})
	}
}

func TestPythonModules(t *testing.T) {
	p := newPool(t)
	r := python("from lib.util import double\nimport data, lib.deep.thing as thing\ndef main(input, env):\n    return [double(4), data.X, thing.__name__, open('table.csv').read(), thing.up()]")
	r.Modules["lib/__init__.py"] = ""
	r.Modules["lib/util.py"] = "def double(x):\n    return 2 * x\n"
	r.Modules["lib/deep/thing.py"] = "from ..util import double\ndef up():\n    return double(21)\n"
	r.Modules["data.py"] = "X = 'x'"
	r.Modules["table.csv"] = "a,b\n"
	h := &fakeHost{}
	check(t, run1(t, p, r, h), h, want{value: `[8,"x","lib.deep.thing","a,b\n",42]`})

	r = python("import util\ndef main(input, env):\n    return util.x")
	r.Modules = map[string]string{"src/main.py": r.Modules["main.py"], "src/util.py": "x = 5"}
	r.Main = "src/main.py"
	check(t, run1(t, p, r, h), h, want{value: "5"})
}

func TestPythonErrors(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		src, other string
		want
	}{
		"raise":           {src: "def main(input, env):\n    x = 1\n    raise ValueError('no good')", want: want{kind: KindThrown, message: "ValueError: no good", file: "main.py", line: 3, column: 5, stack: "raise ValueError('no good')", phase: PhaseFinished}},
		"zero":            {src: "def f(a):\n    return 10 + a / 0\ndef main(input, env):\n    return f(2)", want: want{kind: KindThrown, message: "ZeroDivisionError", file: "main.py", line: 2, column: 17, stack: "in main\n    return f(2)"}},
		"in library":      {src: "import json\ndef main(input, env):\n    return json.loads('{')", want: want{kind: KindThrown, message: "json.decoder.JSONDecodeError", file: "main.py", line: 3, column: 12}},
		"in module":       {src: "import other\ndef main(input, env):\n    return other.f()", other: "def f():\n    return {}['k']\n", want: want{kind: KindThrown, message: "KeyError: 'k'", file: "other.py", line: 2, column: 12, stack: `File "main.py", line 3`}},
		"cause":           {src: "def main(input, env):\n    try:\n        1/0\n    except Exception as e:\n        raise RuntimeError('outer') from e", want: want{kind: KindThrown, message: "RuntimeError: outer", line: 5, column: 9, stack: "direct cause"}},
		"syntax":          {src: "def main(input, env):\n    return (1 +", want: want{kind: KindRejected, message: "SyntaxError: '(' was never closed", file: "main.py", line: 2, column: 12, phase: PhaseNotStarted}},
		"syntax in other": {src: "import other", other: "x = = 1", want: want{kind: KindRejected, message: "SyntaxError", file: "other.py", line: 1, column: 5}},
		"indent":          {src: "def f():\nreturn 1", want: want{kind: KindRejected, message: "IndentationError", line: 2, column: 1}},
		"no module":       {src: "import pandas", want: want{kind: KindThrown, message: "No module named 'pandas'", hint: "no packages", line: 1, column: 1}},
		"requests":        {src: "import requests", want: want{kind: KindThrown, hint: "use fetch(url"}},
		"name":            {src: "def main(input):\n    return env.DB", want: want{kind: KindThrown, message: "name 'env' is not defined", hint: "second parameter"}},
		"did you mean":    {src: "def main(input, env):\n    value = 1\n    return valeu", want: want{kind: KindThrown, message: "Did you mean: 'value'"}},
		"set":             {src: "def main(input, env):\n    return {'a': [1, {2}]}", want: want{kind: KindThrown, message: "result.a[1] is a set", file: "main.py"}},
		"function":        {src: "def main(input, env):\n    return {'a b': main}", want: want{kind: KindThrown, message: "result['a b'] is a function"}},
		"cycle":           {src: "def main(input, env):\n    a = []\n    a.append(a)\n    return a", want: want{kind: KindThrown, message: "result[0] is one of the objects that hold it (a cycle)"}},
		"nan":             {src: "def main(input, env):\n    return [float('nan')]", want: want{kind: KindThrown, message: "result[0] is nan"}},
		"deep":            {src: "def main(input, env):\n    a = []\n    for i in range(5000):\n        a = [a]\n    return a", want: want{kind: KindThrown, message: "nested too deeply"}},
		"no file":         {src: "open('/etc/passwd')", want: want{kind: KindThrown, message: "FileNotFoundError", hint: "no files"}},
		"no process":      {src: "import subprocess\nsubprocess.run(['ls'])", want: want{kind: KindThrown, hint: "no processes"}},
		"no socket":       {src: "import urllib.request\nurllib.request.urlopen('http://127.0.0.1/')", want: want{kind: KindThrown, hint: "no sockets"}},
		"no thread":       {src: "import threading\nthreading.Thread(target=print).start()", want: want{kind: KindThrown, hint: "one thread"}},
		"no fetch":        {src: "fetch('http://x/')", want: want{kind: KindThrown, message: "fetch is not granted"}},
		"_exit":           {src: "import os\nos._exit(4)", want: want{kind: KindThrown, message: "ended its process with status 4"}},
		"nested source":   {src: "eval('(' * 10000)", want: want{kind: KindThrown, message: "MemoryError", hint: "nested too deeply"}},
		"crash":           {src: "import _testcapi\n_testcapi.crash_no_current_thread()", want: want{kind: KindThrown, message: "crashed the interpreter"}},
		"odd exception":   {src: "class E(Exception):\n    def __str__(self):\n        raise KeyError\nraise E", want: want{kind: KindThrown, message: "E"}},
		"descriptor":      {src: "import os\nos.write(0, b'x')", want: want{kind: KindThrown, message: "descriptor 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := python(c.src)
			if c.other != "" {
				r.Modules["other.py"] = c.other
			}
			h := &fakeHost{}
			res := run1(t, p, r, h)
			check(t, res, h, c.want)
			if strings.Contains(res.Error.Stack, "<string>") || strings.Contains(res.Error.Stack, "python312.zip") {
				t.Errorf("the stack shows frames that are not the user's: %s", res.Error.Stack)
			}
		})
	}
}

func TestPythonBindings(t *testing.T) {
	p := newPool(t)
	bindings := []Binding{{Name: "DB", Methods: []string{"query"}}, {Name: "KV", Methods: []string{"get", "put"}}, {Name: "LOG", Methods: []string{"info"}}}
	call := func(ctx context.Context, c Call) (json.RawMessage, error) {
		switch c.Binding + "." + c.Method {
		case "DB.query":
			return json.RawMessage(`{"rows":[{"n":1}],"args":` + string(c.Args) + `}`), nil
		case "KV.get":
			return nil, errors.New("the store is away")
		case "fetch.fetch":
			return json.RawMessage(`{"status":201,"statusText":"Created","url":"http://x/","headers":[["content-type","application/json"]],"body":"eyJhIjoxfQ=="}`), nil
		}
		return nil, nil
	}
	for name, c := range map[string]struct {
		src string
		want
	}{
		"query":      {"def main(input, env):\n    return env.DB.query('select ?', [1, 'ü'])", want{value: `{"rows":[{"n":1}],"args":["select ?",[1,"ü"]]}`, phase: PhaseFinished}},
		"options":    {"def main(input, env):\n    return env['KV'].put('a', 'b', ttl=5)", want{value: `null`}},
		"fails":      {"def main(input, env):\n    env.KV.get('a')", want{kind: KindBinding, message: "the store is away", file: "main.py", line: 2, column: 5}},
		"caught":     {"def main(input, env):\n    try:\n        env.KV.get('a')\n    except BindingError as e:\n        return [str(e), e.binding, e.method]", want{value: `["the store is away","KV","get"]`}},
		"no method":  {"def main(input, env):\n    env.DB.exec('drop')", want{kind: KindThrown, message: "env.DB has no 'exec'; it has query"}},
		"no binding": {"def main(input, env):\n    env.MAIL.send()", want{kind: KindThrown, message: "env has no 'MAIL'; it has NAME, DB, KV, LOG, fetch"}},
		"forged":     {"import os\nos.write(0, b'CMAIL\\0send\\0[]')", want{kind: KindThrown, message: "MAIL.send, which it was not granted"}},
		"bad arg":    {"def main(input, env):\n    env.DB.query({1})", want{kind: KindThrown, message: "DB.query argument [0] is a set"}},
		"strings":    {"import os\ndef main(input, env):\n    return [env.NAME, env['NAME'], os.environ['NAME'], 'NAME' in env, env.get('none', 7)]", want{value: `["v","v","v",true,7]`}},
		"fetch":      {"def main(input, env):\n    r = fetch('http://x/', method='POST', json={'q': 1})\n    return [r.status, r.ok, r.json(), r.headers['Content-Type'], r.text]", want{value: `[201,true,{"a":1},"application/json","{\"a\":1}"]`}},
		"log":        {"def main(input, env):\n    env.LOG.info('hello', {'n': 1})\n    import logging\n    logging.warning('careful %d', 2)", want{value: "null", logs: "info: hello {\"n\":1}\nwarn: WARNING:root:careful 2\n"}},
		"await":      {"async def main(input, env):\n    return await env.DB.query('x')", want{kind: KindThrown, hint: "leave await out"}},
		"stderr":     {"import sys\nprint('oops', file=sys.stderr)", want{value: "null", logs: "warn: oops\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := python(c.src)
			r.Bindings, r.Env, r.Fetch = bindings, map[string]string{"NAME": "v"}, true
			h := &fakeHost{call: call}
			check(t, run1(t, p, r, h), h, c.want)
		})
	}
}

// TestPythonLimits runs what must be stopped, and how soon.
func TestPythonLimits(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		src   string
		limit string
		set   func(*Limits)
	}{
		"loop":         {"while True: pass", "cpu", nil},
		"power":        {"x = 10**10**8", "cpu", nil},
		"digits":       {"import sys\nsys.set_int_max_str_digits(0)\nx = str(7**3000000)", "cpu", nil},
		"regex":        {"import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", "cpu", nil},
		"sort":         {"x = sorted(range(10**7), key=lambda v: -v) ", "cpu", func(l *Limits) { l.Memory = 1 << 30; l.CPU = 100 * time.Millisecond }},
		"sum in C":     {"sum(iter(lambda: 1, 2))", "cpu", nil},
		"bytes in C":   {"x = b'a' * 10**7\nwhile True: x.count(b'b')", "cpu", nil},
		"hash":         {"import hashlib\nx = b'x' * 10**7\nwhile True: hashlib.sha256(x)", "cpu", nil},
		"exponential":  {"def f(n): return f(n-1) + f(n-1) if n else 1\nf(60)", "cpu", nil},
		"except":       {"while True:\n    try:\n        while True: pass\n    except BaseException: pass", "cpu", nil},
		"sleep":        {"import time\ntime.sleep(100)", "wall", func(l *Limits) { l.Wall = 200 * time.Millisecond }},
		"memory":       {"x = []\nwhile True: x.append(bytearray(1 << 20))", "memory", func(l *Limits) { l.CPU = 4 * time.Second }},
		"one string":   {"x = 'x' * 10**9", "memory", nil},
		"no such size": {"x = bytearray(1 << 32)", "", nil},
		"output":       {"while True: print('x' * 1000)", "output", nil},
		"stderr":       {"import sys\nwhile True: sys.stderr.write('x' * 100000)", "output", nil},
		"result":       {"def main(input, env): return 'x' * 2000000", "result", nil},
		"calls":        {"def main(input, env):\n    while True: env.DB.query('x')", "calls", nil},
		"requests":     {"while True: fetch('http://x/')", "requests", nil},
		"recursion":    {"import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", "memory", func(l *Limits) { l.CPU, l.Wall = 10*time.Second, 20*time.Second }},
	} {
		t.Run(name, func(t *testing.T) {
			r := python(c.src)
			r.Limits.CPU = 300 * time.Millisecond
			r.Fetch, r.Bindings = true, []Binding{{Name: "DB", Methods: []string{"query"}}}
			if c.set != nil {
				c.set(&r.Limits)
			}
			h := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) {
				return json.RawMessage(`{"status":200,"statusText":"","url":"","headers":[],"body":""}`), nil
			}}
			start := time.Now()
			res := run1(t, p, r, h)
			if c.limit == "" {
				if res.Error == nil {
					t.Fatalf("it has a result: %s", res.Value)
				}
				t.Logf("%+v", res.Error)
				return
			}
			if res.Status != StatusKilled || res.Error.Kind != KindLimit || res.Error.Limit != c.limit || res.Error.Used == "" || res.Error.Allowed == "" {
				t.Fatalf("status %s, error %+v, value %.100s", res.Status, res.Error, res.Value)
			}
			allowed := r.Limits.CPU
			if c.limit == "wall" {
				allowed = r.Limits.Wall
			}
			if c.limit == "cpu" && res.Usage.CPU > allowed+100*time.Millisecond {
				t.Errorf("ended after %v of cpu, %v were allowed", res.Usage.CPU, allowed)
			}
			t.Logf("wall %v cpu %v: %s", time.Since(start).Round(time.Millisecond), res.Usage.CPU.Round(time.Millisecond), res.Error.Message)
		})
	}
}

// TestPythonClean fills memory, modules and globals, and looks for them in the
// next call.
func TestPythonClean(t *testing.T) {
	p := newPool(t)
	marker := "leftover"
	leave := fmt.Sprintf(`import builtins, sys, os, json, random, math
m = %q + '-' + 'marker'
builtins.stolen = m
sys.modules['stolen'] = m
os.environ['STOLEN'] = m
json.stolen = m
math.stolen = m
json.dumps = None
random.seed(1)
keep = [m * 100 for _ in range(10000)]
def main(input, env):
    %s
    return [len(keep), random.random()]`, marker, "%s")
	look := fmt.Sprintf(`import builtins, sys, os, json, random, gc, math
def main(input, env):
    seen = [hasattr(builtins, 'stolen'), 'stolen' in sys.modules, 'STOLEN' in os.environ, hasattr(json, 'stolen'), hasattr(math, 'stolen')]
    text = %q + '-' + 'mark'
    found = sum(isinstance(o, str) and text in o for x in gc.get_objects() for o in (x.values() if type(x) is dict else x if type(x) in (list, tuple) else ()))
    return [seen, found - sum(1 for o in main.__code__.co_consts if isinstance(o, str) and text in o), random.random()]`, marker)
	seen := map[string]bool{}
	for i := range 6 {
		r := python(fmt.Sprintf(leave, "pass"))
		if i%2 == 1 { // killed in the middle
			r = python(fmt.Sprintf(leave, "while True: pass"))
			r.Limits.CPU = 200 * time.Millisecond
		}
		run1(t, p, r, nil)
		h := &fakeHost{}
		res := run1(t, p, python(look), h)
		check(t, res, h, want{})
		var got struct{ a, b json.RawMessage }
		var all []json.RawMessage
		if err := json.Unmarshal(res.Value, &all); err != nil || len(all) != 3 {
			t.Fatal(err, string(res.Value))
		}
		got.a, got.b = all[0], all[1]
		if string(got.a) != "[false,false,false,false,false]" || string(got.b) != "0" {
			t.Errorf("a call sees what another left: %s", res.Value)
		}
		if seen[string(all[2])] {
			t.Errorf("two calls draw the same number: %s", all[2])
		}
		seen[string(all[2])] = true
	}
}

func TestPythonDeterministic(t *testing.T) {
	p := newPool(t)
	src := `import random, time, uuid, datetime, os
def main(input, env):
    t = time.time()
    time.sleep(3)
    return [t, time.time(), random.random(), str(uuid.uuid4()), datetime.datetime.now(), os.urandom(4).hex(), hash('x'), list({'a', 'b', 'c'})]`
	var first string
	for range 3 {
		r := python(src)
		seed, clock := uint64(7), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		r.Seed, r.Clock = &seed, &clock
		h := &fakeHost{}
		start := time.Now()
		res := run1(t, p, r, h)
		check(t, res, h, want{})
		if first == "" {
			first = string(res.Value)
			t.Log(first)
		}
		if string(res.Value) != first {
			t.Errorf("not the same: %s and %s", first, res.Value)
		}
		if time.Since(start) > 2*time.Second {
			t.Error("a virtual sleep takes time")
		}
	}
	if !strings.HasPrefix(first, "[1767225600") {
		t.Errorf("the clock is not the one that was given: %s", first)
	}
}

func TestPythonWorkers(t *testing.T) {
	p := newWorkers(t, 1)
	r := python("import sys\ndef main(input, env):\n    print('out')\n    print('err', file=sys.stderr)\n    env.LOG.warn('log')\n    return env.DB.query('x')['n']")
	r.Bindings = []Binding{{Name: "DB", Methods: []string{"query"}}, {Name: "LOG", Methods: []string{"warn"}}}
	h := &fakeHost{call: func(context.Context, Call) (json.RawMessage, error) { return json.RawMessage(`{"n":3}`), nil }}
	check(t, run1(t, p, r, h), h, want{value: "3", logs: "info: out\n\nwarn: err\n\nwarn: log\n"})
	if h.stream(eventStdout) != "out\n" || h.stream(eventStderr) != "err\n" {
		t.Errorf("streams %q and %q", h.stream(eventStdout), h.stream(eventStderr))
	}
	r = python("while True: pass")
	r.Limits.CPU = 100 * time.Millisecond
	if res := run1(t, p, r, nil); res.Error == nil || res.Error.Limit != "cpu" {
		t.Errorf("%+v", res)
	}
	check(t, run1(t, p, python("def main(input, env):\n    return 1"), nil), &fakeHost{}, want{value: "1"})
	// A neighbour's loop does not stop a call.
	loop := make(chan *Result, 1)
	go func() {
		r := python("x = 10**10**8")
		r.Limits.CPU, r.Limits.Wall = time.Second, 3*time.Second
		res, _ := p.Run(context.Background(), r, &fakeHost{})
		loop <- res
	}()
	for range 20 {
		check(t, run1(t, p, python("def main(input, env):\n    return 1"), nil), &fakeHost{}, want{value: "1"})
	}
	if res := <-loop; res == nil || res.Error == nil || res.Error.Limit != "cpu" && res.Error.Limit != "wall" {
		t.Errorf("%+v", res)
	}
}

// TestPythonFiles uses the run's own file system as code does that knows of
// nothing else.
func TestPythonFiles(t *testing.T) {
	p := newPool(t)
	r := python(`import os, tempfile, pathlib, csv, sqlite3, shutil, zipfile, json
def main(input, env):
    out = []
    with open('/tmp/a.txt', 'w') as f:
        f.write('one\ntwo\n')
    with open('/tmp/a.txt', 'a') as f:
        f.write('three\n')
    out.append(open('/tmp/a.txt').read().split())
    with open('/tmp/a.txt', 'r+b') as f:
        f.seek(4); f.write(b'TWO'); f.seek(0, 2); out.append(f.tell()); f.truncate(7)
    out.append(open('/tmp/a.txt').read())
    p = pathlib.Path('out/deep'); p.mkdir(parents=True)
    (p / 'x.json').write_text('{"a": 1}')
    out.append([sorted(str(q) for q in pathlib.Path('out').rglob('*')), os.path.exists('/out/deep/x.json'), json.load(open('out/deep/x.json'))])
    os.rename('out/deep/x.json', 'out/y.json')
    out.append([os.listdir('out'), os.listdir('out/deep'), os.path.getsize('out/y.json')])
    with tempfile.NamedTemporaryFile('w+') as f:
        f.write('temp'); f.seek(0); out.append(f.read())
    shutil.rmtree('out'); out.append(os.path.exists('out'))
    with zipfile.ZipFile('/tmp/z.zip', 'w') as z:
        z.writestr('f', 'zipped')
    out.append(zipfile.ZipFile('/tmp/z.zip').read('f').decode())
    out.append([list(csv.reader(open('data/t.csv'))), sorted(os.listdir('/')), sorted(os.listdir('/tmp'))])
    with sqlite3.connect('/tmp/t.db') as db:
        db.execute('create table t (x)'); db.execute('insert into t values (5)')
    out.append(sqlite3.connect('/tmp/t.db').execute('select x from t').fetchall())
    for f in (lambda: open('/none'), lambda: os.mkdir('/tmp'), lambda: os.rmdir('/'), lambda: open('/tmp'), lambda: os.unlink('/tmp'), lambda: open('../../etc/passwd'),
              lambda: os.rename('/data', '/data/in'), lambda: os.symlink('/a', '/b'), lambda: open('/' + 'x' * 300, 'w')):
        try:
            f(); out.append('no error')
        except OSError as e:
            out.append(type(e).__name__)
    return out`)
	r.Modules["data/t.csv"] = "a,b\n"
	h := &fakeHost{}
	check(t, run1(t, p, r, h), h, want{value: `[["one","two","three"],14,"one\nTWO",[["out/deep","out/deep/x.json"],true,{"a":1}],[["deep","y.json"],[],8],"temp",false,"zipped",` +
		`[[["a","b"]],["data","main.py","tmp"],["a.txt","z.zip"]],[[5]],` +
		`"FileNotFoundError","FileExistsError","PermissionError","IsADirectoryError","IsADirectoryError","FileNotFoundError","OSError","no error","OSError"]`})
	check(t, run1(t, p, python("import os\ndef main(input, env):\n    return [os.listdir('/'), os.listdir('/tmp')]"), h), h, want{value: `[["main.py","tmp"],[]]`})
	for src, want := range map[string]string{
		"f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(1 << 20))": "No space left",
		"for i in range(100000): open(f'/tmp/{i}', 'w').close()":        "No space left",
		"keep = [open(f'/tmp/{i}', 'w') for i in range(1000)]":          "No file descriptors available",
	} {
		h := &fakeHost{}
		res := run1(t, p, python(src), h)
		if res.Error == nil || !strings.Contains(res.Error.Message, want) || res.Usage.MemoryPeak > testLimits.Memory*2 {
			t.Errorf("%s: %+v, peak %d", src, res.Error, res.Usage.MemoryPeak)
		}
	}
}

func TestPythonLeastMemory(t *testing.T) {
	p := newPool(t)
	r := python("def main(input, env):\n    return len(bytearray(4 << 20))")
	r.Limits.Memory = MinPythonMemory
	check(t, run1(t, p, r, nil), &fakeHost{}, want{value: "4194304"})
	r.Limits.Memory--
	var bad *RequestError
	if _, err := p.Run(context.Background(), r, &fakeHost{}); !asError(err, &bad) || bad.Field != "limits.memory" {
		t.Errorf("less than the least: %v", err)
	}
}

// TestPythonKilledWhere: a limit's error says where the code was.
func TestPythonKilledWhere(t *testing.T) {
	p := newPool(t)
	for name, c := range map[string]struct {
		src          string
		line, column int
		stack        string
	}{
		"loop":       {"x = 1\nwhile True:\n    x = x + 1 if x < 10 else 1\n", 0, 0, "in <module>"},
		"in C":       {"def f(n):\n    return n * [10 ** 10 ** 8]\n\ndef main(input, env):\n    a = 1\n    return f(1)", 2, 17, "line 6, in main\n    return f(1)\n  File \"main.py\", line 2, in f\n    return n * [10 ** 10 ** 8]"},
		"in library": {"import re\ndef main(input, env):\n\n    return re.match(r'(a+)+$', 'a' * 60 + 'b')", 4, 12, "in main"},
		"method":     {"class A:\n    def go(self):\n        while True: pass\ndef main(input, env):\n    A().go()", 3, 0, "in A.go"},
		"memory":     {"def main(input, env):\n    x = []\n    while True:\n        x.append(bytearray(1 << 20))", 4, 18, "in main"},
		"sleep":      {"import time\ndef main(input, env):\n    time.sleep(\n        100)", 3, 5, "in main"},
		"recursion":  {"def f(n):\n    return f(n - 1) + f(n - 1) if n else 1\ndef main(i):\n    return f(60)", 0, 0, "frames before"},
	} {
		t.Run(name, func(t *testing.T) {
			r := python(c.src)
			r.Limits.CPU, r.Limits.Wall = 150*time.Millisecond, 3*time.Second
			if name == "memory" {
				r.Limits.CPU = 2 * time.Second
			}
			e := run1(t, p, r, nil).Error
			if e == nil || e.Kind != KindLimit || e.File != "main.py" || c.line != 0 && e.Line != c.line || c.column != 0 && e.Column != c.column || !strings.Contains(e.Stack, c.stack) {
				t.Errorf("%+v at %v:%v:%v\n%s", e, e.File, e.Line, e.Column, e.Stack)
			}
		})
	}
}

// TestWithoutPython: where the guest is missing, the others run.
func TestWithoutPython(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"quickjs.wasm", "streams.js"} {
		if err := os.Link(filepath.Join(guestDir, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := NewWorkers(context.Background(), Config{GuestDir: dir, CacheDir: testCache, Workers: 1, Args: []string{"isolate-worker"}, UIDBase: testUID})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	check(t, run1(t, p, js("export default () => 1"), nil), &fakeHost{}, want{value: "1"})
	var bad *RequestError
	if _, err := p.Run(context.Background(), python("1"), &fakeHost{}); !asError(err, &bad) || bad.Field != "language" {
		t.Errorf("python: %v", err)
	}
}
