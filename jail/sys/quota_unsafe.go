package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Quota is what a project may have of a file system, and has. A limit of 0 is
// none.
type Quota struct {
	BytesLimit, Bytes   uint64
	InodesLimit, Inodes uint64
}

// ifDqblk is the kernel's if_dqblk; limits of space are in KiB, use in bytes.
type ifDqblk struct {
	bHard, bSoft, space  uint64
	iHard, iSoft, inodes uint64
	bTime, iTime         uint64
	valid                uint32
	_                    uint32
}

const (
	prjQuota   = 2
	qGetQuota  = 0x800007<<8 | prjQuota
	qSetQuota  = 0x800008<<8 | prjQuota
	qifLimits  = 1 | 4 // QIF_BLIMITS, QIF_ILIMITS
	quotaBlock = 1024
)

func quotactl(fd int, cmd uintptr, project uint32, d *ifDqblk) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), cmd, uintptr(project), uintptr(unsafe.Pointer(d)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// SetProjectQuota limits a project on the file system that fd is in.
func SetProjectQuota(fd int, project uint32, bytes, inodes uint64) error {
	return quotactl(fd, qSetQuota, project, &ifDqblk{
		bHard: (bytes + quotaBlock - 1) / quotaBlock, iHard: inodes, valid: qifLimits,
	})
}

// ProjectQuota says what a project has.
func ProjectQuota(fd int, project uint32) (Quota, error) {
	var d ifDqblk
	if err := quotactl(fd, qGetQuota, project, &d); err != nil {
		return Quota{}, err
	}
	return Quota{BytesLimit: d.bHard * quotaBlock, Bytes: d.space, InodesLimit: d.iHard, Inodes: d.inodes}, nil
}

// fsxattr is the kernel's own.
type fsxattr struct {
	xflags, extsize, nextents, project, cowextsize uint32
	_                                              [8]byte
}

const (
	fsGetXattr  = 0x801c581f
	fsSetXattr  = 0x401c5820
	projInherit = 0x200
)

func fsxattrCall(fd int, call uintptr, x *fsxattr) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), call, uintptr(unsafe.Pointer(x)))
	if errno != 0 {
		return errno
	}
	return nil
}

// Project is which project a folder's new files belong to; 0 if none.
func Project(fd int) (uint32, error) {
	var x fsxattr
	if err := fsxattrCall(fd, fsGetXattr, &x); err != nil {
		return 0, err
	}
	if x.xflags&projInherit == 0 {
		return 0, nil
	}
	return x.project, nil
}

// SetProject makes a folder, and what will be made in it, a project's.
func SetProject(fd int, project uint32) error {
	var x fsxattr
	if err := fsxattrCall(fd, fsGetXattr, &x); err != nil {
		return err
	}
	x.project, x.xflags = project, x.xflags|projInherit
	return fsxattrCall(fd, fsSetXattr, &x)
}
