package jail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFiles(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	ctx := t.Context()
	info, err := j.WriteFile(ctx, "a/b/c.txt", strings.NewReader("hello"), 0, 100)
	if err != nil || info.Size != 5 || info.Mode != 0o644 || info.Type != "file" || info.Name != "c.txt" {
		t.Fatalf("%+v, %v", info, err)
	}
	if o := sh(t, j, "stat -c '%u %g %a' a a/b a/b/c.txt; cat a/b/c.txt"); o.stdout != "1000 1000 755\n1000 1000 755\n1000 1000 644\nhello" {
		t.Fatalf("%q", o.stdout)
	}
	if b, err := j.ReadFile(ctx, "/workspace/a/b/c.txt", 5); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := j.ReadFile(ctx, "a/b/c.txt", 4); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	// The mode is kept, set-id bits are never set, and the inode is a new one.
	sh(t, j, "chmod 700 a/b/c.txt; ln a/b/c.txt a/hard")
	if info, err := j.WriteFile(ctx, "a/b/c.txt", strings.NewReader("new"), 0, 100); err != nil || info.Mode != 0o700 {
		t.Fatalf("%+v, %v", info, err)
	}
	if info, err := j.WriteFile(ctx, "suid", strings.NewReader(""), 0o6755, 100); err != nil || info.Mode != 0o755 {
		t.Fatalf("%+v, %v", info, err)
	}
	if o := sh(t, j, "cat a/hard a/b/c.txt; stat -c %a suid"); o.stdout != "hellonew755\n" {
		t.Fatalf("%q", o.stdout)
	}
	if _, err := j.WriteFile(ctx, "big", bytes.NewReader(make([]byte, 101)), 0, 100); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	if err := j.Mkdir(ctx, "x/y", 0o750); err != nil {
		t.Fatal(err)
	}
	if err := j.Mkdir(ctx, "x/y", 0); err != nil {
		t.Fatal("a folder that is there:", err)
	}
	sh(t, j, "ln -s /etc/passwd x/link; mkfifo x/fifo")
	list, err := j.List(ctx, "/workspace", 3)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range list {
		names = append(names, f.Name+":"+f.Type)
	}
	want := "a:dir a/b:dir a/b/c.txt:file a/hard:file suid:file x:dir x/fifo:fifo x/link:symlink x/y:dir"
	if got := strings.Join(names, " "); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	if st, err := j.Stat(ctx, "x/link"); err != nil || st.Type != "symlink" || st.Target != "/etc/passwd" {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := j.Remove(ctx, "a", false); !errors.Is(err, unix.ENOTEMPTY) {
		t.Fatal(err)
	}
	for _, path := range []string{"a", "x", "suid"} {
		if err := j.Remove(ctx, path, true); err != nil {
			t.Fatal(path, err)
		}
	}
	if o := sh(t, j, "ls -A; cat /etc/passwd | wc -l"); o.stdout != "3\n" {
		t.Fatalf("%q", o.stdout)
	}
	if _, err := j.ReadFile(ctx, "a", 10); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if b, err := j.ReadFile(ctx, "/usr/bin/env", 1<<20); err != nil || len(b) == 0 {
		t.Fatal("the jail's /usr is part of its view:", err)
	}
}

// TestHostileFiles: what a tenant puts into its workspace is answered, never
// followed and never waited on.
func TestHostileFiles(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("host secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	sh(t, j, `ln -s / root; ln -s /proc/self/root magic; ln -s `+canary+` canary; ln -s ../../../../../../.. up; ln -s loop loop
		ln -s /dev/zero zero; ln -s `+filepath.Dir(canary)+` dir; mkdir locked; echo s > locked/s; chmod 0 locked`)
	sh(t, j, "mkfifo fifo sub")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for path, want := range map[string]error{
		"fifo": ErrNotRegular, "/dev/zero": ErrNotRegular, "zero": ErrNotRegular, "/dev/tty": ErrNotRegular, "root": ErrNotRegular,
		"canary": ErrNotRegular, "up/etc/shadow": fs.ErrNotExist, "dir/canary": fs.ErrNotExist, "root/etc/shadow": fs.ErrNotExist,
		"root" + canary: fs.ErrNotExist, canary: fs.ErrNotExist, "magic/etc/passwd": fs.ErrNotExist, "loop": ErrNotRegular,
		"loop/x": ErrOutside, "../etc/passwd": ErrOutside, "/workspace/../../etc/passwd": ErrOutside, "a/../../x": ErrOutside,
		"/proc/1/environ": ErrNotRegular, "/proc/self/environ": fs.ErrNotExist, "/proc/meminfo": ErrNotRegular,
		"locked/s": fs.ErrPermission, "fifo/x": unix.ENOTDIR, "": ErrNotRegular, ".": ErrNotRegular, "/": ErrNotRegular,
		"/proc/1/root/etc/passwd": ErrOutside,
	} {
		if b, err := j.ReadFile(ctx, path, 1<<20); !errors.Is(err, want) {
			t.Errorf("read %q: %q, %v; want %v", path, b, err, want)
		}
	}
	for _, path := range []string{"a\x00b", strings.Repeat("a/", 5000), strings.Repeat("n", 300)} {
		var se *SpecError
		if _, err := j.Stat(ctx, path); !errors.As(err, &se) {
			t.Errorf("stat %.20q: %v", path, err)
		}
	}
	for path, want := range map[string]error{
		"fifo": ErrNotRegular, "canary": ErrNotRegular, "root": ErrNotRegular, "/usr/bin/evil": unix.EROFS, "/etc/passwd": fs.ErrPermission,
		"/new": fs.ErrPermission, "dir/x": fs.ErrNotExist, "/proc/self/comm": fs.ErrNotExist, "locked/x": fs.ErrPermission,
		"/dev/null": ErrNotRegular, "/": ErrOutside, "magic/tmp/x": fs.ErrNotExist,
	} {
		if _, err := j.WriteFile(ctx, path, strings.NewReader("x"), 0, 100); !errors.Is(err, want) {
			t.Errorf("write %q: %v; want %v", path, err, want)
		}
	}
	// Through links inside the jail is allowed: it is what a command could do.
	if _, err := j.WriteFile(ctx, "root/tmp/inside", strings.NewReader("x"), 0, 100); err != nil {
		t.Errorf("write beneath the jail's root: %v", err)
	}
	if o := sh(t, j, "cat /tmp/inside"); o.stdout != "x" {
		t.Errorf("%q", o.stdout)
	}
	if list, err := j.List(ctx, "/workspace", 8); err != nil || len(list) != 10 {
		t.Errorf("%d entries, %v: %+v", len(list), err, list)
	}
	if _, err := j.List(ctx, "fifo", 1); !errors.Is(err, ErrNotRegular) {
		t.Error(err)
	}
	if _, err := j.List(ctx, "/proc", 2); !errors.Is(err, ErrNotRegular) {
		t.Error(err)
	}
	sh(t, j, "chmod 700 locked")
	for _, path := range []string{"root", "canary", "fifo", "loop", "locked", "dir"} {
		if err := j.Remove(ctx, path, true); err != nil {
			t.Errorf("remove %s: %v", path, err)
		}
	}
	if b, err := os.ReadFile(canary); err != nil || string(b) != "host secret" {
		t.Fatalf("the host's file: %q, %v", b, err)
	}
}

// TestRace swaps a folder for a link to the host's while the host reads and
// writes through it.
func TestRace(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("host secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", fmt.Sprintf(
		`mkdir d; echo own > d/f; ln -s %s l; echo go; while :; do mv d x; mv l d; mv d l; mv x d; done`, outside)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range p.Events(t.Context(), 1, true) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	wrote := 0
	for i := range 1500 {
		b, err := j.ReadFile(t.Context(), "d/f", 100)
		if err == nil && string(b) != "own\n" && string(b) != "api" {
			t.Fatalf("read %q", b)
		}
		if i%3 == 0 {
			if _, err := j.WriteFile(t.Context(), "d/f", strings.NewReader("api"), 0, 100); err == nil {
				wrote++
			}
		}
	}
	if wrote == 0 {
		t.Error("never wrote: the race was not run")
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	if b, err := os.ReadFile(filepath.Join(outside, "f")); err != nil || string(b) != "host secret" {
		t.Fatalf("the host's file: %q, %v", b, err)
	}
}

func TestRemoveAll(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(t.TempDir(), "top")
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Fatal(err)
	}
	// Deeper than any path name, with things beside each folder.
	dir, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1500 {
		name := strings.Repeat("d", 200)
		for _, err := range []error{
			unix.Mkdirat(dir, name, 0o755), unix.Mkdirat(dir, "empty", 0o755), unix.Symlinkat(outside, dir, "link"),
			unix.Mknodat(dir, fmt.Sprintf("fifo\n%d", i), unix.S_IFIFO|0o600, 0), unix.Mkdirat(dir, ".removed-1", 0o700),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(dir)
		dir = next
	}
	unix.Close(dir)
	if err := removeAll(top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := removeAll(top); err != nil {
		t.Fatal("not idempotent:", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(link); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Fatal("a link was followed:", err)
	}
}
