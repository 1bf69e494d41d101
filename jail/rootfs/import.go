package rootfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Progress of an import.
type Progress struct {
	// Stage is "receiving" (an image archive), "unpacking" or "storing".
	Stage string
	// Layer counts from 1 to Layers; both 0 until they are known.
	Layer, Layers int
	// Bytes and Entries are what has come so far.
	Bytes, Entries int64
}

// reportEvery bounds how often progress is reported.
const reportEvery = 200 * time.Millisecond

// An importer makes one template in a folder of its own.
type importer struct {
	s      *Store
	ctx    context.Context
	stage  string
	t      *Template
	budget *budget
	made   map[string]bool // layers in stage
	held   []string        // layers of the store
	report func(Progress)
	now    Progress
	last   time.Time
}

// Import reads a root file system, or an image, and makes it the template name,
// in place of one that has the name. report may be nil; it is called from the
// calling goroutine. When Import fails, or ctx ends, the store is as before.
// What is wrong with the input is an *ImportError.
func (s *Store) Import(ctx context.Context, name string, r io.Reader, report func(Progress)) (*Template, error) {
	if !Name.MatchString(name) || name == HostName {
		return nil, badImport("%q cannot be a template's name: want %s, and not %q", name, Name, HostName)
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return nil, ErrBusy
	}
	if report == nil {
		report = func(Progress) {}
	}
	im := &importer{s: s, ctx: ctx, stage: s.path("staging", rand.Text()), made: map[string]bool{}, report: report,
		t: &Template{Name: name, Created: time.Now().UTC().Truncate(time.Second), Env: map[string]string{}}}
	im.budget = &budget{limits: s.limits, report: im.progress}
	defer s.release(&im.held)
	if err := os.Mkdir(im.stage, 0o700); err != nil {
		return nil, fmt.Errorf("rootfs: %w", err)
	}
	err := im.run(r)
	// Cleaned up whatever ctx says; at the next start if this fails.
	if rmErr := os.RemoveAll(im.stage); err == nil && rmErr != nil {
		err = fmt.Errorf("rootfs: %w", rmErr)
	}
	if err != nil {
		return nil, err
	}
	return im.t, s.collect()
}

// ImportPath is Import of a file or folder of the daemon's own host.
func (s *Store) ImportPath(ctx context.Context, name, path string, report func(Progress)) (*Template, error) {
	f, folder, err := openHostPath(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !folder {
		return s.Import(ctx, name, f, report)
	}
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	var packing sync.WaitGroup
	packing.Go(func() { w.CloseWithError(WriteTree(ctx, f, w)) })
	t, err := s.Import(ctx, name, r, report)
	cancel()
	r.Close()
	packing.Wait()
	return t, err
}

func (im *importer) progress(entries, bytes int64) {
	im.now.Entries, im.now.Bytes = entries, bytes
	if now := time.Now(); now.Sub(im.last) >= reportEvery {
		im.last = now
		im.report(im.now)
	}
}

// at says where the import is.
func (im *importer) at(stage string, layer, layers int) {
	im.now.Stage, im.now.Layer, im.now.Layers = stage, layer, layers
	im.report(im.now)
}

func (im *importer) run(r io.Reader) error {
	plain, err := im.decompress(&contextReader{im.ctx, r})
	if err != nil {
		return err
	}
	defer plain.Close()
	in := bufio.NewReaderSize(plain, 1<<20)
	image, err := isImageArchive(in)
	if err != nil {
		return err
	}
	if image {
		err = im.image(in)
	} else {
		im.t.Kind = "tar"
		im.at("unpacking", 1, 1)
		var digest string
		if digest, err = im.layer(in, "", false); err == nil {
			im.t.Layers = []string{digest}
		}
	}
	if err != nil {
		return err
	}
	im.at("storing", len(im.t.Layers), len(im.t.Layers))
	if err := im.fit(); err != nil {
		return err
	}
	im.t.identify()
	if im.ctx.Err() != nil {
		return context.Cause(im.ctx)
	}
	return im.s.publish(im.stage, im.made, im.t)
}

// most is how long a tar may be whose entries are within the limits.
func (im *importer) most() int64 { return im.s.limits.Bytes + 4096*im.s.limits.Entries }

// decompress undoes the compression that the first bytes show, if any, and
// bounds what comes of it.
func (im *importer) decompress(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, err := in.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var out io.Reader = in
	closer := func() {}
	switch magic := string(head); {
	case has(magic, "\x1f\x8b"):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, badImport("is damaged: %v", err)
		}
		out, closer = z, func() { z.Close() }
	case has(magic, "\x28\xb5\x2f\xfd"):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, badImport("is damaged: %v", err)
		}
		out, closer = z, z.Close
	case has(magic, "\xfd7zXZ\x00"), has(magic, "BZh"):
		return nil, badImport("is compressed with xz or bzip2; want no compression, gzip or zstd")
	}
	return &stream{r: out, left: im.most(), close: closer}, nil
}

func has(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

// stream bounds a decompressed stream and says what a decompressor's errors mean.
type stream struct {
	r     io.Reader
	left  int64
	close func()
}

func (s *stream) Close() error { s.close(); return nil }

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if s.left -= int64(n); s.left < 0 {
		return 0, tooLarge("the archive, unpacked")
	}
	switch {
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.Is(err, zstd.ErrMagicMismatch),
		errors.Is(err, zstd.ErrCRCMismatch), errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrReservedBlockType):
		err = badImport("is damaged: %v", err)
	}
	return n, err
}

// hashReader takes the digest of what is read.
type hashReader struct {
	r   io.Reader
	sum hash.Hash
	n   int64
}

func newHashReader(r io.Reader) *hashReader { return &hashReader{r: r, sum: sha256.New()} }

func (h *hashReader) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	h.sum.Write(b[:n])
	h.n += int64(n)
	return n, err
}

func (h *hashReader) digest() string { return hex.EncodeToString(h.sum.Sum(nil)) }

// layer unpacks an uncompressed tar as a layer and returns its digest; with want
// it must have that one. A layer that the store has is only read.
func (im *importer) layer(r io.Reader, want string, whiteouts bool) (string, error) {
	in := newHashReader(r)
	if want != "" {
		if info, ok := im.s.hold(want, &im.held); ok || im.made[want] {
			im.now.Bytes, im.now.Entries = im.budget.bytes+info.Bytes, im.budget.entries+info.Entries
			if _, err := io.Copy(io.Discard, in); err != nil {
				return "", err
			}
			return want, sameDigest(in.digest(), want)
		}
	}
	dir := filepath.Join(im.stage, "new-"+rand.Text())
	tree := filepath.Join(dir, "tree")
	for _, d := range []string{dir, tree} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return "", fmt.Errorf("rootfs: %w", err)
		}
	}
	if err := os.Chmod(tree, 0o755); err != nil {
		return "", fmt.Errorf("rootfs: %w", err)
	}
	top, err := os.Open(tree)
	if err != nil {
		return "", fmt.Errorf("rootfs: %w", err)
	}
	defer top.Close()
	info, err := unpack(im.ctx, top, in, whiteouts, im.budget)
	if err == nil {
		// What follows the end mark belongs to the digest.
		_, err = io.Copy(io.Discard, in)
	}
	if err != nil {
		return "", err
	}
	digest := in.digest()
	if want != "" {
		if err := sameDigest(digest, want); err != nil {
			return "", err
		}
	}
	return digest, im.keep(dir, digest, info)
}

func sameDigest(got, want string) error {
	if got != want {
		return badImport("a layer's digest is sha256:%s, but the image says sha256:%s: the archive is damaged or was changed", got, want)
	}
	return nil
}

// keep makes a folder in stage the layer digest, unless there is one.
func (im *importer) keep(dir, digest string, info layerInfo) error {
	if _, ok := im.s.hold(digest, &im.held); ok || im.made[digest] {
		return os.RemoveAll(dir)
	}
	b, err := json.Marshal(info)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "layer.json"), b, 0o600)
	}
	if err == nil {
		err = os.Rename(dir, filepath.Join(im.stage, digest))
	}
	if err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	im.made[digest] = true
	return nil
}

// layerDir is where a layer of this import is.
func (im *importer) layerDir(digest string) string {
	if im.made[digest] {
		return filepath.Join(im.stage, digest)
	}
	return im.s.path("layers", digest)
}

// hold keeps a layer of the store, if it has it, until release.
func (s *Store) hold(digest string, held *[]string) (layerInfo, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.layer(digest)
	if ok {
		s.inUse[digest]++
		*held = append(*held, digest)
	}
	return info, ok
}

func (s *Store) release(held *[]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, digest := range *held {
		if s.inUse[digest]--; s.inUse[digest] == 0 {
			delete(s.inUse, digest)
		}
	}
}

// isImageArchive looks at the first entry's name: an image archive has nothing
// but blobs and notes.
func isImageArchive(in *bufio.Reader) (bool, error) {
	head, err := in.Peek(4096)
	if len(head) == 0 && errors.Is(err, io.EOF) {
		return false, badImport("is empty")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	for archive := tar.NewReader(bytes.NewReader(head)); ; {
		h, err := archive.Next()
		if err != nil {
			return false, nil // a header that goes on is no image's; no tar is told later
		}
		name, err := entryPath(h.Name)
		switch {
		case err != nil:
			return false, nil
		case name == "" && h.Typeflag == tar.TypeDir:
			continue // the folder that was packed
		}
		return name == "blobs" || name == "blobs/sha256" || archiveFile.MatchString(name) || archiveFolder.MatchString(name), nil
	}
}
