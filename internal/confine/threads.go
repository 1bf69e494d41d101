package confine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// threads are the status files of this process's threads, opened while paths
// can still be opened and read again afterwards: the kernel writes such a file
// anew at each read.
type threads struct {
	fds     []int
	alive   int // threads that the last check read
	filters int // smallest number of seccomp filters it saw
}

const taskDir = "/proc/self/task"

// openThreads opens the status of every thread that exists. A thread that
// starts later inherits everything from the one that starts it.
func openThreads() (*threads, error) {
	entries, err := os.ReadDir(taskDir)
	if err != nil {
		return nil, fmt.Errorf("confine: threads of this process: %w", err)
	}
	t := &threads{}
	for _, e := range entries {
		fd, err := unix.Open(taskDir+"/"+e.Name()+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // it has just ended
		}
		if err != nil {
			t.close()
			return nil, fmt.Errorf("confine: status of thread %s: %w", e.Name(), err)
		}
		t.fds = append(t.fds, fd)
	}
	return t, nil
}

func (t *threads) close() {
	for _, fd := range t.fds {
		closeQuietly(fd)
	}
}

// check reads every thread's status and gives it to want.
func (t *threads) check(want func(status) error) error {
	t.alive, t.filters = 0, -1
	buf := make([]byte, 16<<10)
	for _, fd := range t.fds {
		n, err := unix.Pread(fd, buf, 0)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return fmt.Errorf("confine: read a thread's status: %w", err)
		}
		s := parseStatus(buf[:n])
		if err := want(s); err != nil {
			return err
		}
		t.alive++
		if n := s.number("Seccomp_filters"); t.filters < 0 || n < t.filters {
			t.filters = n
		}
	}
	return nil
}

// status is /proc/…/status as fields.
type status map[string]string

func parseStatus(b []byte) status {
	s := status{}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			s[name] = strings.TrimSpace(value)
		}
	}
	return s
}

// number is a field as a number, -1 if it is none.
func (s status) number(field string) int {
	n, err := strconv.Atoi(s[field])
	if err != nil {
		return -1
	}
	return n
}

const noCapabilities = "0000000000000000"

// unprivileged is what holds before: no capability in any set, and no user or
// group id that is root's, in the real, effective, saved and file system places.
func unprivileged(s status) error {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if s[set] != noCapabilities {
			return &PrivilegeError{What: set, Found: s[set], Needed: noCapabilities}
		}
	}
	for _, field := range []string{"Uid", "Gid"} {
		ids := strings.Fields(s[field])
		for _, id := range ids {
			if id == "0" || id != ids[0] {
				return &PrivilegeError{What: field, Found: s[field], Needed: "one id in all four places, not 0"}
			}
		}
		if len(ids) != 4 {
			return &PrivilegeError{What: field, Found: strconv.Quote(s[field]), Needed: "four ids"}
		}
	}
	return nil
}

// confined is what holds after Apply.
func confined(s status) error {
	if err := unprivileged(s); err != nil {
		return err
	}
	if s["NoNewPrivs"] != "1" {
		return &PrivilegeError{What: "NoNewPrivs", Found: strconv.Quote(s["NoNewPrivs"]), Needed: "1"}
	}
	if s["Seccomp"] != "2" {
		return &PrivilegeError{What: "Seccomp", Found: strconv.Quote(s["Seccomp"]), Needed: "2 (filter)"}
	}
	return nil
}

// checkIdentity looks at what /proc does not show exactly.
func checkIdentity() error {
	if unix.Getuid() == 0 || unix.Geteuid() == 0 {
		return &PrivilegeError{What: "uid", Found: "0", Needed: "an unprivileged one"}
	}
	groups, err := unix.Getgroups()
	if err != nil {
		return fmt.Errorf("confine: supplementary groups: %w", err)
	}
	if len(groups) > 0 {
		return &PrivilegeError{What: "supplementary groups", Found: fmt.Sprint(groups), Needed: "none"}
	}
	return nil
}
