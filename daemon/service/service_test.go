package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sandboxd/policy"
)

// serve answers on a socket of its own.
func serve(t *testing.T, h http.HandlerFunc) *policy.Service {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return &policy.Service{Socket: path, Concurrency: 4}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestCall(t *testing.T) {
	var got Call
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" || r.URL.Path != "/call" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		fmt.Fprint(w, `{"result":{"n":[1,{"$bytes":"AAE="}]}}`)
	})
	call := &Call{ID: "c1", Tenant: "a", RunID: "r", Binding: "search", Method: "find", Args: json.RawMessage(`[{"q":"x"}]`)}
	answer, err := New(s).Call(within(t), call)
	if err != nil || string(answer) != `{"n":[1,{"$bytes":"AAE="}]}` {
		t.Errorf("got %s, %v", answer, err)
	}
	if got.ID != "c1" || got.Tenant != "a" || got.RunID != "r" || got.Binding != "search" || got.Method != "find" || string(got.Args) != `[{"q":"x"}]` {
		t.Errorf("it saw %+v", got)
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"no such thing"}}`: "no such thing",
		`{"error":{}}`:                          "without a message",
		`{}`:                                    "neither result nor error",
		`{"result":`:                            "something else than JSON",
		`[1]`:                                   "something else than JSON",
		`500`:                                   "HTTP status 500",
		`302`:                                   "HTTP status 302",
		`long`:                                  "more than",
		`gone`:                                  "broke the connection off",
	} {
		var calls atomic.Int32
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			switch body {
			case "500", "302":
				n, _ := strconv.Atoi(body)
				w.Header().Set("Location", "/other")
				w.WriteHeader(n)
			case "long":
				fmt.Fprint(w, `{"result":"`+strings.Repeat("x", MaxAnswer)+`"}`)
			case "gone":
				panic(http.ErrAbortHandler)
			default:
				fmt.Fprint(w, body)
			}
		})
		_, err := New(s).Call(within(t), &Call{Tenant: "a", Args: json.RawMessage("[]")})
		var refused *RefusedError
		var e *Error
		if isRefused := errors.As(err, &refused); isRefused != strings.HasPrefix(body, `{"error":{"m`) || !isRefused && (!errors.As(err, &e) || e.Kind != KindProtocol) {
			t.Errorf("%s: %v", body, err)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", body, err, want)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%s: it was called %d times", body, n)
		}
	}
}

func TestMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	_, err := New(&policy.Service{Socket: path, Concurrency: 1}).Call(within(t), &Call{Tenant: "a", Args: json.RawMessage("[]")})
	var e *Error
	if !errors.As(err, &e) || e.Kind != KindMissing || strings.Contains(e.Message, path) {
		t.Errorf("got %v", err)
	}
}

// TestWhoOpenedTheSocket needs root, as all tests of this repository do.
func TestWhoOpenedTheSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "service")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const other = 65533
	if err := os.Chown(dir, other, other); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	l, err := listenAs(other, path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	uid, wrong := uint32(other), uint32(other-1)
	for _, tt := range []struct {
		uid  *uint32
		good bool
	}{{nil, false}, {&wrong, false}, {&uid, true}} {
		conn, err := Dial(within(t), path, tt.uid)
		var e *Error
		switch {
		case tt.good && err != nil, !tt.good && (!errors.As(err, &e) || e.Kind != KindUntrusted || strings.Contains(e.Message, path)):
			t.Errorf("%v: got %v", tt.uid, err)
		case err == nil:
			conn.Close()
		}
	}
}

// listenAs opens a socket as another user, on a thread that ends with it.
func listenAs(uid int, path string) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		const unchanged = ^uintptr(0)
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, unchanged, uintptr(uid), unchanged); e != 0 {
			err = e
			return
		}
		l, err = net.Listen("unix", path)
	}()
	<-done
	return l, err
}

// TestCancel: a call that nobody waits for any more ends at the service, too.
func TestCancel(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var c Call
		_ = json.NewDecoder(r.Body).Decode(&c)
		close(entered)
		<-r.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithCancel(within(t))
	go func() { <-entered; cancel() }()
	if _, err := New(s).Call(ctx, &Call{Tenant: "a", Args: json.RawMessage("[]")}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	select {
	case <-left:
	case <-within(t).Done():
		t.Error("the service still works")
	}
}

func TestSlots(t *testing.T) {
	s := NewSlots(3)
	var held []func()
	for range 2 {
		give, err := s.Take(within(t), "a")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, give)
	}
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Take(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a tenant took every slot: %v", err)
	}
	give, err := s.Take(within(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var now, most atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			give, err := s.Take(within(t), string(rune('c'+i%3)))
			if err != nil {
				t.Error(err)
				return
			}
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			now.Add(-1)
			give()
		})
	}
	give()
	held[0]()
	held[1]()
	wg.Wait()
	if most.Load() > 3 || s.used != 0 || len(s.tenants) != 0 {
		t.Errorf("at most %d at once, %d left, %v", most.Load(), s.used, s.tenants)
	}
}
