package secrets

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// MaxStored is how many values a store holds.
	MaxStored = 1024
	// fileVersion is the format of the store's file.
	fileVersion = 1
	maxFile     = 64 << 20
)

// ErrFull says that the store holds as many values as it may.
var ErrFull = fmt.Errorf("secrets: the store holds %d values already", MaxStored)

// A Sealed is one stored value as it lies on the disk: encrypted, with what may
// be known about it.
type Sealed struct {
	Name    string    `json:"name"`
	Changed time.Time `json:"changed"`
	// Data is Key.Seal's.
	Data []byte `json:"data"`
}

// A File is the store on the disk. It holds no value and no key: the daemon
// keeps it, and the proxy process alone can open what is in it. It may be used
// by many goroutines.
type File struct {
	path string

	mu      sync.Mutex
	entries map[string]Sealed // guarded by mu
}

type fileFormat struct {
	Version int      `json:"version"`
	Secrets []Sealed `json:"secrets"`
}

// OpenFile reads the store at path; one that is not there is empty.
func OpenFile(path string) (*File, error) {
	s := &File{path: path, entries: map[string]Sealed{}}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	defer f.Close()
	if err := private(f); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	var in fileFormat
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("secrets: %s is not a store: %w", path, err)
	}
	if in.Version != fileVersion {
		return nil, fmt.Errorf("secrets: %s has version %d; this sandboxd reads %d", path, in.Version, fileVersion)
	}
	for _, e := range in.Secrets {
		if err := CheckName(e.Name); err != nil {
			return nil, fmt.Errorf("secrets: %s: %w", path, err)
		}
		s.entries[e.Name] = e
	}
	return s, nil
}

// OpenKeyFile opens the file of the store's key, unread, and makes an empty one
// where there is none: whoever reads it first writes a new key. fresh says that
// it has no key yet.
func OpenKeyFile(path string) (f *os.File, fresh bool, err error) {
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("secrets: key: %w", err)
	}
	st, err := f.Stat()
	if err == nil {
		err = private(f)
	}
	if err == nil && st.Size() == 0 {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		f.Close()
		return nil, false, err
	}
	return f, st.Size() == 0, nil
}

// private refuses a file that others than its owner could have read or written.
func private(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("secrets: %s: %w", f.Name(), err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("secrets: %s is not a regular file", f.Name())
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return fmt.Errorf("secrets: %s belongs to uid %d; it must belong to root or to the user that runs sandboxd", f.Name(), st.Uid)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("secrets: %s is open to others (mode %04o); run chmod 600 on it", f.Name(), st.Mode&0o7777)
	}
	return nil
}

// All returns what is stored, by name.
func (s *File) All() []Sealed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted()
}

func (s *File) sorted() []Sealed {
	all := make([]Sealed, 0, len(s.entries))
	for _, e := range s.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Sealed) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Put stores a sealed value in place of the one of that name. When it returns
// it is on the disk; after an error what was there is there still.
func (s *File) Put(e Sealed) error {
	if err := CheckName(e.Name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, there := s.entries[e.Name]
	if !there && len(s.entries) >= MaxStored {
		return ErrFull
	}
	s.entries[e.Name] = e
	if err := s.write(); err != nil {
		if delete(s.entries, e.Name); there {
			s.entries[e.Name] = old
		}
		return err
	}
	return nil
}

// Remove takes a value out; there says whether there was one.
func (s *File) Remove(name string) (there bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, there := s.entries[name]
	if !there {
		return false, nil
	}
	delete(s.entries, name)
	if err := s.write(); err != nil {
		s.entries[name] = old
		return true, err
	}
	return true, nil
}

// write replaces the file in one step.
func (s *File) write() error {
	text, err := json.MarshalIndent(fileFormat{fileVersion, s.sorted()}, "", " ")
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	if err := replace(s.path, append(text, '\n')); err != nil {
		return fmt.Errorf("secrets: the store was not changed: %w", err)
	}
	return nil
}

func replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".secrets-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	return err
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
