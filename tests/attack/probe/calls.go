package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() { modes["sweep"] = sweep }

func at() uintptr {
	fd := unix.AT_FDCWD
	return uintptr(fd)
}

// kept holds the memory that attempts point to.
var kept [][]byte

func str(s string) uintptr { return buf(append([]byte(s), 0)) }

func buf(b []byte) uintptr {
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// calls: the kernel's surface (table B).
func calls() map[string]func() string {
	self := uintptr(os.Getpid())
	parent := uintptr(os.Getppid())
	zero := func(n int) uintptr { return buf(make([]byte, n)) }
	out := map[string]func() string{
		"B02 x32 getpid":              raw(0x40000000 | unix.SYS_GETPID),
		"B02 int 0x80":                func() string { int80(20); return "answered" },
		"B03 clone3":                  raw(unix.SYS_CLONE3, zero(88), 88),
		"B04 system call 999":         raw(999),
		"B04 mseal":                   raw(462, 0, 0, 0),
		"B05 io_uring_setup":          raw(unix.SYS_IO_URING_SETUP, 8, zero(120)),
		"B05 io_uring_enter":          raw(unix.SYS_IO_URING_ENTER, 0, 0, 0, 0, 0, 0),
		"B05 io_uring_register":       raw(unix.SYS_IO_URING_REGISTER, 0, 0, 0, 0),
		"B06 add_key":                 raw(unix.SYS_ADD_KEY, str("user"), str("x"), str("y"), 1, ^uintptr(2)),
		"B06 request_key":             raw(unix.SYS_REQUEST_KEY, str("user"), str("x"), 0, 0),
		"B06 keyctl":                  raw(unix.SYS_KEYCTL, 0, ^uintptr(2), 1),
		"B07 ptrace self":             raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME),
		"B07 ptrace sibling":          raw(unix.SYS_PTRACE, unix.PTRACE_ATTACH, parent),
		"B07 ptrace init":             raw(unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1),
		"B07 process_vm_readv":        raw(unix.SYS_PROCESS_VM_READV, parent, 0, 0, 0, 0, 0),
		"B07 process_vm_writev":       raw(unix.SYS_PROCESS_VM_WRITEV, self, 0, 0, 0, 0, 0),
		"B07 pidfd_getfd":             raw(unix.SYS_PIDFD_GETFD, 0, 0, 0),
		"B07 kcmp":                    raw(unix.SYS_KCMP, self, parent, 0, 0, 0),
		"B07 process_madvise":         raw(unix.SYS_PROCESS_MADVISE, 0, 0, 0, 0, 0),
		"B08 bpf":                     raw(unix.SYS_BPF, 0, zero(72), 72),
		"B08 perf_event_open":         raw(unix.SYS_PERF_EVENT_OPEN, zero(128), 0, ^uintptr(0), ^uintptr(0), 0),
		"B08 userfaultfd":             raw(unix.SYS_USERFAULTFD, 1),
		"B08 fanotify_init":           raw(unix.SYS_FANOTIFY_INIT, 0, 0),
		"B08 name_to_handle_at":       raw(unix.SYS_NAME_TO_HANDLE_AT, at(), str("/"), zero(128), zero(8), 0),
		"B08 open_by_handle_at":       raw(unix.SYS_OPEN_BY_HANDLE_AT, 0, zero(128), 0),
		"B08 quotactl":                raw(unix.SYS_QUOTACTL, 0, 0, 0, 0),
		"B08 kexec_load":              raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
		"B08 kexec_file_load":         raw(unix.SYS_KEXEC_FILE_LOAD, 0, 0, 0, 0, 0),
		"B08 init_module":             raw(unix.SYS_INIT_MODULE, 0, 0, 0),
		"B08 finit_module":            raw(unix.SYS_FINIT_MODULE, 0, 0, 0),
		"B08 delete_module":           raw(unix.SYS_DELETE_MODULE, str("x"), 0),
		"B08 acct":                    raw(unix.SYS_ACCT, 0),
		"B08 swapon":                  raw(unix.SYS_SWAPON, str("/tmp"), 0),
		"B08 swapoff":                 raw(unix.SYS_SWAPOFF, str("/tmp")),
		"B08 iopl":                    raw(unix.SYS_IOPL, 3),
		"B08 ioperm":                  raw(unix.SYS_IOPERM, 0, 1, 1),
		"B08 settimeofday":            raw(unix.SYS_SETTIMEOFDAY, zero(16), 0),
		"B08 clock_settime":           raw(unix.SYS_CLOCK_SETTIME, 0, zero(16)),
		"B08 adjtimex":                raw(unix.SYS_ADJTIMEX, zero(256)),
		"B08 syslog":                  raw(unix.SYS_SYSLOG, 3, zero(64), 64),
		"B08 memfd_secret":            raw(unix.SYS_MEMFD_SECRET, 0),
		"B08 lookup_dcookie":          raw(unix.SYS_LOOKUP_DCOOKIE, 0, 0, 0),
		"B08 statmount":               raw(457, zero(32), zero(512), 512, 0),
		"B08 listmount":               raw(458, zero(32), zero(64), 8, 0),
		"B11 seccomp listener":        seccomp(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER),
		"B11 seccomp listener, tsync": seccomp(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH),
		"B11 seccomp speculation":     seccomp(unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW),
		"B11 seccomp stacked":         stackFilters,
		"B11 PR_SET_SECCOMP":          raw(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, 2, program()),
		"B11 PR_SET_MM":               raw(unix.SYS_PRCTL, unix.PR_SET_MM, 1, 0),
		"B11 PR_SET_PTRACER":          raw(unix.SYS_PRCTL, 0x59616d61, ^uintptr(0)),
		"B11 PR_SET_SPECULATION_CTRL": raw(unix.SYS_PRCTL, unix.PR_SET_SPECULATION_CTRL, 0, 2),
		"B13 modify_ldt":              raw(unix.SYS_MODIFY_LDT, 1, zero(16), 16),
		"B13 vhangup":                 raw(unix.SYS_VHANGUP),
		"B13 mbind":                   raw(unix.SYS_MBIND, 0, 4096, 0, 0, 0, 0),
		"B13 set_mempolicy":           raw(unix.SYS_SET_MEMPOLICY, 0, 0, 0),
		"B13 move_pages":              raw(unix.SYS_MOVE_PAGES, parent, 0, 0, 0, 0, 0),
		"B13 realtime":                raw(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, buf([]byte{1, 0, 0, 0})),
		"B13 sched_setattr":           raw(unix.SYS_SCHED_SETATTR, 0, zero(56), 0),
		"B13 nice":                    raw(unix.SYS_SETPRIORITY, 0, 0, ^uintptr(9)),
		"B13 ioprio realtime":         raw(unix.SYS_IOPRIO_SET, 1, 0, 1<<13),
		"B13 uselib":                  raw(unix.SYS_USELIB, str("/bin/true")),
		"B13 sysctl":                  raw(unix.SYS__SYSCTL, 0),
	}
	// READ_IMPLIES_EXEC, ADDR_NO_RANDOMIZE, MMAP_PAGE_ZERO, and behind high bits.
	for name, value := range map[string]uintptr{
		"read implies exec": 0x0400000, "no randomisation": 0x0040000, "page zero": 0x0100000, "high bits": 1<<32 | 0x0040000,
	} {
		out["B10 personality "+name] = raw(unix.SYS_PERSONALITY, value)
	}
	out["B10 personality ask"] = func() string {
		r, _, errno := unix.RawSyscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
		return fmt.Sprintf("%#x %d", r, errno)
	}
	return out
}

// program allows everything; it is what a tenant may put on top.
func program() uintptr {
	allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	fprog := &unix.SockFprog{Len: 1, Filter: &allow[0]}
	keptPrograms = append(keptPrograms, fprog)
	return uintptr(unsafe.Pointer(fprog))
}

var keptPrograms []*unix.SockFprog

func seccomp(flags uintptr) func() string {
	return raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, program())
}

// stackFilters puts a hundred filters on top of the jail's; what was refused
// must stay so.
func stackFilters() string {
	for range 100 {
		if err := call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, program()); err != nil {
			return text(err)
		}
	}
	return "stacked, then bpf " + text(call(unix.SYS_BPF, 0, 0, 0))
}

// sweep makes the numbered system calls without arguments and prints what each
// gets. The caller names only such that the filter refuses.
func sweep(args []string) error {
	out := map[int]string{}
	for _, s := range strings.Split(strings.Join(args, ","), ",") {
		nr, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		out[nr] = text(call(uintptr(nr)))
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
