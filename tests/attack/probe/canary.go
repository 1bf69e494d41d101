package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Canaries: one jail leaves traces in everything that could be shared, another
// one looks for them (table F).

func init() {
	modes["leave"] = leave
	modes["look"] = look
}

const (
	canaryKey    = 0x5eed5eed
	canarySocket = "@canary"
)

var canaryFolders = []string{"/workspace", "/tmp", "/dev/shm", "/var/tmp", "/home/user"}

// canaryFiles are where a canary's word is written.
func canaryFiles() []string {
	var out []string
	for _, dir := range canaryFolders {
		out = append(out, filepath.Join(dir, "canary"))
	}
	return out
}

// leave writes args[0] everywhere it can, says what it left, and stays until its
// standard input ends.
func leave(args []string) error {
	if len(args) != 1 {
		return errors.New("which word?")
	}
	var left []string
	for _, path := range canaryFiles() {
		if err := os.WriteFile(path, []byte(args[0]), 0o644); err == nil {
			left = append(left, path)
		}
	}
	if _, err := unix.SysvShmGet(canaryKey, 4096, unix.IPC_CREAT|0o666); err == nil {
		left = append(left, "shared memory")
	}
	if _, _, errno := unix.Syscall(unix.SYS_SEMGET, canaryKey, 1, unix.IPC_CREAT|0o666); errno == 0 {
		left = append(left, "semaphore")
	}
	if _, _, errno := unix.Syscall(unix.SYS_MSGGET, canaryKey, unix.IPC_CREAT|0o666, 0); errno == 0 {
		left = append(left, "message queue")
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: canarySocket}), unix.Listen(fd, 1))
	}
	if err == nil {
		left = append(left, "abstract socket")
	}
	fmt.Println(strings.Join(left, ", "))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// look says what it finds of the canaries, and of the process that holds them.
func look([]string) error {
	found := map[string]string{}
	note := func(what string, errno error) { found[what] = text(errno) }
	for _, path := range canaryFiles() {
		_, err := os.Lstat(path)
		note(path, err)
	}
	_, err := unix.SysvShmGet(canaryKey, 4096, 0o666)
	note("shared memory", err)
	note("semaphore", call(unix.SYS_SEMGET, canaryKey, 1, 0o666))
	note("message queue", call(unix.SYS_MSGGET, canaryKey, 0o666))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: canarySocket})
	}
	note("abstract socket", err)
	found["processes"] = processes()
	found["uid_map"] = strings.Join(strings.Fields(slurp("/proc/self/uid_map")), " ")
	return json.NewEncoder(os.Stdout).Encode(found)
}
