package jail

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// makeFolders makes the tenant's own (kept) and the jail's (not kept).
func (j *Jail) makeFolders() error {
	if j.spec.Ephemeral {
		// Sweep has only this to know it by.
		if err := touch(filepath.Join(j.tenantDir(), ephemeralMark)); err != nil {
			return err
		}
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
	// The root's upper layer is outside of the tenant's limit, so that a jail
	// whose disk is full still starts: the tenant may write nowhere in it.
	layer := filepath.Join(j.runDir(), "layer")
	for _, dir := range []string{j.runDir(), layer, filepath.Join(layer, "upper"), filepath.Join(layer, "work")} {
		if err := makeDir(dir); err != nil {
			return fmt.Errorf("jail: folders: %w", err)
		}
	}
	for _, dir := range []string{"upper", "work"} {
		if err := os.Lchown(filepath.Join(layer, dir), int(j.uid), int(j.uid)); err != nil {
			return fmt.Errorf("jail: folders: %w", err)
		}
	}
	if err := j.writeEtc(filepath.Join(layer, "upper")); err != nil {
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

// hostCertificates is where a Debian keeps certificates of its own, from which
// it makes the file of all anew when its package is installed.
const hostCertificates = "usr/local/share/ca-certificates"

// writeEtc writes the part of /etc that is the jail's own beneath root.
func (j *Jail) writeEtc(root string) error {
	folders, etc := []string{"etc", "etc/ssl", "etc/ssl/certs"}, filepath.Join(root, "etc")
	if j.spec.WritableRoot {
		folders = append(folders, "usr", "usr/local", "usr/local/share", hostCertificates)
	}
	for _, dir := range folders {
		// Owned by the jail's root: the overlay marks folders that it merges.
		err := makeDir(filepath.Join(root, dir))
		if err == nil {
			err = os.Lchown(filepath.Join(root, dir), int(j.uid), int(j.uid))
		}
		if err != nil {
			return fmt.Errorf("jail: /etc: %w", err)
		}
	}
	var resolv strings.Builder
	for _, r := range j.spec.Resolvers {
		fmt.Fprintf(&resolv, "nameserver %s\n", r)
	}
	for name, text := range map[string]string{
		"resolv.conf": resolv.String(),
		// git and others look their own host's name up; without a line it would
		// go out as a question and come back as a denial.
		"hosts": hostsFile + "127.0.0.1 " + hostname(j.tenant) + "\n",
	} {
		name = filepath.Join(etc, name)
		err := makeFile(name, []byte(text))
		if err == nil && j.spec.WritableRoot {
			err = os.Lchown(name, int(j.uid), int(j.uid))
		}
		if err != nil {
			return fmt.Errorf("jail: /etc: %w", err)
		}
	}
	bundle, err := j.m.bundle(j.spec.CABundle)
	if err != nil {
		return err
	}
	err = os.Link(bundle, filepath.Join(etc, certificate))
	if err == nil && j.spec.WritableRoot {
		err = os.Link(bundle, filepath.Join(root, hostCertificates, "sandboxd.crt"))
	}
	if err != nil {
		return fmt.Errorf("jail: certificates: %w", err)
	}
	return nil
}

// bundle returns a file with the certificates (the host's own if there are
// none), one for each content: it is linked into jails, where it is read-only
// because it belongs to an id that they do not have.
func (m *Manager) bundle(pem []byte) (string, error) {
	if len(pem) == 0 {
		var err error
		if pem, err = os.ReadFile(certificateAbs); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("jail: certificates: %w", err)
		}
	}
	sum := sha256.Sum256(pem)
	path := filepath.Join(m.bundleDir(), hex.EncodeToString(sum[:16])+".pem")
	if _, err := os.Lstat(path); err == nil {
		return path, nil
	}
	tmp, err := os.CreateTemp(m.bundleDir(), "new")
	if err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := tmp.Write(pem); err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	if err := tmp.Chmod(0o644); err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return "", fmt.Errorf("jail: certificates: %w", err)
	}
	return path, nil
}
