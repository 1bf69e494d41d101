package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Keys of cgroup.events.
const (
	Populated = "populated" // 1 while a process lives in it or beneath
	Frozen    = "frozen"
)

// Await returns when key of dir's cgroup.events has the value want, or when the
// group is gone. The kernel says when the file changes; no thread waits
// meanwhile.
func Await(ctx context.Context, dir, key string, want int) error {
	fd, err := unix.Open(filepath.Join(dir, "cgroup.events"), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup.events: %w", err)
	}
	f := os.NewFile(uintptr(fd), "cgroup.events")
	defer f.Close()
	line := []byte(key + " " + strconv.Itoa(want) + "\n")
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("cgroup.events: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var rerr error
	// A change wakes the runtime's poller, which runs the function again. Reading
	// arms the next one, so none in between is lost.
	err = raw.Read(func(fd uintptr) bool {
		var buf [256]byte
		var n int
		n, rerr = unix.Pread(int(fd), buf[:], 0)
		return rerr != nil || bytes.Contains(buf[:n], line)
	})
	switch {
	case gone(rerr):
		return nil
	case rerr != nil:
		return fmt.Errorf("cgroup.events: %w", rerr)
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("cgroup.events: %w", err)
	}
	return nil
}

// gone is true of the errors for a group that was removed meanwhile.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}
