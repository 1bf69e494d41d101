package sys

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestLayout: the assembly knows these offsets.
func TestLayout(t *testing.T) {
	var o op
	var p program
	for name, tc := range map[string][2]uintptr{
		"op.nr":          {unsafe.Offsetof(o.nr), 0},
		"op.args":        {unsafe.Offsetof(o.args), 8},
		"op.min":         {unsafe.Offsetof(o.min), 56},
		"op.mayFail":     {unsafe.Offsetof(o.mayFail), 64},
		"op":             {unsafe.Sizeof(o), 72},
		"program.ops":    {unsafe.Offsetof(p.ops), 0},
		"program.count":  {unsafe.Offsetof(p.count), 8},
		"program.failed": {unsafe.Offsetof(p.failed), 16},
		"program.errno":  {unsafe.Offsetof(p.errno), 24},
		"clone_args":     {unsafe.Sizeof(cloneArgs{}), 88},
		"siginfo":        {unsafe.Sizeof(siginfoChild{}), unsafe.Sizeof(unix.Siginfo{})},
	} {
		if tc[0] != tc[1] {
			t.Errorf("%s: %d, want %d", name, tc[0], tc[1])
		}
	}
	for name, tc := range map[string][2]uint64{
		"execute": {FSExecute, unix.LANDLOCK_ACCESS_FS_EXECUTE}, "make block": {FSMakeBlock, unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK},
		"refer": {FSRefer, unix.LANDLOCK_ACCESS_FS_REFER}, "truncate": {FSTruncate, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		"ioctl": {FSIoctlDev, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV}, "read dir": {FSReadDir, unix.LANDLOCK_ACCESS_FS_READ_DIR},
	} {
		if tc[0] != tc[1] {
			t.Errorf("%s: %#x, want %#x", name, tc[0], tc[1])
		}
	}
}

// start runs p and returns how its child ended.
func start(t *testing.T, p *Program) (unix.WaitStatus, error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c, err := p.Start(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(c.PidFD)
	var status unix.WaitStatus
	if _, err := unix.Wait4(c.Pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	return status, c.Finish()
}

func TestProgram(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p := &Program{}
	p.Descriptors(int(null.Fd()), int(w.Fd()), int(w.Fd()))
	p.Try("ignored", unix.SYS_EXECVE, p.String("/nothing"), 0, 0)
	p.Chdir("/usr", 3)
	p.Signals(true)
	p.Call("exec", unix.SYS_EXECVE, p.String("/bin/sh"),
		p.Strings([]string{"sh", "-c", "pwd; echo $A; ls /proc/self/fd | wc -l; kill -TERM $$"}), p.Strings([]string{"A=value"}))
	status, err := start(t, p)
	w.Close()
	if err != nil || !status.Signaled() || status.Signal() != unix.SIGTERM {
		t.Fatalf("%v, %v", status, err)
	}
	buf := make([]byte, 100)
	n, _ := r.Read(buf)
	if got := string(buf[:n]); got != "/usr\nvalue\n4\n" { // ls opens the folder too
		t.Fatalf("%q", got)
	}
}

func TestFailedStep(t *testing.T) {
	for name, tc := range map[string]struct {
		build func(*Program)
		step  string
		errno unix.Errno
	}{
		"call":     {func(p *Program) { p.Call("one", unix.SYS_CLOSE, 12345) }, "one", unix.EBADF},
		"too few":  {func(p *Program) { p.CallMin("read", 1, unix.SYS_READ, 0, p.Bytes(make([]byte, 1)), 1) }, "read", unix.EPIPE},
		"exec":     {func(p *Program) { p.Call("exec", unix.SYS_EXECVE, p.String("/nothing"), 0, 0) }, "exec", unix.ENOENT},
		"magic":    {func(p *Program) { p.Chdir("/proc/self/cwd", 0) }, "cwd", unix.ELOOP},
		"file cwd": {func(p *Program) { p.Chdir("/etc/passwd", 0) }, "cwd", unix.ENOTDIR},
	} {
		t.Run(name, func(t *testing.T) {
			null, err := os.Open("/dev/null")
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			p := &Program{}
			p.Descriptors(int(null.Fd()))
			p.Call("before", unix.SYS_GETPID)
			tc.build(p)
			p.Call("after", unix.SYS_EXECVE, p.String("/bin/true"), p.Strings([]string{"true"}), p.Strings(nil))
			_, err = start(t, p)
			var step *StepError
			if !errors.As(err, &step) || step.Step != tc.step || step.Errno != tc.errno {
				t.Fatalf("%v", err)
			}
		})
	}
}

func TestCannotClone(t *testing.T) {
	p := &Program{}
	p.Call("exit", unix.SYS_EXIT_GROUP, 0)
	_, err := p.Start(0, 1<<20)
	var step *StepError
	if !errors.As(err, &step) || step.Step != "clone" || step.Errno != unix.EBADF {
		t.Fatal(err)
	}
}

// TestManyChildren: the child's memory is its parent's, while the collector and
// other threads are at work.
func TestManyChildren(t *testing.T) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = make([]byte, 1<<16)
				runtime.GC()
			}
		}
	}()
	defer close(done)
	for i := range 200 {
		p := &Program{}
		p.Signals(true)
		p.Call("exec", unix.SYS_EXECVE, p.String("/bin/sh"), p.Strings([]string{"sh", "-c", "exit 7"}), p.Strings(nil))
		if status, err := start(t, p); err != nil || status.ExitStatus() != 7 {
			t.Fatalf("child %d: %v, %v", i, status, err)
		}
	}
}
