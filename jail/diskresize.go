package jail

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/jail/sys"
)

// An image follows its tenant's limit. Larger it gets while it is mounted, for
// which the kernel asks for CAP_SYS_RESOURCE. Smaller, or without that, only
// while it is not, by a copy that takes its place when it is whole: a daemon that
// is killed meanwhile leaves the old one.

// resizeTime bounds what a copy of another size may take.
const resizeTime = time.Minute

// imageSize is how large the file system in an image is, which is not mounted.
func imageSize(image string) (int64, error) {
	const (
		superblock = 1024
		magic      = 0xef53
	)
	f, err := os.Open(image)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	b := make([]byte, 1024)
	if _, err := f.ReadAt(b, superblock); err != nil {
		return 0, err
	}
	if binary.LittleEndian.Uint16(b[0x38:]) != magic || b[0x18] > 6 {
		return 0, errors.New("it is no ext4 file system")
	}
	low, high := binary.LittleEndian.Uint32(b[0x04:]), binary.LittleEndian.Uint32(b[0x150:])
	return (int64(high)<<32 | int64(low)) << (10 + b[0x18]), nil
}

// fitImage prepares an image for a limit and reports whether it is still to grow
// when it is mounted.
func (m *Manager) fitImage(image string, limit int64) (grow bool, err error) {
	size, err := imageSize(image)
	if err != nil {
		return false, err
	}
	switch {
	case limit-size >= imageInode && mayGrowMounted():
		return true, nil
	case limit-size >= imageInode:
		return false, m.resizeImage(image, limit)
	case size > limit:
		if err := m.resizeImage(image, limit); err != nil {
			return false, &SpecError{Field: "limits.disk", Message: fmt.Sprintf(
				"is %d, and the tenant's files are on a disk of %d bytes, which cannot be made smaller (%v): allow as much, delete files, or delete them all with the jail", limit, size, err)}
		}
	}
	return false, nil
}

// mayGrowMounted reports whether the kernel lets this process.
func mayGrowMounted() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&head, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// resizeImage replaces an image that is not mounted by a copy of another size.
func (m *Manager) resizeImage(image string, limit int64) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), resizeTime)
	defer cancel()
	part := image + ".part"
	defer func() { err = errors.Join(err, removeAll(part)) }()
	// Nobody may mount it meanwhile, nor does anybody still.
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lockImage(f); err != nil {
		return err
	}
	if err := copyImage(ctx, f, part); err != nil {
		return err
	}
	// A sparse file may be too long but not too short for what is in it.
	if err := os.Truncate(part, max(limit, imageBytes(f))); err != nil {
		return err
	}
	for _, args := range [][]string{{"e2fsck", "-f", "-p", part}, {"resize2fs", part, fmt.Sprintf("%dK", limit>>10)}} {
		if err := runTool(ctx, args[0], args[1:]...); err != nil {
			return err
		}
	}
	if err := os.Truncate(part, limit); err != nil {
		return err
	}
	return os.Rename(part, image)
}

func imageBytes(f *os.File) int64 {
	st, err := f.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}

// runTool runs a program of e2fsprogs.
func runTool(ctx context.Context, name string, args ...string) error {
	path, err := lookTool(name)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	var status *exec.ExitError
	if errors.As(err, &status) && name == "e2fsck" && status.ExitCode() == 1 {
		return nil // it has corrected something, such as what a crash left
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %.200s", name, errors.Join(ctx.Err(), err), out)
	}
	return nil
}

// growImage makes the mounted image as large as size.
func (j *Jail) growImage(size int64) error {
	if err := os.Truncate(j.m.imagePath(j.tenant), size); err != nil {
		return err
	}
	loop, err := os.OpenFile(loopPath(j.loop), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("%s: %w", loop.Name(), err)
	}
	root, err := os.Open(j.filesDir())
	if err != nil {
		return err
	}
	defer root.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return err
	}
	if err := sys.ResizeExt4(int(root.Fd()), uint64(size/st.Bsize)); err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	return nil
}
