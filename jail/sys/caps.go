package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// CapAll is the set of all capabilities up to last.
func CapAll(last int) uint64 { return 1<<(last+1) - 1 }

// CapSet makes a set of capability numbers.
func CapSet(caps ...int) uint64 {
	var s uint64
	for _, c := range caps {
		s |= 1 << c
	}
	return s
}

// LastCap asks the kernel for its highest capability number.
func LastCap() int {
	last := 0
	for c := range 63 {
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err != nil {
			break
		}
		last = c
	}
	return last
}

func capArgs(permitted, inheritable uint64) (*unix.CapUserHeader, *[2]unix.CapUserData) {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &[2]unix.CapUserData{
		{Effective: uint32(permitted), Permitted: uint32(permitted), Inheritable: uint32(inheritable)},
		{Effective: uint32(permitted >> 32), Permitted: uint32(permitted >> 32), Inheritable: uint32(inheritable >> 32)},
	}
}

// CapKeepAllThreads leaves every thread of this process set as permitted and
// effective and nothing inheritable or ambient. It needs a binary without cgo.
func CapKeepAllThreads(set uint64) error {
	hdr, data := capArgs(set, 0)
	return allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(hdr)), uintptr(unsafe.Pointer(data)), 0)
}
