package netproxy

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/pkgcache"
)

// PackageStats is how much the package cache holds.
type PackageStats = pkgcache.Stats

// Packages counts what the package cache holds; nil where there is none.
func (p *Proxy) Packages() *PackageStats {
	if p.packages == nil {
		return nil
	}
	s := p.packages.Stats()
	return &s
}

// openPackages opens the folder of kept packages.
func (p *Proxy) openPackages() (err error) {
	if p.cfg.PackageDir == "" {
		return nil
	}
	p.packages, err = pkgcache.Open(p.cfg.PackageDir, p.cfg.PackageMax)
	return err
}

// handlePackages answers the proxy process about kept packages: it gets
// descriptors of single files, never a path. ok is false for other methods.
func (p *Proxy) handlePackages(_ context.Context, method string, body json.RawMessage) (out any, files []*os.File, err error, ok bool) {
	var key control.PackageKey
	var w control.PackageWrite
	switch method {
	case control.MethodPackageFind:
		err = json.Unmarshal(body, &key)
	case control.MethodPackageBegin:
	case control.MethodPackageCommit, control.MethodPackageAbort, control.MethodPackageRefresh:
		err = json.Unmarshal(body, &w)
	default:
		return nil, nil, nil, false
	}
	if err != nil || p.packages == nil {
		return nil, nil, &control.RemoteError{Code: "invalid"}, true
	}
	switch method {
	case control.MethodPackageFind:
		meta, f, err := p.packages.Find(key.Key)
		if err != nil {
			return nil, nil, p.packageError(err), true
		}
		return meta, []*os.File{f}, nil, true
	case control.MethodPackageBegin:
		id, f, err := p.packages.Begin()
		if err != nil {
			return nil, nil, p.packageError(err), true
		}
		// The store's own descriptor stays; what is sent is closed after.
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, nil, p.packageError(errors.Join(err, p.packages.Abort(id))), true
		}
		return control.PackageWrite{ID: id}, []*os.File{os.NewFile(uintptr(fd), "package")}, nil, true
	case control.MethodPackageCommit:
		err = p.packages.Commit(w.ID, w.Key, w.Meta)
	case control.MethodPackageAbort:
		err = p.packages.Abort(w.ID)
	case control.MethodPackageRefresh:
		err = p.packages.Refresh(w.Key, w.Meta.SHA256, w.Meta.Fresh)
	}
	return nil, nil, p.packageError(err), true
}

// packageError tells the proxy process that it has to do without.
func (p *Proxy) packageError(err error) error {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, pkgcache.ErrUnknown) && !errors.Is(err, pkgcache.ErrBusy) && !errors.Is(err, pkgcache.ErrTooLarge):
		p.cfg.Log.Warn("the package cache", "error", err)
	}
	return &control.RemoteError{Code: "unavailable"}
}
