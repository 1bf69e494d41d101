package secrets

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func keyFile(t testing.TB, text string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestKeyFile(t *testing.T) {
	f := keyFile(t, "")
	k, err := ReadKey(f)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := k.Seal("a", value(t, canary))
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadKey(f) // the file has a key now
	if err != nil {
		t.Fatal(err)
	}
	if v, err := again.Open("a", sealed); err != nil || string(v.bytes()) != canary {
		t.Errorf("the key that was written does not open: %v", err)
	}
	raw := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	for text, ok := range map[string]bool{
		raw: true, raw + "\n": true, "sandboxd-store-key-1 " + raw + "\n": true,
		"short": false, "sandboxd-store-key-2 " + raw: false, raw[:40]: false, raw + raw: false, "\n": false, strings.Repeat("A", 600): false,
	} {
		_, err := ReadKey(keyFile(t, text))
		if (err == nil) != ok || err != nil && (!errors.Is(err, ErrKey) || strings.Contains(err.Error(), raw)) {
			t.Errorf("%.30q: %v", text, err)
		}
	}
	if out := fmt.Sprintf("%v %+v %#v %s", k, k, *k, k); strings.Count(out, hidden) != 4 {
		t.Errorf("a key is shown: %s", out)
	}
}

func TestSealedOpensUnderItsNameAndKeyOnly(t *testing.T) {
	k, err := ReadKey(keyFile(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	other, err := ReadKey(keyFile(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := k.Seal("a", value(t, canary))
	if err != nil {
		t.Fatal(err)
	}
	twice, err := k.Seal("a", value(t, canary))
	if err != nil || bytes.Equal(sealed, twice) {
		t.Errorf("the same value twice gives the same bytes, %v", err)
	}
	long, err := k.Seal("a", value(t, strings.Repeat("x", 900)))
	if err != nil || len(long) != len(sealed) {
		t.Errorf("the file tells lengths: %d and %d, %v", len(sealed), len(long), err)
	}
	for name, open := range map[string]func() (Value, error){
		"another name": func() (Value, error) { return k.Open("b", sealed) },
		"another key":  func() (Value, error) { return other.Open("a", sealed) },
		"cut off":      func() (Value, error) { return k.Open("a", sealed[:len(sealed)-1]) },
		"nothing":      func() (Value, error) { return k.Open("a", nil) },
		"a nonce":      func() (Value, error) { return k.Open("a", sealed[:24]) },
		"changed": func() (Value, error) {
			b := bytes.Clone(sealed)
			b[len(b)/2] ^= 1
			return k.Open("a", b)
		},
	} {
		if _, err := open(); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := k.Seal("../a", value(t, canary)); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
}

func TestFileKeepsWhatWasPut(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store.json")
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	for _, name := range []string{"b", "a", "b"} {
		if err := s.Put(Sealed{Name: name, Changed: at, Data: []byte("sealed " + name)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(Sealed{Name: "/"}); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
	check := func(want ...string) {
		t.Helper()
		again, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range again.All() {
			got = append(got, e.Name)
			if !e.Changed.Equal(at) || string(e.Data) != "sealed "+e.Name {
				t.Errorf("entry %+v", e)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the file has %v, want %v", got, want)
		}
	}
	check("a", "b")
	if there, err := s.Remove("a"); !there || err != nil {
		t.Errorf("remove: %v, %v", there, err)
	}
	if there, err := s.Remove("a"); there || err != nil {
		t.Errorf("remove again: %v, %v", there, err)
	}
	check("b")
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	// What cannot be written is not taken for written.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(Sealed{Name: "c"}); err == nil {
		t.Error("put without a folder")
	}
	if all := s.All(); len(all) != 1 || all[0].Name != "b" {
		t.Errorf("after a failure: %+v", all)
	}
}

func TestOpenFileRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := `{"version":1,"secrets":[]}`
	link := filepath.Join(dir, "link")
	if err := os.Symlink(write("good", good, 0o600), link); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"open to others": write("open", good, 0o644), "a link": link, "a folder": dir,
		"another version": write("v2", `{"version":2}`, 0o600), "no JSON": write("text", "hello", 0o600),
		"a bad name": write("name", `{"version":1,"secrets":[{"name":"../x"}]}`, 0o600),
	} {
		if _, err := OpenFile(path); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if _, err := OpenFile(filepath.Join(dir, "good")); err != nil {
		t.Error(err)
	}
	if _, _, err := OpenKeyFile(write("key", "x", 0o640)); err == nil {
		t.Error("a key that others can read was opened")
	}
	f, fresh, err := OpenKeyFile(filepath.Join(dir, "new"))
	if err != nil || !fresh {
		t.Fatalf("fresh %v, %v", fresh, err)
	}
	f.Close()
}

func TestSetKeepsWhatItReplaces(t *testing.T) {
	var s Set
	for i := range 5 {
		if err := s.Put("a", value(t, fmt.Sprintf("value-number-%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	h := s.Held("a")
	if string(h.Value.bytes()) != "value-number-4" || len(h.Previous) != 2 || string(h.Previous[0].bytes()) != "value-number-3" {
		t.Errorf("held %d previous", len(h.Previous))
	}
	before := s.Version()
	s.Remove("a")
	if _, err := s.Get("a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("after removal: %v", err)
	}
	if h = s.Held("a"); len(h.Previous) != 2 || string(h.Previous[0].bytes()) != "value-number-4" || s.Version() == before {
		t.Error("what was removed is no longer looked for in answers")
	}
}

func TestFrame(t *testing.T) {
	whole := string([]byte{0, 0, 0, byte(len(canary))}) + canary
	if v, err := ReadFrame(strings.NewReader(whole)); err != nil || string(v.bytes()) != canary {
		t.Errorf("frame: %v", err)
	}
	for _, in := range []string{"", "\x00\x00", whole[:len(whole)-1], "\xff\xff\xff\xffx", "\x00\x00\x00\x03abc"} {
		if _, err := ReadFrame(strings.NewReader(in)); !errors.Is(err, ErrValue) {
			t.Errorf("%.10q: %v", in, err)
		}
	}
}
