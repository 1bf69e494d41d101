package cgroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Watch reads one of dir's files that the kernel tells changes of, such as
// memory.events, now and after each change, until enough says so of its content.
// The group's end is enough as well. No thread waits meanwhile.
func Watch(ctx context.Context, dir, file string, enough func(content []byte) bool) error {
	fd, err := unix.Open(filepath.Join(dir, file), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var rerr error
	// A change wakes the runtime's poller, which runs the function again. Reading
	// arms the next one, so none in between is lost.
	err = raw.Read(func(fd uintptr) bool {
		var buf [1024]byte
		var n int
		n, rerr = unix.Pread(int(fd), buf[:], 0)
		return rerr != nil || enough(buf[:n])
	})
	switch {
	case gone(rerr):
		return nil
	case rerr != nil:
		return fmt.Errorf("%s: %w", file, rerr)
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
