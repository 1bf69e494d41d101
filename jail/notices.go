package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
	"sandboxd/jail/sys"
)

// Some system calls of a jail wait for the daemon's word (seccomp's user
// notification). Those of watched() are refused, always, and remembered for the
// receipt. listen goes on, and who waits for a port hears of it; nothing else in
// the kernel tells that a socket begins to listen. All others never come here
// and cost nothing.
//
// Whatever happens here, no refused call is let through: only listen is ever
// continued, the answer to all others is EPERM, and a call that nobody answers
// waits, or is ENOSYS once the listener is closed.

const (
	// noticeRate is how many calls of a jail are answered in a second, on
	// average, and noticeBurst how many at once: who makes more waits, so that a
	// jail cannot keep the daemon busy.
	noticeRate  = 500
	noticeBurst = 500
	// maxRefused bounds the different calls remembered for a command.
	maxRefused = 32
)

// A RefusedCall is a system call that a command's processes made and that was
// refused.
type RefusedCall struct {
	Name  string
	Count int64
	First time.Time
}

// noticeTable names the calls by their numbers.
type noticeTable struct {
	names  map[int32]string
	listen int32
}

func newNoticeTable() noticeTable {
	t := noticeTable{names: map[int32]string{}, listen: -1}
	for _, name := range append(watched(), watchedFallbacks()...) {
		if nr, ok := seccomp.Number(name); ok {
			t.names[int32(nr)] = name
		}
	}
	if nr, ok := seccomp.Number("listen"); ok {
		t.listen = int32(nr)
	}
	return t
}

// checkListener makes sure that f, which came from sandbox-init, is what it is
// taken for.
func checkListener(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("jail: listener: %w", err)
	}
	target := ""
	cerr := raw.Control(func(fd uintptr) { target, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) })
	if err := errors.Join(cerr, err); err != nil {
		return fmt.Errorf("jail: listener: %w", err)
	}
	if want := "anon_inode:seccomp notify"; target != want {
		return &SelfCheckError{"listener", target, want}
	}
	return nil
}

// notices answers calls until the jail ends.
func (j *Jail) notices() {
	raw, err := j.listener.SyscallConn()
	tokens := newBucket(noticeRate, noticeBurst)
	for err == nil {
		var n sys.Notice
		var over bool
		var rerr error
		err = raw.Read(func(fd uintptr) bool {
			var pending bool
			pending, over, rerr = sys.NoticePending(int(fd))
			if pending && rerr == nil {
				n, rerr = sys.ReceiveNotice(int(fd))
			}
			return pending || over || rerr != nil
		})
		switch {
		case err != nil:
		case errors.Is(rerr, unix.ENOENT) || errors.Is(rerr, unix.EINTR): // it waits no longer
		case rerr != nil:
			err = rerr
		case n.ID != 0:
			err = raw.Control(func(fd uintptr) { j.answer(int(fd), &n) })
			if !tokens.take(j.ending) {
				return
			}
		case over:
			return
		}
	}
	if !errors.Is(err, os.ErrClosed) {
		// Nobody would answer any more: a jail whose servers hang is no jail.
		j.m.log.Error("a jail's system calls can no longer be answered", "tenant", j.tenant, "error", err)
		go j.Destroy(context.Background(), CauseProtocol)
	}
}

// answer answers one call. An error of the answer says that its maker has gone.
func (j *Jail) answer(fd int, n *sys.Notice) {
	if n.Nr == j.m.calls.listen && n.Arch == seccomp.Arch() {
		// Rung after the answer it could be missed by who looks in between.
		j.listens.ring()
		_ = sys.ContinueNotice(fd, n.ID)
		return
	}
	// Before the answer, so that the command's receipt has it.
	j.refused(fd, n)
	_ = sys.AnswerNotice(fd, n.ID, unix.EPERM)
}

// refused remembers a call for its command.
func (j *Jail) refused(fd int, n *sys.Notice) {
	p := j.commandOf(n.Pid)
	name, known := j.m.calls.names[n.Nr]
	if p == nil || !known || !sys.NoticeValid(fd, n.ID) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.refused {
		if p.refused[i].Name == name {
			p.refused[i].Count++
			return
		}
	}
	if len(p.refused) < maxRefused {
		p.refused = append(p.refused, RefusedCall{Name: name, Count: 1, First: time.Now()})
	}
}

// commandOf finds the command that a thread belongs to, by its cgroup; nil for
// sandbox-init. The pid is only as good as the notice that it came with.
func (j *Jail) commandOf(pid uint32) *Process {
	b, err := j.m.procFile(fmt.Sprintf("%d/cgroup", pid))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		var num uint64
		if _, err := fmt.Sscanf(path[strings.LastIndexByte(path, '/')+1:], "exec-%d", &num); err != nil {
			return nil
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if p := j.byNum[num]; p != nil {
			return p
		}
		return j.linger[num]
	}
	return nil
}

// bell wakes all who wait for sockets that begin to listen.
type bell struct {
	mu   sync.Mutex
	ch   chan struct{} // guarded by mu: closed at the next one
	last time.Time     // guarded by mu: of the last one
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = time.Now()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// next is closed by the next ring; last is when it last rang.
func (b *bell) next() (ch <-chan struct{}, last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch, b.last
}

// bucket holds tokens that come back at a rate.
type bucket struct {
	rate, most, tokens float64
	last               time.Time
}

func newBucket(rate, most float64) *bucket {
	return &bucket{rate: rate, most: most, tokens: most, last: time.Now()}
}

// take takes a token; it waits for one, or until stop is closed: false.
func (b *bucket) take(stop <-chan struct{}) bool {
	now := time.Now()
	b.tokens = min(b.tokens+now.Sub(b.last).Seconds()*b.rate, b.most)
	b.last = now
	b.tokens--
	if b.tokens >= 0 {
		return true
	}
	timer := time.NewTimer(time.Duration(-b.tokens / b.rate * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}
