package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sandboxd/policy"
)

// A Deployment is a function of a tenant as it is kept: one file, replaced as a
// whole.
type Deployment struct {
	Name string
	// Meta is JSON of at most MaxMeta bytes, which a list can show without the
	// rest; Body is what was deployed.
	Meta, Body json.RawMessage
	// Size is that of the file, which counts against Bounds.Bytes.
	Size int64
	// Stamp tells the file from every other that had or will have its name.
	Stamp Stamp
	// Err is set in a list where the file cannot be understood: a
	// *CorruptError.
	Err error
}

// A Stamp identifies one writing of a file.
type Stamp struct {
	inode, size       uint64
	seconds, fraction int64
}

// Bounds bound a tenant's deployments together.
type Bounds struct {
	Count int
	Bytes int64
}

// MaxMeta is the largest Meta, in bytes.
const MaxMeta = 8 << 10

// A CorruptError says that a deployment's file is not as it was written.
type CorruptError struct{ Name, Reason string }

func (e *CorruptError) Error() string {
	return fmt.Sprintf("data: the deployed function %s is damaged: %s", e.Name, e.Reason)
}

var deploymentName = regexp.MustCompile(DeploymentPattern)

// DeploymentPattern is the form of a deployment's name. It is safe as a file
// name.
const DeploymentPattern = `^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`

// ValidDeployment reports whether name has that form.
func ValidDeployment(name string) bool { return deploymentName.MatchString(name) }

const (
	deploymentDir  = "functions"
	deploymentFile = ".fn"
	usesFile       = "uses.json"
	tempPrefix     = ".new-"
)

// Deployments are those of one tenant. A name is one file in the tenant's
// folder, so that they go with it.
type Deployments struct {
	store  *Store
	tenant string
}

// Deployments gives access to a tenant's deployments.
func (s *Store) Deployments(tenant string) *Deployments { return &Deployments{s, tenant} }

func (d *Deployments) dir() string { return filepath.Join(d.store.dir, d.tenant, deploymentDir) }
func (d *Deployments) path(name string) string {
	return filepath.Join(d.dir(), name+deploymentFile)
}

// use runs f while nobody else uses the tenant's deployments, nor removes them.
func (d *Deployments) use(ctx context.Context, f func() error) error {
	if err := policy.ValidTenant(d.tenant); err != nil {
		return failure(KindParams, "%v", err)
	}
	k := key{d.tenant, deployments}
	if err := d.store.hold(ctx, k); err != nil {
		return err
	}
	defer func() {
		d.store.mu.Lock()
		defer d.store.mu.Unlock()
		d.store.freed(k)
	}()
	return f()
}

// hold waits until nobody has k, and takes it. It opens nothing.
func (s *Store) hold(ctx context.Context, k key) error {
	for {
		s.mu.Lock()
		wait := s.changed
		var err error
		switch {
		case s.closed:
			err = ErrClosed
		case s.removing[k.tenant]:
			err = ErrRemoving
		case s.inUse[k] == 0:
			s.inUse[k] = 1
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return fmt.Errorf("data: waiting for the tenant's functions: %w", ctx.Err())
		}
	}
}

// Put keeps a deployment, durably and as a whole, in place of the one of its
// name, and sets its Size and Stamp. replacing is called before with that one's Meta, nil if there is none;
// its error ends Put. What would be over the bounds is an *Error of KindLimit.
func (d *Deployments) Put(ctx context.Context, dep *Deployment, b Bounds, replacing func(meta json.RawMessage) error) error {
	if !ValidDeployment(dep.Name) {
		return failure(KindParams, "name: is not of the form %s", DeploymentPattern)
	}
	content, err := encodeDeployment(dep)
	if err != nil {
		return err
	}
	return d.use(ctx, func() error {
		all, err := d.total()
		if err != nil {
			return err
		}
		others := all.without(d.path(dep.Name))
		old, err := readDeployment(d.path(dep.Name), dep.Name, false)
		var corrupt *CorruptError
		if err != nil && !errors.Is(err, ErrNotFound) && !errors.As(err, &corrupt) {
			return err
		}
		var meta json.RawMessage
		if old != nil {
			meta = old.Meta
		}
		if err := replacing(meta); err != nil {
			return err
		}
		switch {
		case others.count >= b.Count:
			return overLimit("functions", fmt.Sprint(b.Count), fmt.Sprintf("the tenant has %d other functions deployed", others.count))
		case others.bytes+int64(len(content)) > b.Bytes:
			return overLimit("function_bytes", fmt.Sprint(b.Bytes),
				fmt.Sprintf("the function takes %d bytes, and the tenant's others %d", len(content), others.bytes))
		}
		d.know(nil) // until it is written
		if err := writeDurably(d.dir(), d.path(dep.Name), content); err != nil {
			return err
		}
		info, err := os.Lstat(d.path(dep.Name))
		if err != nil {
			return fmt.Errorf("data: %w", err)
		}
		dep.Size, dep.Stamp = info.Size(), stampOf(info)
		d.know(&total{others.count + 1, others.bytes + dep.Size})
		return nil
	})
}

// A total is how many deployments a tenant has, and their size.
type total struct {
	count int
	bytes int64
}

// without is the total of the others than the one at path.
func (t total) without(path string) total {
	if info, err := os.Lstat(path); err == nil {
		t.count--
		t.bytes -= info.Size()
	}
	return t
}

// total counts the tenant's deployments, the first time by looking at all.
func (d *Deployments) total() (total, error) {
	d.store.mu.Lock()
	known := d.store.totals[d.tenant]
	d.store.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	var t total
	entries, err := d.entries()
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return t, fmt.Errorf("data: %w", err)
		}
		t.count++
		t.bytes += info.Size()
	}
	return t, err
}

// know notes the total; nil means that it is to be counted anew.
func (d *Deployments) know(t *total) {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	if t == nil {
		delete(d.store.totals, d.tenant)
	} else {
		d.store.totals[d.tenant] = t
	}
}

// entries are the deployments' files, in the order of their names. What a write
// left that did not come to its end is removed.
func (d *Deployments) entries() ([]fs.DirEntry, error) {
	all, err := os.ReadDir(d.dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	var out []fs.DirEntry
	for _, e := range all {
		switch name, ok := strings.CutSuffix(e.Name(), deploymentFile); {
		case ok && ValidDeployment(name):
			out = append(out, e)
		case strings.HasPrefix(e.Name(), tempPrefix):
			if err := os.Remove(filepath.Join(d.dir(), e.Name())); err != nil {
				return nil, fmt.Errorf("data: %w", err)
			}
		}
	}
	return out, nil
}

// Get reads a deployment. The error wraps ErrNotFound, or is a *CorruptError.
func (d *Deployments) Get(ctx context.Context, name string) (dep *Deployment, err error) {
	if !ValidDeployment(name) {
		return nil, ErrNotFound
	}
	err = d.use(ctx, func() error {
		dep, err = readDeployment(d.path(name), name, true)
		return err
	})
	return dep, err
}

// Stamp tells which writing of the deployment's file is there now, for a caller
// that keeps what it has read. The error wraps ErrNotFound, or says that the
// tenant's data is being removed.
func (d *Deployments) Stamp(name string) (Stamp, error) {
	if policy.ValidTenant(d.tenant) != nil || !ValidDeployment(name) {
		return Stamp{}, ErrNotFound
	}
	d.store.mu.Lock()
	removing := d.store.removing[d.tenant]
	d.store.mu.Unlock()
	if removing {
		return Stamp{}, ErrRemoving
	}
	info, err := os.Lstat(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return Stamp{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if err != nil {
		return Stamp{}, fmt.Errorf("data: %w", err)
	}
	return stampOf(info), nil
}

// List reads all deployments without their bodies, in the order of their names.
// One that is damaged is there with its Err.
func (d *Deployments) List(ctx context.Context) (list []Deployment, err error) {
	err = d.use(ctx, func() error {
		entries, err := d.entries()
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := strings.TrimSuffix(e.Name(), deploymentFile)
			dep, err := readDeployment(d.path(name), name, false)
			var corrupt *CorruptError
			if errors.As(err, &corrupt) {
				dep = &Deployment{Name: name, Err: err}
			} else if err != nil {
				return err
			}
			list = append(list, *dep)
		}
		return nil
	})
	return list, err
}

// Delete removes a deployment and reports whether it was there.
func (d *Deployments) Delete(ctx context.Context, name string) (found bool, err error) {
	if !ValidDeployment(name) {
		return false, nil
	}
	err = d.use(ctx, func() error {
		d.know(nil)
		err := os.Remove(d.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("data: %w", err)
		}
		found = true
		return syncDir(d.dir())
	})
	return found, err
}

// Uses reads what SaveUses kept; nil if that was nothing.
func (d *Deployments) Uses(ctx context.Context) (raw json.RawMessage, err error) {
	err = d.use(ctx, func() error {
		raw, err = os.ReadFile(filepath.Join(d.dir(), usesFile))
		if errors.Is(err, fs.ErrNotExist) {
			raw, err = nil, nil
		}
		return err
	})
	return raw, err
}

// SaveUses keeps counters of the deployments beside them. There must have been
// one: nothing is kept for a tenant whose data was removed.
func (d *Deployments) SaveUses(ctx context.Context, raw json.RawMessage) error {
	return d.use(ctx, func() error {
		if _, err := os.Lstat(d.dir()); err != nil {
			return ifNotThere(err)
		}
		return writeDurably(d.dir(), filepath.Join(d.dir(), usesFile), raw)
	})
}

func ifNotThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("data: %w", err)
}
