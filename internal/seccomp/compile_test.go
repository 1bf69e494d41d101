package seccomp

import (
	"errors"
	"testing"

	scmp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp/bpf"
)

// fionbio is an ioctl that x/sys does not name.
const fionbio = 0x5421

// sample uses every kind of entry a Filter has.
func sample() *Filter {
	return &Filter{
		Allow: []string{"read", "write", "exit_group", "close"},
		AllowIf: []Rule{
			{Name: "socket", Args: []Arg{Is(0, unix.AF_UNIX), Is(2, 0)}},
			{Name: "socket", Args: []Arg{Is(0, unix.AF_INET), Masked(1, 0xf, unix.SOCK_STREAM), Is(2, 0)}},
			{Name: "socket", Args: []Arg{Is(0, unix.AF_INET), Masked(1, 0xf, unix.SOCK_STREAM), Is(2, unix.IPPROTO_TCP)}},
			{Name: "clone", Args: []Arg{Masked(0, 0x7E020080, 0)}},
			{Name: "prlimit64", Args: []Arg{Is64(2, 0)}},
			{Name: "madvise", Args: []Arg{Is(2, unix.MADV_DONTNEED)}},
			{Name: "mknod", Args: []Arg{Masked(1, unix.S_IFMT, unix.S_IFIFO)}},
		},
		DenyIf: []Denial{
			{Rule: Rule{Name: "socket", Args: []Arg{Is(0, unix.AF_INET), Masked(1, 0xf, unix.SOCK_RAW)}}, Errno: unix.EPERM},
			{Rule: Rule{Name: "socket", Args: []Arg{Is(0, unix.AF_INET), Masked(1, 0xf, unix.SOCK_STREAM), Is(2, 262)}}, Errno: unix.EPROTONOSUPPORT},
		},
		Errno: map[string]unix.Errno{
			"socket": unix.EAFNOSUPPORT, "ptrace": unix.EPERM, "clone3": unix.ENOSYS, "madvise": unix.EINVAL,
		},
		Notify: []string{"listen", "mknod"},
		Kill:   []string{"reboot"},
	}
}

func number(t *testing.T, name string) uint32 {
	t.Helper()
	nr, err := scmp.GetSyscallFromName(name)
	if err != nil {
		t.Fatalf("number of %s: %v", name, err)
	}
	return uint32(nr)
}

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

func TestCompiledProgramAnswers(t *testing.T) {
	prog, err := Compile(sample())
	if err != nil {
		t.Fatal(err)
	}
	const high = 1 << 32
	const allow = unix.SECCOMP_RET_ALLOW
	tests := []struct {
		call string
		args [6]uint64
		want uint32
	}{
		{"read", [6]uint64{}, allow},
		{"open", [6]uint64{}, errno(unix.ENOSYS)},
		{"io_uring_setup", [6]uint64{}, errno(unix.ENOSYS)},
		{"clone3", [6]uint64{}, errno(unix.ENOSYS)},
		{"ptrace", [6]uint64{}, errno(unix.EPERM)},
		{"reboot", [6]uint64{}, unix.SECCOMP_RET_KILL_PROCESS},
		{"socket", [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, allow},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0}, allow},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, allow},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, 262}, errno(unix.EPROTONOSUPPORT)},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_RAW, 1}, errno(unix.EPERM)},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_RAW | unix.SOCK_NONBLOCK, 1}, errno(unix.EPERM)},
		{"socket", [6]uint64{unix.AF_PACKET, unix.SOCK_RAW, 0}, errno(unix.EAFNOSUPPORT)},
		{"socket", [6]uint64{38, unix.SOCK_SEQPACKET, 0}, errno(unix.EAFNOSUPPORT)},
		// The kernel cuts these to 32 bits; the filter must see what it sees.
		{"socket", [6]uint64{high | unix.AF_PACKET, unix.SOCK_RAW, 0}, errno(unix.EAFNOSUPPORT)},
		{"socket", [6]uint64{high | unix.AF_UNIX, unix.SOCK_STREAM, high}, allow},
		{"socket", [6]uint64{high | unix.AF_INET, high | unix.SOCK_RAW, 1}, errno(unix.EPERM)},
		{"clone", [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD}, allow},
		{"clone", [6]uint64{unix.CLONE_NEWUSER}, errno(unix.EPERM)},
		{"clone", [6]uint64{high | unix.CLONE_NEWNET}, errno(unix.EPERM)},
		{"prlimit64", [6]uint64{0, 7, 0, 0x1000}, allow},
		{"prlimit64", [6]uint64{0, 7, 0x7f0000000000, 0}, errno(unix.EPERM)},
		{"prlimit64", [6]uint64{0, 7, high, 0}, errno(unix.EPERM)},
		{"madvise", [6]uint64{0, 0, unix.MADV_DONTNEED}, allow},
		{"madvise", [6]uint64{0, 0, unix.MADV_HWPOISON}, errno(unix.EINVAL)},
		{"listen", [6]uint64{}, unix.SECCOMP_RET_USER_NOTIF},
		{"listen", [6]uint64{high, high}, unix.SECCOMP_RET_USER_NOTIF},
		{"mknod", [6]uint64{0, unix.S_IFIFO | 0o600}, allow},
		{"mknod", [6]uint64{0, unix.S_IFCHR | 0o600}, unix.SECCOMP_RET_USER_NOTIF},
		{"mknod", [6]uint64{0, high | unix.S_IFBLK}, unix.SECCOMP_RET_USER_NOTIF},
	}
	for _, tt := range tests {
		got, err := bpf.Eval(prog, bpf.Data{Nr: number(t, tt.call), Arch: Arch(), Args: tt.args})
		if err != nil || got != tt.want {
			t.Errorf("%s%#x: got %#x, %v; want %#x", tt.call, tt.args, got, err, tt.want)
		}
	}
}

// Numbers that this libseccomp has never heard of, and those of other ABIs.
func TestUnknownAndForeignNumbers(t *testing.T) {
	prog, err := Compile(sample())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		d    bpf.Data
		want uint32
	}{
		{"mseal", bpf.Data{Nr: 462, Arch: Arch()}, errno(unix.ENOSYS)},
		{"999", bpf.Data{Nr: 999, Arch: Arch()}, errno(unix.ENOSYS)},
		{"just below x32", bpf.Data{Nr: 0x3fffffff, Arch: Arch()}, errno(unix.ENOSYS)},
		{"x32 read", bpf.Data{Nr: 0x40000000, Arch: unix.AUDIT_ARCH_X86_64}, unix.SECCOMP_RET_KILL_PROCESS},
		// libseccomp exempts -1, the number a tracer sets to skip a call, from
		// its x32 check.
		{"minus one", bpf.Data{Nr: 0xffffffff, Arch: Arch()}, errno(unix.ENOSYS)},
		{"int 0x80", bpf.Data{Nr: 3, Arch: unix.AUDIT_ARCH_I386}, unix.SECCOMP_RET_KILL_PROCESS},
	}
	for _, tt := range tests {
		got, err := bpf.Eval(prog, tt.d)
		if err != nil || got != tt.want {
			t.Errorf("%s: got %#x, %v; want %#x", tt.name, got, err, tt.want)
		}
	}
}

// Two calls in one part must not lend each other their rules, and a call with
// no rule of its own must never reach a part.
func TestRulesStayWithTheirCall(t *testing.T) {
	prog, err := Compile(&Filter{AllowIf: []Rule{
		{Name: "fcntl", Args: []Arg{Is(1, unix.F_GETFL)}},
		{Name: "ioctl", Args: []Arg{Is(1, fionbio)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for call, want := range map[string]uint32{
		"fcntl": errno(unix.EPERM), "ioctl": unix.SECCOMP_RET_ALLOW, "prctl": errno(unix.ENOSYS),
	} {
		got, err := bpf.Eval(prog, bpf.Data{Nr: number(t, call), Arch: Arch(), Args: [6]uint64{0, fionbio}})
		if err != nil || got != want {
			t.Errorf("%s: got %#x, %v; want %#x", call, got, err, want)
		}
	}
}

func TestCompileIsDeterministic(t *testing.T) {
	first, err := Compile(sample())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		again, err := Compile(sample())
		if err != nil {
			t.Fatal(err)
		}
		if string(Marshal(first)) != string(Marshal(again)) {
			t.Fatal("the same list gave two programs")
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	arg := []Arg{Is(0, 1)}
	tests := map[string]*Filter{
		"twice":            {Allow: []string{"read", "read"}},
		"allow and errno":  {Allow: []string{"read"}, Errno: map[string]unix.Errno{"read": unix.EPERM}},
		"allow and notify": {Allow: []string{"read"}, Notify: []string{"read"}},
		"errno and notify": {Errno: map[string]unix.Errno{"read": unix.EPERM}, Notify: []string{"read"}},
		"all three": {
			AllowIf: []Rule{{Name: "read", Args: arg}}, Errno: map[string]unix.Errno{"read": unix.EPERM}, Notify: []string{"read"},
		},
		"allow and kill":      {Allow: []string{"read"}, Kill: []string{"read"}},
		"allow and allow if":  {Allow: []string{"read"}, AllowIf: []Rule{{Name: "read", Args: arg}}},
		"rule without args":   {AllowIf: []Rule{{Name: "read"}}},
		"argument 6":          {AllowIf: []Rule{{Name: "read", Args: []Arg{Is(6, 0)}}}},
		"empty mask":          {AllowIf: []Rule{{Name: "read", Args: []Arg{Masked(0, 0, 0)}}}},
		"value outside mask":  {AllowIf: []Rule{{Name: "read", Args: []Arg{Masked(0, 1, 2)}}}},
		"argument twice":      {AllowIf: []Rule{{Name: "read", Args: []Arg{Is(0, 1), Is(0, 2)}}}},
		"deny without allow":  {DenyIf: []Denial{{Rule: Rule{Name: "read", Args: arg}, Errno: unix.EPERM}}},
		"errno zero":          {Errno: map[string]unix.Errno{"read": 0}},
		"errno beyond kernel": {Errno: map[string]unix.Errno{"read": 5000}},
		"deny overlaps allow": {
			AllowIf: []Rule{{Name: "read", Args: []Arg{Is(0, 1)}}},
			DenyIf:  []Denial{{Rule: Rule{Name: "read", Args: []Arg{Is(1, 1)}}, Errno: unix.EIO}},
		},
		"denials contradict": {
			AllowIf: []Rule{{Name: "read", Args: []Arg{Is(0, 1)}}},
			DenyIf: []Denial{
				{Rule: Rule{Name: "read", Args: []Arg{Is(0, 2)}}, Errno: unix.EIO},
				{Rule: Rule{Name: "read", Args: []Arg{Is(0, 2)}}, Errno: unix.EBADF},
			},
		},
	}
	for name, f := range tests {
		var list *ListError
		if _, err := Compile(f); !errors.As(err, &list) {
			t.Errorf("%s: got %v, want a *ListError", name, err)
		}
	}
	var unknown *UnknownError
	if _, err := Compile(&Filter{Allow: []string{"read", "reed"}}); !errors.As(err, &unknown) || unknown.Name != "reed" {
		t.Errorf("unknown name: got %v, want an *UnknownError for reed", err)
	}
}

// A call of another architecture may be listed; here it has no number.
func TestCallsOfOtherArchitecturesAreLeftOut(t *testing.T) {
	nums, err := resolve(plan{"read": {}, "arm_fadvise64_64": {}})
	if err != nil {
		t.Fatal(err)
	}
	if len(nums) != 1 {
		t.Errorf("got %v, want read alone", nums)
	}
}

// verify is what guards against a broken library; it must notice a program that
// differs from the list in one instruction.
func TestVerifyNoticesEveryChangedAnswer(t *testing.T) {
	f := sample()
	prog, err := Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(f)
	if err != nil {
		t.Fatal(err)
	}
	nums, err := resolve(p)
	if err != nil {
		t.Fatal(err)
	}
	reached := 0
	for pc, in := range prog {
		if in.Code != unix.BPF_RET|unix.BPF_K {
			continue
		}
		changed := append([]unix.SockFilter(nil), prog...)
		changed[pc].K ^= unix.SECCOMP_RET_LOG
		if p.verify(nums, changed) != nil {
			reached++
		} else if in.K != unix.SECCOMP_RET_KILL_PROCESS {
			// Only the parts' own architecture checks are dead code.
			t.Errorf("instruction %d (ret %#x) can change unnoticed", pc, in.K)
		}
	}
	if reached < 6 {
		t.Errorf("only %d answers matter, expected at least one for each kind", reached)
	}
}
