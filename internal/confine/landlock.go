package confine

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

const (
	// MinLandlockABI is the oldest Landlock that confines enough: 6 brought the
	// scopes for abstract sockets and signals.
	MinLandlockABI = 6
	// tsyncABI is the first that restricts all threads as one domain.
	tsyncABI = 8
	// signalErratum (number 2) lets threads of one process signal each other
	// although each has a domain of its own. Without it Go cannot pre-empt.
	signalErratum = 1 << 1
)

// configs are go-landlock's, by ABI. None is ever used with BestEffort, which
// succeeds when it restricts nothing.
var configs = map[int]landlock.Config{
	6: landlock.V6, 7: landlock.V7, 8: landlock.V8, 9: landlock.V9, 10: landlock.V10, 11: landlock.V11,
}

// newestABI is the newest that go-landlock knows.
const newestABI = 11

// landlockABI negotiates the version: what the kernel offers, what the library
// knows, and nothing under MinLandlockABI.
func landlockABI() (int, error) {
	unsupported := func(found string) error {
		return &UnsupportedError{
			Feature: "Landlock", Found: found, Needed: "ABI " + strconv.Itoa(MinLandlockABI) + " or newer",
			Remedy: "boot Linux 6.12 or newer with landlock in the lsm= list",
		}
	}
	abi, err := ll.LandlockGetABIVersion()
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return 0, unsupported("nothing")
	}
	if err != nil {
		return 0, fmt.Errorf("confine: version of landlock: %w", err)
	}
	if abi < MinLandlockABI {
		return 0, unsupported("ABI " + strconv.Itoa(abi))
	}
	if abi < tsyncABI {
		errata, err := ll.LandlockGetErrata()
		if err != nil || errata&signalErratum == 0 {
			return 0, unsupported("ABI " + strconv.Itoa(abi) + " without the correction for signals between threads")
		}
	}
	return min(abi, newestABI), nil
}

// Rights for a profile's paths. Execution, device nodes, ioctls on devices and
// moving files between directories are in neither.
const (
	readFile  = landlock.AccessFSSet(ll.AccessFSReadFile)
	readDir   = readFile | landlock.AccessFSSet(ll.AccessFSReadDir)
	writeFile = readFile | landlock.AccessFSSet(ll.AccessFSWriteFile|ll.AccessFSTruncate)
	writeDir  = readDir | writeFile | landlock.AccessFSSet(
		ll.AccessFSMakeReg|ll.AccessFSMakeDir|ll.AccessFSRemoveFile|ll.AccessFSRemoveDir)
)

// restrict puts all threads under Landlock. With an ABI under 8 go-landlock adds
// one right of its own: to list /proc/<pid>/task, which libpsx does to find the
// threads.
func restrict(p Profile, abi int) error {
	config := configs[abi]
	// A direction that is allowed is not handled at all: any port.
	if p.Connect {
		config.HandledAccessNet &^= ll.AccessNetConnectTCP | ll.AccessNetConnectSendUDP
		// An unbound UDP socket is bound by its first connect.
		config.HandledAccessNet &^= ll.AccessNetBindUDP
	}
	if p.Bind {
		config.HandledAccessNet &^= ll.AccessNetBindTCP | ll.AccessNetBindUDP
	}
	var rules []landlock.Rule
	add := func(paths []string, file, dir landlock.AccessFSSet) error {
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			rights := file
			if info.IsDir() {
				rights = dir
			}
			rules = append(rules, landlock.PathAccess(rights, path))
		}
		return nil
	}
	if err := add(p.ReadOnly, readFile, readDir); err != nil {
		return err
	}
	if err := add(p.ReadWrite, writeFile, writeDir); err != nil {
		return err
	}
	return config.Restrict(rules...)
}

// provePaths tries what every profile forbids. A library that restricted
// nothing would be noticed here.
func provePaths() error {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		closeQuietly(fd)
		return &PrivilegeError{What: "opening /", Found: "possible", Needed: "refused by landlock"}
	}
	if !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("confine: opening / is refused by something else than landlock: %w", err)
	}
	return nil
}
