package egress

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// jailConn connects from the jail to its proxy's listener and returns both ends.
func jailConn(t *testing.T, l *Link) (jail, proxy net.Conn) {
	t.Helper()
	listener, err := net.FileListener(l.Sockets[SocketProxy])
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = inside(t, l.NetNS, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "jail")
		defer f.Close()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: ProxyPort, Addr: l.Gateway.As4()}); err != nil {
			return err
		}
		jail, err = net.FileConn(f)
		return err
	})
	if err == nil {
		proxy, err = listener.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { jail.Close(); proxy.Close() })
	return jail, proxy
}

// transfer takes as long as n bytes need from one end to the other.
func transfer(t *testing.T, from, to net.Conn, n int64) time.Duration {
	t.Helper()
	sent := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := from.Write(make([]byte, n))
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, to, n); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// TestRate: a link's bytes take as long as its rate says, out and in, and those of
// its neighbour do not.
func TestRate(t *testing.T) {
	n := network(t)
	slow, other := attach(t, n), attach(t, n)
	const rate = 1 << 20
	if err := slow.SetRate(rate); err != nil {
		t.Fatal(err)
	}
	jail, proxy := jailConn(t, slow)
	otherJail, otherProxy := jailConn(t, other)
	check := func(what string, took, atLeast time.Duration) {
		if took < atLeast {
			t.Errorf("%s: %v, want %v at least", what, took, atLeast)
		}
	}
	// What the bucket holds at the start passes at once.
	const held = 500 * time.Millisecond
	out, in := transfer(t, jail, proxy, rate/2+2*rateBurst), transfer(t, proxy, jail, rate/2+2*rateBurst)
	check("out", out, held)
	check("in", in, held)
	free := transfer(t, otherJail, otherProxy, rate/2+2*rateBurst)
	if free > out/2 {
		t.Errorf("the neighbour took %v", free)
	}
	// Another rate, then none again.
	if err := slow.SetRate(rate / 4); err != nil {
		t.Fatal(err)
	}
	check("slower", transfer(t, jail, proxy, rate/8+2*rateBurst), held)
	for range 2 {
		if err := slow.SetRate(0); err != nil {
			t.Fatal(err)
		}
	}
	if took := transfer(t, jail, proxy, rate/2); took > out/2 {
		t.Errorf("without a rate it took %v", took)
	}
}
