package data

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var roomy = Bounds{Count: 1000, Bytes: 1 << 20}

func anyOld(json.RawMessage) error { return nil }

func deployment(name, meta, body string) *Deployment {
	return &Deployment{Name: name, Meta: json.RawMessage(meta), Body: json.RawMessage(body)}
}

func put(t *testing.T, d *Deployments, dep *Deployment, b Bounds) {
	t.Helper()
	if err := d.Put(context.Background(), dep, b, anyOld); err != nil {
		t.Fatal(err)
	}
}

func TestDeployments(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	d := s.Deployments("a")
	if _, err := d.Get(ctx, "f"); !errors.Is(err, ErrNotFound) {
		t.Errorf("what is not there: %v", err)
	}
	if list, err := d.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("an empty list: %v, %v", list, err)
	}
	put(t, d, deployment("f", "{\n\"v\": 1}", `{"code":"1"}`), roomy)
	put(t, d, deployment("g", `{"v":2}`, `{"code":"2"}`), roomy)
	got, err := d.Get(ctx, "f")
	if err != nil || string(got.Meta) != `{"v":1}` || string(got.Body) != `{"code":"1"}` {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := s.Deployments("b").Get(ctx, "f"); !errors.Is(err, ErrNotFound) {
		t.Errorf("another tenant's: %v", err)
	}
	// A replacement sees what it replaces, and may refuse.
	refused := errors.New("no")
	err = d.Put(ctx, deployment("f", `{"v":3}`, `3`), roomy, func(meta json.RawMessage) error {
		if string(meta) != `{"v":1}` {
			t.Errorf("it replaces %s", meta)
		}
		return refused
	})
	if got, gerr := d.Get(ctx, "f"); !errors.Is(err, refused) || gerr != nil || string(got.Meta) != `{"v":1}` {
		t.Errorf("refused: %v, then %+v, %v", err, got, gerr)
	}
	put(t, d, deployment("f", `{"v":3}`, `3`), roomy)
	list, err := d.List(ctx)
	if err != nil || len(list) != 2 || list[0].Name != "f" || string(list[0].Meta) != `{"v":3}` || list[0].Body != nil || list[1].Name != "g" {
		t.Errorf("list: %+v, %v", list, err)
	}
	for _, want := range []bool{true, false} {
		if found, err := d.Delete(ctx, "f"); err != nil || found != want {
			t.Errorf("delete: %v, %v", found, err)
		}
	}
	if _, err := d.Get(ctx, "f"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after its deletion: %v", err)
	}
}

func TestDeploymentsOutliveTheStore(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	for i := range 2 {
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		d := s.Deployments("a")
		if i == 0 {
			put(t, d, deployment("f", `{}`, `"x"`), roomy)
			if err := d.SaveUses(ctx, json.RawMessage(`{"f":1}`)); err != nil {
				t.Error(err)
			}
		} else if got, err := d.Get(ctx, "f"); err != nil || string(got.Body) != `"x"` {
			t.Errorf("after a restart: %+v, %v", got, err)
		} else if uses, err := d.Uses(ctx); err != nil || string(uses) != `{"f":1}` {
			t.Errorf("uses: %s, %v", uses, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Get(ctx, "f"); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestDeploymentNames(t *testing.T) {
	d := open(t, Options{}).Deployments("a")
	ctx := context.Background()
	for _, name := range []string{"", ".", "..", "../x", "a/b", ".new-1", "-", "a-", strings.Repeat("x", 64), "ä", "a\x00"} {
		var e *Error
		if err := d.Put(ctx, deployment(name, `{}`, `1`), roomy, anyOld); !errors.As(err, &e) || e.Kind != KindParams {
			t.Errorf("put %q: %v", name, err)
		}
		if _, err := d.Get(ctx, name); !errors.Is(err, ErrNotFound) {
			t.Errorf("get %q: %v", name, err)
		}
	}
	for _, name := range []string{"a", "A.b_c-9", strings.Repeat("x", 63)} {
		put(t, d, deployment(name, `{}`, `1`), roomy)
	}
}

func TestDeploymentBounds(t *testing.T) {
	d := open(t, Options{}).Deployments("a")
	ctx := context.Background()
	few := Bounds{Count: 2, Bytes: 2000}
	put(t, d, deployment("a", `{}`, `1`), few)
	put(t, d, deployment("b", `{}`, `1`), few)
	var e *Error
	if err := d.Put(ctx, deployment("c", `{}`, `1`), few, anyOld); !errors.As(err, &e) || e.Kind != KindLimit || e.Limit != "functions" || e.Allowed != "2" {
		t.Errorf("one too many: %v", err)
	}
	large := deployment("b", `{}`, `"`+strings.Repeat("x", 3000)+`"`)
	if err := d.Put(ctx, large, few, anyOld); !errors.As(err, &e) || e.Limit != "function_bytes" {
		t.Errorf("too large: %v", err)
	}
	// What replaces another one counts once.
	put(t, d, deployment("b", `{}`, `"`+strings.Repeat("x", 1000)+`"`), few)
	put(t, d, deployment("b", `{}`, `"`+strings.Repeat("y", 1000)+`"`), few)
}

// The total is right after whatever was put, replaced and deleted, and the
// thousandth deployment is as quick as the first.
func TestManyDeployments(t *testing.T) {
	const n = 1000
	s := open(t, Options{})
	d := s.Deployments("a")
	ctx := context.Background()
	all := Bounds{Count: n, Bytes: 1 << 30}
	for i := range n {
		put(t, d, deployment(fmt.Sprint("f", i), `{}`, `1`), all)
	}
	var e *Error
	if err := d.Put(ctx, deployment("more", `{}`, `1`), all, anyOld); !errors.As(err, &e) || e.Limit != "functions" {
		t.Errorf("one too many: %v", err)
	}
	put(t, d, deployment("f1", `{}`, `"longer"`), all)
	if _, err := d.Delete(ctx, "f2"); err != nil {
		t.Fatal(err)
	}
	put(t, d, deployment("f2", `{}`, `1`), all)
	known, err := d.total()
	if err != nil {
		t.Fatal(err)
	}
	d.know(nil)
	if counted, err := d.total(); err != nil || counted != known || counted.count != n {
		t.Errorf("%+v are known, %+v counted, %v", known, counted, err)
	}
	if list, err := d.List(ctx); err != nil || len(list) != n {
		t.Errorf("%d are listed, %v", len(list), err)
	}
}

// Whatever byte of a file changes, the deployment is refused and not taken for
// another one, nor for missing; it can be replaced and deleted.
func TestDamagedDeployment(t *testing.T) {
	s := open(t, Options{})
	d := s.Deployments("a")
	ctx := context.Background()
	put(t, d, deployment("good", `{}`, `1`), roomy)
	put(t, d, deployment("f", `{"v":1}`, `{"code":"hello"}`), roomy)
	path := d.path("f")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := [][]byte{{}, whole[:10], whole[:len(whole)-1], append(bytes.Clone(whole), 'x')}
	for i := range whole {
		b := bytes.Clone(whole)
		b[i] ^= 1
		damaged = append(damaged, b)
	}
	var corrupt *CorruptError
	for _, b := range damaged {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Get(ctx, "f"); !errors.As(err, &corrupt) {
			t.Fatalf("%q is taken for %+v, %v", b, got, err)
		}
	}
	if err := os.WriteFile(path, whole[:20], 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := d.List(ctx)
	if err != nil || len(list) != 2 || !errors.As(list[0].Err, &corrupt) || list[1].Err != nil {
		t.Errorf("list: %+v, %v", list, err)
	}
	put(t, d, deployment("f", `{"v":2}`, `2`), roomy)
	if got, err := d.Get(ctx, "f"); err != nil || string(got.Body) != `2` {
		t.Errorf("after it was replaced: %+v, %v", got, err)
	}
}

// What a crash left of a write is no deployment, and does not stay.
func TestDeploymentLeftovers(t *testing.T) {
	d := open(t, Options{}).Deployments("a")
	ctx := context.Background()
	put(t, d, deployment("f", `{}`, `1`), roomy)
	left := filepath.Join(d.dir(), tempPrefix+"123")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := d.List(ctx); err != nil || len(list) != 1 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if _, err := os.Lstat(left); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestRemoveTenantRemovesDeployments(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	for i := range 3 {
		put(t, s.Deployments("a"), deployment(fmt.Sprint("f", i), `{}`, `1`), roomy)
	}
	put(t, s.Deployments("b"), deployment("f0", `{}`, `1`), roomy)
	if err := s.RemoveTenant(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Deployments("a").List(ctx); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	// Counters that are written late do not bring the folder back.
	if err := s.Deployments("a").SaveUses(ctx, json.RawMessage(`{}`)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "a")); !os.IsNotExist(err) {
		t.Errorf("the folder is back: %v", err)
	}
	if _, err := s.Deployments("b").Get(ctx, "f0"); err != nil {
		t.Errorf("another tenant's: %v", err)
	}
}

func FuzzDeploymentFile(f *testing.F) {
	good, err := encodeDeployment(deployment("f", `{"v":1}`, `{"code":"x"}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("sandboxd-function 1 0 0 -9223372036854775808\n{}\n"))
	path := filepath.Join(f.TempDir(), "f")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := readDeployment(path, "f", true)
		var corrupt *CorruptError
		if err != nil && !errors.As(err, &corrupt) {
			t.Fatalf("not a word about damage: %v", err)
		}
		if err == nil && (!json.Valid(d.Meta) || !json.Valid(d.Body)) && bytes.Equal(b, good) {
			t.Error("what was written is not what is read")
		}
	})
}
