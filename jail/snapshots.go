package jail

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A tenant's snapshots stand beside its files, in StateDir/tenants/NAME:
//
//	files/workspace, files/home   what the jail mounts
//	snapshots/ID/files            copies of both
//	snapshots/ID/meta.json
//
// A snapshot is made under a name that begins with a dot and renamed when it is
// complete; it is renamed to one before it is deleted. What has such a name when
// the daemon starts is a leftover.

// Bounds of a tenant's snapshots. Together they take at most snapshotShare times
// the tenant's disk limit.
const (
	maxSnapshots  = 16
	snapshotShare = 4
	maxLabel      = 128
)

// A Snapshot is a copy of a tenant's files.
type Snapshot struct {
	ID      string    `json:"id"`
	Label   string    `json:"label,omitempty"`
	Created time.Time `json:"created"`
	Bytes   int64     `json:"bytes"` // as if nothing were shared
	Entries int64     `json:"entries"`
	// Frozen is how long the jail stood still for it.
	Frozen time.Duration `json:"frozen"`
	// Complete is false while it is being made.
	Complete bool `json:"-"`
	// Stamp is the file system's own time, from before the jail went on.
	Stamp unix.Timespec `json:"stamp"`
}

// ErrNotFound says that there is no such snapshot.
var ErrNotFound = errors.New("jail: no such snapshot")

// ErrSnapshotLimit says that the tenant has as many snapshots, or as many bytes
// in them, as it may.
var ErrSnapshotLimit = errors.New("jail: over the limit of snapshots")

var snapshotName = regexp.MustCompile(`^snap-[0-9a-f]{16}$`)

func (m *Manager) snapshotsDir(tenant string) string {
	return filepath.Join(m.tenantsDir(), tenant, "snapshots")
}

// making is a snapshot under way.
type making struct {
	snap   Snapshot
	copy   *treeCopy
	cancel context.CancelCauseFunc
}

// Snapshot copies the workspace and the home as they are at one moment: the
// jail's processes stand still and no file operation changes anything meanwhile;
// they go on whatever comes of it. One at a time is made. When it fails nothing
// is left of it.
func (j *Jail) Snapshot(ctx context.Context, label string) (Snapshot, error) {
	if len(label) > maxLabel || strings.ContainsFunc(label, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return Snapshot{}, &SpecError{Field: "label", Message: fmt.Sprintf("must be at most %d bytes without control characters", maxLabel)}
	}
	ctx, stop := j.untilEnd(ctx)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	mk := &making{cancel: cancel, copy: &treeCopy{ctx: ctx, uid: j.uid}}
	mk.snap = Snapshot{ID: "snap-" + randomHex(), Label: label, Created: time.Now().UTC()}
	left, err := j.m.snapshotRoom(j.tenant, j.Limits().Disk)
	if err != nil {
		return Snapshot{}, err
	}
	mk.copy.limit = left
	if !j.m.startMaking(j.tenant, mk) {
		return Snapshot{}, ErrBusy
	}
	defer j.m.endMaking(j.tenant)
	if err := j.still(ctx, func() error { return j.take(mk) }); err != nil {
		if errors.Is(err, ErrTooLarge) {
			err = fmt.Errorf("%w: %w", ErrSnapshotLimit, err)
		}
		return Snapshot{}, err
	}
	return mk.snap, nil
}

// still runs f while the jail's files do not change.
func (j *Jail) still(ctx context.Context, f func() error) (err error) {
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	j.freezeMu.Lock()
	defer j.freezeMu.Unlock()
	// Teardown waits for it, as for any file operation; ctx makes it short.
	j.rootMu.RLock()
	defer j.rootMu.RUnlock()
	if j.rootGone || j.root == nil {
		return ErrGone
	}
	j.mu.Lock()
	frozen := j.state == StateFrozen
	j.mu.Unlock()
	if !frozen {
		if err := j.setFrozen(ctx, true); err != nil {
			// A freeze that has not come to its end is taken back.
			return errors.Join(err, j.cgroup.write("cgroup.freeze", "0"))
		}
		defer func() {
			thaw := j.setFrozen(context.WithoutCancel(ctx), false)
			if thaw != nil && !errors.Is(thaw, ErrGone) {
				err = errors.Join(err, thaw)
			}
		}()
	}
	return f()
}

// take makes the copy; the jail stands still.
func (j *Jail) take(mk *making) error {
	dir := j.m.snapshotsDir(j.tenant)
	tmp := filepath.Join(dir, ".new-"+mk.snap.ID)
	began := time.Now()
	err := j.fillSnapshot(mk, dir, tmp)
	if err == nil {
		mk.snap.Bytes, mk.snap.Entries, mk.snap.Frozen = mk.copy.bytes.Load(), mk.copy.entries.Load(), time.Since(began)
		err = writeMeta(tmp, &mk.snap)
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, mk.snap.ID))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("jail: snapshot: %w", err), removeAll(tmp))
	}
	mk.snap.Complete = true
	return nil
}

func (j *Jail) fillSnapshot(mk *making, dir, tmp string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	stamp, err := stampOf(j.filesDir())
	if err != nil {
		return err
	}
	mk.snap.Stamp = stamp
	files := filepath.Join(tmp, "files")
	if err := os.Mkdir(files, 0o711); err != nil {
		return err
	}
	return copyFolders(mk.copy, j.filesDir(), files)
}

// copyFolders copies what a tenant's files are.
func copyFolders(c *treeCopy, from, to string) error {
	for _, name := range []string{"workspace", "home"} {
		if err := copyFolder(c, filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyFolder copies a folder of ours, whose content is a tenant's, to a new one.
func copyFolder(c *treeCopy, from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	dst, err := os.Open(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	return c.copyTree(src, dst)
}

// stampOf is the file system's time now, as it would be given to a change: its
// clock is not ours. Where nothing can be made, it is the clock that file systems
// take theirs from.
func stampOf(dir string) (unix.Timespec, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		var ts unix.Timespec
		return ts, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts)
	}
	if err != nil {
		return unix.Timespec{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return st.Ctim, err
}

func writeMeta(dir string, s *Snapshot) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "meta.json"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func randomHex() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// startMaking enters a snapshot under way; false if there is one.
func (m *Manager) startMaking(tenant string, mk *making) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.making[tenant] != nil {
		return false
	}
	m.making[tenant] = mk
	return true
}

func (m *Manager) endMaking(tenant string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.making, tenant)
}

// snapshotRoom is how many bytes the tenant's next snapshot may have.
func (m *Manager) snapshotRoom(tenant string, disk int64) (int64, error) {
	all, err := m.complete(tenant)
	if err != nil {
		return 0, err
	}
	left := disk * snapshotShare
	for _, s := range all {
		left -= s.Bytes
	}
	if len(all) >= maxSnapshots {
		return 0, fmt.Errorf("%w: %d, at most %d", ErrSnapshotLimit, len(all), maxSnapshots)
	}
	if left <= 0 {
		return 0, fmt.Errorf("%w: over %d bytes", ErrSnapshotLimit, disk*snapshotShare)
	}
	return left, nil
}

// Snapshots lists a tenant's snapshots, oldest first; one that is being made
// comes last.
func (m *Manager) Snapshots(tenant string) ([]Snapshot, error) {
	all, err := m.complete(tenant)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mk := m.making[tenant]; mk != nil {
		s := Snapshot{ID: mk.snap.ID, Label: mk.snap.Label, Created: mk.snap.Created, Bytes: mk.copy.bytes.Load(), Entries: mk.copy.entries.Load()}
		if !slices.ContainsFunc(all, func(o Snapshot) bool { return o.ID == s.ID }) {
			all = append(all, s)
		}
	}
	return all, nil
}

// complete reads what is on the disk.
func (m *Manager) complete(tenant string) ([]Snapshot, error) {
	if !tenantName.MatchString(tenant) {
		return nil, &SpecError{Field: "tenant", Message: "is not a tenant's name"}
	}
	entries, err := os.ReadDir(m.snapshotsDir(tenant))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("jail: snapshots: %w", err)
	}
	var all []Snapshot
	for _, e := range entries {
		if !snapshotName.MatchString(e.Name()) {
			continue
		}
		s, err := m.snapshot(tenant, e.Name())
		if errors.Is(err, ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return a.Created.Compare(b.Created) })
	return all, nil
}

func (m *Manager) snapshot(tenant, id string) (s Snapshot, err error) {
	if !tenantName.MatchString(tenant) || !snapshotName.MatchString(id) {
		return s, ErrNotFound
	}
	b, err := os.ReadFile(filepath.Join(m.snapshotsDir(tenant), id, "meta.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNotFound
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("jail: snapshot %s: %w", id, err)
	}
	s.Complete = true
	return s, nil
}

// RemoveSnapshot deletes a snapshot, or cancels one that is being made. It is no
// error if there is none.
func (m *Manager) RemoveSnapshot(tenant, id string) error {
	m.mu.Lock()
	mk := m.making[tenant]
	m.mu.Unlock()
	if mk != nil && mk.snap.ID == id {
		mk.cancel(context.Canceled)
		return nil
	}
	if _, err := m.snapshot(tenant, id); errors.Is(err, ErrNotFound) {
		return nil
	}
	old := filepath.Join(m.snapshotsDir(tenant), ".old-"+id)
	err := os.Rename(filepath.Join(m.snapshotsDir(tenant), id), old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("jail: snapshot: %w", err)
	}
	return removeAll(old)
}
