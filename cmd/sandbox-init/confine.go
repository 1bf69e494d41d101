package main

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp/bpf"
	"sandboxd/jail/sys"
	"sandboxd/jail/wire"
)

// keep is what sandbox-init needs for ever: to give commands the tenant's ids,
// and to signal them.
var keep = sys.CapSet(unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL)

// Rights of the Landlock rules. No rule grants MAKE_CHAR or MAKE_BLOCK.
const (
	readable   = sys.FSReadFile | sys.FSReadDir
	executable = readable | sys.FSExecute
	writable   = executable | sys.FSWriteFile | sys.FSTruncate | sys.FSRemoveDir | sys.FSRemoveFile |
		sys.FSMakeDir | sys.FSMakeReg | sys.FSMakeSock | sys.FSMakeFifo | sys.FSMakeSym | sys.FSRefer
	device = sys.FSReadFile | sys.FSWriteFile | sys.FSTruncate | sys.FSIoctlDev
)

// A rule says what a command may do at a path, beside the ordinary permissions.
type rule struct {
	path   string
	rights uint64
}

// hostRules are for the host's system.
var hostRules = []rule{
	{"/", sys.FSReadDir},
	{"/usr", executable},
	{"/opt", executable},
	{"/etc", readable},
}

// A template has its programs where it likes. What is mounted in it is beneath
// its root, so these hold there too; that /proc, /dev and the layers are not to
// be written is the mounts' own affair.
var (
	templateRules = []rule{{"/", executable}}
	writableRules = []rule{{"/", writable}}
)

// commonRules are for every jail.
var commonRules = []rule{
	// Threads are named by writing to /proc/self/task/N/comm.
	{"/proc", readable | sys.FSWriteFile},
	{"/workspace", writable},
	{"/home/user", writable},
	{"/tmp", writable},
	{"/var/tmp", writable},
	{"/dev/shm", writable},
	{"/dev/null", device},
	{"/dev/zero", device},
	{"/dev/full", device},
	{"/dev/random", device},
	{"/dev/urandom", device},
	{"/dev/tty", device},
	{"/dev/pts", device | sys.FSReadDir},
}

// confine drops what building the root needed. It returns the listener of
// sandbox-init's filter, which is the daemon's.
func confine(cfg *wire.Config, st *staged) (*os.File, error) {
	if cfg.Loopback {
		if err := at("loopback", loopbackUp()); err != nil {
			return nil, err
		}
	}
	ruleset, err := landlockRules(cfg, st.opt)
	if err = at("landlock", err); err != nil {
		return nil, err
	}
	if err := at("capabilities", sys.CapKeepAllThreads(keep)); err != nil {
		return nil, err
	}
	// Each thread gets a domain of its own; commands are always forked by the
	// first thread and so share one, in which they may signal each other.
	if err := at("landlock", sys.LandlockRestrictAllThreads(ruleset)); err != nil {
		return nil, err
	}
	unix.Close(ruleset)
	listener, err := bpf.LoadListener(st.initFilter)
	if err = at("seccomp", err); err != nil {
		return nil, err
	}
	// For the daemon's poller: the flag belongs to the open file.
	if err := at("seccomp", unix.SetNonblock(listener, true)); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(listener), "listener"), nil
}

func landlockRules(cfg *wire.Config, opt bool) (int, error) {
	if abi := sys.LandlockABI(); abi < sys.LandlockNeeded {
		return -1, fmt.Errorf("version %d, need %d", abi, sys.LandlockNeeded)
	}
	ruleset, err := sys.LandlockRuleset()
	if err != nil {
		return -1, err
	}
	rules := hostRules
	switch {
	case cfg.WritableRoot:
		rules = writableRules
	case cfg.Layers > 0:
		rules = templateRules
	}
	for _, r := range slices.Concat(rules, commonRules) {
		if r.path == "/opt" && !opt {
			continue
		}
		if err := allow(ruleset, r.path, r.rights); err != nil {
			unix.Close(ruleset)
			return -1, fmt.Errorf("%s: %w", r.path, err)
		}
	}
	return ruleset, nil
}

func allow(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return sys.LandlockAllow(ruleset, fd, rights)
}

// loopbackUp works only where the network namespace belongs to the jail's own
// user namespace; a prepared one comes with lo up.
func loopbackUp() error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, ifr)
}
