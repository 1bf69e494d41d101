package cgroup

import (
	"bytes"
	"context"
	"errors"
	"strconv"

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
	line := []byte(key + " " + strconv.Itoa(want) + "\n")
	return Watch(ctx, dir, "cgroup.events", func(content []byte) bool { return bytes.Contains(content, line) })
}

// gone is true of the errors for a group that was removed meanwhile.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}
