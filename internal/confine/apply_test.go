package confine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
)

func init() {
	roles["victim"] = victim
	roles["scoped"] = func(in input) (any, error) { return scoped(in, true) }
	roles["unscoped"] = func(in input) (any, error) { return scoped(in, false) }
	roles["paths"] = paths
	roles["refused"] = refusedProfile
	roles["status"] = ownStatus
	roles["orphan"] = orphan
}

// loose is a worker's filter with the named calls allowed: what is left is
// Landlock's doing.
func loose(names ...string) *seccomp.Filter {
	f := WorkerFilter()
	f.AllowIf = slices.DeleteFunc(f.AllowIf, func(r seccomp.Rule) bool { return slices.Contains(names, r.Name) })
	for _, name := range names {
		delete(f.Errno, name)
	}
	f.Allow = append(f.Allow, names...)
	return f
}

// victim says that it is there and lives until its standard input ends.
func victim(input) (any, error) {
	fmt.Println("ready")
	var buf [1]byte
	os.Stdin.Read(buf[:])
	return nil, nil
}

// scoped tries to reach a process of the same user that is not confined.
func scoped(in input, confined bool) (any, error) {
	old := newThread()
	if confined {
		if _, err := Apply(Profile{Name: "scoped", Seccomp: loose("kill", "tgkill", "socket", "connect", "openat", "open", "truncate")}); err != nil {
			return nil, err
		}
	}
	return try(old, map[string]func() error{
		"signal": raw(unix.SYS_KILL, uintptr(in.Victim), 0),
		"abstract socket": func() error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer closeQuietly(fd)
			return unix.Connect(fd, &unix.SockaddrUnix{Name: in.Addr["unix"]})
		},
		"tcp": func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer closeQuietly(fd)
			_, port, _ := net.SplitHostPort(in.Addr["tcp4"])
			var n int
			fmt.Sscan(port, &n)
			return unix.Connect(fd, &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}})
		},
		"read": func() error {
			fd, err := unix.Open(in.Paths[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				closeQuietly(fd)
			}
			return err
		},
	}), nil
}

// Landlock alone, on every thread; and that the same things are possible
// without it, so that the test can fail.
func TestLandlockAlone(t *testing.T) {
	_, unlisted := folders(t)
	abstract := fmt.Sprintf("@confine-test-%d", os.Getpid())
	l, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := child(t.Context(), "victim", input{})
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := Start(cmd, testUID, testUID); err != nil {
		t.Fatal(err)
	}
	defer func() { stdin.Close(); cmd.Wait() }()
	ready := make([]byte, 6)
	if _, err := stdout.Read(ready); err != nil || string(ready) != "ready\n" {
		t.Fatalf("victim: %q, %v", ready, err)
	}
	in := input{
		Victim: cmd.Process.Pid, Paths: []string{unlisted},
		Addr: map[string]string{"unix": abstract, "tcp4": echoTCP(t, "tcp4", "127.0.0.1:0")},
	}
	compare(t, run[outcomes](t, "unscoped", in), outcomes{"signal": "", "abstract socket": "", "tcp": "", "read": ""})
	compare(t, run[outcomes](t, "scoped", in),
		outcomes{"signal": "EPERM", "abstract socket": "EPERM", "tcp": "EACCES", "read": "EACCES"})
}

// paths tries the rights that ReadOnly and ReadWrite give.
func paths(in input) (any, error) {
	old := newThread()
	file := in.Paths[0] + "/file"
	rw := in.Paths[1]
	_, err := Apply(Profile{Name: "paths", ReadOnly: []string{file}, ReadWrite: []string{rw},
		Seccomp: loose("openat", "open", "execve", "mknodat", "mkdirat", "unlinkat", "renameat2", "fork", "rmdir", "fchmodat", "symlinkat")})
	if err != nil {
		return nil, err
	}
	at := func(path string, flags int) func() error {
		return func() error {
			fd, err := unix.Openat(unix.AT_FDCWD, path, flags|unix.O_CLOEXEC, 0o600)
			if err == nil {
				closeQuietly(fd)
			}
			return err
		}
	}
	return try(old, map[string]func() error{
		"read file":   at(file, unix.O_RDONLY),
		"write file":  at(file, unix.O_WRONLY),
		"list beside": at(in.Paths[0], unix.O_RDONLY|unix.O_DIRECTORY),
		"create":      at(rw+"/new", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC),
		"list":        at(rw, unix.O_RDONLY|unix.O_DIRECTORY),
		"fifo":        func() error { return unix.Mknodat(unix.AT_FDCWD, rw+"/fifo", unix.S_IFIFO|0o600, 0) },
		"link":        func() error { return unix.Symlinkat("/etc/passwd", unix.AT_FDCWD, rw+"/link") },
		"execute":     func() error { return unix.Exec(rw+"/program", []string{"program"}, nil) },
	}), nil
}

func TestPaths(t *testing.T) {
	listed, _ := folders(t)
	rw := listed + "/rw"
	for _, err := range []error{
		os.WriteFile(listed+"/file", []byte("x"), 0o644), os.Mkdir(rw, 0o755), os.WriteFile(rw+"/program", nil, 0o755),
		os.Chown(rw, testUID, testUID), os.Chown(listed+"/file", testUID, testUID),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	compare(t, run[outcomes](t, "paths", input{Paths: []string{listed, rw}}), outcomes{
		"read file": "", "write file": "EACCES", "list beside": "EACCES",
		"create": "", "list": "", "fifo": "EACCES", "link": "EACCES", "execute": "EACCES",
	})
}

// refusedProfile applies profiles that must fail before anything is changed.
func refusedProfile(input) (any, error) {
	out := outcomes{}
	_, err := Apply(Profile{Name: "x"})
	out["no filter"] = fmt.Sprint(err)
	_, err = Apply(Profile{Name: "x", Seccomp: &seccomp.Filter{Allow: []string{"reed"}}})
	var unknown *seccomp.UnknownError
	out["unknown call"] = fmt.Sprint(errors.As(err, &unknown))
	_, err = Apply(Profile{Name: "x", ReadOnly: []string{"/no/such/path"}, Seccomp: WorkerFilter()})
	out["missing path"] = fmt.Sprint(errors.Is(err, os.ErrNotExist))
	return out, nil
}

func TestApplyRefusesProfiles(t *testing.T) {
	compare(t, run[outcomes](t, "refused", input{}), outcomes{
		"no filter": "confine: profile x has no seccomp filter", "unknown call": "true", "missing path": "true",
	})
}

// A process that was not started unprivileged is refused, whatever is left.
func TestApplyRefusesPrivileges(t *testing.T) {
	var wrong *PrivilegeError
	if _, err := Apply(Profile{Name: "x", Seccomp: WorkerFilter()}); !errors.As(err, &wrong) || wrong.What != "uid" {
		t.Errorf("as root: got %v, want a *PrivilegeError for uid", err)
	}
	tests := map[string]*syscall.SysProcAttr{
		"CapBnd":               {Credential: &syscall.Credential{Uid: testUID, Gid: testUID}},
		"Gid":                  {Credential: &syscall.Credential{Uid: testUID, Gid: 0}},
		"supplementary groups": {Credential: &syscall.Credential{Uid: testUID, Gid: testUID, Groups: []uint32{5}}},
		"CapInh": {Credential: &syscall.Credential{Uid: testUID, Gid: testUID},
			AmbientCaps: []uintptr{unix.CAP_NET_BIND_SERVICE}},
	}
	for what, attr := range tests {
		cmd := withOutput(child(t.Context(), "worker", input{}, os.Stdin))
		cmd.SysProcAttr = attr
		var exit *exec.ExitError
		err := cmd.Run()
		stderr := cmd.Stderr.(*strings.Builder).String()
		if what == "Gid" {
			what = "CapBnd" // found first
		}
		if !errors.As(err, &exit) || !strings.Contains(stderr, "confine: "+what+" is") {
			t.Errorf("%s: got %v, %q", what, err, stderr)
		}
	}
}

func TestUnprivileged(t *testing.T) {
	good := status{"Uid": "5\t5\t5\t5", "Gid": "6\t6\t6\t6", "NoNewPrivs": "1", "Seccomp": "2"}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		good[set] = noCapabilities
	}
	if err := confined(good); err != nil {
		t.Fatal(err)
	}
	for field, value := range map[string]string{
		"CapInh": "1", "CapPrm": "", "CapEff": "0000000000000001", "CapBnd": "000001ffffffffff", "CapAmb": "x",
		"Uid": "5\t5\t0\t5", "Gid": "5\t5\t5\t6", "NoNewPrivs": "0", "Seccomp": "1",
	} {
		bad := status{}
		for k, v := range good {
			bad[k] = v
		}
		bad[field] = value
		var wrong *PrivilegeError
		if err := confined(bad); !errors.As(err, &wrong) || wrong.What != field {
			t.Errorf("%s=%q: got %v", field, value, err)
		}
	}
	if err := confined(status{}); err == nil {
		t.Error("an empty status passes")
	}
}

func init() {
	roles["spin"] = func(input) (any, error) {
		calm, err := boundSpin(10 * time.Millisecond)
		if err != nil {
			return nil, err
		}
		calm()
		for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		}
		fmt.Fprintln(os.Stderr, "calm")
		if _, err := boundSpin(10 * time.Millisecond); err != nil {
			return nil, err
		}
		for n := 0; ; n++ {
			runtime.KeepAlive(n)
		}
	}
	roles["ownproc"] = func(input) (any, error) {
		if err := ownProc(); err != nil {
			return err.Error(), nil
		}
		return "", nil
	}
}

// To wait for threads that do not answer ends; what comes after may work on.
func TestSpinEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := withOutput(child(ctx, "spin", input{}))
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || ctx.Err() != nil || fmt.Sprint(cmd.Stderr) != "calm\n" {
		t.Fatalf("%v: %s", err, cmd.Stderr)
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); !ok || s.Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v", exit)
	}
}

// A process in a PID namespace that has no /proc of its own is told so: psx
// would wait for its threads for ever.
func TestForeignProc(t *testing.T) {
	for flags, want := range map[uintptr]string{0: "", unix.CLONE_NEWPID: "another PID namespace"} {
		cmd := withOutput(child(t.Context(), "ownproc", input{}))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if got := finish[string](t, cmd, cmd.Start()); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("clone flags %#x: %q, want %q", flags, got, want)
		}
	}
}
