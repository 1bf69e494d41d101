package jail

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// status is a parsed /proc/PID/status.
type status map[string]string

// number returns a field as a number, 0 if there is none.
func (s status) number(field string) int {
	n, err := strconv.Atoi(s[field])
	if err != nil {
		return 0
	}
	return n
}

// procFile reads a small file of the daemon's own procfs.
func (m *Manager) procFile(path string) ([]byte, error) {
	fd, err := unix.Openat2(m.proc, path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC,
		// self is an ordinary link; nothing else may lead anywhere.
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("jail: /proc/%s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("jail: /proc/%s: %w", path, err)
	}
	return b, nil
}

func (m *Manager) readProc(path string) (status, error) {
	b, err := m.procFile(path)
	if err != nil {
		return nil, err
	}
	s := status{}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			s[name] = strings.TrimSpace(value)
		}
	}
	return s, nil
}

// writeProc writes a file of the daemon's own procfs.
func (m *Manager) writeProc(path, value string) error {
	fd, err := unix.Openat2(m.proc, path, &unix.OpenHow{
		Flags:   unix.O_WRONLY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return fmt.Errorf("jail: /proc/%s: %w", path, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("jail: /proc/%s: %w", path, err)
	}
	return nil
}
