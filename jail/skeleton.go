package jail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The skeleton is the lower layer of every jail's root: the folders that things
// are mounted on, and the part of /etc that is the same for all. It is made
// anew when the daemon starts. Nothing in it is a secret or names the host.

// hostEtc is what the tools in the host's /usr need of the host's /etc: the
// linker's cache, Debian's alternatives, the time zone, and defaults of the
// shells and languages. Left out on purpose: files that can carry credentials
// or addresses (npmrc, gitconfig, pip.conf, environment, ssh, apt …).
var hostEtc = []string{
	"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "mime.types", "services",
	"protocols", "host.conf", "gai.conf", "inputrc", "bash.bashrc", "profile", "profile.d", "os-release",
	"debian_version", "magic", "perl", "python3", "python3.11", "python3.12", "python3.13", "java-17-openjdk",
	"java-21-openjdk", "terminfo", "locale.alias", "ssl/openssl.cnf",
}

const (
	maxHostFile    = 1 << 20
	maxHostFiles   = 4096
	hostsFile      = "127.0.0.1 localhost\n"
	nsswitchFile   = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"
	passwdFile     = "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	groupFile      = "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"
	certificate    = "ssl/certs/ca-certificates.crt"
	certificateAbs = "/etc/" + certificate
)

// makeSkeleton writes the skeleton to dir, which must not exist.
func makeSkeleton(dir string, opt bool) error {
	folders := []string{
		"etc/ssl/certs", "usr", "proc", "dev", "tmp", "var/tmp", "var/cache", "var/lib", "var/log", "run",
		"workspace", "home/user", "root",
	}
	if opt {
		folders = append(folders, "opt")
	}
	for _, f := range folders {
		if err := makeDirs(dir, f); err != nil {
			return fmt.Errorf("jail: skeleton: %w", err)
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := mirrorUsr(dir, name); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"hosts": hostsFile, "nsswitch.conf": nsswitchFile, "passwd": passwdFile, "group": groupFile,
	} {
		if err := makeFile(filepath.Join(dir, "etc", name), []byte(text)); err != nil {
			return fmt.Errorf("jail: skeleton: %w", err)
		}
	}
	if err := os.Symlink("certs/ca-certificates.crt", filepath.Join(dir, "etc/ssl/cert.pem")); err != nil {
		return fmt.Errorf("jail: skeleton: %w", err)
	}
	left := maxHostFiles
	for _, name := range hostEtc {
		if err := copyHostEtc(filepath.Join("/etc", name), filepath.Join(dir, "etc", name), &left); err != nil {
			return fmt.Errorf("jail: skeleton: %s: %w", name, err)
		}
	}
	return nil
}

// The daemon's umask keeps its files from others; what a jail is to see gets its
// mode by hand.

func makeDir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// makeDirs makes dir and the parts of rel in it.
func makeDirs(dir, rel string) error {
	for _, part := range strings.Split("./"+rel, "/") {
		dir = filepath.Join(dir, part)
		if err := makeDir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func makeFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Chmod(0o644)
}

// mirrorUsr repeats one of the root's links into /usr.
func mirrorUsr(dir, name string) error {
	target, err := os.Readlink("/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	target = strings.TrimPrefix(target, "/")
	if err != nil || !strings.HasPrefix(target, "usr/") {
		return &UnsupportedError{
			Feature: "a merged /usr", Found: "/" + name + " is not a link into /usr", Needed: "/" + name + " → usr/" + name,
			Remedy: "merge it (Debian: package usrmerge)",
		}
	}
	if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
		return fmt.Errorf("jail: skeleton: %w", err)
	}
	return nil
}

// copyHostEtc copies regular files (through links, so that localtime works),
// folders and, inside folders, links as links.
func copyHostEtc(from, to string, left *int) error {
	st, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return copyHostFile(from, to, st, left)
	}
	if err := makeDir(to); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(src)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, dst); err != nil {
				return err
			}
		case e.IsDir() || e.Type().IsRegular():
			if err := copyHostEtc(src, dst, left); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyHostFile(from, to string, st fs.FileInfo, left *int) error {
	// What others may not read on the host is not for a jail either.
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o004 == 0 || st.Size() > maxHostFile {
		return nil
	}
	if *left--; *left < 0 {
		return errors.New("too many files")
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return makeFile(to, b)
}
