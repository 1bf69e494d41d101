package jail

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Restore is a snapshot's copy that stands ready to take the place of a
// tenant's files.
type Restore struct {
	m      *Manager
	tenant string
	snap   Snapshot
	done   bool
}

// Snapshot is what is restored.
func (r *Restore) Snapshot() Snapshot { return r.snap }

// StageRestore copies a snapshot beside the tenant's files, which stay as they
// are, until Abort. When it fails nothing is left of it. One at a time is made;
// more are ErrBusy.
func (m *Manager) StageRestore(ctx context.Context, tenant, id string) (*Restore, error) {
	snap, err := m.snapshot(tenant, id)
	if err != nil {
		return nil, err
	}
	uid, err := m.uids.claim(tenant)
	if err != nil {
		return nil, err
	}
	r := &Restore{m: m, tenant: tenant, snap: snap}
	if !m.startRestore(tenant) {
		return nil, ErrBusy
	}
	if err := removeAll(r.staged()); err != nil {
		return nil, errors.Join(err, r.Abort())
	}
	c := &treeCopy{ctx: ctx, uid: uid, limit: maxBytes}
	err = m.makeStaged(r.staged(), m.otherProject(tenant, uid))
	if err == nil {
		err = copyFolders(c, filepath.Join(m.snapshotsDir(tenant), id, "files"), r.staged())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("jail: restore: %w", err), r.Abort())
	}
	return r, nil
}

func (r *Restore) staged() string { return filepath.Join(r.m.tenantsDir(), r.tenant, "files.new") }
func (r *Restore) files() string  { return filepath.Join(r.m.tenantsDir(), r.tenant, "files") }

// Commit puts the copy in place of the files in one step. There must be no jail:
// it would go on with the old ones. Whatever happens, either the old files are
// there or the snapshot's.
func (r *Restore) Commit() error {
	if _, ok := r.m.Get(r.tenant); ok {
		return ErrExists
	}
	err := unix.Renameat2(unix.AT_FDCWD, r.staged(), unix.AT_FDCWD, r.files(), unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		err = os.Rename(r.staged(), r.files()) // the tenant has none
	}
	if err != nil {
		return fmt.Errorf("jail: restore: %w", err)
	}
	return nil
}

// Abort ends the restore: it deletes the copy, or what Commit has put in its
// place. What it cannot delete is gone at the next start.
func (r *Restore) Abort() error {
	if r.done {
		return nil
	}
	r.done = true
	err := removeAll(r.staged())
	r.m.mu.Lock()
	delete(r.m.restoring, r.tenant)
	r.m.mu.Unlock()
	return err
}

func (m *Manager) startRestore(tenant string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.restoring[tenant] {
		return false
	}
	m.restoring[tenant] = true
	return true
}

// sweepFiles removes what snapshots and restores of a daemon that was killed
// have left.
func (m *Manager) sweepFiles(tenant string) error {
	errs := []error{
		removeAll(m.imagePath(tenant) + ".part"), removeAll(filepath.Join(m.tenantsDir(), tenant, "files.new")),
	}
	entries, err := os.ReadDir(m.snapshotsDir(tenant))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			errs = append(errs, removeAll(filepath.Join(m.snapshotsDir(tenant), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Export writes a snapshot's files as a tar with workspace/ and home/. ready is
// called before the first byte.
func (m *Manager) Export(ctx context.Context, tenant, id string, w io.Writer, ready func()) (ArchiveStats, error) {
	if _, err := m.snapshot(tenant, id); err != nil {
		return ArchiveStats{}, err
	}
	uid, err := m.uids.claim(tenant)
	if err != nil {
		return ArchiveStats{}, err
	}
	fd, err := unix.Open(filepath.Join(m.snapshotsDir(tenant), id, "files"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return ArchiveStats{}, ErrNotFound
	}
	if err != nil {
		return ArchiveStats{}, fmt.Errorf("jail: export: %w", err)
	}
	defer unix.Close(fd)
	item, err := openItem(fd, "")
	if err != nil {
		return ArchiveStats{}, fmt.Errorf("jail: export: %w", err)
	}
	a := &packer{ctx: ctx, w: tar.NewWriter(w), limit: maxBytes, shift: uid, links: map[fileID]string{},
		do: func(f func() error) error { return f() }}
	ready()
	return a.stats, a.pack(item)
}
