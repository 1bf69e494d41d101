package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// fillers fill what their language has with the marker that they are given, and
// then do what @ stands for.
var fillers = map[string]string{
	"js": `const text = input.mark + env.MARK, bytes = new TextEncoder().encode(text);
const big = new Uint8Array(8 << 20); for (let i = 0; i + bytes.length < big.length; i += bytes.length) big.set(bytes, i);
globalThis.mark = text; Object.prototype.mark = text; Array.prototype[7] = text; console.mark = text; Math.mark = big;
const kept = Array.from({length: 20000}, (_, i) => text + i), all = new Map(kept.map((k) => [k, {[k]: k}]));
setTimeout(() => kept, 1e9); Promise.resolve(text).then((t) => kept.push(t));
new TextDecoder().decode(big.subarray(0, 1 << 20)); await crypto.subtle.digest('SHA-256', big);
@`,
	"python": `    text = input['mark'] + env.MARK
    big = bytearray(text.encode() * ((8 << 20) // len(text)))
    kept = {text + str(i): [text + str(i)] for i in range(20000)}
    import sys, builtins, os, json, re
    builtins.mark = sys.mark = os.mark = text
    sys.modules['mark'] = kept
    open('/tmp/mark', 'w').write(text * 1000)
    re.compile(re.escape(text)); json.dumps(kept); sys.intern(text)
    @
`,
}

// ends are the ways for a run to end.
var ends = []struct {
	name       string
	js, python string
	limits     policy.Limits
	want       string // the error's limit or code
}{
	{"returns", `return big.length`, `return len(big)`, policy.Limits{}, ""},
	{"throws", `throw new Error('x')`, `raise ValueError('x')`, policy.Limits{}, api.CodeError},
	{"cpu", `for (;;);`, "while True: pass", policy.Limits{CPU: policy.Duration(time.Second)}, "cpu"},
	{"wall", `await new Promise((r) => setTimeout(r, 1e8))`, "import time; time.sleep(1e6)", policy.Limits{Wall: policy.Duration(2 * time.Second)}, "wall"},
	{"memory", `for (;;) kept.push(big.slice())`, "while True: kept[len(kept)] = bytes(big)", policy.Limits{}, "memory"},
	{"output", `for (;;) console.log(text)`, "while True: print(text)", policy.Limits{Output: 10_000}, "output"},
	{"calls", `for (;;) await env.KV.get(text)`, "while True: env.KV.get(text)", policy.Limits{Calls: 3}, "calls"},
}

// searchers tell what they find that they have not put there themselves.
var searchers = map[string]string{
	"js": `export default () => {
const found = [];
for (const o of [globalThis, Object.prototype, Array.prototype, console, Math, Function.prototype, JSON, Promise, RegExp])
	for (const k of Reflect.ownKeys(o)) if (/^mark$|^7$/.test(String(k))) found.push(String(k));
const held = [];
try { for (let size = 16 << 20; size >= 64;) { const b = new ArrayBuffer(size); held.push(b); if (new BigUint64Array(b).some((x) => x !== 0n)) { found.push('memory'); break } if (held.length > 5) size >>= 1 } } catch {}
return found }`,
	"python": `def main(input, env):
    import sys, builtins, os, gc, re
    found = [n for m in (sys, builtins, os) for n in dir(m) if n == 'mark'] + [n for n in sys.modules if n == 'mark'] + os.listdir('/tmp')
    found += ['re'] if any(chr(77) + 'ARKER-' in str(k) for k in re._cache) else []
    for o in gc.get_objects():
        if isinstance(o, (dict, list, tuple)) and len(o) < 10000 and any(isinstance(x, str) and x.startswith(chr(77) + 'ARKER-') for x in o): found.append('object')
    for size in (1 << 24, 1 << 20, 1 << 16):
        if any(bytearray(size)): found.append('memory')
    return found
`,
}

// TestNothingIsLeft: what the runs of one tenant held is in nothing that a run of
// another one can get at, also in the worker's memory, however they ended: no
// interpreter's memory has it once they are over. The heap of a worker's own
// process may have it until it is used for something else: that is never mapped
// into a guest, and no host function reads from it what it has not written for the
// same run.
func TestNothingIsLeft(t *testing.T) {
	first, second := tenant(t, harness.AmplePrefix+"a-"), tenant(t, harness.AmplePrefix+"b-")
	for language, filler := range fillers {
		t.Run(language, func(t *testing.T) {
			mark := "MARKER-" + rand.Text()
			input, _ := json.Marshal(map[string]string{"mark": mark})
			env := map[string]string{"MARK": mark}
			search := func(after string) {
				t.Helper()
				r := run(t, second, api.RunRequest{Language: language, Code: searchers[language]})
				wantResult(t, &r, "[]")
				if t.Failed() {
					t.Fatalf("after a run that ended so: %s", after)
				}
			}
			for _, e := range ends {
				body := e.js
				if language == "python" {
					body = e.python
				}
				code := wholeWith(language, strings.Replace(filler, "@", body, 1))
				r := run(t, first, api.RunRequest{Language: language, Code: code, Input: input, Env: env, Limits: &e.limits, Bindings: bindings("KV")})
				wantEnd(t, &r, e.want)
				search(e.name)
				deploy(t, first, "filler", api.FunctionRequest{Language: language, Code: code, Limits: &e.limits, Bindings: bindings("KV")})
				r = invoke(t, first, "filler", api.InvokeRequest{Input: input, Env: env})
				wantEnd(t, &r, e.want)
				search(e.name + ", deployed")
			}
			canceled(t, first, api.RunRequest{Language: language, Input: input, Env: env, RunID: "canceled-" + language,
				Code: wholeWith(language, strings.Replace(filler, "@", map[string]string{"js": "for (;;);", "python": "while True: pass"}[language], 1))})
			search("canceled")
			wantNowhere(t, mark)
		})
	}
}

func wholeWith(language, body string) string {
	if language == "python" {
		return "def main(input, env):\n" + body
	}
	return "export default async function (input, env) { " + body + " }"
}

func wantEnd(t *testing.T, r *api.Run, want string) {
	t.Helper()
	got := ""
	if r.Error != nil {
		if got = r.Error.Limit; got == "" {
			got = r.Error.Code
		}
	}
	if got != want {
		t.Fatalf("ended by %q, want %q: %+v", got, want, r.Error)
	}
}

// canceled begins a run whose caller goes away.
func canceled(t *testing.T, tenant string, req api.RunRequest) {
	t.Helper()
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	gone := make(chan error, 1)
	go func() {
		_, err := sys.API.Do(ctx, "POST", tenantPath(tenant)+"/run", req)
		gone <- err
	}()
	path := "/v1/runs/" + req.RunID + "?tenant=" + tenant
	waitFor(t, func() bool { return do(t, "GET", path, nil).Status == http.StatusOK })
	// While it runs the marker is there, for who looks for it as we do.
	waitFor(t, func() bool { where, _ := whereIs(t, req.Env["MARK"]); return where != "" })
	want(t, "DELETE", path, nil, nil)
	<-gone
	var r api.Run
	waitFor(t, func() bool { want(t, "GET", path, nil, &r); return r.Status != api.StatusRunning })
	if r.Status != api.StatusKilled || r.Error == nil || r.Error.Code != api.CodeCanceled {
		t.Errorf("%s %+v", r.Status, r.Error)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for ctx := deadline(t); !ok(); {
		select {
		case <-ctx.Done():
			t.Fatal("what was waited for did not happen")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// wantNowhere looks through all memory of the workers but Go's own.
func wantNowhere(t *testing.T, mark string) {
	t.Helper()
	where, looked := "", 0
	for end := time.Now().Add(harness.Scale(10 * time.Second)); looked == 0 || where != ""; {
		if time.Now().After(end) { // what the last run had is given back by then
			t.Fatalf("the marker is in\n%s", where)
		}
		where, looked = whereIs(t, mark)
	}
	t.Logf("%d MiB were looked through", looked>>20)
	if looked < 16<<20 {
		t.Errorf("only %d bytes of memory could be looked at", looked)
	}
}

// whereIs searches all workers.
func whereIs(t *testing.T, mark string) (where string, looked int) {
	t.Helper()
	workers := workerPids(t)
	if len(workers) == 0 {
		t.Fatal("there are no workers")
	}
	for _, pid := range workers {
		found, n := findIn(t, pid, []byte(mark))
		where, looked = where+found, looked+n
	}
	return where, looked
}

// workerPids are the daemon's children that run code.
func workerPids(t *testing.T) (out []int) {
	t.Helper()
	daemon, err := sys.Pid(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		stat, err2 := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		if err != nil || err2 != nil || !bytes.Contains(text, []byte("isolate-worker")) {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if fields[1] == strconv.Itoa(daemon) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			out = append(out, pid)
		}
	}
	return out
}

// findIn searches what a process can write to and is not Go's heap.
func findIn(t *testing.T, pid int, mark []byte) (where string, looked int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	// Go puts its heap, the stacks of its goroutines with it, at addresses of its
	// own choice far below; the kernel chooses those of everything else.
	const chosenByKernel = 0x700000000000
	chunk := make([]byte, 1<<20+len(mark))
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var perm string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &perm); n != 3 || !strings.HasPrefix(perm, "rw") || from < chosenByKernel {
			continue
		}
		for at := from; at < to; at += 1 << 20 {
			n, err := unix.Pread(int(mem.Fd()), chunk[:min(uint64(len(chunk)), to-at)], int64(at))
			if err != nil {
				continue // it was given back meanwhile
			}
			looked += n
			if bytes.Contains(chunk[:n], mark) {
				where += fmt.Sprintf("worker %d: %s  at %x: %.80q\n", pid, line, int64(at)+int64(bytes.Index(chunk[:n], mark)), chunk[bytes.Index(chunk[:n], mark):n])
				break
			}
		}
	}
	return where, looked
}
