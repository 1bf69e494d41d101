package confine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/unix"

	"sandboxd/internal/ipc"
)

func init() {
	roles["worker"] = worker
}

// worker is confined as an isolate worker, then tries what it must not be able
// to do, and does what it must.
func worker(input) (any, error) {
	conn, err := ipc.FromFD(3, 0)
	if err != nil {
		return nil, err
	}
	old := newThread()
	report, err := Apply(Profile{Name: "worker", Seccomp: WorkerFilter()})
	if err != nil {
		return nil, err
	}
	if report.UID != testUID || report.GID != testUID || report.Threads < 3 || report.Filters < 1 ||
		report.Dumpable || report.LandlockABI < MinLandlockABI {
		return nil, fmt.Errorf("report: %+v", report)
	}
	out := try(old, forbidden())
	for name, f := range map[string]func() error{
		"threads":    manyThreads,
		"collect":    collectWhileSpinning,
		"wasm":       compileAndRun,
		"memory":     sealedMemory,
		"timer":      func() error { time.Sleep(time.Millisecond); return nil },
		"self":       func() error { return unix.Kill(os.Getpid(), 0) },
		"executable": executableAfterWritten,
		"frames":     func() error { return echo(conn) },
	} {
		out["can "+name] = text(f())
	}
	return out, nil
}

var path = append([]byte("/etc/passwd"), 0)

func pathArg() uintptr { return uintptr(unsafe.Pointer(&path[0])) }

// forbidden are system calls as an exploit would make them.
func forbidden() map[string]func() error {
	const high = 1 << 32
	self, parent := uintptr(os.Getpid()), uintptr(os.Getppid())
	at := unix.AT_FDCWD
	return map[string]func() error{
		"open":            raw(unix.SYS_OPEN, pathArg(), unix.O_RDONLY),
		"openat":          raw(unix.SYS_OPENAT, uintptr(at), pathArg(), unix.O_RDONLY),
		"openat2":         raw(unix.SYS_OPENAT2, uintptr(at), pathArg()),
		"stat":            raw(unix.SYS_NEWFSTATAT, uintptr(at), pathArg()),
		"chmod":           raw(unix.SYS_CHMOD, pathArg(), 0o777),
		"open by handle":  raw(unix.SYS_OPEN_BY_HANDLE_AT, 0, pathArg()),
		"socket unix":     raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM),
		"socket inet":     raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM),
		"socket netlink":  raw(unix.SYS_SOCKET, high|unix.AF_NETLINK, unix.SOCK_RAW),
		"socketpair":      raw(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM),
		"connect":         raw(unix.SYS_CONNECT, 3, pathArg(), 16),
		"bind":            raw(unix.SYS_BIND, 3, pathArg(), 16),
		"setsockopt":      raw(unix.SYS_SETSOCKOPT, 3, unix.SOL_SOCKET, unix.SO_REUSEPORT),
		"execve":          raw(unix.SYS_EXECVE, pathArg()),
		"execveat":        raw(unix.SYS_EXECVEAT, uintptr(at), pathArg()),
		"fork":            raw(unix.SYS_FORK),
		"vfork":           raw(unix.SYS_VFORK),
		"clone fork":      raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD)),
		"clone vm only":   raw(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_VFORK),
		"clone userns":    raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)),
		"clone high bits": raw(unix.SYS_CLONE, high|uintptr(unix.SIGCHLD)),
		"clone3":          raw(unix.SYS_CLONE3, pathArg(), 64),
		"unshare":         raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		"setns":           raw(unix.SYS_SETNS, 3, 0),
		"kill parent":     raw(unix.SYS_KILL, parent, 0),
		"kill all":        raw(unix.SYS_KILL, ^uintptr(0), 0),
		"kill group":      raw(unix.SYS_KILL, 0, 0),
		"tgkill parent":   raw(unix.SYS_TGKILL, parent, parent, 0),
		"tkill":           raw(unix.SYS_TKILL, parent, 0),
		"sigqueue":        raw(unix.SYS_RT_SIGQUEUEINFO, parent, 0),
		"pidfd":           raw(unix.SYS_PIDFD_OPEN, parent, 0),
		"ptrace":          raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME),
		"read memory":     raw(unix.SYS_PROCESS_VM_READV, self),
		"prctl dumpable":  raw(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1),
		"prctl death":     raw(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0),
		"seccomp":         raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER),
		"landlock":        raw(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1),
		"setuid":          raw(unix.SYS_SETUID, 0),
		"io_uring":        raw(unix.SYS_IO_URING_SETUP, 1, pathArg()),
		"keyctl":          raw(unix.SYS_KEYCTL, 0),
		"bpf":             raw(unix.SYS_BPF),
		"ioctl":           raw(unix.SYS_IOCTL, 0, unix.TIOCSTI),
		"set owner":       raw(unix.SYS_FCNTL, 3, unix.F_SETOWN, self),
		"set async":       raw(unix.SYS_FCNTL, 3, unix.F_SETFL, unix.O_ASYNC),
		"map w+x":         raw(unix.SYS_MMAP, 0, 4096, unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS),
		"map file exec":   raw(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE, 3),
		"protect w+x":     raw(unix.SYS_MPROTECT, pathArg()&^4095, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC),
		"other affinity":  raw(unix.SYS_SCHED_GETAFFINITY, parent, 8, pathArg()),
		"unknown":         raw(999),
	}
}

// forbiddenErrors are the answers in every role; allowed names what a role may.
func forbiddenErrors() outcomes {
	want := outcomes{}
	for name := range forbidden() {
		want[name] = "EPERM"
	}
	for _, name := range []string{
		"open by handle", "clone3", "sigqueue", "seccomp", "landlock", "io_uring", "keyctl", "unknown",
	} {
		want[name] = "ENOSYS"
	}
	return want
}

func TestWorkerProfile(t *testing.T) {
	a, b, err := ipc.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	conn := ipc.NewConn(a, 0)
	defer conn.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := conn.Send([]byte("write to this"), w); err != nil {
		t.Fatal(err)
	}
	w.Close()

	want := forbiddenErrors()
	for _, name := range []string{"threads", "collect", "wasm", "memory", "timer", "self", "executable", "frames"} {
		want["can "+name] = ""
	}
	compare(t, run[outcomes](t, "worker", input{}, b), want)
	b.Close()
	if got, _, err := conn.Recv(); err != nil || string(got) != "done" {
		t.Errorf("over the socket: %q, %v", got, err)
	}
	buf := make([]byte, 16)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("through the passed descriptor: %q, %v", buf[:n], err)
	}
}

// echo receives a descriptor over the socket, writes to it, and answers.
func echo(conn *ipc.Conn) error {
	_, files, err := conn.Recv()
	if err != nil || len(files) != 1 {
		return fmt.Errorf("%d files, %w", len(files), err)
	}
	defer files[0].Close()
	if _, err := files[0].WriteString("hello"); err != nil {
		return err
	}
	return conn.Send([]byte("done"))
}

func manyThreads() error {
	for range 40 {
		if err := newThread().do(func() error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// collectWhileSpinning needs pre-emption: a signal from one thread to another.
func collectWhileSpinning() error {
	var stop atomic.Bool
	spinning := make(chan struct{})
	ended := make(chan uint64)
	go func() {
		close(spinning)
		var n uint64
		for !stop.Load() {
			for range 1 << 20 { // without a call in it, nothing else stops this
				n++
			}
		}
		ended <- n
	}()
	<-spinning
	for range 5 {
		_ = make([]byte, 8<<20)
		runtime.GC()
	}
	stop.Store(true)
	<-ended
	return nil
}

// loopModule exports "sum": it adds the numbers from n to 1 in a loop.
var loopModule = []byte{
	0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00, // magic, version
	0x01, 0x06, 0x01, 0x60, 0x01, 0x7f, 0x01, 0x7f, // (func (param i32) (result i32))
	0x03, 0x02, 0x01, 0x00, // one function
	0x07, 0x07, 0x01, 0x03, 's', 'u', 'm', 0x00, 0x00, // export
	0x0a, 0x1b, 0x01, 0x19, 0x01, 0x01, 0x7f, // code: one local
	0x03, 0x40, // loop
	0x20, 0x01, 0x20, 0x00, 0x6a, 0x21, 0x01, // l1 += l0
	0x20, 0x00, 0x41, 0x01, 0x6b, 0x22, 0x00, // l0 -= 1
	0x0d, 0x00, // br_if 0
	0x0b, 0x20, 0x01, 0x0b, // end, l1, end
}

// compileAndRun compiles Wasm to machine code and runs it, after Apply.
func compileAndRun() error {
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
	defer rt.Close(ctx)
	mod, err := rt.Instantiate(ctx, loopModule)
	if err != nil {
		return err
	}
	got, err := mod.ExportedFunction("sum").Call(ctx, 1000)
	if err != nil {
		return err
	}
	if got[0] != 500500 {
		return fmt.Errorf("sum is %d", got[0])
	}
	return nil
}

// sealedMemory makes the memory image that calls are restored from.
func sealedMemory() error {
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	defer closeQuietly(fd)
	if err := unix.Ftruncate(fd, 1<<16); err != nil {
		return err
	}
	if _, err := unix.Pwrite(fd, []byte("image"), 0); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return err
	}
	m, err := unix.Mmap(fd, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	m[0] = 'I'
	if err := unix.Madvise(m, unix.MADV_DONTNEED); err != nil {
		return err
	}
	if string(m[:5]) != "image" {
		return errors.New("the image does not come back")
	}
	return unix.Munmap(m)
}

func executableAfterWritten() error {
	m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	if err := unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return err
	}
	return unix.Munmap(m)
}
