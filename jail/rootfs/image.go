package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// maxNote bounds a manifest or configuration.
const maxNote = 4 << 20

// What an image archive consists of; anything else in it is passed over.
var (
	archiveFile   = regexp.MustCompile(`^(oci-layout|index\.json|manifest\.json|repositories|blobs/sha256/[0-9a-f]{64}|[0-9a-f]{64}\.json|[0-9a-f]{64}/(layer\.tar|json|VERSION)|[0-9a-f]{64}\.tar(\.gz)?)$`)
	archiveFolder = regexp.MustCompile(`^[0-9a-f]{64}$`)
	blobName      = regexp.MustCompile(`([0-9a-f]{64})(\.json)?$`)
)

// archive is an image archive's files, in a folder of the import's own.
type archive struct {
	dir   string
	links map[string]string // older docker save: a layer that two images have
}

// image imports an image archive.
func (im *importer) image(r io.Reader) error {
	im.at("receiving", 0, 0)
	a := &archive{dir: filepath.Join(im.stage, "archive"), links: map[string]string{}}
	if err := im.receive(a, r); err != nil {
		return err
	}
	im.budget.bytes, im.budget.entries = 0, 0
	_, err := os.Lstat(filepath.Join(a.dir, "index.json"))
	if err == nil {
		im.t.Kind = "oci"
		err = im.layout(a)
	} else {
		im.t.Kind = "docker"
		err = im.saved(a)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(a.dir)
}

// receive stores the archive's files, for its notes may come last.
func (im *importer) receive(a *archive, r io.Reader) error {
	if err := os.MkdirAll(filepath.Join(a.dir, "blobs/sha256"), 0o700); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	for in := tar.NewReader(r); ; {
		if im.ctx.Err() != nil {
			return context.Cause(im.ctx)
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return brokenTar(err)
		}
		if err := im.budget.entry(); err != nil {
			return err
		}
		name, err := entryPath(h.Name)
		if err != nil {
			return err
		}
		if !archiveFile.MatchString(name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			err = im.receiveFile(a, name, in)
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
		}
		if err != nil {
			return err
		}
	}
}

func (im *importer) receiveFile(a *archive, name string, r io.Reader) error {
	to := filepath.Join(a.dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return badEntry(name, "comes twice")
	}
	if err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	for {
		n, err := r.Read(buf)
		if err := im.budget.take(int64(n)); err != nil {
			return err
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return fmt.Errorf("rootfs: %w", err)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return brokenTar(err)
		}
	}
}

// open opens a file of the archive.
func (a *archive) open(name string) (*os.File, error) {
	if to, ok := a.links[name]; ok {
		name = to
	}
	if !archiveFile.MatchString(name) {
		return nil, badImport("the image names %q, which is no file of an image archive", name)
	}
	f, err := os.Open(filepath.Join(a.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, badImport("the image lacks its file %s", name)
	}
	return f, err
}

// note reads a manifest or configuration; with a digest it must have it.
func (a *archive) note(name, digest string) ([]byte, error) {
	f, err := a.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := newHashReader(f)
	b, err := io.ReadAll(io.LimitReader(in, maxNote+1))
	if err != nil {
		return nil, fmt.Errorf("rootfs: %w", err)
	}
	if len(b) > maxNote {
		return nil, tooLarge("%s of the image has over %d bytes", name, maxNote)
	}
	if digest != "" && in.digest() != digest {
		return nil, badImport("%s has the digest sha256:%s: the archive is damaged or was changed", name, in.digest())
	}
	return b, nil
}

func (a *archive) blob(h v1.Hash) ([]byte, error) {
	name, err := blobFile(h)
	if err != nil {
		return nil, err
	}
	return a.note(name, h.Hex)
}

func blobFile(h v1.Hash) (string, error) {
	if h.Algorithm != "sha256" {
		return "", badImport("the image has a digest by %q; want sha256", h.Algorithm)
	}
	return "blobs/sha256/" + h.Hex, nil
}

// layout imports an OCI layout.
func (im *importer) layout(a *archive) error {
	b, err := a.note("index.json", "")
	if err != nil {
		return err
	}
	m, err := a.manifest(b, 0)
	if err != nil {
		return err
	}
	if b, err = a.blob(m.Config.Digest); err != nil {
		return err
	}
	var layers []source
	for i := range m.Layers {
		l := &m.Layers[i]
		if !l.MediaType.IsLayer() || !l.MediaType.IsDistributable() {
			return badImport("layer %d is of the kind %q, which is no layer of files", i+1, l.MediaType)
		}
		name, err := blobFile(l.Digest)
		if err != nil {
			return err
		}
		layers = append(layers, source{file: name, digest: l.Digest.Hex})
	}
	return im.stack(a, b, layers)
}

// manifest finds the one image for this machine that an index names.
func (a *archive) manifest(index []byte, depth int) (*v1.Manifest, error) {
	im, err := v1.ParseIndexManifest(bytes.NewReader(index))
	if err != nil {
		return nil, badImport("the index cannot be read: %v", err)
	}
	var found []*v1.Descriptor
	for i := range im.Manifests {
		d := &im.Manifests[i]
		if p := d.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			continue
		}
		if d.MediaType.IsIndex() || d.MediaType.IsImage() {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return nil, badImport("it holds %d images for linux/%s; want exactly one", len(found), runtime.GOARCH)
	}
	b, err := a.blob(found[0].Digest)
	if err != nil {
		return nil, err
	}
	if found[0].MediaType.IsIndex() {
		if depth == 2 {
			return nil, badImport("its indexes are nested too deep")
		}
		return a.manifest(b, depth+1)
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return nil, badImport("the manifest cannot be read: %v", err)
	}
	return m, nil
}

// saved imports what docker save wrote before it was an OCI layout too.
func (im *importer) saved(a *archive) error {
	b, err := a.note("manifest.json", "")
	if err != nil {
		return err
	}
	var m []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return badImport("manifest.json cannot be read: %v", err)
	}
	if len(m) != 1 {
		return badImport("it holds %d images; want exactly one", len(m))
	}
	named := blobName.FindStringSubmatch(m[0].Config)
	if named == nil {
		return badImport("the configuration's name %q is not its digest", m[0].Config)
	}
	if b, err = a.note(m[0].Config, named[1]); err != nil {
		return err
	}
	var layers []source
	for _, file := range m[0].Layers {
		layers = append(layers, source{file: file})
	}
	return im.stack(a, b, layers)
}

// source is where a layer's tar is; digest, if not "", is the file's own.
type source struct{ file, digest string }

// stack imports the layers and takes an image's defaults.
func (im *importer) stack(a *archive, config []byte, layers []source) error {
	c, err := v1.ParseConfigFile(bytes.NewReader(config))
	if err != nil {
		return badImport("the configuration cannot be read: %v", err)
	}
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != runtime.GOARCH {
		return badImport("the image is for %s/%s; this machine is linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	switch n := len(c.RootFS.DiffIDs); {
	case n != len(layers):
		return badImport("it has %d layers, but its configuration names %d", len(layers), n)
	case n == 0:
		return badImport("it has no layers")
	case n > MaxLayers-1:
		return tooLarge("%d layers; at most %d", n, MaxLayers-1)
	}
	for i, l := range layers {
		im.at("unpacking", i+1, len(layers))
		diff := c.RootFS.DiffIDs[i]
		if diff.Algorithm != "sha256" {
			return badImport("the image has a digest by %q; want sha256", diff.Algorithm)
		}
		if err := im.imageLayer(a, l, diff.Hex); err != nil {
			return err
		}
		im.t.Layers = append(im.t.Layers, diff.Hex)
	}
	im.defaults(&c.Config)
	return nil
}

func (im *importer) imageLayer(a *archive, l source, diff string) error {
	f, err := a.open(l.file)
	if err != nil {
		return err
	}
	defer f.Close()
	packed := newHashReader(&contextReader{im.ctx, f})
	plain, err := im.decompress(packed)
	if err != nil {
		return err
	}
	defer plain.Close()
	if _, err := im.layer(plain, diff, true); err != nil {
		return err
	}
	if l.digest == "" {
		return nil
	}
	// What follows the compressed stream belongs to the digest.
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	return sameDigest(packed.digest(), l.digest)
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// notDefaults are variables that say who a command is and where its home is: the
// jail's own affair.
var notDefaults = map[string]bool{"HOME": true, "USER": true, "LOGNAME": true, "HOSTNAME": true, "TMPDIR": true}

const (
	maxDefaults = 256
	maxDefault  = 32 << 10
)

// defaults takes an image's environment and working folder. Its entry point and
// command are not ours to run; its user is kept for people to see.
func (im *importer) defaults(c *v1.Config) {
	for _, line := range c.Env {
		name, value, ok := strings.Cut(line, "=")
		if !ok || !envName.MatchString(name) || notDefaults[name] || strings.ContainsRune(value, 0) ||
			len(value) > maxDefault || len(im.t.Env) >= maxDefaults {
			continue
		}
		im.t.Env[name] = value
	}
	if dir := path.Clean(c.WorkingDir); path.IsAbs(dir) && dir != "/" && len(dir) < maxName && !strings.ContainsRune(dir, 0) {
		im.t.WorkingDir = dir
	}
	if len(c.User) <= 255 {
		im.t.User = c.User
	}
}
