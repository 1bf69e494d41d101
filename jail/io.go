package jail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// enforced names the limits that this host really enforces for the jail.
func (j *Jail) enforced() []string {
	all := j.m.host.enforced
	if _, err := j.ioDevice(); err == nil {
		all = append(slices.Clone(all), "io")
	}
	return all
}

// errNoDevice says that the files are on no disk: there is nothing to limit.
var errNoDevice = errors.New("jail: the files are in memory")

// ioDevice is the number of the disk that the tenant's files are on, as io.max
// wants it: an image's own loop device, or the whole disk of the state.
func (j *Jail) ioDevice() (string, error) {
	lacks := func(found string) error {
		return &UnsupportedError{Feature: "limits of I/O", Found: found, Needed: "the io controller of cgroup v2, and the state on a disk",
			Remedy: "leave io_bytes and io_ops out, or delegate the io controller and put the state on a block device"}
	}
	if !j.m.host.io {
		return "", lacks("no io controller")
	}
	if !j.rootMu.TryRLock() {
		return "", ErrGone
	}
	defer j.rootMu.RUnlock()
	if j.rootGone || j.files == nil {
		return "", ErrGone
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(j.files.Fd()), &st); err != nil {
		return "", fmt.Errorf("jail: I/O: %w", err)
	}
	if j.m.host.disk == DiskImage && j.spec.Ephemeral {
		return "", errNoDevice
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	device, err := filepath.EvalSymlinks("/sys/dev/block/" + number)
	if err != nil {
		return "", lacks("the files are on device " + number + ", which is no disk")
	}
	if _, err := os.Stat(filepath.Join(device, "partition")); err == nil {
		whole, err := os.ReadFile(filepath.Join(filepath.Dir(device), "dev"))
		if err != nil {
			return "", fmt.Errorf("jail: I/O: %w", err)
		}
		number = strings.TrimSpace(string(whole))
	}
	return number, nil
}

// limitIO holds the jail to its reads and writes of the disk. What this host
// cannot hold is refused, unless limits are best-effort.
func (j *Jail) limitIO(l Limits) error {
	if old := j.Limits(); l.IOBytes == 0 && l.IOOps == 0 && old.IOBytes == 0 && old.IOOps == 0 {
		return nil // as it is by itself
	}
	device, err := j.ioDevice()
	switch {
	case errors.Is(err, errNoDevice) || err != nil && j.m.cfg.BestEffort:
		return nil
	case err != nil:
		return err
	}
	most := func(v int64) string {
		if v == 0 {
			return "max"
		}
		return strconv.FormatInt(v, 10)
	}
	bytes, ops := most(l.IOBytes), most(l.IOOps)
	return j.cgroup.write("io.max", fmt.Sprintf("%s rbps=%s wbps=%s riops=%s wiops=%s", device, bytes, bytes, ops, ops))
}
