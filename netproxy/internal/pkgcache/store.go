package pkgcache

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

var (
	// ErrTooLarge says that something would take more room than it may.
	ErrTooLarge = errors.New("pkgcache: too large")
	// ErrBusy says that too much is being written at once.
	ErrBusy = errors.New("pkgcache: too many at once")
	// ErrUnknown says that there is nothing by that name.
	ErrUnknown = errors.New("pkgcache: unknown")
)

const (
	// maxWriting is how many answers are written at once; more are passed on
	// without being kept.
	maxWriting = 64
	// touchEvery is how often an entry's use is put on disk.
	touchEvery = time.Hour
	// entryRoom is what an entry takes besides its content, at least: its own
	// file on the disk, and what is held in memory. Without it there would be no
	// end of entries that share one content, or have hardly any.
	entryRoom = 4 << 10
)

// A Meta is what is known of a kept answer. All of it is public.
type Meta struct {
	// URL it came from.
	URL string `json:"url"`
	// Header is what goes with it to whoever asks: the type and coding of the
	// content, its tag and its date.
	Header map[string]string `json:"header"`
	// SHA256 of the content, in hex, and its size in bytes.
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	// Fresh is until when it may be used without asking again.
	Fresh time.Time `json:"fresh"`
	// Held says which published hash the content was held against, if any.
	Held string `json:"held,omitempty"`
}

// Key names an answer: what in a request chooses it.
func Key(parts ...string) string {
	b, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings always marshal
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// A Store is a folder of kept answers, bounded in bytes. What was used longest
// ago goes first.
type Store struct {
	dir string
	max int64

	mu      sync.Mutex
	entries map[string]*list.Element // of *entry, by key
	used    *list.List               // last used first
	objects map[string]int           // entries of a content, by hash
	size    int64
	writing map[uint64]*os.File
	last    uint64
}

type entry struct {
	key     string
	meta    Meta
	room    int64 // that it takes besides its content
	touched time.Time
}

// roomOf is what an entry takes whose index is so long.
func roomOf(index []byte) int64 {
	return (int64(len(index)) + entryRoom - 1) / entryRoom * entryRoom
}

// Open reads the folder, which is made if need be, and removes what an earlier
// daemon left half done. max is its bound in bytes.
func Open(dir string, max int64) (*Store, error) {
	s := &Store{dir: dir, max: max, entries: map[string]*list.Element{}, used: list.New(), objects: map[string]int{}, writing: map[uint64]*os.File{}}
	if err := os.RemoveAll(s.path("new")); err != nil {
		return nil, fmt.Errorf("pkgcache: %w", err)
	}
	for _, sub := range []string{"new", "index", "content"} {
		if err := os.MkdirAll(s.path(sub), 0o700); err != nil {
			return nil, fmt.Errorf("pkgcache: %w", err)
		}
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("pkgcache: %w", err)
	}
	return s, nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// load takes up the index, oldest first; entries without their content, and
// content without an entry, are removed.
func (s *Store) load() error {
	files, err := os.ReadDir(s.path("index"))
	if err != nil {
		return err
	}
	var all []*entry
	for _, f := range files {
		e, err := s.readEntry(f)
		if err != nil {
			if err := os.Remove(s.path("index", f.Name())); err != nil {
				return err
			}
			continue
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int { return a.touched.Compare(b.touched) })
	for _, e := range all {
		s.add(e)
	}
	contents, err := os.ReadDir(s.path("content"))
	if err != nil {
		return err
	}
	for _, f := range contents {
		if s.objects[f.Name()] == 0 {
			if err := os.Remove(s.path("content", f.Name())); err != nil {
				return err
			}
		}
	}
	return s.shrink()
}

func (s *Store) readEntry(f fs.DirEntry) (*entry, error) {
	b, err := os.ReadFile(s.path("index", f.Name()))
	if err != nil {
		return nil, err
	}
	e := &entry{key: f.Name(), room: roomOf(b)}
	if err := json.Unmarshal(b, &e.meta); err != nil {
		return nil, err
	}
	if !isHash(e.key) || !isHash(e.meta.SHA256) {
		return nil, ErrUnknown
	}
	st, err := os.Stat(s.path("content", e.meta.SHA256))
	if err != nil {
		return nil, err
	}
	if st.Size() != e.meta.Size {
		return nil, ErrUnknown
	}
	info, err := f.Info()
	if err != nil {
		return nil, err
	}
	e.touched = info.ModTime()
	return e, nil
}

func isHash(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

// add takes up an entry; s.mu is held, or nobody else knows s.
func (s *Store) add(e *entry) {
	s.entries[e.key] = s.used.PushFront(e)
	s.size += e.room
	if s.objects[e.meta.SHA256]++; s.objects[e.meta.SHA256] == 1 {
		s.size += e.meta.Size
	}
}

// drop gives an entry up, and its content if nothing else has it; s.mu is held.
func (s *Store) drop(el *list.Element) error {
	e, ok := s.used.Remove(el).(*entry)
	if !ok {
		return nil
	}
	delete(s.entries, e.key)
	s.size -= e.room
	err := os.Remove(s.path("index", e.key))
	if s.objects[e.meta.SHA256]--; s.objects[e.meta.SHA256] == 0 {
		delete(s.objects, e.meta.SHA256)
		s.size -= e.meta.Size
		err = errors.Join(err, os.Remove(s.path("content", e.meta.SHA256)))
	}
	return err
}

// shrink brings the store below its bound; s.mu is held.
func (s *Store) shrink() error {
	var err error
	for s.size > s.max && s.used.Len() > 0 {
		err = errors.Join(err, s.drop(s.used.Back()))
	}
	return err
}

// Find opens what is kept under key, for reading. The caller hashes it.
func (s *Store) Find(key string) (Meta, *os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.entries[key]
	if el == nil {
		return Meta{}, nil, ErrUnknown
	}
	e, ok := el.Value.(*entry)
	if !ok {
		return Meta{}, nil, ErrUnknown
	}
	f, err := os.Open(s.path("content", e.meta.SHA256))
	if err != nil {
		return Meta{}, nil, errors.Join(fmt.Errorf("pkgcache: %w", err), s.drop(el))
	}
	s.used.MoveToFront(el)
	if now := time.Now(); now.Sub(e.touched) > touchEvery {
		e.touched = now
		_ = os.Chtimes(s.path("index", key), now, now) // only the order after a restart
	}
	return e.meta, f, nil
}

// Begin makes a file for an answer that is arriving. Commit or Abort ends it.
func (s *Store) Begin() (id uint64, f *os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.writing) >= maxWriting {
		return 0, nil, ErrBusy
	}
	s.last++
	f, err = os.OpenFile(s.path("new", strconv.FormatUint(s.last, 10)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, fmt.Errorf("pkgcache: %w", err)
	}
	s.writing[s.last] = f
	return s.last, f, nil
}

// Abort gives a file up.
func (s *Store) Abort(id uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.writing[id]
	if f == nil {
		return ErrUnknown
	}
	delete(s.writing, id)
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Commit keeps the file's content under key, in place of what was there.
func (s *Store) Commit(id uint64, key string, m Meta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.writing[id]
	if f == nil {
		return ErrUnknown
	}
	delete(s.writing, id)
	defer os.Remove(f.Name()) // gone already if all went well
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("pkgcache: %w", err)
	case !isHash(key) || !isHash(m.SHA256) || st.Size() != m.Size:
		return fmt.Errorf("pkgcache: %w content", ErrUnknown)
	case m.Size > s.max/4:
		return ErrTooLarge
	}
	if s.objects[m.SHA256] == 0 {
		if err := os.Rename(f.Name(), s.path("content", m.SHA256)); err != nil {
			return fmt.Errorf("pkgcache: %w", err)
		}
	}
	return s.enter(key, m)
}

// Refresh says until when what is kept under key may be used: the registry has
// said that it is still the same.
func (s *Store) Refresh(key, sha string, fresh time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.entries[key]
	if el == nil {
		return ErrUnknown
	}
	e, ok := el.Value.(*entry)
	if !ok || e.meta.SHA256 != sha {
		return ErrUnknown
	}
	m := e.meta
	m.Fresh = fresh
	return s.enter(key, m)
}

// enter writes the index; the content is in its place. s.mu is held.
func (s *Store) enter(key string, m Meta) error {
	e := &entry{key: key, meta: m, touched: time.Now()}
	old := s.entries[key]
	b, err := json.Marshal(m)
	e.room = roomOf(b)
	if err == nil {
		err = replace(s.path("index", key), s.path("new", "index-"+key), b)
	}
	if err != nil {
		if s.objects[m.SHA256] == 0 {
			err = errors.Join(err, os.Remove(s.path("content", m.SHA256)))
		}
		return fmt.Errorf("pkgcache: %w", err)
	}
	// Added before the old one goes, so that the same content stays.
	s.add(e)
	if old != nil {
		s.used.Remove(old)
		if was, ok := old.Value.(*entry); ok {
			s.size -= was.room
			if s.objects[was.meta.SHA256]--; s.objects[was.meta.SHA256] == 0 {
				delete(s.objects, was.meta.SHA256)
				s.size -= was.meta.Size
				err = os.Remove(s.path("content", was.meta.SHA256))
			}
		}
	}
	return errors.Join(err, s.shrink())
}

// replace writes a file in one step. It is not synced: a file that a crash has
// cut is removed at the next start, and its answer asked for again.
func replace(path, temp string, b []byte) error {
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// Stats is how much is kept.
type Stats struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	Max     int64 `json:"max"`
}

// Stats counts.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Entries: len(s.entries), Bytes: s.size, Max: s.max}
}

// Close gives up what is being written: whoever wrote it is gone. The store can
// be used further.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for id, f := range s.writing {
		delete(s.writing, id)
		err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return err
}
