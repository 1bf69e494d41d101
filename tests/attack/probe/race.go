package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A workspace that changes under the file API's hands (table E).

func init() {
	modes["race"] = race
	modes["hostile"] = hostile
}

// race swaps /workspace/race, as fast as it can, between a folder with a file
// and a link to args[0], until standard input ends.
func race(args []string) error {
	if len(args) != 1 {
		return errors.New("a link to what?")
	}
	const place, other = "/workspace/race", "/workspace/race-other"
	if err := os.Mkdir(place, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(place+"/canary", []byte("mine"), 0o644); err != nil {
		return err
	}
	if err := os.Symlink(args[0], other); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	fmt.Println("racing")
	for {
		select {
		case err := <-ended:
			return errors.Join(err, os.RemoveAll(place), os.RemoveAll(other))
		default:
		}
		if err := unix.Renameat2(unix.AT_FDCWD, place, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
			return err
		}
	}
}

// hostile fills /workspace with what must not stop or fool a reader.
func hostile([]string) error {
	dir := "/workspace/hostile"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, target := range map[string]string{
		"to-magic-root": "/proc/self/root", "to-magic-cwd": "/proc/self/cwd", "to-magic-fd": "/proc/self/fd",
		"to-init-root": "/proc/1/root", "to-itself": "to-itself", "to-zero": "/dev/zero", "to-mem": "/proc/self/mem",
		"to-up": "../../../../../../../../../../..",
	} {
		if err := os.Symlink(target, dir+"/"+name); err != nil {
			return err
		}
	}
	sparse, err := os.Create(dir + "/sparse")
	if err != nil {
		return err
	}
	defer sparse.Close()
	// As large as the file system lets it be.
	size := int64(1) << 42
	for sparse.Truncate(size) != nil {
		size /= 2
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/socket"})
}
