package ipc

import (
	"bytes"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waiting is a Conn of FromFDWaiting and its peer.
func waiting(t *testing.T) (*Conn, *Conn) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	fd, err := unix.FcntlInt(b.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := FromFDWaiting(fd, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	peer := NewConn(a, 8<<20)
	t.Cleanup(func() { peer.Close(); c.Close() })
	return c, peer
}

func receive(t *testing.T, c *Conn, want string) {
	t.Helper()
	if p, _, err := c.Recv(); err != nil || string(p) != want {
		t.Fatalf("got %d bytes %.20q, %v; want %d bytes", len(p), p, err, len(want))
	}
}

// TestWaitingThread: a frame is received whichever way its receiver waits when it
// comes, and when that changes while it waits or has half of it.
func TestWaitingThread(t *testing.T) {
	c, peer := waiting(t)
	large := string(bytes.Repeat([]byte("x"), 3<<20))
	for name, change := range map[string]func() error{
		"its thread":          func() error { return nil },
		"the poller":          c.UsePoller,
		"the poller, left":    func() error { c.LeavePoller(); return nil },
		"the poller, anew":    c.UsePoller,
		"the poller, entered": c.UsePoller,
	} {
		if err := change(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sent := make(chan error, 1)
		go func() {
			time.Sleep(2 * soon * time.Millisecond) // both kinds of a thread's wait
			err := peer.Send([]byte("small"))
			if err == nil {
				err = peer.Send([]byte(large))
			}
			sent <- err
		}()
		receive(t, c, "small")
		receive(t, c, large)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

// TestLeavePoller: who waits in the poller goes on to wait with its thread.
func TestLeavePoller(t *testing.T) {
	c, peer := waiting(t)
	before := openFiles(t)
	got := make(chan []byte)
	for range 100 {
		if err := c.UsePoller(); err != nil {
			t.Fatal(err)
		}
		go func() {
			p, _, _ := c.Recv()
			got <- p
		}()
		c.LeavePoller()
		if err := peer.Send([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if p := <-got; string(p) != "x" {
			t.Fatalf("received %q", p)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestWaitingSends: what the peer does not take at once is waited for.
func TestWaitingSends(t *testing.T) {
	c, peer := waiting(t)
	large := bytes.Repeat([]byte("y"), 4<<20)
	sent := make(chan error, 1)
	go func() { sent <- c.Send(large, os.Stderr) }()
	p, files, err := peer.Recv()
	if err != nil || !bytes.Equal(p, large) || len(files) != 1 {
		t.Fatalf("%d bytes, %d files, %v", len(p), len(files), err)
	}
	files[0].Close()
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if c.Pending() {
		t.Error("something is pending")
	}
	if err := peer.Send([]byte("z")); err != nil {
		t.Fatal(err)
	}
	if !c.Pending() {
		t.Error("what was sent is not pending")
	}
	peer.Close()
	receive(t, c, "z")
	if _, _, err := c.Recv(); err == nil {
		t.Error("no end")
	}
}
