package proxy

import (
	"context"
	"os"
	"syscall"
	"time"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/pkgcache"
)

// Find implements PackageStore.
func (d *daemonSide) Find(ctx context.Context, key string) (meta pkgcache.Meta, f *os.File, err error) {
	f, err = d.oneFile(ctx, control.MethodPackageFind, control.PackageKey{Key: key}, &meta)
	return meta, f, err
}

// Begin implements PackageStore.
func (d *daemonSide) Begin(ctx context.Context) (uint64, *os.File, error) {
	var w control.PackageWrite
	f, err := d.oneFile(ctx, control.MethodPackageBegin, nil, &w)
	return w.ID, f, err
}

func (d *daemonSide) oneFile(ctx context.Context, method string, in, out any) (*os.File, error) {
	files, err := d.peer.Call(ctx, method, in, out)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		control.CloseAll(files)
		return nil, syscall.ECONNABORTED
	}
	return files[0], nil
}

// Commit implements PackageStore.
func (d *daemonSide) Commit(ctx context.Context, id uint64, key string, m pkgcache.Meta) error {
	_, err := d.peer.Call(ctx, control.MethodPackageCommit, control.PackageWrite{ID: id, Key: key, Meta: m}, nil)
	return err
}

// Abort implements PackageStore.
func (d *daemonSide) Abort(id uint64) {
	_ = d.peer.Notify(control.MethodPackageAbort, control.PackageWrite{ID: id})
}

// Refresh implements PackageStore.
func (d *daemonSide) Refresh(ctx context.Context, key, sha string, fresh time.Time) error {
	_, err := d.peer.Call(ctx, control.MethodPackageRefresh, control.PackageWrite{Key: key, Meta: pkgcache.Meta{SHA256: sha, Fresh: fresh}}, nil)
	return err
}
