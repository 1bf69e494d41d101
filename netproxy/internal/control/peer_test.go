package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"sandboxd/internal/ipc"
)

// pair runs two peers; both ends are closed when the test ends.
func pair(t *testing.T, left, right Handler) (*Peer, *Peer) {
	t.Helper()
	a, b, err := ipc.Pair()
	if err != nil {
		t.Fatal(err)
	}
	pa, pb := NewPeer(ipc.NewConn(a, MaxFrame), left), NewPeer(ipc.NewConn(b, MaxFrame), right)
	var wg sync.WaitGroup
	for _, p := range []*Peer{pa, pb} {
		wg.Go(func() { _ = p.Run(context.Background()) })
	}
	t.Cleanup(func() { pa.Close(); pb.Close(); wg.Wait() })
	return pa, pb
}

func nothing(context.Context, string, json.RawMessage, []*os.File) (any, []*os.File, error) {
	return nil, nil, nil
}

func TestCallsBothWays(t *testing.T) {
	double := func(_ context.Context, method string, body json.RawMessage, files []*os.File) (any, []*os.File, error) {
		CloseAll(files)
		var n int
		if err := json.Unmarshal(body, &n); err != nil {
			return nil, nil, err
		}
		switch method {
		case "fail":
			return nil, nil, &RemoteError{Code: "odd", Message: fmt.Sprint(n)}
		case "pipe":
			r, w, err := os.Pipe()
			if err != nil {
				return nil, nil, err
			}
			_, err = fmt.Fprint(w, n)
			w.Close()
			return nil, []*os.File{r}, err
		}
		return 2 * n, nil, nil
	}
	a, b := pair(t, double, double)
	var wg sync.WaitGroup
	for i := range 200 {
		for _, p := range []*Peer{a, b} {
			wg.Go(func() {
				var out int
				if _, err := p.Call(t.Context(), "double", i, &out); err != nil || out != 2*i {
					t.Errorf("%d became %d, %v", i, out, err)
				}
			})
		}
	}
	wg.Wait()
	var remote *RemoteError
	if _, err := a.Call(t.Context(), "fail", 7, nil); !errors.As(err, &remote) || remote.Code != "odd" || remote.Message != "7" {
		t.Errorf("error %v", err)
	}
	files, err := a.Call(t.Context(), "pipe", 42, nil)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	defer files[0].Close()
	var n int
	if _, err := fmt.Fscan(files[0], &n); err != nil || n != 42 {
		t.Errorf("through the file: %d, %v", n, err)
	}
}

func TestNoticesKeepTheirOrder(t *testing.T) {
	got := make(chan int, 1000)
	a, _ := pair(t, nothing, func(_ context.Context, _ string, body json.RawMessage, _ []*os.File) (any, []*os.File, error) {
		var n int
		err := json.Unmarshal(body, &n)
		got <- n
		return nil, nil, err
	})
	for i := range 500 {
		if err := a.Notify("n", i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 500 {
		if n := <-got; n != i {
			t.Fatalf("notice %d came as %d", n, i)
		}
	}
}

func TestCallsEnd(t *testing.T) {
	block := make(chan struct{})
	a, b := pair(t, nothing, func(context.Context, string, json.RawMessage, []*os.File) (any, []*os.File, error) {
		<-block
		return nil, nil, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Call(ctx, "x", 1, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that takes too long: %v", err)
	}
	failed := make(chan error)
	go func() {
		_, err := a.Call(t.Context(), "x", 1, nil)
		failed <- err
	}()
	b.Close()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("a call when the other side goes: %v", err)
	}
	<-a.Done()
	if _, err := a.Call(t.Context(), "x", 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a call afterwards: %v", err)
	}
	close(block)
}

func TestBrokenPeer(t *testing.T) {
	a, b, err := ipc.Pair()
	if err != nil {
		t.Fatal(err)
	}
	raw := ipc.NewConn(b, MaxFrame)
	defer raw.Close()
	p := NewPeer(ipc.NewConn(a, MaxFrame), nothing)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	if err := raw.Send([]byte("not json")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("a broken message was taken")
	}
}
