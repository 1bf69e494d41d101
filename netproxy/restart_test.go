package netproxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"sandboxd/policy"
)

// kill ends the proxy process as a fault would, and waits for the next.
func (w *world) kill() State {
	w.Helper()
	was := w.p.State()
	if err := unix.Kill(was.Pid, unix.SIGKILL); err != nil {
		w.Fatal(err)
	}
	return w.await(func(s State) bool { return s.Running && s.Pid != was.Pid })
}

func (w *world) await(ok func(State) bool) State {
	w.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		s := w.p.State()
		if ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			w.Fatalf("state %+v", s)
		}
	}
}

// A jail that lived through the proxy's death goes on with the next process:
// same listeners, same authority, same rules, same secrets, same ports.
func TestTheProcessIsReplaced(t *testing.T) {
	states := make(chan State, 16)
	w := newWorld(t, func(c *Config) { c.OnState = func(s State) { states <- s } })
	hold := make(chan struct{})
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			fmt.Fprint(rw, "first")
			rw.(http.Flusher).Flush()
			select {
			case <-hold:
			case <-r.Context().Done():
			}
			return
		}
		fmt.Fprint(rw, r.Header.Get("Authorization") == "Bearer "+secret)
	})
	defer close(hold)
	db := w.service("db.test", echo)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }), db.rule(nil))
	get := func() string {
		resp, err := j.client().Get(u.url("/"))
		return readAll(t, resp, err)
	}
	if got := get(); got != "true" {
		t.Fatalf("before: %q", got)
	}
	inFlight, err := j.client().Get(u.url("/hold"))
	if err != nil {
		t.Fatal(err)
	}
	fetch := &http.Client{Transport: w.p.Fetch("alice", "run")}
	s := w.kill()
	if s.Restarts != 1 || s.Problem == "" {
		t.Errorf("state %+v", s)
	}
	if down := <-states; down.Running || down.Problem == "" {
		t.Errorf("told %+v of the death", down)
	}
	if up := <-states; !up.Running || up.Restarts != 1 {
		t.Errorf("told %+v of the new one", up)
	}
	if _, err := io.ReadAll(inFlight.Body); err == nil {
		t.Error("half an answer looks whole")
	}
	inFlight.Body.Close()
	if got := get(); got != "true" {
		t.Errorf("after: %q", got)
	}
	if got := db.talk(j, "hello"); got != "hello" {
		t.Errorf("the service says %q", got)
	}
	if rr, err := lookup(j, "api.test", dns.TypeA); err != nil || len(rr) != 1 {
		t.Errorf("dns: %v, %v", rr, err)
	}
	resp, err := fetch.Get(u.url("/"))
	if got := readAll(t, resp, err); got != "true" {
		t.Errorf("an isolate gets %q", got)
	}
	// What changes while there is none is in force in the next.
	w.rules("alice", db.rule(nil))
	w.kill()
	var refused *connectRefused
	if _, err := j.client().Get(u.url("/")); !errors.As(err, &refused) || refused.status != 403 {
		t.Errorf("a withdrawn grant: %v", err)
	}
}

// A process that dies at once is started again after pauses that grow, and the
// caller can see it.
func TestCrashLoop(t *testing.T) {
	w := newWorld(t, nil)
	exe := filepath.Join(t.TempDir(), "dies")
	if err := os.WriteFile(exe, []byte("#!/bin/sh\nexit 7\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	was := w.p.cfg.Exe
	w.p.mu.Lock() // the supervisor reads it when a process is to be started
	w.p.cfg.Exe = exe
	w.p.mu.Unlock()
	began := time.Now()
	if err := unix.Kill(w.p.State().Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	failed := w.await(func(s State) bool { return !s.Running && len(s.Problem) > 14 && s.Problem[:7] == "it did " })
	if failed.Restarts != 0 {
		t.Errorf("state %+v", failed)
	}
	// What the jail asks for waits or fails; nothing passes.
	if _, err := w.p.Attach(short(t), "bob"); !errors.Is(err, ErrClosed) {
		t.Errorf("attach meanwhile: %v", err)
	}
	w.p.mu.Lock()
	w.p.cfg.Exe = was
	w.p.mu.Unlock()
	s := w.await(func(s State) bool { return s.Running })
	if s.Restarts != 1 {
		t.Errorf("state %+v", s)
	}
	if took := time.Since(began); took < firstWait {
		t.Errorf("no pause: %v", took)
	}
	j := w.jail("carol")
	if resp, _ := talk(t, j.conn(), "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"); resp.StatusCode != 403 {
		t.Errorf("status %d", resp.StatusCode)
	}
}
