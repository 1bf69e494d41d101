package ipc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T, max int) (*Conn, *Conn) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	ca, cb := NewConn(a, max), NewConn(b, max)
	t.Cleanup(func() { ca.Close(); cb.Close() })
	return ca, cb
}

func TestFramesKeepOrderAndFiles(t *testing.T) {
	a, b := pair(t, 0)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		a.Send([]byte("one"))
		a.Send([]byte("two"), w)
		a.Send(bytes.Repeat([]byte("x"), 3<<20))
		w.Close()
		a.Close()
	}()
	p, files, err := b.Recv()
	if err != nil || string(p) != "one" || len(files) != 0 {
		t.Fatalf("first frame: %q %d %v", p, len(files), err)
	}
	p, files, err = b.Recv()
	if err != nil || string(p) != "two" || len(files) != 1 {
		t.Fatalf("second frame: %q %d %v", p, len(files), err)
	}
	if p, _, err = b.Recv(); err != nil || len(p) != 3<<20 {
		t.Fatalf("third frame: %d bytes, %v", len(p), err)
	}
	if _, err := files[0].WriteString("hi"); err != nil {
		t.Fatal(err)
	}
	files[0].Close()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != "hi" {
		t.Fatalf("through the passed descriptor: %q %v", got, err)
	}
	if _, _, err := b.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("after close: %v, want EOF", err)
	}
}

func TestHostilePeer(t *testing.T) {
	frame := func(size, files uint32, body string) []byte {
		h := make([]byte, headerSize)
		binary.LittleEndian.PutUint32(h, size)
		binary.LittleEndian.PutUint32(h[4:], files)
		return append(h, body...)
	}
	for name, tc := range map[string]struct {
		raw  []byte
		want error
	}{
		"too large":      {frame(1<<30, 0, ""), ErrTooLarge},
		"missing files":  {frame(0, 3, ""), ErrProtocol},
		"many files":     {frame(0, 1<<31, ""), ErrProtocol},
		"cut off body":   {frame(10, 0, "abc"), io.ErrUnexpectedEOF},
		"cut off header": {[]byte{1, 2}, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			c := NewConn(b, 1<<20)
			defer c.Close()
			if _, err := a.Write(tc.raw); err != nil {
				t.Fatal(err)
			}
			a.Close()
			if _, _, err := c.Recv(); !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestUnannouncedFilesAreBounded(t *testing.T) {
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	c := NewConn(b, 1<<20)
	defer c.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := openFiles(t)
	fds := make([]int, MaxFiles)
	for i := range fds {
		fds[i] = int(null.Fd())
	}
	raw, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range 20 {
			raw.Write(func(fd uintptr) bool {
				return unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL) != unix.EAGAIN
			})
		}
	}()
	for {
		if _, _, err := c.Recv(); err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %v, want ErrProtocol", err)
			}
			break
		}
	}
	c.Close()
	<-sent
	if after := openFiles(t); after > before+2 {
		t.Fatalf("%d descriptors before, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func FuzzRecv(f *testing.F) {
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00abc"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, b, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		c := NewConn(b, 1<<16)
		defer c.Close()
		go func() { a.Write(raw); a.Close() }()
		for {
			p, _, err := c.Recv()
			if err != nil {
				return
			}
			if len(p) > 1<<16 {
				t.Fatalf("frame of %d bytes passed the limit", len(p))
			}
		}
	})
}

// TestLargeFramesGrow: frames around the size of the buffer come whole, one
// after the other, and those that follow are not lost in it.
func TestLargeFramesGrow(t *testing.T) {
	a, b := pair(t, 0)
	sizes := []int{0, 1, readBuffer - headerSize, readBuffer - 1, readBuffer, readBuffer + 1, 5*readBuffer + 3, 7, 1 << 20, 2}
	go func() {
		for i, n := range sizes {
			a.Send(bytes.Repeat([]byte{byte('a' + i)}, n))
		}
	}()
	for i, n := range sizes {
		p, _, err := b.Recv()
		if err != nil || !bytes.Equal(p, bytes.Repeat([]byte{byte('a' + i)}, n)) {
			t.Fatalf("frame %d of %d bytes: %d bytes, %v", i, n, len(p), err)
		}
	}
}

// BenchmarkPingPong is a small frame there and back.
func BenchmarkPingPong(b *testing.B) {
	x, y, err := Pair()
	if err != nil {
		b.Fatal(err)
	}
	here, there := NewConn(x, 0), NewConn(y, 0)
	defer here.Close()
	go func() {
		defer there.Close()
		for {
			p, _, err := there.Recv()
			if err != nil {
				return
			}
			there.Send(p)
		}
	}()
	frame := make([]byte, 400)
	b.ReportAllocs()
	for b.Loop() {
		if err := here.Send(frame); err != nil {
			b.Fatal(err)
		}
		if _, _, err := here.Recv(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestReadable(t *testing.T) {
	a, b := pair(t, 0)
	if b.Readable() {
		t.Error("readable before anything was sent")
	}
	if err := a.Send([]byte("x"), os.Stderr); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	if !b.Readable() || openFiles(t) != before {
		t.Error("what was sent does not show, or was taken")
	}
	if p, files, err := b.Recv(); err != nil || string(p) != "x" || len(files) != 1 || b.Readable() {
		t.Errorf("%q, %d files, %v", p, len(files), err)
	} else {
		files[0].Close()
	}
	a.Close()
	if !b.Readable() {
		t.Error("the end does not show")
	}
}

func TestAwait(t *testing.T) {
	a, b := pair(t, 0)
	began := time.Now()
	if b.Await(10*time.Millisecond) || time.Since(began) > time.Second {
		t.Errorf("something came, or it took too long: %v", time.Since(began))
	}
	for range 2 {
		if err := a.Send([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second one is in the buffer already
		if !b.Await(0) {
			t.Error("what was sent does not show")
		}
		if _, _, err := b.Recv(); err != nil {
			t.Fatal(err)
		}
	}
}
