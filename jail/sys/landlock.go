package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock versions. This package knows the meaning of versions up to
// LandlockKnown; a newer kernel is used at that version, an older one than
// LandlockNeeded is refused by the callers.
const (
	LandlockNeeded = 6
	LandlockKnown  = 7
)

// Access rights to files and folders, as in the kernel's uapi.
const (
	FSExecute = 1 << iota
	FSWriteFile
	FSReadFile
	FSReadDir
	FSRemoveDir
	FSRemoveFile
	FSMakeChar
	FSMakeDir
	FSMakeReg
	FSMakeSock
	FSMakeFifo
	FSMakeBlock
	FSMakeSym
	FSRefer
	FSTruncate
	FSIoctlDev

	// FSAll is every right that version 6 handles.
	FSAll = 1<<16 - 1
	// FSFile are the rights that a rule on a file may have.
	FSFile = FSExecute | FSWriteFile | FSReadFile | FSTruncate | FSIoctlDev
)

const (
	scopeAbstractUnix = 1 << 0
	scopeSignal       = 1 << 1
)

// landlockRulesetAttr is the kernel's struct up to version 6.
type landlockRulesetAttr struct {
	handledFS, handledNet, scoped uint64
}

type landlockPathBeneath struct {
	allowed uint64
	parent  int32
	_       [4]byte // the kernel's struct is packed and reads 12 bytes
}

// LandlockABI returns the kernel's version, 0 if it has none.
func LandlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// LandlockRuleset makes a ruleset that handles every file right of version 6
// and scopes signals and abstract sockets. The kernel refuses it if it is
// older, so nothing is silently left out.
func LandlockRuleset() (int, error) {
	attr := landlockRulesetAttr{handledFS: FSAll, scoped: scopeAbstractUnix | scopeSignal}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// LandlockAllow adds a rule: what is at or beneath parent has the rights.
func LandlockAllow(ruleset, parent int, rights uint64) error {
	rule := landlockPathBeneath{allowed: rights, parent: int32(parent)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// LandlockRestrictAllThreads puts every thread of this process under the
// ruleset, each in a domain of its own. It needs a binary without cgo.
func LandlockRestrictAllThreads(ruleset int) error {
	return allThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0)
}
