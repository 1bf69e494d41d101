package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandboxd/policy"
)

// A peer is the process at the other end of a connection, as the kernel says.
type peer struct {
	caller policy.Caller
	handed handed // descriptors that it has sent

	mu      sync.Mutex
	closed  bool           // guarded by mu
	onClose map[int]func() // guarded by mu
	next    int            // guarded by mu
}

type peerKey struct{}

func peerOf(ctx context.Context) *peer {
	p, _ := ctx.Value(peerKey{}).(*peer)
	return p
}

// whenClosed calls f once the connection is closed, unless release is called
// before.
func (p *peer) whenClosed(f func()) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		go f()
		return func() {}
	}
	if p.onClose == nil {
		p.onClose = map[int]func(){}
	}
	id := p.next
	p.next++
	p.onClose[id] = f
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.onClose, id)
	}
}

func (p *peer) connectionClosed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, f := range p.onClose {
		go f()
	}
	p.onClose = nil
}

// identify asks the kernel who connected. A connection without credentials is
// refused.
func identify(c net.Conn, admin bool) (*peer, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T has no peer credentials", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var groups []uint32
	var unit string
	var failed error
	err = raw.Control(func(fd uintptr) {
		if cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed != nil {
			return
		}
		groups = peerGroups(int(fd))
		unit = unitOf(int(fd), cred.Pid)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	return &peer{caller: policy.Caller{UID: cred.Uid, GID: cred.Gid, Groups: groups, Pid: cred.Pid, Unit: unit, Admin: admin}}, nil
}

// peerGroups are the supplementary groups. Without them a caller has fewer
// rights, never more.
func peerGroups(fd int) []uint32 {
	buf := make([]byte, 4*64)
	n, err := getsockoptBytes(fd, unix.SO_PEERGROUPS, buf)
	if err == unix.ERANGE {
		buf = make([]byte, 4*65536)
		n, err = getsockoptBytes(fd, unix.SO_PEERGROUPS, buf)
	}
	if err != nil {
		return nil
	}
	groups := make([]uint32, 0, n/4)
	for b := buf[:n]; len(b) >= 4; b = b[4:] {
		groups = append(groups, nativeUint32(b))
	}
	return groups
}

// unitOf names the systemd unit of the peer, for the record. The peer's own
// pidfd shows that the pid was still its when the cgroup was read.
func unitOf(fd int, pid int32) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/cgroup")
	if err != nil {
		return ""
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return ""
	}
	defer unix.Close(pidfd)
	if unix.PidfdSendSignal(pidfd, 0, nil, 0) != nil {
		return ""
	}
	return unitFromCgroup(text)
}

// unitFromCgroup finds the innermost unit in the text of /proc/PID/cgroup.
func unitFromCgroup(text []byte) string {
	for line := range bytes.Lines(text) {
		group, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::"))
		if !ok {
			continue
		}
		for p := string(group); p != "/" && p != "." && p != ""; p = path.Dir(p) {
			name := path.Base(p)
			if strings.HasSuffix(name, ".service") || strings.HasSuffix(name, ".scope") {
				return name
			}
		}
	}
	return ""
}
