package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/ipc"
	"sandboxd/jail/rootfs"
	"sandboxd/jail/sys"
)

// A jail of a template has these layers, the topmost first: with WritableRoot the
// tenant's own, on its disk; the jail's own part of /etc; the template's. The
// last come as idmapped mounts: the same files, in each jail as its own root's.
// Without WritableRoot there is no layer to write to.

// hostTemplate is Spec.Template's default.
const hostTemplate = rootfs.HostName

// Templates is the store of root file systems.
func (m *Manager) Templates() *rootfs.Store { return m.templates }

func (m *Manager) openTemplates() (err error) {
	dir := m.cfg.TemplatesDir
	if dir == "" {
		dir = filepath.Join(m.cfg.StateDir, "templates")
	}
	limits := m.cfg.TemplateLimits
	if limits == (rootfs.Limits{}) {
		limits = rootfs.DefaultLimits()
	}
	m.templates, err = rootfs.Open(dir, limits)
	return err
}

// openTemplate finds the jail's template and holds its layers.
func (j *Jail) openTemplate() error {
	name := j.spec.Template
	if name == "" || name == hostTemplate {
		if j.spec.WritableRoot {
			return &SpecError{Field: "template", Message: "the host's own system is never writable; ask for an imported template"}
		}
		return nil
	}
	t, err := j.m.templates.Get(name)
	if err == nil {
		j.layers, err = j.m.templates.Open(t)
	}
	if errors.Is(err, rootfs.ErrNotFound) {
		return &SpecError{Field: "template", Message: fmt.Sprintf("%q is not known; an administrator imports it with sandboxctl template import %s PATH", name, name)}
	}
	j.template = t
	return err
}

// closeTemplate lets go of the layers, when no mount has them any more.
func (j *Jail) closeTemplate() error {
	if j.layers == nil {
		return nil
	}
	return j.layers.Release()
}

// layerTrees are detached mounts of the template's layers, the topmost first,
// with the ids of the user namespace of sandbox-init, which is pid.
func (j *Jail) layerTrees(pid int) (out []*os.File, err error) {
	if j.template == nil {
		return nil, nil
	}
	defer func() {
		if err != nil {
			closeAll(out)
			out = nil
		}
	}()
	user, err := j.m.userNamespace(pid)
	if err != nil {
		return nil, fmt.Errorf("jail: user namespace: %w", err)
	}
	defer user.Close()
	ns := int(user.Fd())
	for _, layer := range j.layers.Files {
		tree, err := sys.MappedTree(int(layer.Fd()), attrRO, ns)
		if err != nil {
			return out, fmt.Errorf("jail: template %s: %w", j.template.Name, err)
		}
		out = append(out, os.NewFile(uintptr(tree), layer.Name()))
	}
	return out, nil
}

// rootMark is the file in the tenant's folder that says which template the
// writable root was made on: its ID and its name.
const rootMark = "root"

func (j *Jail) rootDir() string { return filepath.Join(j.filesDir(), "root") }

// makeRoot makes the folders of a writable root, on the tenant's disk.
func (j *Jail) makeRoot() error {
	if !j.spec.WritableRoot {
		return nil
	}
	if err := j.claimRoot(); err != nil {
		return err
	}
	if err := os.Mkdir(j.rootDir(), 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("jail: root: %w", err)
	}
	for _, dir := range []string{"upper", "work"} {
		dir = filepath.Join(j.rootDir(), dir)
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = errors.Join(os.Lchown(dir, int(j.uid), int(j.uid)), os.Chmod(dir, 0o755))
		}
		if err != nil {
			return fmt.Errorf("jail: root: %w", err)
		}
	}
	return j.refreshRoot()
}

// claimRoot sees to it that the writable root is one of this template: over
// other layers it would be of no use.
func (j *Jail) claimRoot() error {
	mark := filepath.Join(j.tenantDir(), rootMark)
	want := j.template.ID + " " + j.template.Name
	b, err := os.ReadFile(mark)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("jail: root: %w", err)
	}
	if has, name, ok := strings.Cut(string(b), " "); ok && has != j.template.ID && !j.spec.ResetRoot {
		if name == j.template.Name {
			name = "an earlier " + name
		}
		return &RootError{Has: name, Wants: j.template.Name}
	}
	if string(b) == want && !j.spec.ResetRoot {
		return nil
	}
	if err := removeAll(j.rootDir()); err != nil {
		return fmt.Errorf("jail: root: %w", err)
	}
	tmp := mark + ".new"
	if err := errors.Join(os.WriteFile(tmp, []byte(want), 0o600), os.Rename(tmp, mark)); err != nil {
		return fmt.Errorf("jail: root: %w", err)
	}
	return nil
}

// ownFiles are the files of /etc that are made anew for each jail.
var ownFiles = []string{"etc/resolv.conf", "etc/hosts", "etc/" + certificate}

// refreshRoot takes what an earlier jail's root has in place of this one's own
// files away. What leads there is hostile: it is not followed.
func (j *Jail) refreshRoot() error {
	upper, err := unix.Open(filepath.Join(j.rootDir(), "upper"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("jail: root: %w", err)
	}
	defer unix.Close(upper)
	for _, name := range ownFiles {
		dir, err := unix.Openat2(upper, filepath.Dir(name), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolveBeneath,
		})
		if err != nil {
			continue // not there, or no folder: then it is no file of ours either
		}
		err = unix.Unlinkat(dir, filepath.Base(name), 0)
		unix.Close(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("jail: root: /%s: %w", name, err)
		}
	}
	return nil
}

// templateEnv are the defaults of the template's commands.
func (j *Jail) templateEnv() map[string]string {
	if j.template == nil {
		return nil
	}
	return j.template.Env
}

// workingDir is where commands start that do not say where.
func (j *Jail) workingDir() string {
	if j.template != nil && j.template.WorkingDir != "" {
		return j.template.WorkingDir
	}
	return workspacePath
}

// ProbeTemplates tries out what jails of templates need of the kernel and of the
// store's file system: a mount of a folder with the ids of a user namespace.
func (m *Manager) ProbeTemplates() error {
	dir, err := os.Open(m.templates.Dir())
	if err != nil {
		return err
	}
	defer dir.Close()
	ns, err := m.mappedNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	tree, err := sys.MappedTree(int(dir.Fd()), attrRO, int(ns.Fd()))
	if err != nil {
		return err
	}
	return unix.Close(tree)
}

// userNamespace opens the user namespace of a sandbox-init, which waits to be
// reaped by us: the number is still its own. While its execve is not over, which
// nothing announces, the kernel takes its memory for ours, and refuses a daemon
// without CAP_SYS_PTRACE once a role has taken its own user there: so it is asked
// again, for the milliseconds that takes.
func (m *Manager) userNamespace(pid int) (*os.File, error) {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		ns, err := unix.Openat(m.proc, strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(ns), "user namespace"), nil
		}
		if !errors.Is(err, unix.EACCES) || time.Now().After(end) {
			return nil, err
		}
	}
}

// mappedNamespace makes a user namespace with ids that are nobody's: that of a
// sandbox-init, as a jail's is.
func (m *Manager) mappedNamespace() (*os.File, error) {
	ours, theirs, err := ipc.Pair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	program := m.initProgram(int(theirs.Fd()))
	var child *sys.Child
	m.spawn.do(func() { child, err = program.Start(unix.CLONE_NEWUSER, -1) })
	theirs.Close()
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = unix.PidfdSendSignal(child.PidFD, unix.SIGKILL, nil, 0)
		unix.Wait4(child.Pid, nil, unix.WALL, nil)
		child.Finish()
		unix.Close(child.PidFD)
	}()
	pid := strconv.Itoa(child.Pid)
	if err := m.writeProc(pid+"/uid_map", fmt.Sprintf("0 %d 1\n", m.cfg.UIDBase-1)); err != nil {
		return nil, err
	}
	if err := m.writeProc(pid+"/gid_map", fmt.Sprintf("0 %d 1\n", m.cfg.UIDBase-1)); err != nil {
		return nil, err
	}
	return m.userNamespace(child.Pid)
}
