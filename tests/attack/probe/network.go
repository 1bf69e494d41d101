package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A jail with a way out looks for another one (tables C, F).

func init() { modes["network"] = network }

// patience is how long a way is tried. What is dropped is silent for ever.
const patience = 1500 * time.Millisecond

// network tries each of args, name=protocol/address:port, at once.
func network(args []string) error {
	out := map[string]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, arg := range args {
		name, where, _ := strings.Cut(arg, "=")
		protocol, addr, ok := strings.Cut(where, "/")
		if !ok {
			return errors.New("where is " + arg + "?")
		}
		all.Go(func() {
			got := try(protocol, addr)
			mu.Lock()
			defer mu.Unlock()
			out[name] = got
		})
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(out)
}

func try(protocol, addr string) string {
	if from, ok := strings.CutPrefix(protocol, "udp-from-"); ok {
		return spoof(from, addr)
	}
	c, err := net.DialTimeout(protocol, addr, patience)
	if late(err) {
		return "silent"
	}
	if err != nil {
		return text(err)
	}
	defer c.Close()
	if protocol != "udp" {
		return "connected"
	}
	return answer(c)
}

func late(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// answer sends a DNS question for "example.com" and waits for any answer.
func answer(c net.Conn) string {
	question := []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01")
	if _, err := c.Write(question); err != nil {
		return text(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return text(err)
	}
	n, err := c.Read(make([]byte, 512))
	if late(err) {
		return "silent"
	}
	if err != nil {
		return text(err)
	}
	if n < 12 {
		return fmt.Sprint(n, " bytes")
	}
	return "answered"
}

// spoof sends from an address that is not this jail's.
func spoof(from, to string) string {
	source, err := netip.ParseAddr(from)
	if err != nil {
		return text(err)
	}
	target, err := netip.ParseAddrPort(to)
	if err != nil {
		return text(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return text(err)
	}
	defer unix.Close(fd)
	free := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: source.As4()}); err != nil {
		return "freebind " + text(free) + ", bind " + text(err)
	}
	err = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Addr: target.Addr().As4(), Port: int(target.Port())})
	return "freebind " + text(free) + ", send " + text(err)
}
