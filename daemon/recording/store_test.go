package recording

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/isolate"
)

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

var lots = Limits{Count: 100, Total: 1 << 20, Age: time.Hour}

func sample(tenant, run string) *Recording {
	now := time.Now()
	return &Recording{Format: format, Tenant: tenant, RunID: run, Made: now, Expires: now.Add(time.Hour),
		Request: isolate.Request{Language: "js", Input: []byte(`{"a" :  "<b>\u00e4"}`), Modules: map[string]string{"main.js": "1\xff"}},
		Calls:   []Call{{Nth: 1, Binding: "KV", Method: "get", Answer: []byte(` "<x>" `)}}, Order: []int{1}}
}

func anyTenant(string) bool { return true }

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	ids := []string{"r", "a:b.c-d", "..", "../../etc/passwd", "/", "", strings.Repeat("x", 10_000), "a\x00b", "r.rec"}
	for _, id := range ids {
		if _, err := s.Put(sample("alice", id), lots); err != nil {
			t.Fatalf("%q: %v", id, err)
		}
	}
	// Another process, later.
	s.Close()
	s = openStore(t, dir)
	for _, id := range ids {
		r, err := s.Find(id, anyTenant)
		if err != nil {
			t.Fatalf("%q: %v", id, err)
		}
		// Byte for byte: what is in it is read by the code.
		if w := sample("alice", id); r.RunID != id || string(r.Request.Input) != string(w.Request.Input) || r.Request.Modules["main.js"] != "1\xff" || string(r.Calls[0].Answer) != ` "<x>" ` {
			t.Errorf("%q came back as %+v", id, r)
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "alice"))
	if err != nil || len(files) != len(ids) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", f.Name(), info.Mode(), err)
		}
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("the store's folder holds %v, %v", all, err)
	}
	if err := s.RemoveTenant("alice"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find("r", anyTenant); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

func TestStoreTenants(t *testing.T) {
	s := openStore(t, t.TempDir())
	for _, tenant := range []string{"alice", "bob"} {
		if _, err := s.Put(sample(tenant, "r"), lots); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Find("r", anyTenant); !errors.Is(err, ErrAmbiguous) {
		t.Error(err)
	}
	if r, err := s.Find("r", func(tenant string) bool { return tenant == "bob" }); err != nil || r.Tenant != "bob" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.Find("r", func(string) bool { return false }); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	for _, tenant := range []string{"", "..", "../x", "a/b", "A"} {
		if _, err := s.Put(sample(tenant, "r"), lots); err == nil {
			t.Errorf("the tenant %q was taken", tenant)
		}
		if err := s.RemoveTenant(tenant); err == nil {
			t.Errorf("the tenant %q was removed", tenant)
		}
	}
}

func TestStoreBounds(t *testing.T) {
	s := openStore(t, t.TempDir())
	now := time.Now()
	s.now = func() time.Time { return now }
	put := func(id string, l Limits) error {
		t.Helper()
		r := sample("alice", id)
		r.Made, r.Expires = now, now.Add(l.Age)
		now = now.Add(time.Second)
		_, err := s.Put(r, l)
		return err
	}
	want := func(id string, want error) {
		t.Helper()
		if _, err := s.Find(id, anyTenant); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", id, err, want)
		}
	}
	for i := range 5 {
		if err := put(fmt.Sprint(i), Limits{Count: 3, Total: 1 << 20, Age: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	want("0", ErrGone)
	want("1", ErrGone)
	want("2", nil)
	want("4", nil)
	if err := put("large", Limits{Count: 3, Total: 100, Age: time.Hour}); err == nil {
		t.Error("a recording larger than all may be was taken")
	}
	if err := put("5", Limits{Count: 100, Total: 1500, Age: time.Hour}); err != nil {
		t.Fatal(err)
	}
	want("2", ErrGone)
	want("5", nil)
	now = now.Add(2 * time.Hour)
	want("5", ErrGone) // not swept yet
	s.sweep()
	want("5", ErrGone)
	want("4", ErrGone)
	if err := put("0", lots); err != nil { // an id that was used before
		t.Fatal(err)
	}
	want("0", nil)
	now = now.Add(2 * keepGoneFor)
	s.sweep()
	s.sweep()
	want("1", ErrNotFound)
}

// TestStoreCrash: what a crash can leave is no recording, and goes.
func TestStoreCrash(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	if _, err := s.Put(sample("alice", "r"), lots); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "alice", baseName("r")+suffixKept)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(dir, "alice", baseName("torn")+suffixTemp)
	if err := os.WriteFile(torn, whole[:40], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find("torn", anyTenant); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	s.Close()
	s = openStore(t, dir)
	if _, err := os.Lstat(torn); err == nil {
		t.Error("the torn file is still there")
	}
	for _, b := range [][]byte{nil, whole[:len(whole)-1], append(append([]byte{}, whole...), 0), append([]byte{whole[0] ^ 1}, whole[1:]...)} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, time.Now().Add(time.Hour), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Find("r", anyTenant); !errors.Is(err, ErrDamaged) {
			t.Errorf("a damaged file gives %v", err)
		}
	}
	// A file of another run in its place.
	other, err := encode(sample("bob", "r"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, other, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find("r", anyTenant); !errors.Is(err, ErrDamaged) {
		t.Errorf("another tenant's file gives %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := encode(sample("alice", "r"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[32:])
	f.Add([]byte{0xa0})
	f.Fuzz(func(t *testing.T, body []byte) {
		r := new(Recording)
		if decoding.Unmarshal(body, r) != nil {
			return
		}
		if _, err := encode(r); err != nil {
			t.Error(err)
		}
	})
}
