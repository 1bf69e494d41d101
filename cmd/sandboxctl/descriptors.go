package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// ownFiles are the descriptors that the command gets as they are, so that its
// output does not go through the daemon. By itself ("auto") it gets files, those
// to be written only while they are empty, and, where standard input is passed on, a pipe to read from. A pipe to write to it
// gets only when told ("all"): a program that the command leaves behind in the
// jail would keep it open, and whoever reads from it would wait for that one.
// With an id of one's own the output has to be kept for those who follow.
func (a *app) ownFiles(f *execFlags) (files [3]*os.File) {
	auto := f.descriptors == "auto"
	if f.descriptors == "none" || auto && (a.json || f.id != "") {
		return files
	}
	for i, s := range []any{a.in, a.out, a.errOut} {
		file, ok := s.(*os.File)
		if !ok || i == 0 && !f.interactive {
			continue
		}
		if kind := handable(file, i); kind == fileKind || kind == pipeKind && (i == 0 || !auto) {
			files[i] = file
		}
	}
	// Two streams with one place to go to keep their order only if both go there
	// in the same way.
	if (files[1] == nil) != (files[2] == nil) && sameFile(a.out, a.errOut) {
		files[1], files[2] = nil, nil
	}
	return files
}

const (
	fileKind = "file"
	pipeKind = "pipe"
)

// handable is what the daemon would find the file to be, "" if it would refuse
// it.
func handable(f *os.File, stream int) string {
	kind := ""
	raw, err := f.SyscallConn()
	if err != nil {
		return ""
	}
	// An error leaves it as it is: "".
	_ = raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		if err != nil || unix.Fstat(int(fd), &st) != nil {
			return
		}
		want := unix.O_RDONLY
		if stream > 0 {
			want = unix.O_WRONLY
		}
		switch {
		case flags&unix.O_ACCMODE != want || flags&unix.O_PATH != 0:
		case st.Mode&unix.S_IFMT == unix.S_IFIFO:
			kind = pipeKind
		case st.Mode&unix.S_IFMT == unix.S_IFREG && (stream == 0 || st.Size == 0):
			kind = fileKind
		}
	})
	return kind
}

// sameFile tells whether both are one file.
func sameFile(a, b io.Writer) bool {
	x, ok := a.(*os.File)
	y, also := b.(*os.File)
	if !ok || !also {
		return false
	}
	one, err := x.Stat()
	if err != nil {
		return false
	}
	two, err := y.Stat()
	return err == nil && os.SameFile(one, two)
}
