package jail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sandboxd/jail/sys"
)

// makeFolders makes the tenant's own (kept) and the jail's (not kept).
func (j *Jail) makeFolders() error {
	if err := j.m.writeLife(j.tenant, life{Created: j.created}); err != nil {
		return err
	}
	if j.spec.Ephemeral {
		// Sweep has only this to know it by.
		if err := touch(filepath.Join(j.tenantDir(), ephemeralMark)); err != nil {
			return err
		}
	}
	if err := makeDir(j.runDir()); err != nil {
		return fmt.Errorf("jail: folders: %w", err)
	}
	if err := j.openFiles(); err != nil {
		return err
	}
	if err := j.limitIO(j.limits); err != nil {
		return err
	}
	for _, dir := range []string{j.workspaceDir(), j.homeDir()} {
		err := os.Mkdir(dir, 0o700)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = os.Lchown(dir, int(j.uid+tenantUID), int(j.uid+tenantGID))
		}
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			return fmt.Errorf("jail: workspace: %w", err)
		}
	}
	if err := j.makeRoot(); err != nil {
		return err
	}
	var err error
	if j.born, err = stampOf(j.filesDir()); err != nil {
		return fmt.Errorf("jail: workspace: %w", err)
	}
	return nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	return f.Close()
}

// makeLayer makes the root's upper layer, and in it the part of /etc that depends
// on the network alone: a memory file system that is mounted in the jail alone,
// so that nothing is left of it when the jail has ended. It is outside of the
// tenant's limit, so that a jail whose disk is full still starts: the tenant may
// write nowhere in it.
func (m *Manager) makeLayer(resolvers []string, bundle []byte) (*os.File, error) {
	if len(bundle) == 0 {
		bundle = m.hostBundle
	}
	fd, err := sys.Filesystem("tmpfs", attrPlain, "mode", "0755", "nr_inodes", "1024", "size", fmt.Sprint(layerSpace+len(bundle)))
	if err != nil {
		return nil, fmt.Errorf("jail: layer: %w", err)
	}
	layer := os.NewFile(uintptr(fd), "layer")
	if err := fillLayer(layerPath(layer), resolvers, bundle); err != nil {
		layer.Close()
		return nil, err
	}
	return layer, nil
}

// layerSpace is what a layer has beside the certificates.
const layerSpace = 1 << 20

// layerPath is where the daemon reaches a layer, which is mounted nowhere.
func layerPath(layer *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", layer.Fd()) }

func fillLayer(layer string, resolvers []string, bundle []byte) error {
	etc := filepath.Join(layer, "upper/etc")
	for _, d := range []string{
		filepath.Join(layer, "upper"), filepath.Join(layer, "work"), etc, filepath.Join(etc, "ssl"), filepath.Join(etc, "ssl/certs"),
	} {
		if err := makeDir(d); err != nil {
			return fmt.Errorf("jail: folders: %w", err)
		}
	}
	var resolv strings.Builder
	for _, r := range resolvers {
		fmt.Fprintf(&resolv, "nameserver %s\n", r)
	}
	if err := makeFile(filepath.Join(etc, "resolv.conf"), []byte(resolv.String())); err != nil {
		return fmt.Errorf("jail: /etc: %w", err)
	}
	// Read-only inside, because it belongs to an id that the jail does not have.
	if err := makeFile(filepath.Join(etc, certificate), bundle); err != nil {
		return fmt.Errorf("jail: certificates: %w", err)
	}
	return writeJavaTrust(etc, bundle)
}

// ownLayer makes the layer the tenant's.
func (j *Jail) ownLayer(layer string) error {
	own := func(path string) error {
		return os.Lchown(filepath.Join(layer, path), int(j.uid), int(j.uid))
	}
	// Owned by the jail's root: the overlay marks folders that it merges.
	for _, dir := range []string{"upper", "work", "upper/etc", "upper/etc/ssl", "upper/etc/ssl/certs"} {
		if err := own(dir); err != nil {
			return fmt.Errorf("jail: folders: %w", err)
		}
	}
	// git and others look their own host's name up; without a line it would go out
	// as a question and come back as a denial.
	hosts := hostsFile + "127.0.0.1 " + hostname(j.tenant) + "\n"
	if err := makeFile(filepath.Join(layer, "upper/etc/hosts"), []byte(hosts)); err != nil {
		return fmt.Errorf("jail: /etc: %w", err)
	}
	if !j.spec.WritableRoot {
		return nil
	}
	err := errors.Join(own("upper/etc/hosts"), own("upper/etc/resolv.conf"))
	for _, dir := range []string{"usr", "usr/local", "usr/local/share", hostCertificates} {
		dir = filepath.Join("upper", dir)
		err = errors.Join(err, makeDir(filepath.Join(layer, dir)), own(dir))
	}
	upper := filepath.Join(layer, "upper")
	err = errors.Join(err, os.Link(filepath.Join(upper, "etc", certificate), filepath.Join(upper, hostCertificates, "sandboxd.crt")))
	if err != nil {
		return fmt.Errorf("jail: /etc: %w", err)
	}
	return nil
}

// hostCertificates is where a Debian keeps certificates of its own, from which
// it makes the file of all anew when its package is installed.
const hostCertificates = "usr/local/share/ca-certificates"

// readBundle reads the host's own certificates, for jails that get no others.
func (m *Manager) readBundle(context.Context) (err error) {
	m.hostBundle, err = os.ReadFile(certificateAbs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("jail: certificates: %w", err)
	}
	return nil
}
