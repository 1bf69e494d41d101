package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// recordRun runs code that is recorded; its tools are answered in a random order.
func recordRun(t *testing.T, tenant string, req api.RunRequest) api.Run {
	t.Helper()
	req.Record, req.RunID = true, fmt.Sprintf("rec-%s-%d", tenant, rand.Uint64())
	var answers sync.WaitGroup
	events := stream(t, "POST", tenantPath(tenant)+"/run", req, func(e api.Event) bool {
		if e.Type == api.EventCall {
			answers.Go(func() {
				time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
				answer := api.ToolAnswer{Result: e.Call.Args}
				if e.Call.Method == "fail" {
					answer = api.ToolAnswer{Error: &api.ToolError{Message: "out of order"}}
				}
				if a, err := sys.API.Do(deadline(t), "POST", "/v1/runs/"+req.RunID+"/calls/"+e.Call.CallID, answer); err != nil || a.Status != 204 {
					t.Errorf("answer of %s: %+v, %v", e.Call.CallID, a, err)
				}
			})
		}
		return true
	})
	answers.Wait()
	last := events[len(events)-1].Run
	if last == nil || last.Recording == nil || !last.Recording.Complete || last.Deterministic == nil {
		t.Fatalf("the run has no recording: %+v", last)
	}
	return *last
}

func replay(t *testing.T, run string) api.Run {
	t.Helper()
	var r api.Run
	a := want(t, "POST", "/v1/runs/"+run+"/replay", nil, &r)
	noSecret(t, a.Body)
	if r.Replay == nil || r.Replay.Of != run || r.Receipt == nil {
		t.Fatalf("this is no replay: %s", a.Body)
	}
	return r
}

// sameRun wants a replay to be the run, in all that it shows.
func sameRun(t *testing.T, was, now api.Run) {
	t.Helper()
	if !now.Replay.Identical || len(now.Replay.Differs) > 0 {
		t.Fatalf("the replay differs in %v: %+v %+v, was %+v %+v", now.Replay.Differs, now, now.Error, was, was.Error)
	}
	logs := func(r *api.Run) string {
		b, err := json.Marshal([]any{r.Logs, r.Result, r.Stdout, r.Stderr, r.Error, r.Usage.CPU, r.Usage.MemoryPeak, r.Usage.Output, r.Status, r.Phase})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if a, b := logs(&was), logs(&now); a != b {
		t.Errorf("the replay shows\n%s\nthe run\n%s", b, a)
	}
}

var replayed = map[string]api.RunRequest{
	"javascript": {Language: "js", Code: `export default async (input, env) => {
		const seen = [];
		const all = await Promise.all(Array.from({length: 50}, (_, i) => env.SEARCH[i % 9 ? "find" : "fail"](i, "x").then((v) => { seen.push(v[0]); return Math.random() }, (e) => seen.push(e.message))));
		await env.KV.put("replay", input);
		await new Promise((r) => setTimeout(r, 90000));
		console.log(new Date(), crypto.randomUUID());
		const rows = await env.DB.query("select random() as r, current_timestamp as at");
		return {seen, all, rows, weak: new WeakRef({}).deref() === undefined};
	}`, Input: json.RawMessage(`{"n": [1, 2]}`), Bindings: bindings("KV", "DB", "SEARCH")},
	"typescript that throws": {Language: "ts", Code: "export default async (input: unknown, env: any): Promise<number> => {\n  const v: number[] = await env.SEARCH.find(1);\n  return (v as any).no.such;\n}", Bindings: bindings("SEARCH")},
	"python": {Language: "python", Code: `import random, time, uuid, os
def main(input, env):
    out = []
    for i in range(20):
        print('call', i)
        try:
            out.append(env.SEARCH.find(i) + [random.random()])
            if i % 5 == 0:
                env.SEARCH.fail(i)
        except BindingError as e:
            out.append([str(e), time.time(), str(uuid.uuid4()), os.urandom(4).hex()])
    env.KV.put('replay', out)
    time.sleep(3600)
    return {'out': out, 'set': list({'a', 'b', 'c'}), 'id': id(out), 'now': time.time()}
`, Bindings: bindings("KV", "SEARCH")},
	"python that raises": {Language: "python", Code: "def main(input, env):\n    v = env.SEARCH.find('x')\n    print(v, object())\n    return v['no']\n", Bindings: bindings("SEARCH")},
	// A module with a memory and an empty _start.
	"wasm": {Language: "wasm", Code: base64.StdEncoding.EncodeToString([]byte("\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x05\x03\x01\x00\x01" +
		"\x07\x13\x02\x06memory\x02\x00\x06_start\x00\x00\x0a\x04\x01\x02\x00\x0b"))},
	"cpu limit":        {Language: "js", Code: `export default async (i, env) => { await env.SEARCH.find(1); for (let n = 0; ; n++) if (n % 100000 === 0) console.log(n, Math.random()) }`, Bindings: bindings("SEARCH"), Limits: shortCPU},
	"memory limit":     {Language: "js", Code: `export default () => { const keep = []; for (let n = 0; ; n++) { keep.push(new Uint8Array(1e6)); console.log(n) } }`},
	"python cpu limit": {Language: "python", Code: "def main():\n    n = 0\n    while True:\n        n += 1\n        if n % 100000 == 0:\n            print(n)\n", Limits: shortCPU},
}

var shortCPU = &policy.Limits{CPU: policy.Duration(100 * time.Millisecond)}

// TestReplay: what a run showed comes again, byte for byte, whatever else runs
// at the time and in whichever worker, and nothing is done a second time.
func TestReplay(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	var group sync.WaitGroup
	defer group.Wait()
	for name, req := range replayed {
		was := recordRun(t, who, req)
		if !strings.Contains(name, "limit") && !strings.Contains(name, "that") && was.Status != api.StatusOK {
			t.Fatalf("%s: %+v", name, was.Error)
		}
		want(t, "PUT", tenantPath(who)+"/kv/replay", `"mine"`, nil)
		for range 4 {
			group.Go(func() { sameRun(t, was, replay(t, was.RunID)) })
		}
	}
	group.Wait()
	var kept string
	if want(t, "GET", tenantPath(who)+"/kv/replay", nil, &kept); kept != "mine" {
		t.Errorf("a replay wrote %q", kept)
	}
}

// TestReplayOfFetch: the world sees no second request, and the recording holds
// no credential, neither the policy's nor what the code sent.
func TestReplayOfFetch(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	mark := fmt.Sprint("for=", rand.Uint64())
	was := recordRun(t, who, api.RunRequest{Language: "js", Outbound: &api.Outbound{Allow: []string{harness.APIHost}}, Code: `export default async () => {
		const gone = new AbortController();
		const url = "https://` + harness.APIHost + `/v1/";
		const dropped = fetch(url + "dropped", {signal: gone.signal}).catch((e) => e.name);
		queueMicrotask(() => gone.abort());
		const a = await fetch(url + "replayed?` + mark + `", {headers: {authorization: "Bearer of-the-code", "x-api-key": "key-of-the-code"}});
		const leak = await fetch(url + "leak");
		return [a.status, await a.json(), await leak.text(), leak.headers.get("x-leak"), await dropped];
	}`})
	if was.Status != api.StatusOK || !strings.HasSuffix(string(was.Result), `"AbortError"]`) {
		t.Fatalf("%s %+v", was.Result, was.Error)
	}
	for range 3 {
		sameRun(t, was, replay(t, was.RunID))
	}
	seen := 0
	for _, s := range sys.World.Requests(harness.APIHost) {
		if s.Query == mark {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("the world saw the request %d times", seen)
	}
	files := 0
	err := filepath.WalkDir(filepath.Join(sys.State, "recordings", who), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		noSecret(t, b)
		// The code is the tenant's own and is kept; what a call carried is not.
		if n := bytes.Count(b, []byte("of-the-code")); n != 2 {
			t.Errorf("what the code sent is in the recording %d times, not 2", n)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d files, %v", files, err)
	}
}

// TestReplayAfterCrash: a recording is whole or not there.
func TestReplayAfterCrash(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	was := recordRun(t, who, replayed["python"])
	if err := sys.Kill(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	now := replay(t, was.RunID)
	sameRun(t, was, now)
	wantError(t, do(t, "POST", "/v1/runs/"+now.RunID+"/replay", nil), 409, api.CodeConflict, "")
	wantError(t, do(t, "POST", "/v1/runs/no-such-run/replay", nil), 404, api.CodeNotFound, "")
	wantError(t, do(t, "POST", "/v1/runs/"+was.RunID+"/replay?tenant="+who+"x", nil), 404, api.CodeNotFound, "")
}

// TestCtlReplay: the command's words and exit codes.
func TestCtlReplay(t *testing.T) {
	who, dir := tenant(t, harness.AgentPrefix), t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	code := file("a.js", `export default async (i, env) => { await env.KV.put("k", 1); return Math.random() }`)
	mended := file("b.js", `export default async (i, env) => { await env.KV.put("k", 1); return "mended" }`)
	other := file("c.js", `export default async (i, env) => { await env.KV.put("k", 2) }`)
	var was api.Run
	o := ctl(t, "", "--json", "run", "-t", who, "--seed", "7", "--clock", "2026-01-01T00:00:00Z", code)
	if err := json.Unmarshal([]byte(o.Stdout), &was); err != nil || o.Code != 0 || *was.Deterministic.Seed != 7 {
		t.Fatalf("%+v, %v", o, err)
	}
	for _, tt := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"runs", "replay", was.RunID}, 0, []string{string(was.Result), "identical"}},
		{[]string{"runs", "show", was.RunID}, 0, []string{string(was.Result)}},
		{[]string{"runs", "list", "-t", who}, 0, []string{was.RunID}},
		{[]string{"runs", "replay", "--code", mended, was.RunID}, 0, []string{"mended", "different in", "result"}},
		{[]string{"runs", "replay", "--code", other, was.RunID}, 1, []string{"conflict", "diverged at call 1", `KV.put("k",2)`}},
		{[]string{"runs", "replay", "no-such-run"}, 3, []string{"not_found"}},
		{[]string{"runs", "replay"}, 2, nil},
	} {
		o := ctl(t, "", tt.args...)
		if o.Code != tt.code {
			t.Errorf("%v: exit code %d\n%s%s", tt.args, o.Code, o.Stdout, o.Stderr)
		}
		for _, say := range tt.says {
			if !strings.Contains(o.Stdout+o.Stderr, say) {
				t.Errorf("%v does not say %q:\n%s%s", tt.args, say, o.Stdout, o.Stderr)
			}
		}
	}
}
