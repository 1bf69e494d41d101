package seccomp

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	scmp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp/bpf"
)

// binaryTree makes libseccomp search the system call number in a tree instead
// of a list: 2.5 or newer.
const binaryTree = 2

// Compile makes the program of f for this machine's architecture. Calls that
// this architecture never had (open on arm64) are left out. The errors are
// *ListError for a contradiction in f and *UnknownError for a name that
// libseccomp does not know.
//
// libseccomp has one default answer for a whole program, and we need two: calls
// that are not listed are ENOSYS, arguments that no rule allows are EPERM or
// what the list says. So the names become one program (the gate), the argument
// rules one program for each answer, and the gate jumps into those.
func Compile(f *Filter) ([]unix.SockFilter, error) {
	p, err := newPlan(f)
	if err != nil {
		return nil, err
	}
	nums, err := resolve(p)
	if err != nil {
		return nil, err
	}
	prog, err := p.link(nums)
	if err != nil {
		return nil, err
	}
	if err := p.verify(nums, prog); err != nil {
		return nil, fmt.Errorf("seccomp: the compiled program is not the list: %w", err)
	}
	return prog, nil
}

// resolve finds the numbers of the plan's names.
func resolve(p plan) (map[string]scmp.ScmpSyscall, error) {
	nums := make(map[string]scmp.ScmpSyscall, len(p))
	for _, name := range slices.Sorted(maps.Keys(p)) {
		nr, err := scmp.GetSyscallFromName(name)
		if errors.Is(err, scmp.ErrSyscallDoesNotExist) {
			major, minor, micro := scmp.GetLibraryVersion()
			return nil, &UnknownError{Name: name, Library: fmt.Sprintf("%d.%d.%d", major, minor, micro)}
		}
		if err != nil {
			return nil, fmt.Errorf("seccomp: system call %q: %w", name, err)
		}
		if nr >= 0 { // a negative number stands for a call of other architectures
			nums[name] = nr
		}
	}
	return nums, nil
}

// link compiles the parts of p and joins them. The gate answers a call with
// argument rules by RET TRACE|i, which no other rule uses; that instruction is
// replaced, in place, by a jump to part i. Each part begins with libseccomp's
// own check of the architecture.
func (p plan) link(nums map[string]scmp.ScmpSyscall) ([]unix.SockFilter, error) {
	fallbacks := p.fallbacks(nums)
	prog, err := p.gate(nums, fallbacks)
	if err != nil {
		return nil, err
	}
	starts := make([]int, len(fallbacks))
	gateLen := len(prog)
	for i, fallback := range fallbacks {
		part, err := p.part(nums, fallback)
		if err != nil {
			return nil, err
		}
		starts[i] = len(prog)
		prog = append(prog, part...)
	}
	for pc, in := range prog[:gateLen] {
		if in.Code != unix.BPF_RET|unix.BPF_K || in.K&unix.SECCOMP_RET_ACTION_FULL != unix.SECCOMP_RET_TRACE {
			continue
		}
		to := starts[in.K&unix.SECCOMP_RET_DATA]
		prog[pc] = unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(to - pc - 1)}
	}
	if len(prog) > bpf.MaxLen {
		return nil, &ListError{Name: "filter", Problem: fmt.Sprintf("%d instructions are more than the kernel's %d", len(prog), bpf.MaxLen)}
	}
	return prog, nil
}

// fallbacks lists the different answers for arguments that no rule allows.
func (p plan) fallbacks(nums map[string]scmp.ScmpSyscall) []scmp.ScmpAction {
	var out []scmp.ScmpAction
	for name := range nums {
		if v := p[name]; len(v.rules) > 0 && !slices.Contains(out, v.fallback()) {
			out = append(out, v.fallback())
		}
	}
	slices.Sort(out) // the same list gives the same program
	return out
}

// fallback is the answer to arguments that no rule allows.
func (v *verdict) fallback() scmp.ScmpAction {
	if v.notify {
		return scmp.ActNotify
	}
	return errnoAction(v.errno)
}

// gate compiles the names alone.
func (p plan) gate(nums map[string]scmp.ScmpSyscall, fallbacks []scmp.ScmpAction) ([]unix.SockFilter, error) {
	b, err := newBuilder(errnoAction(unix.ENOSYS))
	if err != nil {
		return nil, err
	}
	defer b.release()
	for _, name := range slices.Sorted(maps.Keys(nums)) {
		v := p[name]
		action := errnoAction(v.errno)
		switch {
		case len(v.rules) > 0:
			action = scmp.ActTrace.SetReturnCode(int16(slices.Index(fallbacks, v.fallback())))
		case v.kill:
			action = scmp.ActKillProcess
		case v.notify:
			action = scmp.ActNotify
		case v.errno == 0:
			action = scmp.ActAllow
		}
		if err := b.add(name, nums[name], action, nil); err != nil {
			return nil, err
		}
	}
	return b.export()
}

// part compiles the argument rules of the calls that have this fallback.
func (p plan) part(nums map[string]scmp.ScmpSyscall, fallback scmp.ScmpAction) ([]unix.SockFilter, error) {
	b, err := newBuilder(fallback)
	if err != nil {
		return nil, err
	}
	defer b.release()
	for _, name := range slices.Sorted(maps.Keys(nums)) {
		v := p[name]
		if len(v.rules) == 0 || v.fallback() != fallback {
			continue
		}
		for _, r := range v.rules {
			if err := b.add(name, nums[name], scmp.ActAllow, r.Args); err != nil {
				return nil, err
			}
		}
		for _, d := range v.denials {
			if err := b.add(name, nums[name], errnoAction(d.Errno), d.Args); err != nil {
				return nil, err
			}
		}
	}
	return b.export()
}

func errnoAction(e unix.Errno) scmp.ScmpAction {
	return scmp.ActErrno.SetReturnCode(int16(e))
}

// builder is one libseccomp filter in the making.
type builder struct {
	filter *scmp.ScmpFilter
	base   scmp.ScmpAction
}

func newBuilder(action scmp.ScmpAction) (*builder, error) {
	filter, err := scmp.NewFilter(action)
	if err != nil {
		return nil, fmt.Errorf("seccomp: new filter: %w", err)
	}
	b := &builder{filter: filter, base: action}
	if err := filter.SetBadArchAction(scmp.ActKillProcess); err != nil {
		b.release()
		return nil, fmt.Errorf("seccomp: action for other architectures: %w", err)
	}
	if err := filter.SetOptimize(binaryTree); err != nil {
		b.release()
		return nil, fmt.Errorf("seccomp: binary tree: %w", err)
	}
	return b, nil
}

func (b *builder) release() { b.filter.Release() }

func (b *builder) add(name string, nr scmp.ScmpSyscall, action scmp.ScmpAction, args []Arg) error {
	if action == b.base {
		return nil // libseccomp refuses a rule that says what the default says
	}
	conds := make([]scmp.ScmpCondition, 0, len(args))
	for _, a := range args {
		cond, err := scmp.MakeCondition(a.Index, scmp.CompareMaskedEqual, a.Mask, a.Value)
		if err != nil {
			return fmt.Errorf("seccomp: rule for %s: %w", name, err)
		}
		conds = append(conds, cond)
	}
	// Exact: libseccomp must not widen a rule to what it can express.
	if err := b.filter.AddRuleConditionalExact(nr, action, conds); err != nil {
		return fmt.Errorf("seccomp: rule for %s: %w", name, err)
	}
	return nil
}

// export reads the program back through a memory file: libseccomp before 2.6
// writes to descriptors only.
func (b *builder) export() ([]unix.SockFilter, error) {
	fd, err := unix.MemfdCreate("seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("seccomp: memory file: %w", err)
	}
	file := os.NewFile(uintptr(fd), "seccomp")
	defer file.Close()
	if err := b.filter.ExportBPF(file); err != nil {
		return nil, fmt.Errorf("seccomp: export: %w", err)
	}
	raw, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("seccomp: export: %w", err)
	}
	return bpf.Unmarshal(raw)
}
