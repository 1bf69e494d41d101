package jail

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
	"sandboxd/internal/seccomp/bpf"
)

var update = flag.Bool("update", false, "write the golden files anew")

// filters are those that hold a process, the newest first.
type filters [][]unix.SockFilter

// bothFilters are a command's and sandbox-init's.
func bothFilters(t *testing.T) (commands, init filters) {
	t.Helper()
	for _, f := range []*seccomp.Filter{ExecFilter(), InitFilter()} {
		prog, err := seccomp.Compile(f)
		if err != nil {
			t.Fatal(err)
		}
		commands = append(commands, prog)
	}
	return commands, commands[1:]
}

// verdict tells in a word what the kernel makes of the filters' answers: the
// one with the smallest action, as a signed number, wins, and of equals the
// newest, which has no listener unless it is sandbox-init's.
func verdict(t *testing.T, progs filters, nr uint32, args ...uint64) string {
	t.Helper()
	d := bpf.Data{Nr: nr, Arch: seccomp.Arch()}
	copy(d.Args[:], args)
	answer, from := uint32(unix.SECCOMP_RET_ALLOW), 0
	for i, prog := range progs {
		a, err := bpf.Eval(prog, d)
		if err != nil {
			t.Fatal(err)
		}
		if int32(a&unix.SECCOMP_RET_ACTION_FULL) < int32(answer&unix.SECCOMP_RET_ACTION_FULL) {
			answer, from = a, i
		}
	}
	switch answer & unix.SECCOMP_RET_ACTION_FULL {
	case unix.SECCOMP_RET_ALLOW:
		return "allow"
	case unix.SECCOMP_RET_KILL_PROCESS:
		return "kill"
	case unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(answer & unix.SECCOMP_RET_DATA))
	case unix.SECCOMP_RET_USER_NOTIF:
		if from != len(progs)-1 {
			t.Fatalf("%d %#x: a notice that nobody takes", nr, args)
		}
		return "notice"
	}
	return fmt.Sprintf("%#x", answer)
}

// ranges writes runs of equal answers on one line.
func ranges(b *strings.Builder, title string, from, to uint64, answer func(uint64) string) {
	fmt.Fprintf(b, "%s\n", title)
	for start := from; start <= to; {
		end, a := start, answer(start)
		for end < to && answer(end+1) == a {
			end++
		}
		fmt.Fprintf(b, "  %#x-%#x %s\n", start, end, a)
		start = end + 1
	}
}

// describe lists what a filter answers: each number with arguments of zero, and
// the arguments that decide.
func describe(t *testing.T, prog filters) string {
	var b strings.Builder
	ranges(&b, "numbers", 0, 1024, func(nr uint64) string { return verdict(t, prog, uint32(nr)) })
	one := func(nr uint32, index int) func(uint64) string {
		return func(v uint64) string {
			args := make([]uint64, 6)
			args[index] = v
			return verdict(t, prog, nr, args...)
		}
	}
	fmt.Fprintln(&b, "clone flags")
	for bit := range 40 {
		fmt.Fprintf(&b, "  %#x %s\n", uint64(1)<<bit, verdict(t, prog, unix.SYS_CLONE, 1<<bit))
	}
	ranges(&b, "ioctl requests 0x5400", 0x53ff, 0x5500, one(unix.SYS_IOCTL, 1))
	ranges(&b, "ioctl requests 0x5400, bit 32", 0x1000053ff, 0x100005500, one(unix.SYS_IOCTL, 1))
	ranges(&b, "prctl options", 0, 80, one(unix.SYS_PRCTL, 0))
	ranges(&b, "personality", 0, 0x30, one(unix.SYS_PERSONALITY, 0))
	for flags := range uint64(2) {
		ranges(&b, fmt.Sprintf("seccomp operation %d, flags", flags), 0, 0x40, func(v uint64) string {
			return verdict(t, prog, unix.SYS_SECCOMP, flags, v)
		})
	}
	for _, high := range []uint64{0, 1 << 32} {
		for kind := uint64(1); kind <= 6; kind++ {
			ranges(&b, fmt.Sprintf("socket families, type %d, high %#x", kind, high), 0, 50, func(family uint64) string {
				return verdict(t, prog, unix.SYS_SOCKET, high|family, high|kind|unix.SOCK_CLOEXEC, high)
			})
		}
		for _, family := range []uint64{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
			for kind := uint64(1); kind <= 3; kind++ {
				ranges(&b, fmt.Sprintf("socket %d type %d protocols, high %#x", family, kind, high), 0, 300, func(proto uint64) string {
					return verdict(t, prog, unix.SYS_SOCKET, family, kind|unix.SOCK_NONBLOCK, high|proto)
				})
			}
		}
	}
	for _, level := range []uint64{0, 1, 6, 17, 41, 132, 136, 255, 263, 270, 282} {
		ranges(&b, fmt.Sprintf("setsockopt level %d", level), 0, 128, func(option uint64) string {
			return verdict(t, prog, unix.SYS_SETSOCKOPT, 0, level, option)
		})
	}
	return b.String()
}

// TestFiltersAreGolden: a rule that is added or lost shows in review.
func TestFiltersAreGolden(t *testing.T) {
	commands, init := bothFilters(t)
	for name, prog := range map[string]filters{"exec": commands, "init": init} {
		got := describe(t, prog)
		golden := filepath.Join("testdata", name+"-filter-amd64.golden")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from %s; if that is meant, run go test -run Golden -update and look at the diff", name, golden)
		}
		// Another architecture's calls, whatever their numbers.
		answer, err := bpf.Eval(prog[0], bpf.Data{Nr: 1, Arch: unix.AUDIT_ARCH_I386})
		if err != nil || answer&unix.SECCOMP_RET_ACTION_FULL != unix.SECCOMP_RET_KILL_PROCESS {
			t.Errorf("%s: i386 gets %#x, %v", name, answer, err)
		}
	}
}

// TestFiltersHoldWhatTheyMust repeats the rules that matter most in words, so
// that a careless update of the golden files does not lose them.
func TestFiltersHoldWhatTheyMust(t *testing.T) {
	prog, _ := bothFilters(t)
	const high = 1 << 32
	for _, tc := range []struct {
		nr   uint32
		args []uint64
		want string
	}{
		{unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD}, "allow"},
		{unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, "notice"},
		{unix.SYS_CLONE, []uint64{high | unix.CLONE_NEWTIME}, "notice"},
		{unix.SYS_CLONE3, nil, "ENOSYS"},
		{unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWUSER}, "notice"},
		{unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, "EPERM"},
		{unix.SYS_IOCTL, []uint64{0, high | unix.TIOCSTI}, "EPERM"},
		{unix.SYS_IOCTL, []uint64{0, unix.TIOCLINUX}, "EPERM"},
		{unix.SYS_IOCTL, []uint64{0, unix.TIOCCONS}, "EPERM"},
		{unix.SYS_IOCTL, []uint64{0, unix.TIOCSETD}, "EPERM"},
		{unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, "allow"},
		{unix.SYS_IOCTL, []uint64{0, unix.TIOCGPTN}, "allow"},
		{unix.SYS_SOCKET, []uint64{unix.AF_PACKET, unix.SOCK_RAW}, "EAFNOSUPPORT"},
		{unix.SYS_SOCKET, []uint64{high | unix.AF_PACKET, unix.SOCK_RAW}, "EAFNOSUPPORT"},
		{unix.SYS_SOCKET, []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, "EAFNOSUPPORT"},
		{unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 262}, "EAFNOSUPPORT"},
		{unix.SYS_SETSOCKOPT, []uint64{0, unix.IPPROTO_TCP, unix.TCP_ULP}, "EPERM"},
		{unix.SYS_SETSOCKOPT, []uint64{0, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, "EPERM"},
		{unix.SYS_SETSOCKOPT, []uint64{0, unix.IPPROTO_IP, 64}, "EPERM"},
		{unix.SYS_SETSOCKOPT, []uint64{0, unix.SOL_SOCKET, unix.SO_REUSEADDR}, "allow"},
		{unix.SYS_PRCTL, []uint64{unix.PR_SET_SECCOMP}, "EPERM"},
		{unix.SYS_PRCTL, []uint64{unix.PR_SET_PTRACER}, "EPERM"},
		{unix.SYS_SECCOMP, []uint64{1, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER}, "EPERM"},
		{unix.SYS_PTRACE, nil, "notice"},
		{unix.SYS_BPF, nil, "notice"},
		{unix.SYS_MOUNT, nil, "notice"},
		{unix.SYS_LISTEN, []uint64{high, high}, "notice"},
		{unix.SYS_SETRESUID, nil, "EPERM"},
		{unix.SYS_CAPSET, nil, "EPERM"},
		{unix.SYS_KEYCTL, nil, "ENOSYS"},
		{unix.SYS_IO_URING_SETUP, nil, "ENOSYS"},
		{unix.SYS_MKNOD, []uint64{0, unix.S_IFIFO | 0o644}, "allow"},
		{unix.SYS_MKNOD, []uint64{0, unix.S_IFCHR | 0o644}, "notice"},
		{unix.SYS_MKNODAT, []uint64{0, 0, high | unix.S_IFBLK}, "notice"},
		{unix.SYS_REBOOT, nil, "kill"},
		{999, nil, "ENOSYS"},
		{0x40000000 | unix.SYS_GETPID, nil, "kill"},
	} {
		if got := verdict(t, prog, tc.nr, tc.args...); got != tc.want {
			t.Errorf("%d %#x: %s, want %s", tc.nr, tc.args, got, tc.want)
		}
	}
}
