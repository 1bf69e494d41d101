package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is made in the jail's own devpts, by the daemon through the jail's
// root and as the tenant: no descriptor comes from inside. The command gets the
// slave and nothing else of it; the daemon keeps the master alone, so that the
// kernel hangs the terminal up with the command's end, or with the daemon's.
// What comes out of the master is output like any other.

const (
	// terminalPath is in the devpts that verifyMounts has checked.
	terminalPath = "dev/pts/ptmx"
	// terminalBuffer is what the kernel can hold of a terminal's output at
	// most, with room to spare: 64 KiB on the way and 4 KiB to be read.
	terminalBuffer = 128 << 10
	// endOfFile is what a terminal takes for the end of its input, at the start
	// of a line.
	endOfFile = 4
)

// ErrTerminals says that the jail has as many terminals as it may.
var ErrTerminals = errors.New("jail: too many terminals")

// A Terminal is our end of a command's terminal. Several may use it at once.
type Terminal struct {
	master *os.File
	typing chan struct{}   // holds a token while somebody writes
	ended  <-chan struct{} // closed with the command's end
}

// over tells that the command has ended. Its master may be open a moment longer.
func (t *Terminal) over() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// terminalEnv tells programs what the terminal is; the jail's and the command's
// own environment may say otherwise.
func terminalEnv(size *Size) map[string]string {
	if size == nil {
		return nil
	}
	return map[string]string{"TERM": "xterm-256color"}
}

// terminalFiles makes the command's terminal: the child gets its slave as 0, 1
// and 2.
func (p *Process) terminalFiles(files []*os.File, ours *[]*os.File) error {
	master, slave, err := p.j.openTerminal(*p.spec.Terminal)
	if err != nil {
		return err
	}
	// Closed here once it is sent: with a slave of our own the end of the
	// others would not be seen.
	*ours = append(*ours, slave)
	if p.who.uid != tenantUID {
		if err := slave.Chown(int(p.j.uid+p.who.uid), -1); err != nil {
			return fmt.Errorf("jail: terminal: %w", err)
		}
	}
	files[0], files[1], files[2] = slave, slave, slave
	p.pipes[1] = master
	p.term = &Terminal{master: master, typing: make(chan struct{}, 1), ended: p.done}
	return nil
}

// openTerminal opens both ends. The slave belongs to the tenant, as whom it is
// made.
func (j *Jail) openTerminal(size Size) (master, slave *os.File, err error) {
	m, s := -1, -1
	err = j.asTenant(func(root int) (err error) {
		m, err = unix.Openat2(root, terminalPath, &unix.OpenHow{
			Flags:   unix.O_RDWR | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		if err != nil {
			return err
		}
		if err := checkMaster(m); err != nil {
			return err
		}
		if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		if err := setSize(m, size); err != nil {
			return err
		}
		fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno != 0 {
			return errno
		}
		s = int(fd)
		return nil
	})
	if err != nil {
		if m >= 0 {
			unix.Close(m)
		}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EMFILE) {
			err = ErrTerminals
		}
		return nil, nil, fmt.Errorf("jail: terminal: %w", err)
	}
	return os.NewFile(uintptr(m), "terminal"), os.NewFile(uintptr(s), "child's terminal"), nil
}

// checkMaster makes sure that this is the kernel's multiplexer in a devpts, and
// nothing else that answers to the same requests.
func checkMaster(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(5, 2) || fs.Type != unix.DEVPTS_SUPER_MAGIC {
		return fmt.Errorf("%s is no terminal multiplexer", terminalPath)
	}
	return nil
}

func setSize(fd int, size Size) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// Resize changes the terminal's size, of which the kernel tells the programs in
// its foreground (SIGWINCH). After the command's end it is ErrGone.
func (t *Terminal) Resize(size Size) error {
	if size.Cols == 0 || size.Rows == 0 {
		return &SpecError{Field: "cols", Message: "a terminal has at least one column and one row"}
	}
	raw, err := t.master.SyscallConn()
	if err != nil || t.over() {
		return ErrGone
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = setSize(int(fd), size) }); err != nil {
		return ErrGone
	}
	if serr != nil {
		return fmt.Errorf("jail: resize: %w", serr)
	}
	return nil
}

// Type writes input, as from the keyboard: the terminal's own settings, which
// are the tenant's, say what becomes of it. It waits while the command takes
// none, until ctx ends; n bytes were taken. After the command's end it is
// ErrGone.
func (t *Terminal) Type(ctx context.Context, data []byte) (n int, err error) {
	select {
	case t.typing <- struct{}{}:
		defer func() { <-t.typing }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if t.over() {
		return 0, ErrGone
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		t.master.SetWriteDeadline(time.Unix(1, 0))
	})
	n, err = t.master.Write(data)
	if !stop() {
		// The next one starts without this one's deadline.
		<-stopped
		t.master.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, ctx.Err()
	case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EIO):
		return n, ErrGone
	}
	return n, fmt.Errorf("jail: terminal: %w", err)
}

// TypeEnd writes the character that ends the input of a program which reads
// whole lines.
func (t *Terminal) TypeEnd(ctx context.Context) error {
	_, err := t.Type(ctx, []byte{endOfFile})
	return err
}
