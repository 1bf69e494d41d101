package jail

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A caller's own descriptor goes into the jail as it is: whatever the kernel
// lets its holder do, the tenant's programs may do from then on, also those
// that outlive the command. So it is looked at first, and only what can carry
// bytes in one direction passes:
//
//   - pipes and FIFOs, and /dev/null;
//   - regular files on file systems that hold ordinary files. Those of the
//     kernel's own (proc, sysfs, cgroup, namespaces, pidfd, secret memory) are
//     regular files, too, and so the file system decides, by an allow-list.
//
// Each must be open for what it is to be used for and for nothing else: what is
// to be written cannot be read back, and memory cannot be mapped shared and
// writable. A file to be written is empty: whoever may write it may cut it and
// write anywhere in it, for O_APPEND is taken off by fcntl, so what others have
// put into it before (a log that is appended to) would be the tenant's to change. A file cannot be opened a second time through /proc/self/fd either,
// because Landlock knows no rule for where it is.
//
// Refused are folders (a way out of the root), O_PATH descriptors (the same),
// sockets (a TCP socket can be disconnected and connected again, in the host's
// network; a Unix socket may be somebody's session, this API's among others,
// and carries further descriptors), terminals (a program that is left behind
// would read what is typed after the command's end), devices, and whatever has
// no type: io_uring, bpf, eventfd, userfaultfd.

// ordinary are the file systems whose regular files are only files.
var ordinary = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, // ext2 and ext3, too
	unix.XFS_SUPER_MAGIC:  true, unix.BTRFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true, zfsMagic: true,
	unix.TMPFS_MAGIC: true, unix.RAMFS_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true,
	unix.NFS_SUPER_MAGIC: true, unix.SQUASHFS_MAGIC: true, unix.EROFS_SUPER_MAGIC_V1: true,
}

const zfsMagic = 0x2fc12fc1 // x/sys does not name it

// streams are the names of a command's descriptors in a request.
var streams = [3]string{"stdin", "stdout", "stderr"}

// CheckDescriptor says whether f may be a command's stdin (0), stdout (1) or
// stderr (2). The error is a *SpecError.
func CheckDescriptor(stream int, f *os.File) error {
	problem := ""
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { problem = descriptorProblem(stream, int(fd)) })
	}
	if err != nil {
		problem = "is closed"
	}
	if problem == "" {
		return nil
	}
	return &SpecError{Field: "fds." + streams[stream], Message: problem}
}

// descriptorProblem is "" for a descriptor that may go into a jail.
func descriptorProblem(stream, fd int) string {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return "is no descriptor"
	}
	if flags&unix.O_PATH != 0 {
		return "is opened with O_PATH; open it for reading or writing"
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "cannot be looked at: " + err.Error()
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
	case unix.S_IFREG:
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return "cannot be looked at: " + err.Error()
		}
		if !ordinary[int64(fs.Type)] {
			return fmt.Sprintf("is a file of a file system that does not only hold files (%#x); pass a pipe", fs.Type)
		}
	case unix.S_IFCHR:
		if st.Rdev == unix.Mkdev(1, 3) {
			return "" // /dev/null, however it is opened
		}
		return "is a device; pass a pipe, or ask for a terminal with tty"
	case unix.S_IFDIR:
		return "is a folder"
	case unix.S_IFSOCK:
		return "is a socket; pass a pipe"
	default:
		return "is neither a pipe nor a regular file nor /dev/null"
	}
	want, what := unix.O_RDONLY, "reading"
	if stream > 0 {
		want, what = unix.O_WRONLY, "writing"
	}
	if flags&unix.O_ACCMODE != want {
		return "must be open for " + what + " and nothing else"
	}
	if stream > 0 && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0 {
		return "is a file that holds something already, which the jail could change or delete, also if it is open for appending; pass a pipe"
	}
	return ""
}

// writesFile says whether the command has a caller's regular file to write to.
func (s *ExecSpec) writesFile() bool {
	for _, f := range s.Files[1:] {
		if f == nil {
			continue
		}
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			return true
		}
	}
	return false
}
