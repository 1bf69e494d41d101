package pkgcache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func open(t *testing.T, dir string, max int64) *Store {
	t.Helper()
	s, err := Open(dir, max)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func keep(t *testing.T, s *Store, key, content string) error {
	t.Helper()
	id, f, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, content); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(content))
	return s.Commit(id, Key(key), Meta{URL: key, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content)), Fresh: time.Now().Add(time.Hour)})
}

func found(t *testing.T, s *Store, key string) string {
	t.Helper()
	m, f, err := s.Find(Key(key))
	if errors.Is(err, ErrUnknown) {
		return "-"
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil || int64(len(b)) != m.Size {
		t.Fatalf("%d of %d bytes: %v", len(b), m.Size, err)
	}
	return string(b)
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 4000+3*entryRoom)
	for key, content := range map[string]string{"a": "one", "b": "one", "c": "three"} {
		if err := keep(t, s, key, content); err != nil {
			t.Fatal(err)
		}
	}
	// The same content is kept once.
	if st := s.Stats(); st.Entries != 3 || st.Bytes != 8+3*entryRoom {
		t.Errorf("%+v", st)
	}
	if err := keep(t, s, "a", "two"); err != nil {
		t.Fatal(err)
	}
	if a, b, d := found(t, s, "a"), found(t, s, "b"), found(t, s, "d"); a != "two" || b != "one" || d != "-" {
		t.Errorf("%q %q %q", a, b, d)
	}
	if err := keep(t, s, "big", strings.Repeat("x", 1001+entryRoom)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a quarter of all: %v", err)
	}
	// Half done, and never finished.
	if err := os.WriteFile(dir+"/new/7", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, 4000+3*entryRoom)
	if a, c := found(t, again, "a"), found(t, again, "c"); a != "two" || c != "three" || again.Stats().Bytes != 11+3*entryRoom {
		t.Errorf("after a restart %q %q %+v", a, c, again.Stats())
	}
	if left, err := os.ReadDir(dir + "/new"); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestStoreForgetsWhatWasUsedLongestAgo(t *testing.T) {
	s := open(t, t.TempDir(), 4000+4*entryRoom)
	content := func(key string) string { return strings.Repeat(key, 900) }
	for _, key := range []string{"a", "b", "c", "d"} {
		if err := keep(t, s, key, content(key)); err != nil {
			t.Fatal(err)
		}
	}
	found(t, s, "a")
	if err := keep(t, s, "e", content("e")); err != nil {
		t.Fatal(err)
	}
	if a, b := found(t, s, "a"), found(t, s, "b"); a != content("a") || b != "-" || s.Stats().Bytes > 4000+4*entryRoom {
		t.Errorf("a %d bytes, b %q, %+v", len(a), b, s.Stats())
	}
}

func TestStoreHoldsAnswersToTheirSize(t *testing.T) {
	s := open(t, t.TempDir(), 4000)
	id, f, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("short"); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(id, Key("k"), Meta{SHA256: strings.Repeat("0", 64), Size: 6}); err == nil || found(t, s, "k") != "-" {
		t.Errorf("a wrong size: %v", err)
	}
	if err := s.Commit(id, Key("k"), Meta{}); !errors.Is(err, ErrUnknown) {
		t.Errorf("committed twice: %v", err)
	}
	for range maxWriting {
		if _, _, err := s.Begin(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Begin(); !errors.Is(err, ErrBusy) {
		t.Errorf("one more: %v", err)
	}
}

// Entries take room as well: a tenant that asks for one content under ever new
// names fills neither the disk nor the memory.
func TestStoreBoundsEntries(t *testing.T) {
	const most = 20
	dir := t.TempDir()
	s := open(t, dir, most*entryRoom)
	for i := range 10 * most {
		if err := keep(t, s, strconv.Itoa(i), ""); err != nil {
			t.Fatal(err)
		}
	}
	index, err := os.ReadDir(dir + "/index")
	if st := s.Stats(); err != nil || st.Entries != most || len(index) != most || st.Bytes != most*entryRoom {
		t.Errorf("%d files, %v, %+v", len(index), err, st)
	}
	// A long address takes what it takes.
	long := strings.Repeat("x", 3*entryRoom)
	if err := keep(t, s, long, ""); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Entries != most-3 || found(t, s, long) != "" {
		t.Errorf("%+v", st)
	}
	if st := open(t, dir, most*entryRoom).Stats(); st != s.Stats() {
		t.Errorf("after a restart %+v, before %+v", st, s.Stats())
	}
}

func TestRefresh(t *testing.T) {
	s := open(t, t.TempDir(), 4*entryRoom)
	if err := keep(t, s, "a", "one"); err != nil {
		t.Fatal(err)
	}
	m, f, err := s.Find(Key("a"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	later := time.Now().Add(48 * time.Hour).Round(0)
	if err := s.Refresh(Key("a"), m.SHA256, later); err != nil {
		t.Fatal(err)
	}
	m, f, err = s.Find(Key("a"))
	if err != nil || !m.Fresh.Equal(later) {
		t.Fatalf("%+v %v", m, err)
	}
	f.Close()
	if found(t, s, "a") != "one" || s.Stats().Bytes != 3+entryRoom {
		t.Errorf("%+v", s.Stats())
	}
	if err := s.Refresh(Key("a"), strings.Repeat("0", 64), later); !errors.Is(err, ErrUnknown) {
		t.Errorf("another content: %v", err)
	}
}
