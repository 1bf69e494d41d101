package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// An image is a file system in a sparse file, StateDir/tenants/NAME/disk.img,
// that is mounted at the tenant's files while it has a jail. Only the kernel's
// file system driver writes it; a tenant never has its bytes. It is a copy of
// an empty one that is made once for each size.

// imageInode is how many bytes of an image there are for each inode of 256, at
// least.
const imageInode = 4096

const mkfs = "mkfs.ext4"

func (m *Manager) imagesDir() string { return filepath.Join(m.cfg.StateDir, "images") }

// probeImage tries out whether images can be made and mounted.
func (m *Manager) probeImage() error {
	if _, err := lookMkfs(); err != nil {
		return err
	}
	if err := os.MkdirAll(m.imagesDir(), 0o700); err != nil {
		return err
	}
	blank, err := m.blankImage(16<<20, 256)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(m.imagesDir(), "probe-")
	if err != nil {
		return err
	}
	if err := mountImageAt(blank, dir); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	return errors.Join(unmount(dir), os.Remove(dir))
}

// lookMkfs finds the program where a service's PATH may not lead.
func lookMkfs() (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path := filepath.Join(dir, mkfs); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return exec.LookPath(mkfs)
}

// blankImage is an empty file system of a size, made if there is none. Its inodes,
// fixed for good, take a sixteenth of it at most.
func (m *Manager) blankImage(size, inodes int64) (string, error) {
	inodes = min(inodes, size/imageInode)
	m.imageMu.Lock()
	defer m.imageMu.Unlock()
	path := filepath.Join(m.imagesDir(), fmt.Sprintf("%d-%d.img", size, inodes))
	if _, err := os.Lstat(path); err == nil {
		return path, nil
	}
	tool, err := lookMkfs()
	if err != nil {
		return "", err
	}
	tmp := path + ".new"
	if err := errors.Join(removeAll(tmp), os.WriteFile(tmp, nil, 0o600), os.Truncate(tmp, size)); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// A small journal, so that what a tenant keeps outlives a loss of power; no
	// blocks for root; nothing written that need not be.
	cmd := exec.CommandContext(ctx, tool, "-q", "-F", "-m", "0", "-N", fmt.Sprint(inodes), "-J", "size=4",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0", tmp)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w: %.200s", mkfs, err, out), removeAll(tmp))
	}
	return path, os.Rename(tmp, path)
}

// newImage makes an empty image at path.
func (m *Manager) newImage(path string, size, inodes int64) (err error) {
	blank, err := m.blankImage(size, inodes)
	if err != nil {
		return fmt.Errorf("jail: image: %w", err)
	}
	from, err := os.Open(blank)
	if err != nil {
		return fmt.Errorf("jail: image: %w", err)
	}
	defer from.Close()
	tmp := path + ".part"
	if err := removeAll(tmp); err != nil {
		return err
	}
	to, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("jail: image: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(int(from.Fd()), &st)
	if err == nil {
		c := &treeCopy{ctx: context.Background(), limit: maxBytes}
		err = c.data(from, to, &st)
	}
	if err = errors.Join(err, to.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("jail: image: %w", err), removeAll(tmp))
	}
	return nil
}

// mountImageAt mounts an image by a loop device that goes with the mount.
func mountImageAt(image, dir string) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lockImage(f); err != nil {
		return err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	// Between finding a free device and taking it another process may be faster.
	for try := 0; ; try++ {
		err := tryLoop(control, f, dir)
		if !errors.Is(err, unix.EBUSY) || try == 64 {
			return err
		}
	}
}

// imageWait bounds the wait for the last user of an image that was unmounted.
const imageWait = 10 * time.Second

// lockImage waits until no other loop device has the image: two would each have
// their own idea of what is in it. The device takes the open file over, and with
// it the lock, which so lasts as long as the device does; a mount namespace that
// has ended lets go of its mounts some milliseconds later.
func lockImage(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	second, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	locked := make(chan error, 1)
	go func() {
		err := unix.Flock(second, unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(second, unix.LOCK_EX)
		}
		unix.Close(second)
		locked <- err
	}()
	select {
	case err := <-locked:
		return err
	case <-time.After(imageWait):
		return ErrBusy
	}
}

func tryLoop(control, image *os.File, dir string) error {
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return fmt.Errorf("loop device: %w", err)
	}
	path := fmt.Sprintf("/dev/loop%d", n)
	loop, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	// With AUTOCLEAR the device is free when the last user, the mount, is gone.
	defer loop.Close()
	err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
		Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	// What is deleted goes back to the host; an error stops writing, no more.
	if err := unix.Mount(path, dir, "ext4", flags, "discard,noinit_itable,errors=remount-ro"); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

func (m *Manager) imagePath(tenant string) string {
	return filepath.Join(m.tenantsDir(), tenant, "disk.img")
}

// openImage mounts the tenant's image, made if it has none; or memory, for an
// ephemeral workspace. What was in the folder before there were images, or was
// restored into it, moves in.
func (j *Jail) openImage() error {
	dir := j.filesDir()
	under, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("jail: workspace: %w", err)
	}
	defer under.Close()
	if j.spec.Ephemeral {
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=0711,size=%d,nr_inodes=%d", j.limits.Disk, j.limits.Inodes))
	} else {
		image := j.m.imagePath(j.tenant)
		if _, serr := os.Lstat(image); errors.Is(serr, os.ErrNotExist) {
			err = j.m.newImage(image, j.limits.Disk, j.limits.Inodes)
		}
		if err == nil {
			err = mountImageAt(image, dir)
		}
		if err == nil {
			err = os.Chmod(dir, 0o711)
		}
	}
	if err != nil {
		return fmt.Errorf("jail: disk: %w", err)
	}
	return j.moveIn(under)
}

// moveIn moves what is beneath the mount into it, in place of what is there. Until
// all of it is copied, what is beneath counts; then it gets another name, by
// which a killed daemon's successor knows that it only has to go.
func (j *Jail) moveIn(under *os.File) error {
	names, err := under.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("jail: disk: %w", err)
	}
	for _, name := range names {
		if name == "workspace" || name == "home" {
			if err := j.moveFolderIn(under, name); err != nil {
				return fmt.Errorf("jail: copy %s onto its disk: %w", name, err)
			}
			name = movedMark + name
		}
		if err := emptyTree(context.Background(), int(under.Fd()), name); err != nil {
			return fmt.Errorf("jail: disk: %w", err)
		}
	}
	return nil
}

const movedMark = ".moved-"

func (j *Jail) moveFolderIn(under *os.File, name string) error {
	to := filepath.Join(j.filesDir(), name)
	if err := removeAll(to); err != nil {
		return err
	}
	c := &treeCopy{ctx: context.Background(), uid: j.uid, limit: maxBytes}
	if err := copyFolder(c, fmt.Sprintf("/proc/self/fd/%d/%s", under.Fd(), name), to); err != nil {
		return errors.Join(err, removeAll(to))
	}
	return unix.Renameat2(int(under.Fd()), name, int(under.Fd()), movedMark+name, unix.RENAME_NOREPLACE)
}
