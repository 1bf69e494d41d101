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

	"sandboxd/jail/sys"
)

// An image is a file system in a sparse file, StateDir/tenants/NAME/disk.img,
// that is mounted while the tenant has a jail, in the jail alone. Only the kernel's
// file system driver writes it; a tenant never has its bytes. It is a copy of
// an empty one that is made once for each size.

// imageInode is how many bytes of an image there are for each inode of 256, at
// least.
const imageInode = 4096

const mkfs = "mkfs.ext4"

func (m *Manager) imagesDir() string { return filepath.Join(m.cfg.StateDir, "images") }

// probeImage tries out whether images can be made and mounted.
func (m *Manager) probeImage() error {
	if _, err := lookTool(mkfs); err != nil {
		return err
	}
	if err := os.MkdirAll(m.imagesDir(), 0o700); err != nil {
		return err
	}
	blank, err := m.blankImage(16<<20, 256)
	if err != nil {
		return err
	}
	mount, _, err := openDisk(blank)
	if err != nil {
		return err
	}
	return mount.Close()
}

// lookTool finds a program where a service's PATH may not lead.
func lookTool(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path := filepath.Join(dir, name); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
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
	tool, err := lookTool(mkfs)
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
	if err = copyImage(context.Background(), from, tmp); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("jail: image: %w", err), removeAll(tmp))
	}
	return nil
}

// copyImage copies an image, holes as holes, to a new file.
func copyImage(ctx context.Context, from *os.File, path string) error {
	if err := removeAll(path); err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(from.Fd()), &st)
	if err == nil {
		c := &treeCopy{ctx: ctx, limit: maxBytes}
		err = c.data(from, to, &st)
	}
	return errors.Join(err, to.Close())
}

// openDisk mounts an image by a loop device that goes with the mount. The mount
// is detached: it is in no mount namespace, so that none that is copied meanwhile
// keeps it, and the kernel undoes it with its last descriptor, also a killed
// daemon's. Until it is moved to a jail's.
func openDisk(image string) (mount *os.File, device int, err error) {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	if err := lockImage(f); err != nil {
		return nil, 0, err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer control.Close()
	// Between finding a free device and taking it another process may be faster.
	for try := 0; ; try++ {
		mount, device, err := tryLoop(control, f)
		if !errors.Is(err, unix.EBUSY) || try == 64 {
			return mount, device, err
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

func tryLoop(control, image *os.File) (*os.File, int, error) {
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, 0, fmt.Errorf("loop device: %w", err)
	}
	path := loopPath(n)
	loop, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	// With AUTOCLEAR the device is free when the last user, the mount, is gone.
	defer loop.Close()
	err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
		Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
	})
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	// What is deleted goes back to the host; an error stops writing, no more.
	fd, err := sys.Filesystem("ext4", attrPlain|unix.MOUNT_ATTR_NOATIME, "source", path, "discard", "", "noinit_itable", "", "errors", "remount-ro")
	if err != nil {
		return nil, 0, fmt.Errorf("mount %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), "disk"), n, nil
}

func loopPath(n int) string { return fmt.Sprintf("/dev/loop%d", n) }

func (m *Manager) imagePath(tenant string) string {
	return filepath.Join(m.tenantsDir(), tenant, "disk.img")
}

// openImage mounts the tenant's image, made if it has none; or memory, for an
// ephemeral workspace. What was in the folder before there were images, or was
// restored into it, moves in.
func (j *Jail) openImage() error {
	under, err := os.Open(j.hostFilesDir())
	if err != nil {
		return fmt.Errorf("jail: workspace: %w", err)
	}
	defer under.Close()
	if j.spec.Ephemeral {
		err = j.memoryDisk()
	} else {
		err = j.ownImage()
	}
	if err == nil {
		err = os.Chmod(j.filesDir(), 0o711)
	}
	if err != nil {
		return fmt.Errorf("jail: disk: %w", err)
	}
	return j.moveIn(under)
}

func (j *Jail) memoryDisk() error {
	fd, err := sys.Filesystem("tmpfs", attrPlain, "size", fmt.Sprint(j.limits.Disk), "nr_inodes", fmt.Sprint(j.limits.Inodes))
	if err != nil {
		return err
	}
	j.setFiles(os.NewFile(uintptr(fd), "disk"))
	return nil
}

// ownImage mounts the tenant's image at the size of its limit.
func (j *Jail) ownImage() error {
	image := j.m.imagePath(j.tenant)
	if _, err := os.Lstat(image); errors.Is(err, os.ErrNotExist) {
		if err := j.m.newImage(image, j.limits.Disk, j.limits.Inodes); err != nil {
			return err
		}
	}
	grow, err := j.m.fitImage(image, j.limits.Disk)
	if err != nil {
		return err
	}
	disk, device, err := openDisk(image)
	if err != nil {
		return err
	}
	j.loop = device
	j.setFiles(disk)
	if grow {
		return j.growImage(j.limits.Disk)
	}
	return nil
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
