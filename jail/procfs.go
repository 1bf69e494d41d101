package jail

import (
	"fmt"
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
	defer unix.Close(fd)
	b := make([]byte, 0, 8<<10)
	for len(b) < maxProcFile {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err != nil {
			return nil, fmt.Errorf("jail: /proc/%s: %w", path, err)
		}
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
	}
	return b, nil
}

// maxProcFile bounds what is read of a file whose length a jail can influence.
const maxProcFile = 1 << 20

func (m *Manager) readProc(path string) (status, error) {
	b, err := m.procFile(path)
	if err != nil {
		return nil, err
	}
	return parseStatus(string(b)), nil
}

// statusFields are the fields that are looked at; the others are skipped.
var statusFields = map[string]bool{
	"Uid": true, "Gid": true, "Groups": true, "CapInh": true, "CapPrm": true, "CapEff": true, "CapBnd": true,
	"CapAmb": true, "NoNewPrivs": true, "Seccomp": true, "Seccomp_filters": true,
}

func parseStatus(text string) status {
	s := make(status, len(statusFields))
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && statusFields[name] {
			s[name] = strings.TrimSpace(value)
		}
	}
	return s
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
