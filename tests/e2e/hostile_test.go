package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// TestHostileJavaScript: whatever code does to its own world, it ends with an
// answer of the API's, the next call is served, and nothing came of it outside.
func TestHostileJavaScript(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	tests := map[string]string{
		"breaks JSON":              `JSON.stringify = () => { throw 1 }; JSON.parse = () => { throw 2 }; export default async (i, env) => await env.KV.get("x")`,
		"breaks promises":          `Promise.prototype.then = function () { return this }; Promise.resolve = () => 7; export default async (i, env) => await env.KV.get("x")`,
		"breaks arrays":            `Array.prototype.map = Array.prototype.push = Array.prototype.join = () => { throw 3 }; export default async (i, env) => await env.KV.list("")`,
		"setters on prototypes":    `for (const k of ["binding", "method", "args", "then", "toJSON"]) Object.defineProperty(Object.prototype, k, {set() { throw 4 }, get() { return "x" }}); export default async (i, env) => await env.KV.get("x")`,
		"a result that is cyclic":  `export default () => { const a = {}; a.a = a; return a }`,
		"a result that is deep":    `export default () => { let a = 0; for (let i = 0; i < 100000; i++) a = [a]; return a }`,
		"a result with a getter":   `export default () => ({ get x() { for (;;); } })`,
		"a result with toJSON":     `export default () => ({ toJSON() { throw new Error("no") } })`,
		"a result that is large":   `export default () => "x".repeat(12 << 20)`,
		"throws a proxy":           `export default () => { throw new Proxy({}, { get() { throw 5 }, getPrototypeOf() { throw 6 } }) }`,
		"throws null":              `export default () => { throw null }`,
		"a message without end":    `export default () => { throw new Error("x".repeat(8 << 20)) }`,
		"a stack that lies":        `export default () => { const e = new Error("x"); e.stack = { toString() { for (;;); } }; throw e }`,
		"arguments that are large": `export default async (i, env) => await env.KV.put("x", "x".repeat(20 << 20))`,
		"calls without end":        `export default async (i, env) => { for (;;) await env.KV.get("x") }`,
		"calls all at once":        `export default async (i, env) => { const all = []; for (let i = 0; i < 100000; i++) all.push(env.KV.get("x")); await Promise.all(all) }`,
		"a binding that is not":    `export default async (i, env) => await env.KV.get.call({}, "x") + await env.KV.constructor.constructor("return 1")()`,
		"parses what is deep":      `export default () => JSON.parse("[".repeat(1 << 20))`,
		"compiles what is deep":    `export default () => eval("(".repeat(1 << 18) + ")".repeat(1 << 18))`,
		"an enormous array":        `export default () => new Array(4294967295).fill(0).length`,
		"an enormous buffer":       `export default () => new ArrayBuffer(2 ** 40).byteLength`,
		"a sort that lies":         `export default () => Array.from({length: 1e5}, (_, i) => i).sort(() => Math.random() - 0.5).length`,
		"a generator without end":  `export default () => [...(function* () { for (;;) yield 1 })()].length`,
		"waits on memory":          `export default () => Atomics.wait(new Int32Array(new SharedArrayBuffer(8)), 0, 0)`,
	}
	hostile := func(code string) api.Run {
		var r api.Run
		a := do(t, "POST", tenantPath(who)+"/run", api.RunRequest{Language: "js", Code: code})
		if err := json.Unmarshal(a.Body, &r); err != nil {
			t.Fatalf("%d %v: %.300s", a.Status, err, a.Body)
		}
		return r
	}
	var before, after api.Status
	want(t, "GET", "/v1/status", nil, &before)
	for name, code := range tests {
		t.Run(name, func(t *testing.T) {
			r := hostile(code)
			if r.Status == "" || r.Status != api.StatusOK && (r.Error == nil || r.Error.Message == "" || r.Error.Code == api.CodeInternal) {
				t.Errorf("status %q, error %+v", r.Status, r.Error)
			}
			if r.Error != nil && (len(r.Error.Message) > 64<<10 || strings.Contains(r.Error.Message+r.Error.Stack, "/root")) {
				t.Errorf("a message of %d bytes: %.200s", len(r.Error.Message), r.Error.Message)
			}
			if next := hostile(`export default () => [1].map(x => x + 1)`); next.Status != api.StatusOK || string(next.Result) != "[2]" {
				t.Errorf("the next call: %s %s %+v", next.Status, next.Result, next.Error)
			}
		})
	}
	want(t, "GET", "/v1/status", nil, &after)
	if after.Pid != before.Pid || after.Isolates.Running != 0 {
		t.Errorf("before %+v, after %+v", before.Isolates, after.Isolates)
	}
}

// TestHostSocketsAreOutOfReach: abstract names belong to another network
// namespace, paths to another root.
func TestHostSocketsAreOutOfReach(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	l, err := net.Listen("unix", "@sandboxd-attack-test")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := exec(t, who, api.ExecRequest{Command: fmt.Sprintf(`python3 -c '
import socket
for name in ["\0sandboxd-attack-test", %q, "/run/dbus/system_bus_socket"]:
    try:
        socket.socket(socket.AF_UNIX).connect(name); print("reached", repr(name))
    except OSError as e: print("refused")
'; find / -xdev -type s 2>/dev/null`, sys.API.Socket)})
	if p.Stdout != "refused\nrefused\nrefused\n" {
		t.Errorf("%s%s", p.Stdout, p.Stderr)
	}
}

// TestExhaustionIsTheJailsOwn: descriptors, processes and memory file systems
// end inside, and a neighbour notices nothing.
func TestExhaustionIsTheJailsOwn(t *testing.T) {
	who, beside := tenant(t, harness.AgentPrefix+"greedy-"), tenant(t, harness.AgentPrefix+"beside-")
	for what, line := range map[string]string{
		"descriptors": `python3 -c 'import os
try:
    while True: os.dup(0)
except OSError as e: print(e.errno)'`,
		"inodes": `python3 -c 'import os
n = 0
try:
    while True: os.mkdir("/tmp/d%d" % n); n += 1
except OSError as e: print(e.errno)'; rm -rf /tmp/d*`,
		"a memory file system": `dd if=/dev/zero of=/dev/shm/x bs=1M count=100000 2>/dev/null; rm -f /dev/shm/x; echo full`,
	} {
		p := exec(t, who, api.ExecRequest{Command: line})
		// Where memory is limited, its file systems may meet that limit first,
		// which is the end of this jail, and of it alone.
		if !p.OOMKilled && (p.ExitCode == nil || *p.ExitCode != 0 || p.Stdout == "") {
			t.Errorf("%s: exit code %v, signal %q: %.200s%.200s", what, p.ExitCode, p.Signal, p.Stdout, p.Stderr)
		}
		if p := exec(t, beside, api.ExecRequest{Command: "echo x > /tmp/x && echo fine"}); p.Stdout != "fine\n" {
			t.Errorf("%s: the neighbour: %s%s", what, p.Stdout, p.Stderr)
		}
	}
}

// threads is how many threads the daemon has.
func threads(t *testing.T) int {
	t.Helper()
	pid, err := sys.Pid(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestPipesDoNotPinTheDaemon: opening a named pipe blocks, unless one takes care.
func TestPipesDoNotPinTheDaemon(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	exec(t, who, api.ExecRequest{Command: "mkdir p && cd p && python3 -c 'import os\nfor i in range(300): os.mkfifo(str(i))'"})
	before := threads(t)
	ctx := deadline(t)
	var wg sync.WaitGroup
	answers := make([]string, 300)
	for i := range answers {
		wg.Go(func() {
			a, err := sys.API.Do(ctx, "GET", fmt.Sprintf("%s/files/workspace/p/%d", jailPath(who), i), nil)
			answers[i] = fmt.Sprint(err)
			if err == nil {
				answers[i] = strconv.Itoa(a.Status)
				_, err = sys.API.Do(ctx, "PUT", fmt.Sprintf("%s/files/workspace/p/%d", jailPath(who), i), []byte{})
			}
			if err != nil {
				answers[i] = err.Error()
			}
		})
	}
	wg.Wait()
	for _, a := range answers {
		if a != "409" {
			t.Fatalf("a pipe is answered with %s", a)
		}
	}
	if after := threads(t); after > before+60 {
		t.Errorf("300 pipes took the daemon from %d threads to %d", before, after)
	}
}

// TestFileAPIAgainstARace: a folder that keeps turning into a link leads the
// daemon nowhere outside.
func TestFileAPIAgainstARace(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	secret := filepath.Join(t.TempDir(), "deep", "secret")
	if err := os.MkdirAll(filepath.Dir(secret), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	exec(t, who, api.ExecRequest{Background: true, ExecID: "racer", Command: fmt.Sprintf(`python3 -c '
import os, ctypes
libc = ctypes.CDLL(None)
os.makedirs("real", exist_ok=True); open("real/secret", "w").write("inside")
os.symlink("../../../../../../../../..%s", "link")
print("racing", flush=True)
while True: libc.renameat2(-100, b"real", -100, b"link", 2)
'`, filepath.Dir(secret))})
	want(t, "POST", jailPath(who)+"/processes/racer/wait", api.WaitRequest{LogRegexp: "racing"}, nil)
	inside := 0
	for range 500 {
		a := do(t, "GET", jailPath(who)+"/files/workspace/real/secret", nil)
		if strings.Contains(string(a.Body), "of the host") {
			t.Fatal("the file API read the host's file")
		}
		if string(a.Body) == "inside" {
			inside++
		}
		if a := do(t, "PUT", jailPath(who)+"/files/workspace/real/new", []byte("x")); a.Status/100 == 2 {
			inside++
		}
	}
	if inside == 0 {
		t.Error("not one request met the folder: the race says nothing")
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(secret), "new")); err == nil {
		t.Error("the file API wrote outside")
	}
}
