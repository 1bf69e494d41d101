package kernel

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Probes that this process can run itself and that leave nothing.

// nothing is a program that does not exist. Starting it goes through clone and
// everything else that was asked for, and then fails with ENOENT: a trial of
// all that, without a process to clean up after.
const nothing = "/proc/self/sandboxd-no-such-program"

// tryClone starts nothing with attr.
func tryClone(attr *syscall.SysProcAttr) error {
	_, err := syscall.ForkExec(nothing, []string{nothing}, &syscall.ProcAttr{Sys: attr})
	if errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err == nil {
		return errors.New("a program that does not exist was started")
	}
	return err
}

func tryNamespaces() map[string]Trial {
	flags := map[string]uintptr{
		"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
		"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP,
	}
	out := map[string]Trial{}
	for name, flag := range flags {
		out[name] = tried(tryClone(&syscall.SysProcAttr{Cloneflags: flag}))
	}
	// A time namespace is for the children of the one who asks.
	out["time"] = tried(tryClone(&syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWTIME}))
	return out
}

func tryPidfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil {
		return fmt.Errorf("pidfd_send_signal: %w", err)
	}
	return nil
}

// tryOpenat2 wants a magic link refused, not only the call answered.
func tryOpenat2() error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /: %w", err)
	}
	defer unix.Close(root)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, "/proc/self/exe", how)
	if err == nil {
		unix.Close(fd)
		return errors.New("openat2 follows a magic link although told not to")
	}
	if !errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("openat2: %w", err)
	}
	return nil
}

// executableMemfd makes a memory file that may be executed. Kernels before 6.3
// do not know the flag, and allow it always.
func executableMemfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("probe", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("probe", flags)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	return fd, nil
}

// script names an interpreter that does not exist.
const script = "#!" + nothing + "\n"

func sealedScript() (int, error) {
	fd, err := executableMemfd()
	if err != nil {
		return -1, err
	}
	if _, err := unix.Write(fd, []byte(script)); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("write: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("seal: %w", err)
	}
	return fd, nil
}

func tryMemfdSealing() error {
	fd, err := sealedScript()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("a sealed file can be written: %v", err)
	}
	return nil
}

// tryMemfdExec executes a script in a sealed memory file. Its interpreter is
// not found (ENOENT), which the kernel only says after it and its security
// modules have accepted the file itself.
func tryMemfdExec() error {
	fd, err := sealedScript()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	_, err = syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{})
	if !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("execute a memory file: %v", err)
	}
	return nil
}

func landlockVersion() (abi, errata int) {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0, 0
	}
	if errata, err = ll.LandlockGetErrata(); err != nil {
		errata = 0
	}
	return abi, errata
}
