package rootfs

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxLayers is how many layers a template may have, with the one that the store
// adds.
const MaxLayers = 128

// Name is what a template may be called; it is safe as a file's name.
var Name = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// HostName is no template's: it means the host's own system.
const HostName = "host"

// A Template is a named root file system.
type Template struct {
	Name string `json:"name"`
	// ID is the digest of the layers in their order: two templates with the same
	// ID are the same.
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	// Kind is "tar", "oci" or "docker".
	Kind string `json:"kind"`
	// Layers are digests, the lowest first.
	Layers []string `json:"layers"`
	// Fit is the store's own layer on top: what a jail needs and the template has
	// not.
	Fit string `json:"fit"`
	// Bytes and Entries are of the layers together.
	Bytes   int64 `json:"bytes"`
	Entries int64 `json:"entries"`
	// LeftOut counts devices, pipes and sockets that did not come in.
	LeftOut int64 `json:"left_out"`
	// Env and WorkingDir are an image's defaults. User is for people to see:
	// commands run as the tenant unless they ask for another.
	Env        map[string]string `json:"env,omitempty"`
	WorkingDir string            `json:"working_dir,omitempty"`
	User       string            `json:"user,omitempty"`
}

// Store is the folder of templates.
//
//	names/NAME.json   the templates
//	layers/DIGEST/    tree/ and layer.json
//	staging/          imports under way; emptied when the store is opened
type Store struct {
	dir    string
	limits Limits
	slots  chan struct{} // imports under way

	// mu is held while layers or names come or go, or are looked up.
	mu    sync.Mutex
	inUse map[string]int // layers that jails have, by digest
}

// Limits of one import.
type Limits struct {
	Bytes   int64 // of all files; also of the archive itself
	Entries int64
}

// DefaultLimits hold what people call large images.
func DefaultLimits() Limits { return Limits{Bytes: 32 << 30, Entries: 2_000_000} }

// Open opens the store in dir, which must be nobody else's, and removes what
// imports that were killed have left.
func Open(dir string, limits Limits) (*Store, error) {
	s := &Store{dir: dir, limits: limits, slots: make(chan struct{}, 2), inUse: map[string]int{}}
	// Closed to everybody: who could reach the files would find those of root.
	for _, d := range []string{dir, s.path("names"), s.path("layers"), s.path("staging")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("rootfs: %w", err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("rootfs: %w", err)
	}
	entries, err := os.ReadDir(s.path("staging"))
	if err != nil {
		return nil, fmt.Errorf("rootfs: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(s.path("staging", e.Name())); err != nil {
			return nil, fmt.Errorf("rootfs: %w", err)
		}
	}
	return s, s.collect()
}

// Dir is the store's folder.
func (s *Store) Dir() string { return s.dir }

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// List returns all templates, by name.
func (s *Store) List() ([]Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list()
}

func (s *Store) list() ([]Template, error) {
	entries, err := os.ReadDir(s.path("names"))
	if err != nil {
		return nil, fmt.Errorf("rootfs: %w", err)
	}
	out := []Template{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !Name.MatchString(name) {
			continue
		}
		t, err := s.get(name)
		if err != nil {
			return nil, err
		}
		out = append(out, *t)
	}
	return out, nil
}

// Get finds a template; ErrNotFound if there is none.
func (s *Store) Get(name string) (*Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(name)
}

func (s *Store) get(name string) (*Template, error) {
	if !Name.MatchString(name) {
		return nil, ErrNotFound
	}
	b, err := os.ReadFile(s.path("names", name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("rootfs: %w", err)
	}
	t := &Template{}
	if err := json.Unmarshal(b, t); err != nil {
		return nil, fmt.Errorf("rootfs: template %s: %w", name, err)
	}
	return t, nil
}

// Layers are a template's, open for a jail.
type Layers struct {
	// Files are the layers' folders, opened with O_PATH, the topmost first.
	Files   []*os.File
	store   *Store
	digests []string
	once    sync.Once
}

// Open opens the folders of a template's layers. They stay what they are until
// Release, also if the template is removed or replaced meanwhile. It is
// ErrNotFound if the template is gone.
func (s *Store) Open(t *Template) (*Layers, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &Layers{store: s, digests: t.stack()}
	for _, digest := range slices.Backward(l.digests) {
		fd, err := unix.Open(s.path("layers", digest, "tree"), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			l.close()
			if errors.Is(err, unix.ENOENT) {
				return nil, ErrNotFound
			}
			return nil, fmt.Errorf("rootfs: layer %s: %w", digest, err)
		}
		l.Files = append(l.Files, os.NewFile(uintptr(fd), "layer "+digest))
	}
	for _, digest := range l.digests {
		s.inUse[digest]++
	}
	return l, nil
}

func (l *Layers) close() {
	for _, f := range l.Files {
		f.Close()
	}
}

// Release says that no jail has the layers any more. More than once is once.
func (l *Layers) Release() error {
	var err error
	l.once.Do(func() {
		l.close()
		last := false
		l.store.mu.Lock()
		for _, digest := range l.digests {
			if l.store.inUse[digest]--; l.store.inUse[digest] == 0 {
				delete(l.store.inUse, digest)
				last = true
			}
		}
		l.store.mu.Unlock()
		if last {
			err = l.store.collect()
		}
	})
	return err
}

// stack is all layers, the lowest first.
func (t *Template) stack() []string { return append(slices.Clone(t.Layers), t.Fit) }

// Remove takes a template's name away and deletes the layers that neither
// another template nor a jail has; those of jails go with the last of them.
// ErrNotFound if there is none.
func (s *Store) Remove(name string) error {
	s.mu.Lock()
	_, err := s.get(name)
	if err == nil {
		err = os.Remove(s.path("names", name+".json"))
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.collect()
}

// collect deletes the layers that nobody has.
func (s *Store) collect() error {
	gone, err := s.unlist()
	for _, dir := range gone {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return fmt.Errorf("rootfs: delete layers: %w", err)
	}
	return nil
}

// unlist moves the layers that nobody has out of sight, each in one step: half a
// layer is never taken for one.
func (s *Store) unlist() (gone []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.list()
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for i := range all {
		for _, digest := range all[i].stack() {
			used[digest] = true
		}
	}
	entries, err := os.ReadDir(s.path("layers"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if used[e.Name()] || s.inUse[e.Name()] > 0 {
			continue
		}
		dir := s.path("staging", "gone-"+rand.Text())
		if err := os.Rename(s.path("layers", e.Name()), dir); err != nil {
			return gone, err
		}
		gone = append(gone, dir)
	}
	return gone, nil
}

// layerInfo is layer.json: what an import found, for the next that has the layer.
type layerInfo struct {
	Bytes   int64 `json:"bytes"`
	Entries int64 `json:"entries"`
	LeftOut int64 `json:"left_out"`
}

func (s *Store) layer(digest string) (layerInfo, bool) {
	var info layerInfo
	b, err := os.ReadFile(s.path("layers", digest, "layer.json"))
	return info, err == nil && json.Unmarshal(b, &info) == nil
}

func (t *Template) identify() {
	sum := sha256.Sum256([]byte(strings.Join(t.stack(), "\n")))
	t.ID = "sha256:" + hex.EncodeToString(sum[:])
}

// publish makes the layers in stage and the template theirs, in this order, so
// that a template never lacks a layer.
func (s *Store) publish(stage string, made map[string]bool, t *Template) error {
	b, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	if err := writeSynced(filepath.Join(stage, "name.json"), b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, digest := range t.stack() {
		if _, there := s.layer(digest); there {
			continue
		}
		if !made[digest] {
			// It was another template's, which was removed meanwhile.
			return fmt.Errorf("rootfs: layer %s: %w", digest, ErrNotFound)
		}
		if err := os.Rename(filepath.Join(stage, digest), s.path("layers", digest)); err != nil {
			return fmt.Errorf("rootfs: %w", err)
		}
	}
	if err := os.Rename(filepath.Join(stage, "name.json"), s.path("names", t.Name+".json")); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	return nil
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	// Also what was unpacked: the template must not outlive a loss of power that
	// its files do not.
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	return nil
}
