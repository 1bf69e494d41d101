package jail

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/jail/sys"
)

// The self-check. Sandbox-init says when it is ready; whether it is, the daemon
// reads from its own procfs, thread by thread. Nothing in it is taken on
// sandbox-init's word but the Landlock version, which procfs does not show.

// verify compares a ready jail with what was asked for.
func (j *Jail) verify() error {
	if want := min(sys.LandlockABI(), sys.LandlockKnown); j.landlock != want {
		return &SelfCheckError{"Landlock version", strconv.Itoa(j.landlock), strconv.Itoa(want)}
	}
	for _, check := range []func() error{j.verifyRoot, j.verifyListener, j.verifyMaps, j.verifyThreads, j.verifyMounts, j.verifyFiles} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// verifyRoot makes sure that the file API works in the overlay.
func (j *Jail) verifyRoot() error {
	var st unix.Statfs_t
	raw, err := j.root.SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), &st) })
	}
	if err != nil || st.Type != unix.OVERLAYFS_SUPER_MAGIC {
		return &SelfCheckError{"root", fmt.Sprintf("file system %#x (%v)", st.Type, err), "overlay"}
	}
	return nil
}

// verifyListener makes sure that what came with the root is the listener.
func (j *Jail) verifyListener() error { return checkListener(j.listener) }

func (j *Jail) verifyMaps() error {
	for _, file := range []string{"uid_map", "gid_map"} {
		b, err := j.m.procFile(fmt.Sprintf("%d/%s", j.pid, file))
		if err != nil {
			return err
		}
		got := strings.Join(strings.Fields(string(b)), " ")
		if want := fmt.Sprintf("0 %d %d", j.uid, uidRange); got != want {
			return &SelfCheckError{file, got, want}
		}
	}
	return nil
}

// verifyThreads looks at each thread of sandbox-init: capabilities, seccomp and
// no_new_privs belong to threads, not to processes.
func (j *Jail) verifyThreads() error {
	dir := fmt.Sprintf("%d/task", j.pid)
	names, err := j.m.procList(dir)
	if err != nil {
		return err
	}
	kept := fmt.Sprintf("%016x", keptCaps)
	for _, tid := range names {
		err := j.checkStatus(dir+"/"+tid+"/status", statusWant{uid: j.uid, gid: j.uid, caps: kept, filters: 1})
		if os.IsNotExist(err) {
			continue // a thread that ended
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type statusWant struct {
	uid, gid uint32
	caps     string
	filters  int // beside the daemon's own
}

func (j *Jail) checkStatus(path string, want statusWant) error {
	s, err := j.m.readProc(path)
	if err != nil {
		return err
	}
	const none = "0000000000000000"
	four := func(id uint32) string { return strings.TrimSuffix(strings.Repeat(fmt.Sprint(id)+" ", 4), " ") }
	for _, c := range []struct{ field, want string }{
		{"Uid", four(want.uid)}, {"Gid", four(want.gid)}, {"Groups", ""},
		{"CapInh", none}, {"CapPrm", want.caps}, {"CapEff", want.caps}, {"CapBnd", none}, {"CapAmb", none},
		{"NoNewPrivs", "1"}, {"Seccomp", "2"}, {"Seccomp_filters", strconv.Itoa(j.m.host.filters + want.filters)},
	} {
		if got := strings.Join(strings.Fields(s[c.field]), " "); got != c.want {
			return &SelfCheckError{c.field, got, c.want}
		}
	}
	return nil
}

// mountWant says what a mount of a jail must be.
type mountWant struct {
	fstype   string // "" for the host's
	writable bool
	device   bool // nodev is not set
	exec     bool // noexec is not set
}

func (j *Jail) mountsWanted() map[string]mountWant {
	want := map[string]mountWant{
		"/":          {fstype: "overlay", writable: j.template == nil || j.spec.WritableRoot, exec: true},
		"/proc":      {fstype: "proc", writable: true},
		"/dev":       {fstype: "tmpfs", exec: true},
		"/dev/pts":   {fstype: "devpts", writable: true, device: true},
		"/dev/shm":   {fstype: "tmpfs", writable: true, exec: true},
		"/tmp":       {fstype: "tmpfs", writable: true, exec: true},
		"/var/tmp":   {fstype: "tmpfs", writable: true, exec: true},
		"/workspace": {writable: true, exec: true},
		"/home/user": {writable: true, exec: true},
	}
	if j.template == nil {
		want["/usr"] = mountWant{exec: true}
		if j.m.host.opt {
			want["/opt"] = mountWant{exec: true}
		}
	}
	for name := range devices {
		want["/dev/"+name] = mountWant{writable: true, device: true}
	}
	for _, name := range j.m.host.readOnly {
		want["/proc/"+name] = mountWant{fstype: "proc"}
	}
	for _, name := range append(slices.Clone(j.m.host.maskFiles), j.m.host.maskDirs...) {
		want["/proc/"+name] = mountWant{fstype: "tmpfs", exec: true}
	}
	return want
}

// verifyMounts compares every mount of the jail.
func (j *Jail) verifyMounts() error {
	b, err := j.m.procFile(fmt.Sprintf("%d/mountinfo", j.pid))
	if err != nil {
		return err
	}
	want := j.mountsWanted()
	missing := len(want)
	for line := range strings.Lines(string(b)) {
		mount, err := parseMount(line)
		if err != nil {
			return err
		}
		w, ok := want[mount.point]
		if ok {
			missing--
		} else if j.template == nil && (strings.HasPrefix(mount.point, "/usr/") || strings.HasPrefix(mount.point, "/opt/")) {
			w = mountWant{exec: true} // the host's own mounts below
		} else {
			return &SelfCheckError{"mount", mount.point, "none"}
		}
		if err := mount.check(w); err != nil {
			return err
		}
	}
	if missing != 0 {
		return &SelfCheckError{"mounts", fmt.Sprintf("%d of %d", len(want)-missing, len(want)), "all"}
	}
	return nil
}

// mountLine is a line of mountinfo.
type mountLine struct {
	point, fstype string
	options       []string
	propagation   []string
}

func parseMount(line string) (mountLine, error) {
	f := strings.Fields(line)
	sep := slices.Index(f, "-")
	if sep < 6 || len(f) < sep+2 {
		return mountLine{}, fmt.Errorf("jail: mountinfo line %q", line)
	}
	return mountLine{point: f[4], options: strings.Split(f[5], ","), propagation: f[6:sep], fstype: f[sep+1]}, nil
}

func (l mountLine) check(w mountWant) error {
	fail := func(want string) error {
		return &SelfCheckError{"mount " + l.point, l.fstype + " " + strings.Join(append(l.options, l.propagation...), ","), want}
	}
	has := func(option string) bool { return slices.Contains(l.options, option) }
	switch {
	case w.fstype != "" && w.fstype != l.fstype:
		return fail(w.fstype)
	case has("rw") != w.writable:
		return fail(fmt.Sprintf("writable: %v", w.writable))
	case !has("nosuid"):
		return fail("nosuid")
	case !has("nodev") && !w.device:
		return fail("nodev")
	case !has("noexec") && !w.exec:
		return fail("noexec")
	case len(l.propagation) > 0:
		return fail("private")
	}
	return nil
}

// verifyFiles compares sandbox-init's descriptors: /dev/null three times, the
// socket, and what the Go runtime makes for its poller.
func (j *Jail) verifyFiles() error {
	dir := fmt.Sprintf("%d/fd", j.pid)
	names, err := j.m.procList(dir)
	if err != nil {
		return err
	}
	sockets := 0
	for _, fd := range names {
		buf := make([]byte, 256)
		n, err := unix.Readlinkat(j.m.proc, filepath.Join(dir, fd), buf)
		if err != nil {
			return fmt.Errorf("jail: descriptor %s: %w", fd, err)
		}
		switch target := string(buf[:n]); {
		case strings.HasPrefix(target, "socket:") && fd == "3":
			sockets++
		case target == "/dev/null" && (fd == "0" || fd == "1" || fd == "2"):
		case target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]":
		default:
			return &SelfCheckError{"descriptor " + fd, target, "none"}
		}
	}
	if sockets != 1 {
		return &SelfCheckError{"descriptor 3", "none", "socket"}
	}
	return nil
}

// procList lists a folder of the daemon's own procfs.
func (m *Manager) procList(path string) ([]string, error) {
	fd, err := unix.Openat2(m.proc, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, fmt.Errorf("jail: /proc/%s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("jail: /proc/%s: %w", path, err)
	}
	return names, nil
}

// verifyCommand looks at the first command's process while it stands at its
// gate: after this there is only execve.
func (j *Jail) verifyCommand(pid int, who *account) error {
	const none = "0000000000000000"
	want := statusWant{uid: j.uid + who.uid, gid: j.uid + who.gid, caps: none, filters: 2}
	if who.uid == 0 {
		want.filters++ // see sys.PretendOwners
	}
	return j.checkStatus(fmt.Sprintf("%d/status", pid), want)
}
