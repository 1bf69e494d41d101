package confine

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ownStatus prints what the kernel says about an unconfined child of Start.
func ownStatus(input) (any, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	s := parseStatus(b)
	s["environment"] = strings.Join(os.Environ(), " ")
	sid, err := unix.Getsid(0)
	if err != nil || sid != os.Getpid() {
		return nil, errors.New("not a session leader")
	}
	return s, nil
}

func TestStartGivesNothing(t *testing.T) {
	s := run[status](t, "status", input{})
	if err := unprivileged(s); err != nil {
		t.Error(err)
	}
	if s["NoNewPrivs"] != "1" || s["Groups"] != "" {
		t.Errorf("no_new_privs %q, groups %q", s["NoNewPrivs"], s["Groups"])
	}
	// The test's own process must not have paid for it.
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if got := parseStatus(own); got["CapBnd"] == noCapabilities || got["NoNewPrivs"] != "0" {
		t.Errorf("the caller is left with CapBnd %s, NoNewPrivs %s", got["CapBnd"], got["NoNewPrivs"])
	}
}

func TestStartRefuses(t *testing.T) {
	var wrong *PrivilegeError
	if err := Start(exec.Command("/proc/self/exe"), 0, 5); !errors.As(err, &wrong) {
		t.Errorf("uid 0: %v", err)
	}
	if err := Start(exec.Command("/proc/self/exe"), 5, 0); !errors.As(err, &wrong) {
		t.Errorf("gid 0: %v", err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	if err := Start(cmd, 5, 5); err == nil {
		t.Error("a user namespace is accepted")
	}
	if err := Start(exec.Command("/no/such/program"), 5, 5); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

func TestStartKeepsWhatTheCallerAsks(t *testing.T) {
	cmd := withOutput(child(t.Context(), "status", input{}))
	fd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC, PidFD: &fd}
	finish[status](t, cmd, Start(cmd, testUID, testUID))
	if fd < 0 {
		t.Fatal("no pidfd")
	}
	if err := unix.Close(fd); err != nil {
		t.Errorf("the caller's pidfd: %v", err)
	}
}

// orphan starts a victim and ends without waiting for it.
func orphan(input) (any, error) {
	r, _, err := os.Pipe() // the victim's standard input never ends
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleEnv + "=victim", inputEnv + "={}"}
	cmd.Stdin, cmd.ExtraFiles = r, []*os.File{os.NewFile(3, "witness")}
	if err := Start(cmd, testUID, testUID); err != nil {
		return nil, err
	}
	return cmd.Process.Pid, nil
}

// A child dies with the process that started it, and not before.
func TestStartedDieWithTheirParent(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := withOutput(child(t.Context(), "orphan", input{}, w))
	// As root, not through Start: it has to start one itself.
	err = cmd.Start()
	w.Close()
	finish[int](t, cmd, err)
	// The witness pipe ends when the last holder of its other end is gone.
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the pipe gave %d bytes, %v", n, err)
	}
}

// TestStartBare: a program of the operator's keeps the user, and nothing else.
func TestStartBare(t *testing.T) {
	var out bytes.Buffer
	cmd := exec.Command("/bin/sh", "-c", "id -u; grep -E '^(Cap|NoNewPrivs)' /proc/self/status; env; ps -o sid= -p $$; echo $$")
	cmd.Stdout = &out
	if err := StartBare(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"0 CapInh: 0000000000000000", "CapPrm: 0000000000000000 CapEff: 0000000000000000 CapBnd: 0000000000000000 CapAmb: 0000000000000000", "NoNewPrivs: 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	if strings.Contains(text, "HOME=") {
		t.Errorf("it has an environment: %q", text)
	}
	fields := strings.Fields(text)
	if n := len(fields); fields[n-1] != fields[n-2] {
		t.Errorf("it has no session of its own: %q", text)
	}
}
