package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"sandboxd/jail/sys"
)

// Kinds of Config.Disk: what holds a tenant to its bytes and inodes on the disk.
const (
	// DiskAuto takes project quotas if the state's file system has them, else
	// images; with BestEffort, no images but none.
	DiskAuto = ""
	// DiskProject are project quotas: the state is on ext4 or xfs, mounted with
	// prjquota.
	DiskProject = "project"
	// DiskImage is an ext4 file system in a sparse file for each tenant, mounted
	// while it has a jail; a memory file system where the workspace is ephemeral.
	DiskImage = "image"
	// DiskNone holds nobody.
	DiskNone = "none"
)

const diskRemedy = "put the state on ext4 or xfs mounted with prjquota (ext4: made with -O project,quota), or install e2fsprogs and allow loop devices, or accept unenforced limits with limits: best-effort"

// chooseDisk finds out what this host can hold tenants with.
func (m *Manager) chooseDisk(context.Context) error {
	lacks := func(what string, err error) error {
		return &UnsupportedError{Feature: "a disk quota", Found: what + ": " + err.Error(), Needed: "project quotas or loop devices", Remedy: diskRemedy}
	}
	switch m.cfg.Disk {
	case DiskNone, DiskAuto, DiskProject, DiskImage:
	default:
		return &SpecError{Field: "Disk", Message: fmt.Sprintf("%q is none of project, image, none", m.cfg.Disk)}
	}
	project := m.probeProject()
	if project != nil {
		m.host.noProject = project.Error()
	}
	switch {
	case m.cfg.Disk == DiskNone && !m.cfg.BestEffort:
		return lacks("none is asked for", errors.New("limits are to be held"))
	case m.cfg.Disk == DiskNone:
		m.host.disk = DiskNone
	case m.cfg.Disk != DiskImage && project == nil:
		m.host.disk = DiskProject
	case m.cfg.Disk == DiskProject:
		return lacks("no project quotas", project)
	case m.cfg.Disk == DiskAuto && m.cfg.BestEffort:
		m.host.disk = DiskNone
	default:
		if err := m.probeImage(); err != nil {
			return lacks("no project quotas ("+project.Error()+") and no images", err)
		}
		m.host.disk = DiskImage
	}
	if m.host.disk != DiskNone {
		m.host.enforced = append(m.host.enforced, "disk", "inodes")
	}
	return nil
}

// Disk says what holds tenants to their disk limits (DiskProject, DiskImage or
// DiskNone), and why it is not project quotas.
func (m *Manager) Disk() (kind, why string) { return m.host.disk, m.host.noProject }

// DiskFull names the disk limit that the jail has come up against, "disk" or
// "inodes"; "" if neither or not known.
func (j *Jail) DiskFull() string {
	bytes, inodes := j.diskUsage()
	j.mu.Lock()
	defer j.mu.Unlock()
	// A twenty-fifth free is full: ext4 keeps a fiftieth back for itself, and the
	// last block is seldom got.
	const nearly = 25
	switch {
	case j.state != StateRunning && j.state != StateFrozen:
	case bytes >= j.limits.Disk-j.limits.Disk/nearly:
		return "disk"
	case inodes >= j.limits.Inodes-j.limits.Inodes/nearly:
		return "inodes"
	}
	return ""
}

// probeProject tries a project quota out: what was not seen to refuse a byte
// does not count.
func (m *Manager) probeProject() (err error) {
	dir := filepath.Join(m.cfg.StateDir, ".quota-probe")
	if err := removeAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeAll(dir)) }()
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Below all tenants' ids, which are their projects too.
	id, fd := m.cfg.UIDBase-1, int(d.Fd())
	if err := sys.SetProject(fd, id); err != nil {
		return fmt.Errorf("the state's file system has no projects: %w", err)
	}
	const limit = 256 << 10
	if err := sys.SetProjectQuota(fd, id, limit, 100); err != nil {
		return fmt.Errorf("it is not mounted with prjquota: %w", err)
	}
	defer sys.SetProjectQuota(fd, id, 0, 0)
	f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := quotaBoundWrite(f, 2*limit); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("it counts but does not refuse: %w", errors.Join(err, errors.New("more was written than allowed")))
	}
	return nil
}

// quotaBoundWrite writes n bytes as one before whom quotas do not give way.
func quotaBoundWrite(f *os.File, n int) error {
	runtime.LockOSThread()
	if err := setQuotaBound(true); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	_, err := f.Write(make([]byte, n))
	if back := setQuotaBound(false); back != nil {
		return back // the thread ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// openFiles opens the tenant's files, held to the limits.
func (j *Jail) openFiles() error {
	if err := os.Mkdir(j.hostFilesDir(), 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("jail: workspace: %w", err)
	}
	if j.m.host.disk == DiskImage {
		return j.openImage()
	}
	if j.m.host.disk == DiskProject {
		if err := j.openProject(); err != nil {
			return err
		}
	}
	f, err := os.Open(j.hostFilesDir())
	if err != nil {
		return fmt.Errorf("jail: workspace: %w", err)
	}
	j.setFiles(f)
	return nil
}

func (j *Jail) setFiles(f *os.File) {
	j.rootMu.Lock()
	defer j.rootMu.Unlock()
	j.files = f
}

// filesTree is the tenant's files as a detached mount.
func (j *Jail) filesTree() (int, error) {
	if j.m.host.disk == DiskImage {
		// The only mount there is: sandbox-init moves it, and what is reached by
		// our own descriptor stays the same.
		return unix.FcntlInt(j.files.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	return sys.Tree(int(j.files.Fd()), "", false, attrPlain)
}

// A tenant has two projects, its uid range's first two numbers: the files are in
// one, a restored copy grows in the other.

// openProject sees to it that the files are in a project, with its limits.
func (j *Jail) openProject() error {
	d, err := os.Open(j.hostFilesDir())
	if err != nil {
		return fmt.Errorf("jail: workspace: %w", err)
	}
	defer d.Close()
	id, err := sys.Project(int(d.Fd()))
	if err != nil {
		return fmt.Errorf("jail: project: %w", err)
	}
	if id != j.uid && id != j.uid+1 {
		if d, err = j.adopt(d); err != nil {
			return err
		}
		defer d.Close()
		id = j.uid
	}
	if err := sys.SetProjectQuota(int(d.Fd()), id, uint64(j.limits.Disk), uint64(j.limits.Inodes)); err != nil {
		return fmt.Errorf("jail: project quota: %w", err)
	}
	j.project = id
	return nil
}

// adopt puts files from before there were quotas into the tenant's project, by a
// copy: only what is made in a project's folder is wholly its own.
func (j *Jail) adopt(d *os.File) (*os.File, error) {
	names, err := d.Readdirnames(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return d, fmt.Errorf("jail: workspace: %w", err)
	}
	if len(names) == 0 {
		if err = sys.SetProject(int(d.Fd()), j.uid); err != nil {
			err = fmt.Errorf("jail: project: %w", err)
		}
		return d, err
	}
	j.m.log.Info("files from before there was a disk quota are copied into it", "tenant", j.tenant)
	staged := filepath.Join(j.tenantDir(), "files.new")
	err = removeAll(staged)
	if err == nil {
		err = j.m.makeStaged(staged, j.uid)
	}
	if err == nil {
		c := &treeCopy{ctx: context.Background(), uid: j.uid, limit: maxBytes}
		err = copyFolders(c, j.hostFilesDir(), staged)
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, staged, unix.AT_FDCWD, j.hostFilesDir(), unix.RENAME_EXCHANGE)
	}
	err = errors.Join(err, removeAll(staged))
	if err != nil {
		return d, fmt.Errorf("jail: copy into the quota: %w", err)
	}
	return os.Open(j.hostFilesDir())
}

// makeStaged makes the folder of a copy, in a project without limits so far.
func (m *Manager) makeStaged(dir string, project uint32) error {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	if m.host.disk != DiskProject {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := sys.SetProjectQuota(int(d.Fd()), project, 0, 0); err != nil {
		return err
	}
	return sys.SetProject(int(d.Fd()), project)
}

// otherProject is the one that the tenant's files are not in.
func (m *Manager) otherProject(tenant string, uid uint32) uint32 {
	if m.host.disk != DiskProject {
		return 0
	}
	d, err := os.Open(filepath.Join(m.tenantsDir(), tenant, "files"))
	if err != nil {
		return uid
	}
	defer d.Close()
	if id, err := sys.Project(int(d.Fd())); err == nil && id == uid {
		return uid + 1
	}
	return uid
}

// diskUsage is what the tenant's files take; -1 if this host cannot tell.
func (j *Jail) diskUsage() (bytes, inodes int64) {
	if j.m.host.disk == DiskNone {
		return -1, -1
	}
	// Not while it is taken down, or was.
	if !j.rootMu.TryRLock() {
		return -1, -1
	}
	defer j.rootMu.RUnlock()
	if j.rootGone || j.files == nil {
		return -1, -1
	}
	d := j.files
	switch j.m.host.disk {
	case DiskProject:
		if q, err := sys.ProjectQuota(int(d.Fd()), j.project); err == nil {
			return int64(q.Bytes), int64(q.Inodes)
		}
	case DiskImage:
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(d.Fd()), &st); err == nil {
			j.mu.Lock()
			limit := j.limits.Disk
			j.mu.Unlock()
			// What the file system takes for itself counts: it is full at the limit.
			own := max(limit-int64(st.Blocks)*st.Bsize, 0)
			return own + int64(st.Blocks-st.Bfree)*st.Bsize, int64(st.Files - st.Ffree)
		}
	}
	return -1, -1
}
