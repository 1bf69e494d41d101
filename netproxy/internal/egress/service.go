package egress

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// A service is an address and port that a link's jail may connect to beside the
// proxy's own.
type service struct {
	addr netip.Addr
	port uint16
}

// Service opens a listening socket on the link's device, at an address that
// stands for some host, and lets the jail reach it. The caller owns the socket.
func (l *Link) Service(addr netip.Addr, port uint16) (*os.File, error) {
	var f *os.File
	err := l.network.thread.do(func() (err error) {
		if f, err = l.socket(unix.SOCK_STREAM, addr.As4(), int(port)); err != nil {
			return fmt.Errorf("egress: listener on %s port %d: %w", addr, port, err)
		}
		return l.network.filter.allowService(l.ifindex, l.Address, addr, port)
	})
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.services == nil {
		l.services = map[service]bool{}
	}
	l.services[service{addr, port}] = true
	return f, nil
}

// EndService closes the way to a service; its sockets are the caller's to
// close.
func (l *Link) EndService(addr netip.Addr, port uint16) error {
	l.mu.Lock()
	known := l.services[service{addr, port}]
	delete(l.services, service{addr, port})
	l.mu.Unlock()
	if !known {
		return nil
	}
	return l.network.thread.do(func() error {
		return l.network.filter.denyService(l.ifindex, l.Address, addr, port)
	})
}

// endServices runs when the link goes.
func (l *Link) endServices() {
	l.mu.Lock()
	all := l.services
	l.services = nil
	l.mu.Unlock()
	for s := range all {
		_ = l.network.thread.do(func() error { return l.network.filter.denyService(l.ifindex, l.Address, s.addr, s.port) })
	}
}
