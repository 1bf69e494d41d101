package rootfs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoints are the folders that a jail mounts something on, or writes its own
// files to. They lie on top of what the template has there, so that none of its
// links is ever a mount's target.
var mountPoints = []string{"dev", "etc", "etc/ssl", "etc/ssl/certs", "home", "home/user", "proc", "run", "tmp", "var", "var/tmp", "workspace"}

// maxAccounts bounds a template's /etc/passwd or /etc/group.
const maxAccounts = 1 << 20

// accounts are the tenant's lines.
var accounts = map[string]struct{ whole, line string }{
	"etc/passwd": {"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"user:x:1000:1000:user:/home/user:/bin/sh\n"},
	"etc/group": {"root:x:0:\ntty:x:5:\nnogroup:x:65534:\n", "user:x:1000:\n"},
}

// aptConfig lets apt work as a root without capabilities, which cannot become the
// user that apt would fetch as.
const aptConfig = "APT::Sandbox::User \"root\";\n"

// fitting is the content of a fit layer.
type fitting struct {
	Folders []fitFolder       `json:"folders"` // each after the one that it is in
	Files   map[string]string `json:"files"`
}

type fitFolder struct {
	Path  string `json:"path"`
	Mode  uint32 `json:"mode"`
	Owner int    `json:"owner"`
}

// add names a folder, unless it is named.
func (f *fitting) add(path string, mode uint32, owner int) {
	if !slices.ContainsFunc(f.Folders, func(d fitFolder) bool { return d.Path == path }) {
		f.Folders = append(f.Folders, fitFolder{path, mode, owner})
	}
}

// fit makes the layer on top of the template's: see Template.Fit.
func (im *importer) fit() error {
	layers, err := im.openStack()
	if err != nil {
		return err
	}
	defer func() {
		for _, fd := range layers {
			unix.Close(fd)
		}
	}()
	want := fitting{Files: map[string]string{}}
	for _, path := range mountPoints {
		want.add(path, 0o755, 0)
	}
	for file, a := range accounts {
		text, ok, err := readMerged(layers, file)
		if err != nil {
			return err
		}
		if !ok {
			text = a.whole
		}
		if text, added := withAccount(text, a.line); added {
			want.Files[file] = text
		}
	}
	if kindOf(layers, "etc/apt/apt.conf.d") == isFolder {
		want.add("etc/apt", 0o755, 0)
		want.add("etc/apt/apt.conf.d", 0o755, 0)
		want.Files["etc/apt/apt.conf.d/90sandboxd"] = aptConfig
	}
	want.workingDir(layers, strings.TrimPrefix(im.t.WorkingDir, "/"))
	return im.makeFit(&want)
}

// openStack opens the layers, the topmost first.
func (im *importer) openStack() ([]int, error) {
	var out []int
	for _, digest := range slices.Backward(im.t.Layers) {
		fd, err := unix.Open(filepath.Join(im.layerDir(digest), "tree"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			for _, fd := range out {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("rootfs: layer %s: %w", digest, err)
		}
		out = append(out, fd)
	}
	return out, nil
}

// workingDir makes an image's working folder where it has none. The folders that
// lead there are in the layer, too, as the image has them.
func (f *fitting) workingDir(layers []int, dir string) {
	if dir == "" || kindOf(layers, dir) != isAbsent {
		return
	}
	var leading []fitFolder
	for i := range dir {
		if dir[i] != '/' {
			continue
		}
		d := fitFolder{Path: dir[:i], Mode: 0o755}
		fd, kind := merged(layers, d.Path)
		if fd >= 0 {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil {
				d.Mode, d.Owner = st.Mode&folderBits, owner(int(st.Uid))
			}
			unix.Close(fd)
		}
		if kind != isFolder && kind != isAbsent {
			return // behind a link, or no folder: what is there is the image's affair
		}
		leading = append(leading, d)
	}
	for _, d := range leading {
		f.add(d.Path, d.Mode, d.Owner)
	}
	f.add(dir, 0o755, tenantID)
}

// What a name is in the merged layers.
const (
	isAbsent = iota
	isFolder
	isFile
	isOther // a link, or behind one
)

// merged opens the topmost layer's entry of a name; -1 if it is absent or other.
func merged(layers []int, name string) (fd, kind int) {
	for _, top := range layers {
		fd, err := openBeneath(top, name, unix.O_PATH)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return -1, isOther
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		switch {
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
			return fd, isFolder
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG:
			return fd, isFile
		}
		unix.Close(fd)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			return -1, isAbsent // hidden
		}
		return -1, isOther
	}
	return -1, isAbsent
}

func kindOf(layers []int, name string) int {
	fd, kind := merged(layers, name)
	if fd >= 0 {
		unix.Close(fd)
	}
	return kind
}

// readMerged reads a file as a jail would see it.
func readMerged(layers []int, name string) (string, bool, error) {
	fd, kind := merged(layers, name)
	if fd < 0 {
		return "", false, nil
	}
	defer unix.Close(fd)
	if kind != isFile {
		return "", false, nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return "", false, fmt.Errorf("rootfs: %s: %w", name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAccounts+1))
	if err != nil {
		return "", false, fmt.Errorf("rootfs: %s: %w", name, err)
	}
	if len(b) > maxAccounts {
		return "", false, tooLarge("/%s has over %d bytes", name, maxAccounts)
	}
	return string(b), true, nil
}

// withAccount adds a line of passwd or group unless its number has one.
func withAccount(text, line string) (string, bool) {
	want := strings.Split(line, ":")
	names := map[string]bool{}
	for l := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(l, "\n"), ":")
		if len(fields) >= 3 && fields[2] == want[2] {
			return text, false
		}
		names[fields[0]] = true
	}
	if names[want[0]] {
		line = "sandbox" + strings.TrimPrefix(line, want[0])
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + line, true
}

func (im *importer) makeFit(want *fitting) error {
	b, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	sum := sha256.Sum256(b)
	im.t.Fit = "fit-" + hex.EncodeToString(sum[:])
	dir := filepath.Join(im.stage, "new-fit")
	tree := filepath.Join(dir, "tree")
	err = errors.Join(os.Mkdir(dir, 0o700), makeFitFolder(tree, fitFolder{Mode: 0o755}))
	for _, f := range want.Folders {
		err = errors.Join(err, makeFitFolder(tree, f))
	}
	for name, text := range want.Files {
		name = filepath.Join(tree, path.Clean(name))
		err = errors.Join(err, os.WriteFile(name, []byte(text), 0o644), os.Chmod(name, 0o644))
	}
	if err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	if err := im.keep(dir, im.t.Fit, layerInfo{}); err != nil {
		return err
	}
	return im.count()
}

func makeFitFolder(tree string, f fitFolder) error {
	dir := filepath.Join(tree, f.Path)
	return errors.Join(os.Mkdir(dir, 0o755), os.Lchown(dir, f.Owner, f.Owner), unix.Chmod(dir, f.Mode))
}

// count adds up what the layers have.
func (im *importer) count() error {
	for _, digest := range im.t.Layers {
		var info layerInfo
		b, err := os.ReadFile(filepath.Join(im.layerDir(digest), "layer.json"))
		if err == nil {
			err = json.Unmarshal(b, &info)
		}
		if err != nil {
			return fmt.Errorf("rootfs: layer %s: %w", digest, err)
		}
		im.t.Bytes += info.Bytes
		im.t.Entries += info.Entries
		im.t.LeftOut += info.LeftOut
	}
	return nil
}
