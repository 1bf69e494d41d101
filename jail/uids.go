package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// uidRange is how many ids each tenant has.
const uidRange = 65536

// The tenant's ids inside the jail.
const (
	tenantUID = 1000
	tenantGID = 1000
)

// uids gives each tenant a range of host ids that stays its own for as long as
// files of the tenant remain. The record is a link "uid" in the tenant's
// folder, whose target is the number: a link is made in one step, so a crash
// leaves all of it or nothing. The folder is only filled after the link exists.
type uids struct {
	base uint32
	dir  string // StateDir/tenants

	mu    sync.Mutex
	index map[string]uint32
	taken map[uint32]string
}

func loadUIDs(dir string, base uint32) (*uids, error) {
	u := &uids{base: base, dir: dir, index: map[string]uint32{}, taken: map[uint32]string{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("jail: tenants: %w", err)
	}
	for _, e := range entries {
		link, err := os.Readlink(filepath.Join(dir, e.Name(), "uid"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a crash before the link: nothing in it is anybody's
		}
		if err != nil {
			return nil, fmt.Errorf("jail: tenant %q: %w", e.Name(), err)
		}
		n, err := strconv.ParseUint(link, 10, 32)
		if err != nil || uint32(n) > u.last() {
			return nil, fmt.Errorf("jail: tenant %q has no usable uid range: %q", e.Name(), link)
		}
		if other, twice := u.taken[uint32(n)]; twice {
			return nil, fmt.Errorf("jail: tenants %q and %q have the same uid range %d", e.Name(), other, n)
		}
		u.index[e.Name()], u.taken[uint32(n)] = uint32(n), e.Name()
	}
	return u, nil
}

// last is the highest range that fits below the kernel's last valid id.
func (u *uids) last() uint32 { return (1<<32-2-u.base)/uidRange - 1 }

// claim returns the tenant's first host id, making the folder and a range if
// there is none yet.
func (u *uids) claim(tenant string) (uint32, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n, ok := u.index[tenant]; ok {
		return u.base + n*uidRange, nil
	}
	var n uint32
	for u.taken[n] != "" {
		n++
	}
	if n > u.last() {
		return 0, &UnsupportedError{
			Feature: "uid ranges", Found: fmt.Sprintf("%d in use", len(u.taken)), Needed: "one more",
			Remedy: "remove workspaces of tenants that are gone",
		}
	}
	dir := filepath.Join(u.dir, tenant)
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, fmt.Errorf("jail: tenant folder: %w", err)
	}
	if err := os.Symlink(strconv.FormatUint(uint64(n), 10), filepath.Join(dir, "uid")); err != nil {
		return 0, fmt.Errorf("jail: uid range: %w", err)
	}
	u.index[tenant], u.taken[n] = n, tenant
	return u.base + n*uidRange, nil
}

// release gives the range back; the tenant's folder is gone.
func (u *uids) release(tenant string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n, ok := u.index[tenant]; ok {
		delete(u.index, tenant)
		delete(u.taken, n)
	}
}
