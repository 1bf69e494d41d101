package jail

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fdFile wraps a raw descriptor, or fails the test.
func fdFile(t *testing.T, fd int, err error) *os.File {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "descriptor")
	t.Cleanup(func() { f.Close() })
	return f
}

func opened(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	return fdFile(t, fd, err)
}

// TestDescriptorKinds: only what carries bytes in one direction goes in.
func TestDescriptorKinds(t *testing.T) {
	dir := t.TempDir()
	file, full := filepath.Join(dir, "file"), filepath.Join(dir, "full")
	for name, text := range map[string]string{file: "", full: "text"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	one := fdFile(t, pair[0], err)
	fdFile(t, pair[1], nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	tcp, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	syscall := func(nr uintptr, args ...uintptr) *os.File {
		a := append(args, 0, 0, 0)
		fd, _, errno := unix.Syscall(nr, a[0], a[1], a[2])
		if errno != 0 {
			t.Fatalf("system call %d: %v", nr, errno)
		}
		return fdFile(t, int(fd), nil)
	}
	memfd := func(flags int) *os.File {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|flags)
		return fdFile(t, fd, err)
	}
	ptmx := opened(t, "/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY)
	for name, tc := range map[string]struct {
		stream  int
		file    *os.File
		problem string // "" passes
	}{
		"file to read":          {0, opened(t, file, unix.O_RDONLY), ""},
		"file to write":         {1, opened(t, file, unix.O_WRONLY), ""},
		"file to append to":     {2, opened(t, file, unix.O_WRONLY|unix.O_APPEND), ""},
		"file with content":     {1, opened(t, full, unix.O_WRONLY), "holds something"},
		"log":                   {2, opened(t, full, unix.O_WRONLY|unix.O_APPEND), "holds something"},
		"file to read from":     {0, opened(t, full, unix.O_RDONLY), ""},
		"pipe to read":          {0, r, ""},
		"pipe to write":         {1, w, ""},
		"null":                  {1, opened(t, os.DevNull, unix.O_RDWR), ""},
		"file for both":         {1, opened(t, file, unix.O_RDWR), "must be open for writing"},
		"file of the wrong way": {1, opened(t, file, unix.O_RDONLY), "must be open for writing"},
		"pipe of the wrong way": {0, w, "must be open for reading"},
		"folder":                {0, opened(t, dir, unix.O_RDONLY|unix.O_DIRECTORY), "folder"},
		"path":                  {0, opened(t, file, unix.O_PATH), "O_PATH"},
		"path of a folder":      {0, opened(t, "/", unix.O_PATH|unix.O_DIRECTORY), "O_PATH"},
		"own memory":            {0, opened(t, "/proc/self/mem", unix.O_RDONLY), "file system"},
		"a setting":             {0, opened(t, "/proc/sys/kernel/core_pattern", unix.O_RDONLY), "file system"},
		"a group's members":     {0, opened(t, filepath.Join(cgroup2(t), "cgroup.procs"), unix.O_RDONLY), "file system"},
		"a namespace":           {0, opened(t, "/proc/self/ns/mnt", unix.O_RDONLY), "file system"},
		"a process":             {0, syscall(unix.SYS_PIDFD_OPEN, uintptr(os.Getpid())), ""},
		"memory":                {1, memfd(0), "must be open for writing"},
		"zero":                  {0, opened(t, "/dev/zero", unix.O_RDONLY), "device"},
		"terminal":              {0, ptmx, "device"},
		"local socket":          {0, one, "socket"},
		"TCP socket":            {0, tcp, "socket"},
		"eventfd":               {0, syscall(unix.SYS_EVENTFD2), "neither"},
		"epoll":                 {0, syscall(unix.SYS_EPOLL_CREATE1), "neither"},
		"inotify":               {0, syscall(unix.SYS_INOTIFY_INIT1), "neither"},
	} {
		err := CheckDescriptor(tc.stream, tc.file)
		if name == "a process" {
			// Its type depends on the kernel's version; what counts is that it is
			// refused.
			if err == nil {
				t.Error("a pidfd passes")
			}
			continue
		}
		var se *SpecError
		switch {
		case tc.problem == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tc.problem != "" && (!errors.As(err, &se) || se.Field != "fds."+streams[tc.stream] || !strings.Contains(se.Message, tc.problem)):
			t.Errorf("%s: %v, want %q", name, err, tc.problem)
		}
	}
}

// TestHandedDescriptorsReachNothingElse: a program does with the caller's files
// what it can, and reads, writes and finds only what it was given.
func TestHandedDescriptorsReachNothingElse(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	for name, text := range map[string]string{in: "input\n", out: ""} {
		// Everybody's, so that only the jail keeps its programs out.
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	stdin, stdout := opened(t, in, unix.O_RDONLY), opened(t, out, unix.O_WRONLY|unix.O_APPEND)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	script := `cat
		for mode in "</proc/self/fd/1" ">>/proc/self/fd/0" "<>/proc/self/fd/1"; do
			eval "(exec 9$mode)" 2>/dev/null && echo "reopened $mode" >&2
		done
		cat /proc/self/fd/1/../* /proc/self/fd/0/.. 2>/dev/null && echo "a neighbour" >&2
		ls -l /proc/self/fd | grep -c ' -> ' >&2
		chmod 777 /proc/self/fd/1 2>/dev/null && echo "mode changed" >&2
		head -c 1 <&1 2>/dev/null && echo "read what was written" >&2
		(echo x >&0) 2>/dev/null && echo "wrote the input" >&2
		true`
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"bash", "-c", script}, Files: [3]*os.File{stdin, stdout, w}})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	// 0, 1, 2 and ls's own folder; and nothing of the rest.
	if string(said) != "4\n" {
		t.Errorf("the program says %q", said)
	}
	if o := collect(t, t.Context(), p); o.exit.Code != 0 || o.stdout != "" || o.stderr != "" {
		t.Errorf("%+v", o)
	}
	for name, want := range map[string]string{in: "input\n", out: "input\n"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
}

// TestHandedFileIsBounded: the tenant's quota does not know the caller's disk.
func TestHandedFileIsBounded(t *testing.T) {
	m := testManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{Disk: 32 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "out")
	f := opened(t, path, unix.O_WRONLY|unix.O_CREAT)
	o := run(t, j, ExecSpec{Argv: []string{"truncate", "-s", "1T", "/proc/self/fd/1"}, Files: [3]*os.File{1: f}})
	if o.exit.Code == 0 {
		t.Error("a program made the caller's file as long as it liked, through /proc")
	}
	o = run(t, j, ExecSpec{Argv: []string{"head", "-c", "40000000", "/dev/zero"}, Files: [3]*os.File{1: f}})
	st, err := os.Stat(path)
	if err != nil || st.Size() != 32<<20 || o.exit.Code == 0 {
		t.Errorf("the file has %d bytes, %v; %+v", st.Size(), err, o.exit)
	}
}

// TestOutputByPath: scripts write to /dev/stdout and /dev/stderr.
func TestOutputByPath(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if o := sh(t, j, "echo out >/proc/self/fd/1; echo err >/proc/self/fd/2"); o.stdout != "out\n" || o.stderr != "err\n" {
		t.Errorf("%q, %q", o.stdout, o.stderr)
	}
	if o := sh(t, j, "echo out >/dev/stdout; echo err | tee /dev/stderr >/dev/null"); o.stdout != "out\n" || o.stderr != "err\n" {
		t.Errorf("%q, %q", o.stdout, o.stderr)
	}
}
