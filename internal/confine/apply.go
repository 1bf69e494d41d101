package confine

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"sandboxd/internal/seccomp"
)

func apply(p Profile) (Report, error) {
	if p.Seccomp == nil {
		return Report{}, errors.New("confine: profile " + p.Name + " has no seccomp filter")
	}
	if err := checkIdentity(); err != nil {
		return Report{}, err
	}
	abi, err := landlockABI()
	if err != nil {
		return Report{}, err
	}
	// Everything that opens files or may fail for another reason comes before
	// the first step that cannot be taken back.
	prog, err := seccomp.Compile(p.Seccomp)
	if err != nil {
		return Report{}, fmt.Errorf("confine: profile %s: %w", p.Name, err)
	}
	threads, err := openThreads()
	if err != nil {
		return Report{}, err
	}
	defer threads.close()
	if err := threads.check(unprivileged); err != nil {
		return Report{}, err
	}
	calm, err := boundSpin(spinBound)
	if err != nil {
		return Report{}, err
	}
	report := Report{UID: unix.Getuid(), GID: unix.Getgid(), LandlockABI: abi}
	report.Dumpable, err = quiet()
	if err != nil {
		return Report{}, err
	}
	err = restrict(p, abi)
	calm()
	if err != nil {
		return Report{}, fmt.Errorf("confine: profile %s: landlock: %w", p.Name, err)
	}
	if err := provePaths(); err != nil {
		return Report{}, err
	}
	if err := seccomp.Load(prog); err != nil {
		return Report{}, fmt.Errorf("confine: profile %s: %w", p.Name, err)
	}
	if err := attest(threads, &report); err != nil {
		return Report{}, err
	}
	return report, nil
}

// quiet makes the process leave no core, be no one's to trace, and unable to
// gain privileges, before anything else is tried. It returns what the kernel
// then says about being dumpable.
func quiet() (dumpable bool, err error) {
	if err := ownProc(); err != nil {
		return true, err
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return true, fmt.Errorf("confine: no core files: %w", err)
	}
	// Not dumpable: a process of the same user can neither trace us nor read
	// our memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return true, fmt.Errorf("confine: not dumpable: %w", err)
	}
	state, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil || state != 0 {
		return true, &PrivilegeError{What: "dumpable", Found: fmt.Sprint(state, " ", err), Needed: "0"}
	}
	// no_new_privs belongs to a thread; psx sets it on those that exist, and
	// later ones inherit it.
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return false, fmt.Errorf("confine: no_new_privs: %w", errno)
	}
	return false, nil
}

// spinBound is how much processor time it may take to bring all threads under
// Landlock; it takes milliseconds.
const spinBound = 10 * time.Second

// boundSpin bounds the process's time on processors until calm is called: psx
// waits for all threads without sleeping, and one that cannot take its signal
// would have it wait for ever, at a whole processor's cost. The process is then
// killed, which its parent sees. (SIGXCPU would not do: the runtime ignores it.)
func boundSpin(most time.Duration) (calm func(), err error) {
	event := struct {
		value          uint64
		signal, notify int32 // 0: SIGEV_SIGNAL
		_              [48]byte
	}{signal: int32(unix.SIGKILL)}
	var id int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_PROCESS_CPUTIME_ID, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&id))); errno != 0 {
		return nil, fmt.Errorf("confine: a timer: %w", errno)
	}
	stop := func() { _, _, _ = unix.RawSyscall(unix.SYS_TIMER_DELETE, uintptr(id), 0, 0) }
	end := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(most))}
	if _, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(id), 0, uintptr(unsafe.Pointer(&end)), 0, 0, 0); errno != 0 {
		stop()
		return nil, fmt.Errorf("confine: a timer: %w", errno)
	}
	return stop, nil
}

// ownProc holds that /proc is of this process's PID namespace. psx finds the
// threads there and waits for each: with another namespace's it would wait for
// ever, and take a whole processor for it.
func ownProc() error {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	if want := strconv.Itoa(os.Getpid()); self != want {
		return fmt.Errorf("confine: /proc belongs to another PID namespace (this is process %s there, %s here): mount a new one over it", self, want)
	}
	return nil
}

// attest reads back what the kernel says about this process's threads.
func attest(threads *threads, r *Report) error {
	if err := threads.check(confined); err != nil {
		return err
	}
	if threads.alive == 0 {
		return errors.New("confine: no thread could be read back")
	}
	r.Threads, r.Filters = threads.alive, threads.filters
	return nil
}

// closeQuietly is for descriptors that nothing was written to.
func closeQuietly(fd int) { _ = unix.Close(fd) }
