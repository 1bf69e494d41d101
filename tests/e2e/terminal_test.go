package e2e

import (
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/tests/internal/harness"
)

// screen is a terminal of this machine, with sandboxctl at its other end.
type screen struct {
	t             *testing.T
	master, slave *os.File
	cmd           *osexec.Cmd
	before        unix.Termios
	out           string
}

func onScreen(t *testing.T, args ...string) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	s := &screen{t: t, master: master}
	var name int
	s.control(func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		name, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	s.resize(90, 30)
	if s.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", name), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.slave.Close() })
	s.before = s.settings()
	s.cmd = sys.CtlCommand(deadline(t), args...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.slave, s.slave, s.slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	s.cmd.Env = append(s.cmd.Env, "TERM=vt220")
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *screen) control(f func(fd int) error) {
	s.t.Helper()
	raw, err := s.master.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
		if err == nil {
			err = cerr
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) resize(cols, rows uint16) {
	s.t.Helper()
	s.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
	})
}

func (s *screen) settings() unix.Termios {
	s.t.Helper()
	now, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *now
}

// until reads what is shown until it holds text, and returns what came before.
func (s *screen) until(text string) (before string) {
	s.t.Helper()
	if err := s.master.SetReadDeadline(time.Now().Add(harness.Scale(20 * time.Second))); err != nil {
		s.t.Fatal(err)
	}
	b := make([]byte, 4096)
	for !strings.Contains(s.out, text) {
		n, err := s.master.Read(b)
		if err != nil {
			s.t.Fatalf("waiting for %q: %v after %q", text, err, s.out)
		}
		s.out += string(b[:n])
	}
	before, s.out, _ = strings.Cut(s.out, text)
	return before
}

func (s *screen) typed(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// ended waits for sandboxctl, which must leave the terminal as it was.
func (s *screen) ended(code int) {
	s.t.Helper()
	_ = s.cmd.Wait() // the code says it
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d; it said %q", got, code, s.out)
	}
	if after := s.settings(); after != s.before {
		s.t.Errorf("the terminal is %+v, was %+v", after, s.before)
	}
}

func TestTerminal(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	s := onScreen(t, "exec", "-it", who, "--", "bash", "-c", `tty; stty size; echo $TERM; while read -r l; do echo "<$l>"; stty size; done; exit 7`)
	s.until("/dev/pts/")
	s.until("30 90\r\n")
	s.until("vt220\r\n")
	s.typed("one\r")
	s.until("<one>\r\n30 90\r\n")
	s.resize(120, 40)
	// It arrives while the lines do.
	size := ""
	for i := 0; size != "40 120" && i < 500; i++ {
		s.typed("again\r")
		s.until("<again>\r\n")
		size = s.until("\r\n")
	}
	if size != "40 120" {
		t.Errorf("after a resize the size is %q", size)
	}
	s.typed("\x04")
	s.ended(7)
	// An interrupt is a key of the command's, not sandboxctl's.
	s = onScreen(t, "exec", "-it", who, "--", "cat")
	s.typed("mark\r")
	s.until("mark\r\nmark\r\n")
	s.typed("\x03")
	s.ended(130)
	// Whatever ends sandboxctl, the terminal is as it was, and a command that
	// nobody could find again is hung up.
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		s = onScreen(t, "exec", "-it", who, "--", "cat")
		s.typed("mark\r")
		s.until("mark\r\nmark\r\n")
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		s.ended(1)
	}
	o := ctl(t, "", "exec", who, "--", "sh", "-c", "while pgrep -x cat; do sleep 0.1; done")
	if o.Code != 0 {
		t.Errorf("%+v", o)
	}
	if o := ctl(t, "", "exec", "-it", who, "--", "true"); o.Code != 2 || !strings.Contains(o.Stderr, "terminal") {
		t.Errorf("without a terminal: %+v", o)
	}
}

// A named terminal is left and taken up again.
func TestTerminalReattaches(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	args := []string{"exec", "-it", "--id", "shell", who, "--", "cat"}
	s := onScreen(t, args...)
	s.typed("first\r")
	s.until("first\r\nfirst\r\n")
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.ended(1)
	s = onScreen(t, args...)
	s.until("first\r\nfirst\r\n")
	s.typed("second\r")
	s.until("second\r\nsecond\r\n")
	s.typed("\x04")
	s.ended(0)
}
