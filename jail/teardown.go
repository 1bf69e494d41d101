package jail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/cgroup"
)

// teardownTimeout bounds the wait for killed processes; the kernel ends them
// at once unless it is stuck itself.
const teardownTimeout = 30 * time.Second

// Destroy ends the jail. It may be called any number of times; the first cause
// stays. When it returns nil all that the jail owned is gone.
func (j *Jail) Destroy(ctx context.Context, cause string) error {
	j.tearOnce.Do(func() {
		j.mu.Lock()
		j.state, j.cause = StateDestroying, cause
		j.mu.Unlock()
		close(j.ending)
		go j.teardown()
	})
	select {
	case <-j.done:
		return j.tearErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon undoes a build that failed.
func (j *Jail) abandon() {
	j.Destroy(context.Background(), causeNotStarted)
}

// teardown undoes build, whatever part of it was done.
func (j *Jail) teardown() {
	defer j.m.pool.disturb()()
	j.buildMu.Lock()
	defer j.buildMu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(j.cgroup.kill())
	if j.init != nil {
		j.init.kill() // it may not have reached its group
		select {
		case <-j.init.gone:
		case <-ctx.Done():
			note(fmt.Errorf("jail: sandbox-init does not end: %w", ctx.Err()))
		}
	}
	note(j.cgroup.await(ctx, cgroup.Populated, 0))
	j.endCause()
	if j.conn != nil {
		j.conn.Close()
	}
	if j.listener != nil {
		j.listener.Close()
	}
	j.goroutines.Wait()
	j.endProcesses()
	j.closeRoot()
	if j.init != nil {
		j.init.pidfd.Close()
	}
	note(j.cgroup.remove())
	note(removeAll(j.runDir()))
	note(j.closeTemplate())
	if j.spec.Ephemeral && j.endedBy() != CauseRestored {
		note(j.m.removeTenant(j.tenant))
	}
	if err := j.endLife(); err != nil {
		j.m.log.Warn("a jail's end is not on record", "tenant", j.tenant, "error", err)
	}
	j.finish(errors.Join(errs...))
}

// endLife puts the end on record, for a tenant of whom something stays.
func (j *Jail) endLife() error {
	if _, ok := j.m.readLife(j.tenant); !ok {
		return nil // it had not begun, or all is deleted
	}
	return j.m.writeLife(j.tenant, life{Created: j.created, Ended: time.Now(), Cause: j.endedBy()})
}

// closeRoot waits for file operations under way; the mounts live as long as the
// descriptors, and an image no longer.
func (j *Jail) closeRoot() {
	j.rootMu.Lock()
	defer j.rootMu.Unlock()
	j.rootGone = true
	closeAll([]*os.File{j.root, j.files})
}

// endCause makes the cause say "oom" when that is why sandbox-init died.
func (j *Jail) endCause() {
	usage, kills := j.cgroup.usage(), j.cgroup.oomKills()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.final = usage
	if j.cause == CauseInitDied && kills > 0 {
		j.cause = CauseOOM
	}
}

// endProcesses gives every command that still ran its last event.
func (j *Jail) endProcesses() {
	j.mu.Lock()
	cause := j.cause
	all := append([]*Process(nil), j.order...)
	j.mu.Unlock()
	for _, p := range all {
		p.jailEnded(cause)
	}
}

func (j *Jail) finish(err error) {
	if err != nil {
		j.m.log.Error("jail left something behind", "tenant", j.tenant, "error", err)
	}
	j.mu.Lock()
	j.state, j.tearErr = StateGone, err
	j.mu.Unlock()
	j.m.mu.Lock()
	if j.m.byName[j.tenant] == j {
		delete(j.m.byName, j.tenant)
	}
	j.m.mu.Unlock()
	close(j.done)
}

// Sweep ends and removes what a daemon that crashed has left: the groups with
// whatever lives in them, run folders, and ephemeral workspaces. It returns whose
// jails that were. It must be called before the first Create.
func (m *Manager) Sweep(ctx context.Context) ([]string, error) {
	found, spares := map[string]bool{}, map[string]bool{}
	for _, dir := range []string{string(m.jails), m.jailsDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("jail: sweep: %w", err)
		}
		for _, e := range entries {
			switch {
			case !e.IsDir():
			case tenantName.MatchString(e.Name()):
				found[e.Name()] = true
			case strings.HasPrefix(e.Name(), sparePrefix):
				spares[e.Name()] = true
			}
		}
	}
	tenants, err := os.ReadDir(m.tenantsDir())
	if err != nil {
		return nil, fmt.Errorf("jail: sweep: %w", err)
	}
	var errs []error
	for _, e := range tenants {
		if err := m.sweepFiles(e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("jail: sweep %s: %w", e.Name(), err))
		}
		// The run folder and the group may have gone with the service.
		if l, ok := m.readLife(e.Name()); ok && l.Ended.IsZero() {
			found[e.Name()] = true
		}
	}
	for name := range spares {
		if err := m.jails.child(name).destroy(ctx); err != nil {
			errs = append(errs, fmt.Errorf("jail: sweep %s: %w", name, err))
		}
	}
	for tenant := range found {
		if _, ok := m.Get(tenant); ok {
			delete(found, tenant)
			continue
		}
		if err := m.sweepTenant(ctx, tenant); err != nil {
			errs = append(errs, fmt.Errorf("jail: sweep %s: %w", tenant, err))
		}
	}
	return slices.Sorted(maps.Keys(found)), errors.Join(errs...)
}

func (m *Manager) sweepTenant(ctx context.Context, tenant string) error {
	if err := m.jails.child(tenant).destroy(ctx); err != nil {
		return err
	}
	if err := removeAll(filepath.Join(m.jailsDir(), tenant)); err != nil {
		return err
	}
	_, err := os.Lstat(filepath.Join(m.tenantsDir(), tenant, ephemeralMark))
	if errors.Is(err, fs.ErrNotExist) {
		l, ok := m.readLife(tenant)
		if !ok {
			return nil // it had not begun
		}
		return m.writeLife(tenant, life{Created: l.Created, Ended: time.Now(), Cause: CauseCrash})
	}
	if err != nil {
		return err
	}
	return m.removeTenant(tenant)
}

// removeAll deletes a tree that a tenant may have filled, and may have made as
// deep as it likes: it goes by descriptor, follows no link, keeps one descriptor
// open whatever the depth, and does not recurse. Each folder that is not empty
// is moved up to the top before its turn, so the depth never grows.
func removeAll(path string) error {
	parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("jail: remove: %w", err)
	}
	defer unix.Close(parent)
	name := filepath.Base(path)
	err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		err = unix.Unlinkat(parent, name, 0)
	case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST):
		err = emptyTree(context.Background(), parent, name)
	}
	if err != nil {
		return fmt.Errorf("jail: remove %s: %w", path, err)
	}
	return nil
}
