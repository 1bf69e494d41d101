package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/daemon/recording"
	"sandboxd/policy"
)

// recordRun runs code with a recording and answers its tools after a random
// time.
func recordRun(t *testing.T, d *testDaemon, tenant string, req *api.RunRequest) *api.Run {
	t.Helper()
	ctx := within(t)
	req.Record = true
	var result *api.Run
	var answers sync.WaitGroup
	for e, err := range d.api.RunStream(ctx, tenant, req) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Type {
		case api.EventCall:
			answers.Go(func() {
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				answer := &api.ToolAnswer{Result: json.RawMessage(fmt.Sprintf(`{"found":  %s}`, e.Call.Args))}
				if strings.Contains(string(e.Call.Args), "bad") {
					answer = &api.ToolAnswer{Error: &api.ToolError{Message: "no such thing"}}
				}
				err := d.api.AnswerCall(ctx, e.RunID, e.Call.CallID, answer)
				if over := new(api.Error); err != nil && !(errors.As(err, &over) && over.Code == api.CodeNotFound) {
					t.Error(err)
				}
			})
		case api.EventResult:
			result = e.Run
		}
	}
	answers.Wait()
	if result == nil || result.Recording == nil || result.Deterministic == nil || result.Deterministic.Seed == nil || result.Deterministic.Clock == nil {
		t.Fatalf("got %+v, without a recording or what it was given", result)
	}
	return result
}

// sameAgain replays a run some times and wants what it gave.
func sameAgain(t *testing.T, d *testDaemon, was *api.Run) {
	t.Helper()
	if !was.Recording.Complete {
		t.Fatalf("the recording is %+v", was.Recording)
	}
	for range 3 {
		now, err := d.api.Replay(within(t), was.RunID, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if now.Replay == nil || !now.Replay.Identical || now.Replay.Of != was.RunID || now.Replay.Differs != nil {
			t.Fatalf("replay %+v of\n%+v %+v\nis\n%+v %+v", now.Replay, was, was.Error, now, now.Error)
		}
		if now.RunID == was.RunID || string(now.Result) != string(was.Result) || now.Status != was.Status || *now.Usage.CPU.Used != *was.Usage.CPU.Used ||
			now.Stdout != was.Stdout || len(now.Logs) != len(was.Logs) || now.Receipt == nil || now.Recording != nil {
			t.Errorf("a replay gave %+v, the run %+v", now, was)
		}
		for i := range now.Logs {
			if a, b := now.Logs[i], was.Logs[i]; a.Message != b.Message || !a.Time.Equal(b.Time) {
				t.Errorf("log %d is %+v, was %+v", i, a, b)
			}
		}
	}
}

func TestReplay(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if err := d.api.KVPut(ctx, "t-a", "n", json.RawMessage(`41`)); err != nil {
		t.Fatal(err)
	}
	everything := `export default async (input, env) => {
		const seen = [];
		const found = await Promise.all(Array.from({length: 50}, (_, i) => env.search.find(i % 7 ? i : "bad" + i).then((v) => { seen.push(v.found[0]); return v }, (e) => { seen.push(e.message); return Math.random() })));
		const n = await env.KV.get("n");
		await env.KV.put("n", n + 1);
		setTimeout(() => console.log("timer", Date.now()), 1000);
		await new Promise((r) => setTimeout(r, 2000));
		env.LOG.warn("done", {at: new Date(), id: crypto.randomUUID()});
		let failed; try { await env.DB.query("selec 1") } catch (e) { failed = e.message }
		return {input, home: env.HOME, found, seen, n, failed, time: Date.now(), random: Math.random()};
	}`
	t.Run("bindings, tools in any order, time, randomness", func(t *testing.T) {
		req := js(everything)
		req.Input, req.Env = json.RawMessage(`{"a" : "<b>"}`), map[string]string{"HOME": "x"}
		was := recordRun(t, d, "t-a", req)
		if was.Status != api.StatusOK || len(was.Calls) != 53 {
			t.Fatalf("%+v %+v", was, was.Error)
		}
		if err := d.api.KVPut(ctx, "t-a", "n", json.RawMessage(`7`)); err != nil {
			t.Fatal(err)
		}
		sameAgain(t, d, was)
		if v, err := d.api.KVGet(ctx, "t-a", "n"); err != nil || string(v) != "7" {
			t.Errorf("after replays the store has %s, %v", v, err)
		}
		if kept, err := d.api.GetRun(ctx, was.RunID); err != nil || kept.Recording == nil || kept.Recording.Engine == "" || kept.Recording.FuelVersion == "" {
			t.Errorf("the record is %+v, %v", kept, err)
		}
	})
	for name, code := range map[string]string{
		"throws":         "export default async (i, env) => {\n  await env.search.find(1);\n  null.x\n}",
		"tool error":     `export default async (i, env) => env.search.find("bad")`,
		"cpu limit":      `export default async (i, env) => { await env.search.find(1); for (let n = 0; ; n++) if (n % 100000 === 0) console.log(n, Math.random()) }`,
		"memory limit":   `export default async (i, env) => { const keep = []; for (let n = 0; ; n++) { keep.push(new Uint8Array(1e6)); console.log(n) } }`,
		"nobody settles": `export default async (i, env) => { await env.search.find(1); await new Promise(() => {}) }`,
		"not awaited":    `export default async (i, env) => { env.search.find(1); env.search.find(2); return await env.KV.get("n") }`,
		"syntax":         `export default (`,
		"rejections":     `export default async () => { for (let n = 0; n < 20; n++) Promise.reject(new Error("no " + n)); return 1 }`,
	} {
		t.Run(name, func(t *testing.T) { sameAgain(t, d, recordRun(t, d, "t-a", js(code))) })
	}
	t.Run("it is on record", func(t *testing.T) {
		was := recordRun(t, d, "t-a", js(`export default () => 1`))
		now, err := d.api.Replay(ctx, was.RunID, "t-a", nil)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for e, err := range audit.Read(ctx, d.state("audit"), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if e.RunID == now.RunID {
				lines = append(lines, e.Kind+" "+string(e.Fields))
			}
		}
		if len(lines) != 2 || !strings.HasPrefix(lines[0], audit.KindReplay) || !strings.Contains(lines[1], `"replay_of":"`+was.RunID) || !strings.Contains(lines[1], `"identical":true`) {
			t.Errorf("the audit log has %q", lines)
		}
	})
}

func TestReplayRefused(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	was := recordRun(t, d, "t-a", js(`export default () => 1`))
	again, err := d.api.Replay(ctx, was.RunID, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := d.api.Run(ctx, "t-a", js(`export default () => 1`))
	if err != nil || plain.Recording != nil || plain.Deterministic != nil {
		t.Fatalf("%+v, %v", plain, err)
	}
	for run, code := range map[string]string{again.RunID: api.CodeConflict, plain.RunID: api.CodeConflict, "run-none": api.CodeNotFound, "..": api.CodeNotFound,
		"../t-a/" + was.RunID: api.CodeNotFound, strings.Repeat("x", 5000): api.CodeNotFound, "a\x00b": api.CodeNotFound} {
		_, err := d.api.Replay(ctx, run, "", nil)
		if e := wantError(t, err, code, ""); e.Message == "" {
			t.Errorf("%q: %+v", run, e)
		}
	}
	_, err = d.api.Replay(ctx, was.RunID, "t-b", nil)
	wantError(t, err, api.CodeNotFound, "")
	_, err = d.api.Run(ctx, "t-off", &api.RunRequest{Language: "js", Code: "export default () => 1", Record: true})
	if err != nil {
		t.Fatal(err)
	}
	for body, field := range map[string]string{`{"code":"1","modules":{}}`: "modules", `{"main":"x"}`: "code", `{"modules":{"a.js":""},"main":"b.js"}`: "main", `{"modules":{"../a.js":""},"main":"../a.js"}`: `modules["../a.js"]`, `{"seed":1}`: "seed"} {
		status, text := post(t, d, "/v1/runs/"+was.RunID+"/replay", body)
		var answer api.ErrorBody
		if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Error == nil || status != 400 || answer.Error.Field != field {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	t.Run("what policy says of recording", func(t *testing.T) {
		status, text := post(t, d, "/v1/tenants/t-off/run", `{"language":"js","code":"export default () => 1","record":true}`)
		if status != http.StatusForbidden || !strings.Contains(text, `"field":"record"`) {
			t.Errorf("%d %s", status, text)
		}
		off, err := d.api.Run(ctx, "t-off", &api.RunRequest{Language: "js", Code: "export default () => Math.random()", Deterministic: &api.Deterministic{}})
		if err != nil || off.Recording != nil || off.Deterministic == nil || off.Deterministic.Seed == nil {
			t.Errorf("%+v, %v", off, err)
		}
		all, err := d.api.Run(ctx, "t-small", js("export default () => [Math.random(), Date.now()]"))
		if err != nil || all.Recording == nil || !all.Recording.Complete {
			t.Fatalf("%+v, %v", all, err)
		}
		sameAgain(t, d, all)
		status, text = post(t, d, "/v1/tenants/t-a/run", `{"language":"js","code":"1","deterministic":{"clock":"9999-12-31T23:59:59Z"}}`)
		if status != 400 || !strings.Contains(text, "deterministic.clock") {
			t.Errorf("%d %s", status, text)
		}
	})
	t.Run("too large", func(t *testing.T) {
		req := js(`export default async (i, env) => { for (let n = 0; n < 40; n++) await env.search.find("x".repeat(2000)); return 1 }`)
		was := recordRun(t, d, "t-small", req)
		if was.Status != api.StatusOK || was.Recording.Complete || !strings.Contains(was.Recording.Why, "65536 bytes") {
			t.Fatalf("%+v %+v", was, was.Recording)
		}
		_, err := d.api.Replay(ctx, was.RunID, "", nil)
		if e := wantError(t, err, api.CodeConflict, ""); !strings.Contains(e.Message, "not complete") {
			t.Error(e)
		}
	})
	t.Run("dropped", func(t *testing.T) {
		var runs []*api.Run
		for range 4 {
			runs = append(runs, recordRun(t, d, "t-small", js(`export default () => 1`)))
		}
		for _, r := range runs[:2] {
			_, err := d.api.Replay(ctx, r.RunID, "", nil)
			wantError(t, err, api.CodeGone, "")
		}
		sameAgain(t, d, runs[2])
		sameAgain(t, d, runs[3])
		if err := d.recordings.RemoveTenant("t-small"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.api.Replay(ctx, runs[3].RunID, "", nil); err == nil {
			t.Error("a deleted recording was replayed")
		}
	})
	t.Run("another engine, lower limits", func(t *testing.T) {
		rec, err := d.recordings.Find(was.RunID, func(string) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		changed := *rec
		changed.Identity.FuelVersion = "0000"
		put(t, d, &changed)
		_, err = d.api.Replay(ctx, was.RunID, "", nil)
		if e := wantError(t, err, api.CodeConflict, ""); !strings.Contains(e.Message, "another engine") || !strings.Contains(e.Message, "0000") {
			t.Error(e)
		}
		changed = *rec
		changed.Request.Limits.CPU = time.Minute
		put(t, d, &changed)
		_, err = d.api.Replay(ctx, was.RunID, "", nil)
		wantError(t, err, api.CodeDenied, "limits.cpu")
	})
	t.Run("another isolation", func(t *testing.T) {
		rec, err := d.recordings.Find(was.RunID, func(string) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		changed := *rec
		changed.Request.Limits.CPU, changed.Request.Strict = time.Millisecond, true
		p, err := d.planReplay(&changed, &api.ReplayRequest{})
		if err != nil || p.request.Strict {
			t.Errorf("the replay runs where the recorded run did, not where the policy says: %v, %v", p, err)
		}
	})
}

func put(t *testing.T, d *testDaemon, rec *recording.Recording) {
	t.Helper()
	if _, err := d.recordings.Put(rec, recording.Limits{Count: 100, Total: 1 << 30, Age: time.Hour}); err != nil {
		t.Fatal(err)
	}
}

// TestReplayOtherCode: the recorded answers are for the recorded calls alone.
func TestReplayOtherCode(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	was := recordRun(t, d, "t-a", js(`export default async (i, env) => {
		const a = await env.search.find("one"), b = await env.search.find("two");
		return a.found.no.such + b;
	}`))
	if was.Status != api.StatusError {
		t.Fatalf("%+v", was)
	}
	replay := func(code string) *api.Run {
		t.Helper()
		r, err := d.api.Replay(ctx, was.RunID, "", &api.ReplayRequest{Code: code})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := replay(`export default async (i, env) => (await env.search.find("one")).found[0] + (await env.search.find("two")).found[0]`)
	if r.Status != api.StatusOK || string(r.Result) != `"onetwo"` || !r.Replay.ChangedCode || r.Replay.Identical || !slices.Contains(r.Replay.Differs, "result") {
		t.Errorf("mended: %+v %+v %+v", r, r.Error, r.Replay)
	}
	for name, tt := range map[string]struct {
		code string
		nth  int
		say  []string
	}{
		"arguments": {`export default async (i, env) => { await env.search.find("one"); await env.search.find("three") }`, 2, []string{`search.find("three")`, `search.find("two")`}},
		"binding":   {`export default async (i, env) => { await env.KV.get("one") }`, 1, []string{`KV.get("one")`, `search.find("one")`}},
		"one more":  {`export default async (i, env) => { await env.search.find("one"); await env.search.find("two"); await env.KV.put("x", 1) }`, 3, []string{`KV.put("x",1)`, "made 2 calls"}},
	} {
		r := replay(tt.code)
		if r.Status != api.StatusKilled || r.Error.Code != api.CodeConflict || r.Replay.Divergence == nil || r.Replay.Divergence.Nth != tt.nth || r.Replay.Identical ||
			!slices.Contains(r.Replay.Differs, fmt.Sprintf("calls[%d]", tt.nth-1)) {
			t.Errorf("%s: %+v %+v %+v", name, r, r.Error, r.Replay)
			continue
		}
		for _, say := range tt.say {
			if !strings.Contains(r.Error.Message, say) {
				t.Errorf("%s: %q does not say %s", name, r.Error.Message, say)
			}
		}
	}
	if v, err := d.api.KVGet(ctx, "t-a", "x"); err == nil {
		t.Errorf("a replay wrote %s", v)
	}
	r = replay(`export default async (i, env) => (await env.search.find("one")).found`)
	if r.Status != api.StatusOK || !slices.Contains(r.Replay.Differs, "calls[1]") {
		t.Errorf("a call less: %+v %+v", r, r.Replay)
	}
	// The recorded run had both calls under way before its first answer.
	was = recordRun(t, d, "t-a", js(`export default async (i, env) => Promise.all([env.search.find("one"), env.search.find("two")])`))
	d.recordedOrder(t, was.RunID, []int{2, 1})
	r = replay(`export default async (i, env) => { await env.search.find("one"); await env.search.find("two") }`)
	if r.Status != api.StatusKilled || r.Replay.Divergence == nil || r.Replay.Divergence.Nth != 2 || !strings.Contains(r.Error.Message, "it waits") {
		t.Errorf("one by one: %+v %+v", r.Error, r.Replay)
	}
}

// recordedOrder changes the order in which a recorded run had its answers.
func (d *testDaemon) recordedOrder(t *testing.T, run string, order []int) {
	t.Helper()
	rec, err := d.recordings.Find(run, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	rec.Order = order
	put(t, d, rec)
}

// TestReplayOfTimedEnds: an end that came by the clock cannot be had again for
// certain, and a replay says so.
func TestReplayOfTimedEnds(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := js(`export default async (i, env) => { console.log("before"); await env.search.find("never") }`)
	req.Record, req.RunID, req.Limits = true, "wall", &policy.Limits{Wall: policy.Duration(50 * time.Millisecond)}
	was, err := d.api.Run(ctx, "t-a", req)
	if err != nil || was.Error == nil || was.Error.Limit != "wall" || !was.Recording.Complete {
		t.Fatalf("%+v, %v", was, err)
	}
	canceled := js(`export default async (i, env) => { console.log("before"); await env.search.find("never") }`)
	canceled.Record, canceled.RunID = true, "canceled"
	for e, err := range d.api.RunStream(ctx, "t-a", canceled) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == api.EventCall {
			if _, err := d.api.CancelRun(ctx, "canceled"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range []string{"wall", "canceled"} {
		r, err := d.api.Replay(ctx, id, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Replay.Identical || r.Replay.Note == "" || len(r.Replay.Differs) != 0 || r.Status != api.StatusKilled || !strings.Contains(r.Error.Message, "ends here") || len(r.Logs) != 1 {
			t.Errorf("%s: %+v %+v %+v", id, r, r.Error, r.Replay)
		}
	}
}

// TestReplayIsCanceled: a replay is a run like others.
func TestReplayIsCanceled(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := js(`export default async (i, env) => { await env.search.find(1); for (let n = 0; n < 1e9; n++); return 1 }`)
	req.Limits = &policy.Limits{CPU: policy.Duration(300 * time.Millisecond)}
	was := recordRun(t, d, "t-a", req)
	for e, err := range d.api.ReplayStream(ctx, was.RunID, "", nil) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Type {
		case api.EventStarted:
			if r, err := d.api.CancelRun(ctx, e.RunID); err != nil || r.Replay == nil {
				t.Fatalf("%+v, %v", r, err)
			}
		case api.EventCall:
			t.Error("a replay asks for a tool")
		case api.EventResult:
			if r := e.Run; r.Status != api.StatusKilled || r.Replay.Identical || r.Error.Code != api.CodeCanceled {
				t.Errorf("%+v %+v %+v", r, r.Error, r.Replay)
			}
		}
	}
}

// TestRecordingsArePrivate: files that nobody else reads, without what a request
// carried in its headers.
func TestRecordingsArePrivate(t *testing.T) {
	d := startDaemon(t)
	recordRun(t, d, "t-a", js(`export default () => 1`))
	files := 0
	err := filepath.WalkDir(d.state("recordings"), func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if !e.IsDir() {
			files++
		}
		return nil
	})
	if err != nil || files != 1 {
		t.Errorf("%d files, %v", files, err)
	}
}
