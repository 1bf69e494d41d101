package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/client"
	"sandboxd/policy"
)

func sh(command string) *api.ExecRequest { return &api.ExecRequest{Command: command} }

func TestExec(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	t.Run("output and exit code", func(t *testing.T) {
		p, err := d.api.Exec(ctx, "t-a", sh("echo out; echo err >&2; exit 3"))
		if err != nil {
			t.Fatal(err)
		}
		if p.Stdout != "out\n" || p.Stderr != "err\n" || p.ExitCode == nil || *p.ExitCode != 3 || p.Signal != "" || p.Receipt == nil {
			t.Errorf("got %+v", p)
		}
	})
	t.Run("a stream keeps every byte", func(t *testing.T) {
		var got bytes.Buffer
		var last api.Event
		for e, err := range d.api.ExecStream(ctx, "t-a", sh(`printf '\377\000ok'`)) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == api.EventStdout {
				data, err := e.Bytes()
				if err != nil {
					t.Fatal(err)
				}
				got.Write(data)
			}
			last = e
		}
		if got.String() != "\xff\x00ok" || last.Type != api.EventResult || *last.Exec.ExitCode != 0 {
			t.Errorf("got %q, then %+v", got.String(), last)
		}
	})
	t.Run("an id runs once", func(t *testing.T) {
		req := sh("echo once >> /workspace/once; cat /workspace/once")
		req.ExecID = "once"
		for range 3 {
			p, err := d.api.Exec(ctx, "t-a", req)
			if err != nil || p.Stdout != "once\n" {
				t.Errorf("got %+v, %v", p, err)
			}
		}
	})
	t.Run("a timeout kills the tree and nothing else", func(t *testing.T) {
		keep := sh("sleep 60")
		keep.Background, keep.ExecID = true, "keep"
		if _, err := d.api.Exec(ctx, "t-a", keep); err != nil {
			t.Fatal(err)
		}
		req := sh("sleep 50 & sleep 50; wait")
		req.Timeout = policy.Duration(200 * time.Millisecond)
		p, err := d.api.Exec(ctx, "t-a", req)
		if err != nil || !p.TimedOut || p.ExitCode != nil || p.Signal != "SIGKILL" {
			t.Errorf("got %+v, %v", p, err)
		}
		if p, err = d.api.Process(ctx, "t-a", "keep"); err != nil || p.State != "running" {
			t.Errorf("the other command is %+v, %v", p, err)
		}
		if err := d.api.Kill(ctx, "t-a", "keep"); err != nil {
			t.Error(err)
		}
		if err := d.api.Kill(ctx, "t-a", "keep"); err != nil {
			t.Errorf("the second kill: %v", err)
		}
		if p, err = d.api.Process(ctx, "t-a", "keep"); err != nil || p.State != "exited" || p.Signal != "SIGKILL" {
			t.Errorf("the killed command is %+v, %v", p, err)
		}
	})
	t.Run("what cannot start is named", func(t *testing.T) {
		_, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Argv: []string{"no-such-program"}})
		wantError(t, err, api.CodeInvalidRequest, "argv[0]")
		_, err = d.api.Exec(ctx, "t-a", &api.ExecRequest{Argv: []string{"true"}, Cwd: "/no/such/folder"})
		wantError(t, err, api.CodeInvalidRequest, "cwd")
		_, err = d.api.Process(ctx, "t-a", "never")
		wantError(t, err, api.CodeNotFound, "")
	})
	t.Run("a dropped connection does not end it", func(t *testing.T) {
		req := sh("sleep 0.2; echo done > /workspace/dropped")
		req.ExecID = "dropped"
		for e, err := range d.api.ExecStream(ctx, "t-a", req) {
			if err != nil || e.Type != api.EventStarted {
				t.Fatalf("%+v, %v", e, err)
			}
			break
		}
		var result *api.Process
		for e, err := range d.api.ProcessEvents(ctx, "t-a", "dropped", 0, true) {
			if err != nil {
				t.Fatal(err)
			}
			result = e.Exec
		}
		if result == nil || result.ExitCode == nil || *result.ExitCode != 0 {
			t.Errorf("it ended as %+v", result)
		}
	})
}

func TestExecIDRunsOnce(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	first, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Command: "echo $$", ExecID: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Command: "echo $$", ExecID: "mine"})
	if err != nil || again.Pid != first.Pid || again.Stdout != first.Stdout {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	_, err = d.api.Exec(ctx, "t-a", &api.ExecRequest{Command: "echo other", ExecID: "mine"})
	wantError(t, err, api.CodeConflict, "exec_id")
}

func TestStdinSignalsAndWaiting(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	cat := sh("exec cat")
	cat.Stdin, cat.Background, cat.ExecID = true, true, "cat"
	if _, err := d.api.Exec(ctx, "t-a", cat); err != nil {
		t.Fatal(err)
	}
	if err := d.api.Stdin(ctx, "t-a", "cat", strings.NewReader("hello "), false); err != nil {
		t.Fatal(err)
	}
	if err := d.api.Stdin(ctx, "t-a", "cat", strings.NewReader("world"), true); err != nil {
		t.Fatal(err)
	}
	if w, err := d.api.Wait(ctx, "t-a", "cat", &api.WaitRequest{Exit: true}); err != nil || *w.Process.ExitCode != 0 {
		t.Fatalf("%+v, %v", w, err)
	}
	var out strings.Builder
	for e, err := range d.api.ProcessEvents(ctx, "t-a", "cat", 0, false) {
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(e.Data)
	}
	if out.String() != "hello world" {
		t.Errorf("got %q", out.String())
	}
	server := &api.ExecRequest{Argv: []string{"python3", "-c", "import socket,time\nprint('starting',flush=True)\ns=socket.create_server(('127.0.0.1',8123))\ntime.sleep(60)"}, Background: true, ExecID: "server"}
	if _, err := d.api.Exec(ctx, "t-a", server); err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.Wait(ctx, "t-a", "server", &api.WaitRequest{LogRegexp: "^start"}); err != nil {
		t.Error(err)
	}
	if _, err := d.api.Wait(ctx, "t-a", "server", &api.WaitRequest{Port: 8123}); err != nil {
		t.Error(err)
	}
	_, err := d.api.Wait(ctx, "t-a", "server", &api.WaitRequest{Port: 8124, Timeout: policy.Duration(50 * time.Millisecond)})
	wantError(t, err, api.CodeLimit, "")
	if err := d.api.Signal(ctx, "t-a", "server", "TERM"); err != nil {
		t.Fatal(err)
	}
	if w, err := d.api.Wait(ctx, "t-a", "server", &api.WaitRequest{Exit: true}); err != nil || w.Process.Signal != "SIGTERM" {
		t.Errorf("%+v, %v", w, err)
	}
	// What can no longer happen is told at once.
	_, err = d.api.Wait(ctx, "t-a", "server", &api.WaitRequest{Port: 8123, Timeout: policy.Duration(time.Minute)})
	wantError(t, err, api.CodeConflict, "")
	wantError(t, d.api.Signal(ctx, "t-a", "server", "TERM"), api.CodeConflict, "")
	wantError(t, d.api.Stdin(ctx, "t-a", "server", strings.NewReader("x"), true), api.CodeConflict, "")
}

func TestFiles(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if err := d.api.WriteFile(ctx, "t-a", "/workspace/a b.txt", strings.NewReader("text"), 0o640); err != nil {
		t.Fatal(err)
	}
	f, err := d.api.ReadFile(ctx, "t-a", "/workspace/a b.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "text" {
		t.Errorf("got %q, %v", b, err)
	}
	st, err := d.api.StatFile(ctx, "t-a", "/workspace/a b.txt")
	if err != nil || st.Size != 4 || st.Type != "file" || st.Mode != "0640" {
		t.Errorf("got %+v, %v", st, err)
	}
	list, err := d.api.ListFiles(ctx, "t-a", "/workspace", 1)
	if err != nil || len(list.Files) != 1 || list.Files[0].Name != "a b.txt" {
		t.Errorf("got %+v, %v", list, err)
	}
	if _, err := d.api.Exec(ctx, "t-a", sh("ln -s /etc/shadow /workspace/link; ln -s ../../../../etc/passwd /workspace/up; mkfifo /workspace/fifo")); err != nil {
		t.Fatal(err)
	}
	host, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "up", "fifo"} {
		if f, err := d.api.ReadFile(ctx, "t-a", "/workspace/"+name); err == nil {
			b, _ := io.ReadAll(f)
			f.Close()
			if bytes.Equal(b, host) || name == "fifo" {
				t.Errorf("%s gave %q", name, b)
			}
		}
	}
	_, err = d.api.ReadFile(ctx, "t-a", "/workspace/none")
	wantError(t, err, api.CodeNotFound, "path")
	for range 2 {
		if err := d.api.DeleteFile(ctx, "t-a", "/workspace/a b.txt"); err != nil {
			t.Error(err)
		}
	}
}

func TestRunInJail(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	req := &api.RunRequest{Language: "python", Needs: []string{"process"}, Modules: map[string]string{
		"main.py": "import json,os,sys,lib.util\nv=json.load(sys.stdin)\nprint(lib.util.twice(v['n']), os.environ['A'])\nprint('e',file=sys.stderr)", "lib/util.py": "def twice(n): return 2*n"},
		Main: "main.py", Input: json.RawMessage(`{"n":4}`), Env: map[string]string{"A": "b"}}
	r, err := d.api.Run(ctx, "t-a", req)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != api.StatusOK || r.Environment != "jail" || r.Stdout != "8 b\n" || r.Stderr != "e\n" || *r.ExitCode != 0 || r.Receipt == nil {
		t.Errorf("got %+v %+v", r, r.Error)
	}
	if list, err := d.api.ListFiles(ctx, "t-a", "/workspace/.sandboxd/run", 1); err != nil || len(list.Files) != 0 {
		t.Errorf("the code is left: %+v, %v", list, err)
	}
	r, err = d.api.Run(ctx, "t-a", &api.RunRequest{Language: "shell", Code: "echo no >&2; exit 9"})
	if err != nil || r.Status != api.StatusError || r.Error.Code != api.CodeError || *r.ExitCode != 9 || r.Error.Stack != "no\n" {
		t.Errorf("got %+v %+v, %v", r, r.Error, err)
	}
	r, err = d.api.Run(ctx, "t-a", &api.RunRequest{Language: "shell", Code: "sleep 60", Limits: &policy.Limits{Wall: policy.Duration(100 * time.Millisecond)}})
	if err != nil || r.Status != api.StatusKilled || r.Error.Code != api.CodeLimit || r.Error.Limit != "wall" {
		t.Errorf("got %+v %+v, %v", r, r.Error, err)
	}
	// A dropped connection does not end a run in a jail; canceling does.
	ctx2, cancel := context.WithCancel(ctx)
	long := &api.RunRequest{Language: "shell", Code: "sleep 60", RunID: "long"}
	for e, err := range d.api.RunStream(ctx2, "t-a", long) {
		if err != nil || e.Type != api.EventStarted {
			t.Fatalf("%+v, %v", e, err)
		}
		break
	}
	cancel()
	if r, err := d.api.GetRun(ctx, "long"); err != nil || r.Status != api.StatusRunning {
		t.Errorf("after the drop: %+v, %v", r, err)
	}
	if r, err = d.api.CancelRun(ctx, "long"); err != nil || r.Status != api.StatusKilled || r.Error.Code != api.CodeCanceled {
		t.Errorf("canceled: %+v, %v", r, err)
	}
}

func TestLifeOfAJail(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	_, err := d.api.Jail(ctx, "t-a")
	wantError(t, err, api.CodeNotFound, "")
	if err := d.api.DestroyJail(ctx, "t-a"); err != nil {
		t.Errorf("destroying none: %v", err)
	}
	_, err = d.api.CreateJail(ctx, "t-a", &api.JailRequest{MaxLifetime: policy.Duration(time.Hour)})
	wantError(t, err, api.CodeInvalidRequest, "max_lifetime")
	j, err := d.api.CreateJail(ctx, "t-a", &api.JailRequest{Env: map[string]string{"WHO": "me"}})
	if err != nil || j.State != "running" || j.Deadline.Before(time.Now()) {
		t.Fatalf("%+v, %v", j, err)
	}
	again, err := d.api.CreateJail(ctx, "t-a", &api.JailRequest{})
	if err != nil || !again.Created.Equal(j.Created) {
		t.Errorf("the second create gave %+v, %v", again, err)
	}
	if p, err := d.api.Exec(ctx, "t-a", sh("echo $WHO; touch /workspace/kept")); err != nil || p.Stdout != "me\n" {
		t.Errorf("%+v, %v", p, err)
	}
	if j, err = d.api.FreezeJail(ctx, "t-a"); err != nil || j.State != "frozen" {
		t.Errorf("frozen: %+v, %v", j, err)
	}
	if p, err := d.api.Exec(ctx, "t-a", sh("ls /workspace")); err != nil || p.Stdout != "kept\n" {
		t.Errorf("thawed by a request: %+v, %v", p, err)
	}
	bg := sh("sleep 100")
	bg.Background, bg.ExecID = true, "bg"
	if _, err := d.api.Exec(ctx, "t-a", bg); err != nil {
		t.Fatal(err)
	}
	if err := d.api.DestroyJail(ctx, "t-a"); err != nil {
		t.Fatal(err)
	}
	_, err = d.api.Jail(ctx, "t-a")
	wantError(t, err, api.CodeNotFound, "")
	if p, err := d.api.Exec(ctx, "t-a", sh("ls -A /workspace; echo $WHO")); err != nil || p.Stdout != "\n" {
		t.Errorf("a deleted jail left something to the next: %+v, %v", p, err)
	}
	if err := d.api.DestroyJail(ctx, "t-a"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(d.cfg.CgroupDir + "/jails/*"); err != nil || hasFolder(t, left) {
		t.Errorf("left in the cgroup: %q, %v", left, err)
	}
}

func hasFolder(t *testing.T, paths []string) bool {
	t.Helper()
	for _, p := range paths {
		if st, err := os.Stat(p); err == nil && st.IsDir() {
			return true
		}
	}
	return false
}

func TestIdleFreezesAndLifetimeEnds(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	if _, err := d.api.CreateJail(ctx, "t-short", &api.JailRequest{}); err != nil {
		t.Fatal(err)
	}
	j := d.tenants.find("t-short")
	if j == nil {
		t.Fatal("there is no jail")
	}
	waitUntil(t, "the jail is frozen", func() bool {
		info, err := d.api.Jail(ctx, "t-short") // does not count as activity
		return err == nil && info.State == "frozen"
	})
	select {
	case <-j.gone:
	case <-ctx.Done():
		t.Fatal("the jail outlived its lifetime")
	}
	if cause := j.jail.Info().Cause; cause != "lifetime" {
		t.Errorf("it ended by %q", cause)
	}
}

func waitUntil(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it never came true that " + what)
		}
	}
}

func TestLeaseEndsWithItsConnection(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	holder := client.New(d.cfg.Sockets[0].Path)
	if _, err := holder.CreateJail(ctx, "t-lease", &api.JailRequest{Lease: "connection"}); err != nil {
		t.Fatal(err)
	}
	j := d.tenants.find("t-lease")
	if j == nil {
		t.Fatal("there is no jail")
	}
	holder.Close()
	select {
	case <-j.gone:
	case <-ctx.Done():
		t.Fatal("the jail outlived the connection")
	}
}

func TestStopLeavesNothing(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	for _, tenant := range []string{"t-a", "t-b"} {
		bg := sh("sleep 1000 & sleep 1000")
		bg.Background = true
		if _, err := d.api.Exec(ctx, tenant, bg); err != nil {
			t.Fatal(err)
		}
	}
	d.stop(t)
	if left, err := filepath.Glob(d.cfg.CgroupDir + "/*/*"); err != nil || hasFolder(t, left) {
		t.Errorf("left in the cgroup: %q, %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), d.cfg.StateDir) {
		t.Error("a mount is left below the state folder")
	}
	for _, s := range d.cfg.Sockets {
		if _, err := os.Lstat(s.Path); err == nil {
			t.Errorf("%s is left", s.Path)
		}
	}
}
