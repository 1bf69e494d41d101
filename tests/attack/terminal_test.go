package attack

import (
	"strings"
	"testing"

	"sandboxd/jail"
)

// terminalAttacks is run by a command on a terminal; each line says what became
// of one attempt.
const terminalAttacks = `
import fcntl, os, struct, termios, errno
def attempt(name, f):
    try:
        f()
        print(name, "done")
    except OSError as e:
        print(name, errno.errorcode[e.errno])
ask = lambda request, arg=0: lambda: fcntl.ioctl(0, request, arg)
attempt("type", ask(0x5412, b"x"))              # TIOCSTI
attempt("console", ask(0x541D))                 # TIOCCONS
attempt("linux", ask(0x541C, b"\x03"))          # TIOCLINUX
attempt("discipline", ask(0x5423, struct.pack("i", 2)))  # TIOCSETD
attempt("hang up", ask(0x5437))                 # TIOCVHANGUP
attempt("unlock the other end", ask(0x40045431, struct.pack("i", 1)))  # TIOCSPTLCK
attempt("open the master again", lambda: os.open("/proc/self/fd/0", os.O_RDWR) and fcntl.ioctl(0, 0x80045430, b"    "))  # TIOCGPTN
attempt("console device", lambda: os.open("/dev/console", os.O_RDWR))
attempt("first console", lambda: os.open("/dev/tty0", os.O_RDWR))
print("terminals", sorted(os.listdir("/dev/pts")))
`

func TestTerminalAttacks(t *testing.T) {
	j := newJail(t, "terminal")
	p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: []string{"python3", "-c", terminalAttacks}, Terminal: &jail.Size{Cols: 80, Rows: 24}, Output: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for e, err := range p.Events(t.Context(), 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		out.Write(e.Data)
	}
	got := strings.ReplaceAll(out.String(), "\r\n", "\n")
	const want = `type EPERM
console EPERM
linux EPERM
discipline EPERM
hang up EPERM
unlock the other end ENOTTY
open the master again ENOTTY
console device ENOENT
first console ENOENT
terminals ['0', 'ptmx']
`
	if got != want {
		t.Errorf("got:\n%s", got)
	}
}

// A flood in both directions and as many changes of size as there is time for:
// what is kept is bounded, and the end is at once.
func TestTerminalFlood(t *testing.T) {
	j := newJail(t, "flood")
	const kept = 1 << 20
	p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: []string{"sh", "-c", "trap : WINCH; yes flood & while :; do :; done"}, Terminal: &jail.Size{Cols: 80, Rows: 24}, Output: kept})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100000 {
		if err := p.Terminal().Resize(jail.Size{Cols: uint16(1 + i%500), Rows: uint16(1 + i%300)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(t.Context())
	if err != nil || exit.Signal != "SIGKILL" {
		t.Fatalf("%+v, %v", exit, err)
	}
	size := 0
	for e, err := range p.Events(t.Context(), 0, false) {
		if err != nil {
			t.Fatal(err)
		}
		size += len(e.Data)
	}
	if size > kept {
		t.Errorf("%d bytes are kept", size)
	}
}
