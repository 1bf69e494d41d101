package jail

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fill puts all kinds of things into a workspace.
const fillScript = `mkdir -p d/e; echo one > d/one; echo two > d/e/two; ln d/one hard; ln -s d/one link; ln -s /etc/passwd out; mkfifo fifo
	truncate -s 64M sparse; printf x >> sparse; chmod 0 d/e/two; chmod 500 d/e; echo home > ~/h; touch -d @1000000000 d/one; printf y > "$(printf 'odd\n\377')"`

// listScript prints what a workspace holds.
const listScript = `find . /home/user -printf '%p %y %m %s %l %n\n' | sort; cat d/one link ~/h; stat -c %Y d/one; tail -c1 sparse; stat -c %b sparse | awk '{print ($1<4096)}'`

func changes(t *testing.T, j *Jail, since string) string {
	t.Helper()
	d, err := j.Diff(t.Context(), since)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range d.Changes {
		out = append(out, c.Kind+" "+strings.TrimPrefix(c.Path, "/workspace/"))
	}
	return strings.Join(out, ", ")
}

// restore ends the jail, as the daemon does, and makes it anew.
func restore(t *testing.T, m *Manager, j *Jail, id string) *Jail {
	t.Helper()
	r, err := m.StageRestore(t.Context(), j.tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(); !errors.Is(err, ErrExists) {
		t.Errorf("restored beneath a jail: %v", err)
	}
	if err := j.Destroy(t.Context(), "restored"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Commit(), r.Abort()); err != nil {
		t.Fatal(err)
	}
	return testJail(t, m, j.tenant)
}

func TestSnapshots(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if got := changes(t, j, ""); got != "" {
		t.Errorf("a new jail has changed %q", got)
	}
	if o := sh(t, j, fillScript); o.exit.Code != 0 {
		t.Fatal(o.stderr)
	}
	before := sh(t, j, listScript).stdout
	s, err := j.Snapshot(t.Context(), "first")
	if err != nil || !s.Complete || s.Entries != 11 || s.Bytes <= 0 || s.Bytes > 1<<20 {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := changes(t, j, s.ID); got != "" {
		t.Errorf("right after the snapshot: %q", got)
	}
	if o := sh(t, j, `chmod 700 d/e; rm d/e/two; echo ONE > d/one; touch -d @1000000000 d/one; mkdir -p new/sub; echo n > new/sub/n; rm link; mkdir link; chmod 600 fifo; rm ~/h; mv out moved; printf z > "$(printf 'odd\n\377')"`); o.exit.Code != 0 {
		t.Fatal(o.stderr)
	}
	want := "deleted /home/user/h, modified d/e, deleted d/e/two, modified d/one, modified fifo, modified hard, modified link, added moved, " +
		"added new, added new/sub, added new/sub/n, modified odd\n\xff, deleted out"
	if got := changes(t, j, s.ID); got != strings.ReplaceAll(want, "modified d/e, deleted", "modified d/e, deleted") {
		t.Errorf("since the snapshot:\n got %q\nwant %q", got, want)
	}
	if got := changes(t, j, ""); !strings.Contains(got, "added new/sub/n") || strings.Contains(got, "deleted") {
		t.Errorf("since the creation: %q", got)
	}
	second, err := j.Snapshot(t.Context(), "second")
	if err != nil {
		t.Fatal(err)
	}
	all, err := m.Snapshots("alice")
	if err != nil || len(all) != 2 || all[0].ID != s.ID || all[0].Label != "first" || all[1].ID != second.ID {
		t.Fatalf("%+v, %v", all, err)
	}
	j = restore(t, m, j, s.ID)
	if after := sh(t, j, listScript).stdout; after != before {
		t.Errorf("restored:\n got %s\nwant %s", after, before)
	}
	if o := sh(t, j, "stat -c %u . d d/one link; touch d/mine && rm d/mine"); o.stdout != "1000\n1000\n1000\n1000\n" || o.exit.Code != 0 {
		t.Errorf("owners %q %s", o.stdout, o.stderr)
	}
	if got := changes(t, j, s.ID); got != "" {
		t.Errorf("after restoring it: %q", got)
	}
	testExport(t, m, s.ID)
	for range 2 {
		if err := m.RemoveSnapshot("alice", s.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.StageRestore(t.Context(), "alice", s.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("restore of a deleted one: %v", err)
	}
	for _, id := range []string{"..", "snap-../../x", "", "snap-0000000000000000"} {
		if _, err := j.Diff(t.Context(), id); !errors.Is(err, ErrNotFound) && id != "" {
			t.Errorf("diff since %q: %v", id, err)
		}
	}
}

func testExport(t *testing.T, m *Manager, id string) {
	t.Helper()
	var b bytes.Buffer
	r, w := io.Pipe()
	go func() {
		_, err := m.Export(t.Context(), "alice", id, w, func() {})
		w.CloseWithError(err)
	}()
	// Not all of the sparse file: the archive is as long as it says.
	found := map[string]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h.Typeflag
		if h.Name == "workspace/d/one" {
			io.Copy(&b, tr)
		}
	}
	if b.String() != "one\n" || found["home/h"] != tar.TypeReg || found["workspace/out"] != tar.TypeSymlink || found["workspace/fifo"] != 0 {
		t.Errorf("exported %v, %q", found, b.String())
	}
}

// TestSnapshotIsOneMoment: a writer that keeps two files equal is never caught
// between them, and goes on afterwards.
func TestSnapshotIsOneMoment(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"python3", "-c", `
import os
a, b = (os.open(n, os.O_RDWR | os.O_CREAT) for n in "ab")
n = 0
while True:
    n += 1
    os.pwrite(a, b"%012d" % n, 0); os.pwrite(b, b"%012d" % n, 0)
    if n == 1: print("go", flush=True)
`}})
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range p.Events(t.Context(), 1, true) {
		if err != nil || e.Kind == EventExit {
			t.Fatal(e, err)
		}
		break
	}
	last := ""
	for range 5 {
		s, err := j.Snapshot(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(m.snapshotsDir("alice"), s.ID, "files", "workspace")
		a, errA := os.ReadFile(filepath.Join(dir, "a"))
		b, errB := os.ReadFile(filepath.Join(dir, "b"))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		// a is written first: it may be one ahead of b, never behind or further.
		na, errA := strconv.Atoi(string(a))
		nb, errB := strconv.Atoi(string(b))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if na != nb && na != nb+1 {
			t.Errorf("caught at %d and %d", na, nb)
		}
		if string(a) == last {
			t.Errorf("nothing moved since the last snapshot, at %s", a)
		}
		last = string(a)
		if err := m.RemoveSnapshot("alice", s.ID); err != nil {
			t.Error(err)
		}
		if j.Info().State != StateRunning {
			t.Fatalf("the jail is %s", j.Info().State)
		}
	}
	// A frozen one stays frozen.
	if err := j.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Snapshot(t.Context(), ""); err != nil || j.Info().State != StateFrozen {
		t.Errorf("%s, %v", j.Info().State, err)
	}
}

func TestSnapshotBoundsAndCancel(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if o := sh(t, j, "for i in $(seq 300); do echo $i > f$i; done"); o.exit.Code != 0 {
		t.Fatal(o.stderr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Snapshot(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	j.limits.Disk = 1000 // its snapshots may have four times that
	if _, err := j.Snapshot(t.Context(), ""); !errors.Is(err, ErrSnapshotLimit) {
		t.Errorf("too large: %v", err)
	}
	if left, err := os.ReadDir(m.snapshotsDir("alice")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if j.Info().State != StateRunning {
		t.Errorf("the jail is %s", j.Info().State)
	}
	j.limits.Disk = 1 << 30
	sh(t, j, "rm -f f*")
	for i := range maxSnapshots + 1 {
		_, err := j.Snapshot(t.Context(), "")
		if full := i == maxSnapshots; errors.Is(err, ErrSnapshotLimit) != full {
			t.Fatalf("number %d: %v", i, err)
		}
	}
	var field *SpecError
	if _, err := j.Snapshot(t.Context(), "a\nb"); !errors.As(err, &field) {
		t.Error(err)
	}
}

// TestSnapshotOnAFullDisk: it fails, says so, leaves nothing, and harms neither
// the jail nor the snapshots before; also where data can be shared.
func TestSnapshotOnAFullDisk(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			cfg := testConfig(t)
			disk := mountImage(t, fs, 400<<20)
			cfg.StateDir = filepath.Join(disk, "state")
			m, err := New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close(context.Background())
			j := testJail(t, m, "alice")
			if o := sh(t, j, "head -c 60000000 /dev/urandom > big; echo ok > small; sha256sum big > sum"); o.exit.Code != 0 {
				t.Fatal(o.stderr)
			}
			s, err := j.Snapshot(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d bytes, the jail stood still for %v", fs, s.Bytes, s.Frozen)
			var st unix.Statfs_t
			if err := unix.Statfs(disk, &st); err != nil {
				t.Fatal(err)
			}
			if err := fillDisk(disk); err != nil {
				t.Fatal(err)
			}
			_, err = j.Snapshot(t.Context(), "")
			_, rerr := m.StageRestore(t.Context(), "alice", s.ID)
			if fs == "ext4" && (!errors.Is(err, unix.ENOSPC) || !errors.Is(rerr, unix.ENOSPC)) {
				t.Errorf("on a full disk: %v; %v", err, rerr)
			}
			if _, err := os.Lstat(filepath.Join(m.tenantsDir(), "alice", "files.new")); fs == "ext4" && !os.IsNotExist(err) {
				t.Errorf("left behind: %v", err)
			}
			if o := sh(t, j, "sha256sum -c sum && cat small"); o.stdout != "big: OK\nok\n" {
				t.Errorf("%q %s", o.stdout, o.stderr)
			}
			if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
				t.Fatal(err)
			}
			j = restore(t, m, j, s.ID)
			if o := sh(t, j, "sha256sum -c sum"); o.exit.Code != 0 {
				t.Errorf("%q %s", o.stdout, o.stderr)
			}
		})
	}
}

func fillDisk(dir string) error {
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size >= 512; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			return err
		}
	}
	return f.Sync()
}

// mountImage makes and mounts a file system of its own for the test.
func mountImage(t testing.TB, fs string, size int64, options ...string) string {
	t.Helper()
	dir := t.TempDir()
	image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(mnt, 0o755)); err != nil {
		t.Fatal(err)
	}
	args := map[string][]string{"ext4": {"-q", "-F"}, "xfs": {"-q", "-m", "reflink=1"}}[fs]
	for _, c := range [][]string{append(append([]string{"mkfs." + fs}, args...), image), append(append([]string{"mount", "-o", "loop"}, options...), image, mnt)} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", c, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mnt, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return mnt
}

// TestSweepOfSnapshots: what a killed daemon left half done is gone, what was
// complete is kept.
func TestSweepOfSnapshots(t *testing.T) {
	cfg := testConfig(t)
	m, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	j := testJail(t, m, "alice")
	sh(t, j, "echo kept > f")
	s, err := j.Snapshot(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := m.snapshotsDir("alice")
	for _, d := range []string{dir + "/.new-snap-1/files/workspace", dir + "/.old-snap-2/files", filepath.Dir(dir) + "/files.new/workspace/deep"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if m, err = New(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	if _, err := m.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(dir + "/.*")
	if _, lerr := os.Lstat(filepath.Dir(dir) + "/files.new"); err != nil || len(left) > 0 || !os.IsNotExist(lerr) {
		t.Errorf("left: %v, %v, %v", left, err, lerr)
	}
	j = testJail(t, m, "alice")
	sh(t, j, "rm f")
	j = restore(t, m, j, s.ID)
	if o := sh(t, j, "cat f"); o.stdout != "kept\n" {
		t.Errorf("%q %s", o.stdout, o.stderr)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if err := m.Forget("alice"); err != nil {
		t.Fatal(err)
	}
	if all, err := m.Snapshots("alice"); err != nil || len(all) > 0 {
		t.Errorf("after its end: %v, %v", all, err)
	}
}
