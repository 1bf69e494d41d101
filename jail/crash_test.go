package jail

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// crashingDaemon is this test binary as a daemon that is killed: it makes two
// jails that run something and waits.
func crashingDaemon() int {
	var cfg Config
	if err := json.Unmarshal([]byte(os.Getenv(crashEnv)), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	m, err := New(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if doing := os.Getenv(crashDoingEnv); doing != "" {
		return crashDoing(ctx, m, doing)
	}
	for _, spec := range []Spec{{Tenant: "kept"}, {Tenant: "ephemeral", Ephemeral: true}} {
		j, err := m.Create(ctx, spec)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if _, err := j.Exec(ctx, ExecSpec{Argv: []string{"sh", "-c", "echo mine > /workspace/f; trap '' TERM; (setsid sleep 1000 &); sleep 1000"}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if err := j.WaitPort(timeout(100*time.Millisecond), 1); err == nil {
			return 1
		}
		fmt.Println(j.pid)
	}
	// And one that is nobody's yet.
	if err := m.KeepSpares(1, nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	m.pool.mu.Lock()
	for len(m.pool.ready) < 1 {
		m.pool.cond.Wait()
	}
	fmt.Println(m.pool.ready[0].place.pid)
	m.pool.mu.Unlock()
	fmt.Println("ready")
	select {}
}

func timeout(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	time.AfterFunc(2*d, cancel)
	return ctx
}

// startCrashing starts the daemon that is to be killed.
func startCrashing(t *testing.T, cfg string, env ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	daemon := exec.Command("/proc/self/exe")
	daemon.Env = append(append(os.Environ(), crashEnv+"="+cfg), env...)
	daemon.Stderr = os.Stderr
	out, err := daemon.StdoutPipe()
	if err == nil {
		err = daemon.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return daemon, out
}

func TestCrashOfTheDaemon(t *testing.T) {
	cfg := testConfig(t)
	plain := cfg
	plain.Log = nil
	b, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	daemon, out := startCrashing(t, string(b))
	var pidfds []int
	s := bufio.NewScanner(out)
	for s.Scan() && s.Text() != "ready" {
		var pid int
		if _, err := fmt.Sscan(s.Text(), &pid); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		pidfds = append(pidfds, fd)
	}
	if len(pidfds) != 3 {
		daemon.Process.Kill()
		t.Fatalf("%d jails, the spare one too", len(pidfds))
	}
	// While it lives nobody else takes its folders.
	if _, err := New(t.Context(), cfg); err == nil {
		t.Fatal("two managers on one folder")
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	daemon.Wait()
	// The first line: the jails die with it.
	for _, fd := range pidfds {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 10_000); err != nil || n != 1 {
			t.Fatalf("sandbox-init lives on: %d, %v", n, err)
		}
	}
	// The second: what they owned goes.
	m, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := m.Sweep(t.Context()); !slices.Equal(n, []string{"ephemeral", "kept"}) || err != nil {
		t.Fatalf("swept %q, %v", n, err)
	}
	if n, err := m.Sweep(t.Context()); len(n) != 0 || err != nil {
		t.Fatalf("swept %q again, %v", n, err)
	}
	for _, path := range []string{
		filepath.Join(m.jailsDir(), "kept"), filepath.Join(m.jailsDir(), "ephemeral"), filepath.Join(m.tenantsDir(), "ephemeral"),
		string(m.jails.child("kept")), string(m.jails.child("ephemeral")),
	} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if e, ok := m.LastEnd("kept"); !ok || e.Cause != CauseCrash {
		t.Errorf("its end is %+v, %v", e, ok)
	}
	if left, err := filepath.Glob(filepath.Join(string(m.jails), sparePrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("of the spare there is left %v, %v", left, err)
	}
	j := testJail(t, m, "kept")
	if o := sh(t, j, "cat /workspace/f"); o.stdout != "mine\n" {
		t.Fatalf("%+v", o)
	}
	if err := m.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// TestSweepOfTheLiving: also what did not die with the daemon ends.
func TestSweepOfTheLiving(t *testing.T) {
	m := testManager(t)
	g := m.jails.child("left")
	for _, dir := range []group{g, g.child("init"), g.child("exec-1")} {
		if err := dir.make(); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sleep", "1000")
	cg, err := os.Open(string(g.child("exec-1")))
	if err != nil {
		t.Fatal(err)
	}
	defer cg.Close()
	cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cg.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	if n, err := m.Sweep(t.Context()); !slices.Equal(n, []string{"left"}) || err != nil {
		t.Fatalf("swept %q, %v", n, err)
	}
	if err := <-exited; err == nil {
		t.Fatal("it ended by itself")
	}
	if _, err := os.Lstat(string(g)); !os.IsNotExist(err) {
		t.Fatal(err)
	}
}
