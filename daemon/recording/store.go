package recording

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxd/policy"
)

// Limits of one tenant's recordings; every field must be set (policy gives the
// defaults). When one is reached the oldest recordings are dropped.
type Limits struct {
	Count int           // recordings
	Total int64         // bytes of all files together
	Age   time.Duration // of each
}

var (
	// ErrNotFound says that there never was a recording, as far as is known.
	ErrNotFound = errors.New("recording: there is none")
	// ErrGone says that there was one and it was dropped.
	ErrGone = errors.New("recording: it is no longer kept")
	// ErrAmbiguous says that several tenants have a run with the id.
	ErrAmbiguous = errors.New("recording: several tenants have one")
)

// A file's name is the hash of the run's id, which a caller may have chosen.
const (
	suffixKept = ".rec"
	suffixGone = ".gone" // empty, in place of one that was dropped
	suffixTemp = ".tmp"
	// keepGone is how many dropped recordings of a tenant are remembered, and
	// keepGoneFor how long.
	keepGone    = 1000
	keepGoneFor = 30 * 24 * time.Hour
	sweepEvery  = 10 * time.Minute
)

// A Store keeps recordings as files that only this user can read. It may be used
// by many goroutines; the folder must be used by one process.
type Store struct {
	dir  string
	log  *slog.Logger
	now  func() time.Time
	stop context.CancelFunc
	done sync.WaitGroup
	// unsynced are new files; who writes one does not wait for the disk.
	unsynced chan *os.File

	mu     sync.Mutex        // held while files change
	known  map[string][]kept // guarded by mu: what files found in a folder
	closed bool              // guarded by mu
}

// maxUnsynced is how many new files may wait for the disk.
const maxUnsynced = 64

// Open opens or creates the store in dir and drops what is too old, now and
// later.
func Open(dir string, log *slog.Logger) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Store{dir: dir, log: log, now: time.Now, stop: cancel, known: map[string][]kept{}, unsynced: make(chan *os.File, maxUnsynced)}
	s.sweep()
	s.done.Go(s.syncAll)
	s.done.Go(func() {
		t := time.NewTicker(sweepEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s.sweep()
			case <-ctx.Done():
				return
			}
		}
	})
	return s, nil
}

// Close returns when all is on the disk. Nothing may be put any more.
func (s *Store) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.stop()
		close(s.unsynced)
	}
	s.mu.Unlock()
	s.done.Wait()
}

// syncAll brings new files to the disk.
func (s *Store) syncAll() {
	for f := range s.unsynced {
		if err := errors.Join(f.Sync(), syncFolder(filepath.Dir(f.Name())), f.Close()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Error("a recording may not outlive a power failure", "error", err)
		}
	}
}

// folder of a tenant, whose name is safe as a file's.
func (s *Store) folder(tenant string) (string, error) {
	if err := policy.ValidTenant(tenant); err != nil {
		return "", fmt.Errorf("recording: %w", err)
	}
	return filepath.Join(s.dir, tenant), nil
}

func baseName(run string) string { return hashOf([]byte(run)) }

// Put keeps a recording and drops older ones of the tenant beyond the limits. It
// gives the file's size. A crash of this process leaves the whole file or none,
// and one of the machine within a moment may leave one that Find knows as
// damaged.
func (s *Store) Put(r *Recording, l Limits) (int64, error) {
	dir, err := s.folder(r.Tenant)
	if err != nil {
		return 0, err
	}
	file, err := encode(r)
	if err != nil {
		return 0, err
	}
	size := int64(len(file))
	if size > l.Total {
		return 0, fmt.Errorf("recording: it has %d bytes, all of a tenant's may have %d", size, l.Total)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errors.New("recording: the store is closed")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("recording: %w", err)
	}
	name := filepath.Join(dir, baseName(r.RunID))
	if err := s.trim(dir, l, kept{filepath.Base(name) + suffixKept, size, r.Expires}); err != nil {
		return 0, err
	}
	f, err := writeWhole(name, file, r.Expires)
	if err != nil {
		delete(s.known, dir)
		return 0, fmt.Errorf("recording: %w", err)
	}
	s.unsynced <- f
	if err := os.Remove(name + suffixGone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("recording: %w", err)
	}
	return size, nil
}

// writeWhole writes name's file so that it is never there in part. Its time of
// change is when it expires, so that the sweep need not read it. The caller
// closes the file, which is not on the disk yet.
func writeWhole(name string, b []byte, expires time.Time) (*os.File, error) {
	f, err := os.OpenFile(name+suffixTemp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(b)
	if err == nil {
		err = os.Chtimes(name+suffixTemp, expires, expires)
	}
	if err == nil {
		err = os.Rename(name+suffixTemp, name+suffixKept)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(name+suffixTemp))
	}
	return f, nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// A kept is one file of a tenant.
type kept struct {
	name    string // without the folder
	size    int64
	expires time.Time
}

// list gives a folder's files with a suffix, the first to expire first.
func list(dir, suffix string) ([]kept, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []kept
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, kept{e.Name(), info.Size(), info.ModTime()})
	}
	slices.SortFunc(out, compareKept)
	return out, nil
}

func compareKept(a, b kept) int {
	return cmp.Or(a.expires.Compare(b.expires), cmp.Compare(a.name, b.name))
}

// files gives the recordings in a folder, the first to expire first, and
// remembers them. s.mu is held.
func (s *Store) files(dir string) ([]kept, error) {
	if files, ok := s.known[dir]; ok {
		return files, nil
	}
	files, err := list(dir, suffixKept)
	if err == nil {
		s.known[dir] = files
	}
	return files, err
}

// trim drops recordings until the rest is within l and leaves room for f, which
// it notes. s.mu is held.
func (s *Store) trim(dir string, l Limits, f kept) error {
	files, err := s.files(dir)
	if err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	files = slices.DeleteFunc(files, func(k kept) bool { return k.name == f.name })
	total := f.size
	for _, k := range files {
		total += k.size
	}
	delete(s.known, dir) // unless all goes well
	now := s.now()
	for len(files) > 0 && (len(files) >= l.Count || total > l.Total || !files[0].expires.After(now)) {
		if err := drop(dir, files[0].name, now); err != nil {
			return fmt.Errorf("recording: %w", err)
		}
		total -= files[0].size
		files = files[1:]
	}
	at, _ := slices.BinarySearchFunc(files, f, compareKept)
	s.known[dir] = slices.Insert(files, at, f)
	return nil
}

// drop leaves an empty mark in place of a recording.
func drop(dir, name string, now time.Time) error {
	mark := filepath.Join(dir, strings.TrimSuffix(name, suffixKept)+suffixGone)
	until := now.Add(keepGoneFor)
	if err := os.Rename(filepath.Join(dir, name), mark); err != nil {
		return err
	}
	return errors.Join(os.Truncate(mark, 0), os.Chtimes(mark, until, until))
}

// sweep drops what has expired, of all tenants, and what a crash left.
func (s *Store) sweep() {
	tenants, err := os.ReadDir(s.dir)
	if err != nil {
		s.log.Error("recordings cannot be swept", "error", err)
		return
	}
	for _, t := range tenants {
		if err := s.sweepTenant(filepath.Join(s.dir, t.Name())); err != nil {
			s.log.Error("recordings cannot be swept", "tenant", t.Name(), "error", err)
		}
	}
}

func (s *Store) sweepTenant(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, dir)
	now := s.now()
	var errs []error
	for _, suffix := range []string{suffixKept, suffixGone, suffixTemp} {
		files, err := list(dir, suffix)
		if err != nil {
			return err
		}
		for i, f := range files {
			switch {
			case suffix == suffixKept && !f.expires.After(now):
				errs = append(errs, drop(dir, f.name, now))
			case suffix == suffixGone && (!f.expires.After(now) || len(files)-i > keepGone), suffix == suffixTemp:
				errs = append(errs, os.Remove(filepath.Join(dir, f.name)))
			}
		}
	}
	return errors.Join(errs...)
}

// Find reads the recording of a run of one of the tenants that may be seen;
// others are as if they were not there.
func (s *Store) Find(run string, visible func(tenant string) bool) (*Recording, error) {
	tenants, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	var found []string
	gone := false
	for _, t := range tenants {
		if !visible(t.Name()) {
			continue
		}
		name := filepath.Join(s.dir, t.Name(), baseName(run))
		if _, err := os.Lstat(name + suffixKept); err == nil {
			found = append(found, name+suffixKept)
		} else if _, err := os.Lstat(name + suffixGone); err == nil {
			gone = true
		}
	}
	switch {
	case len(found) > 1:
		return nil, ErrAmbiguous
	case len(found) == 0 && gone:
		return nil, ErrGone
	case len(found) == 0:
		return nil, ErrNotFound
	}
	file, err := os.ReadFile(found[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrGone // dropped since
	}
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	r, err := decode(file)
	if err != nil {
		return nil, err
	}
	if r.RunID != run || r.Tenant != filepath.Base(filepath.Dir(found[0])) {
		return nil, fmt.Errorf("%w: it is of another run", ErrDamaged)
	}
	if !r.Expires.After(s.now()) {
		return nil, ErrGone
	}
	return r, nil
}

// RemoveTenant deletes all recordings of a tenant and what is known of those
// that were dropped.
func (s *Store) RemoveTenant(tenant string) error {
	dir, err := s.folder(tenant)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, dir)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	return nil
}
