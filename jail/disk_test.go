package jail

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// imageConfig is for images.
func imageConfig(t testing.TB) Config {
	t.Helper()
	cfg := testConfig(t)
	cfg.Disk = DiskImage
	return cfg
}

// imageManager holds tenants by images.
func imageManager(t testing.TB) (*Manager, Config) {
	t.Helper()
	cfg := imageConfig(t)
	m, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m, cfg
}

func mountsBeneath(t testing.TB, dir string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), " "+dir+"/")
}

// testDiskLimit runs into both limits, from inside and by the file API.
func testDiskLimit(t *testing.T, m *Manager, ephemeral bool) {
	t.Helper()
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Ephemeral: ephemeral, Limits: Limits{Disk: 40 << 20, Inodes: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	if u := j.Info().Usage; u.Disk < 0 || u.Disk > 8<<20 || u.Inodes < 1 || u.Inodes > 100 {
		t.Errorf("a new jail uses %d bytes, %d inodes", u.Disk, u.Inodes)
	}
	o := sh(t, j, `head -c 20000000 /dev/zero > a && echo first; head -c 60000000 /dev/zero > ~/b || echo full; ls -A ~ | wc -l; [ $(stat -c %s ~/b) -lt 22500000 ] && echo held
		truncate -s 1T sparse && echo sparse; rm sparse`)
	if o.stdout != "first\nfull\n1\nheld\nsparse\n" {
		t.Errorf("%q %s", o.stdout, o.stderr)
	}
	full := func(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
	if _, err := j.WriteFile(t.Context(), "c", strings.NewReader(strings.Repeat("x", 10<<20)), 0, 1<<30); !full(err) {
		t.Errorf("written through the API: %v", err)
	}
	if _, err := j.AppendFile(t.Context(), "c", strings.NewReader(strings.Repeat("x", 10<<20)), 0, 1<<30); !full(err) {
		t.Errorf("appended through the API: %v", err)
	}
	if u := j.Info().Usage; u.Disk < 39<<20 || u.Disk > 41<<20 || j.DiskFull() != "disk" {
		t.Errorf("full it uses %d bytes, and is full of %q", u.Disk, j.DiskFull())
	}
	// Held open without a name it still counts, and deleting frees.
	o = sh(t, j, `rm -f c ~/b; exec 3>x; rm x; head -c 15000000 /dev/zero >&3 && echo in; head -c 15000000 /dev/zero > y || echo full; exec 3>&-; rm y a; head -c 30000000 /dev/zero > z && echo free; rm z
		i=0; while [ $i -lt 2000 ] && true > f$i; do i=$((i+1)); done 2>/dev/null; [ $i -lt 1000 ] && echo inodes; rm f*; touch again && echo again`)
	if o.stdout != "in\nfull\nfree\ninodes\nagain\n" {
		t.Errorf("%q %s", o.stdout, o.stderr)
	}
	for _, name := range []string{"disk", "inodes"} {
		if !strings.Contains(strings.Join(j.Info().Enforced, " "), name) {
			t.Errorf("%s is not among %q", name, j.Info().Enforced)
		}
	}
	// A tenant whose disk is full can come back and make room.
	sh(t, j, "head -c 60000000 /dev/zero > fill; i=0; while [ $i -lt 2000 ] && true > f$i; do i=$((i+1)); done")
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if ephemeral {
		return
	}
	if j, err = m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{Disk: 40 << 20, Inodes: 1000}}); err != nil {
		t.Fatal(err)
	}
	if o := sh(t, j, "rm f*; echo room > again && cat again"); o.stdout != "room\n" {
		t.Errorf("%q %s", o.stdout, o.stderr)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
}

func TestDiskImage(t *testing.T) {
	m, cfg := imageManager(t)
	testDiskLimit(t, m, false)
	if n := mountsBeneath(t, cfg.StateDir); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
	// It is kept, also over a restart; and a snapshot comes back into it.
	j := testJail(t, m, "alice")
	if o := sh(t, j, "ls; mkdir kept; echo one > kept/f; echo h > ~/h; mount | grep -c loop"); !strings.HasPrefix(o.stdout, "again\n") {
		t.Errorf("%q %s", o.stdout, o.stderr)
	}
	s, err := j.Snapshot(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	sh(t, j, "rm -r kept; echo later > later")
	if got := changes(t, j, s.ID); got != "deleted kept, added later" {
		t.Errorf("diff: %s", got)
	}
	j = restore(t, m, j, s.ID)
	if o := sh(t, j, "ls; cat kept/f ~/h"); o.stdout != "again\nkept\none\nh\n" {
		t.Errorf("restored: %q %s", o.stdout, o.stderr)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, err = New(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	j = testJail(t, m, "alice")
	if o := sh(t, j, "cat kept/f"); o.stdout != "one\n" {
		t.Errorf("after a restart: %q %s", o.stdout, o.stderr)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if err := m.Forget("alice"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(m.tenantsDir(), "alice")); !os.IsNotExist(err) {
		t.Errorf("after its end: %v", err)
	}
	// More inodes than fit are as many as do.
	if _, err := m.Create(t.Context(), Spec{Tenant: "bob", Limits: Limits{Disk: 40 << 20, Inodes: 1 << 20}}); err != nil {
		t.Error(err)
	}
}

func TestDiskOfEphemeralWorkspace(t *testing.T) {
	m, cfg := imageManager(t)
	testDiskLimit(t, m, true)
	if n := mountsBeneath(t, cfg.StateDir); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
	if _, err := os.Lstat(filepath.Join(m.tenantsDir(), "alice")); !os.IsNotExist(err) {
		t.Errorf("after its end: %v", err)
	}
}

// TestDiskImageIsNobodysElse: a mount namespace that somebody makes while a
// tenant has a jail does not keep its image, whatever the host's mounts are.
func TestDiskImageIsNobodysElse(t *testing.T) {
	m, cfg := imageManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "echo one > f")
	if n := mountsBeneath(t, cfg.StateDir); n != 0 {
		t.Errorf("%d mounts are seen outside", n)
	}
	other := exec.Command("unshare", "-m", "sh", "-c", "echo; exec sleep 1000")
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		other.Process.Kill()
		other.Wait()
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if o := sh(t, testJail(t, m, "alice"), "cat f"); o.stdout != "one\n" {
		t.Errorf("%q %s", o.stdout, o.stderr)
	}
}

// TestDiskImageFollowsItsLimit from one jail to the next: larger with all that is
// in it, smaller if that fits, else refused with a reason and nothing lost.
func TestDiskImageFollowsItsLimit(t *testing.T) {
	m, _ := imageManager(t)
	create := func(disk int64) (*Jail, error) {
		return m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{Disk: disk, Inodes: 1000}})
	}
	for _, step := range []struct {
		disk   int64
		script string
		want   string
	}{
		{40 << 20, "head -c 20000000 /dev/zero | tr '\\0' x > a; head -c 40000000 /dev/zero > b || echo full; rm b", "full\n"},
		{100 << 20, "head -c 60000000 /dev/zero > b && echo fits; head -c 40000000 /dev/zero > c || echo full; rm c; cksum < a", "fits\nfull\n2469157644 20000000\n"},
		{50 << 20, "", ""},
		{100 << 20, "rm b", ""},
		{50 << 20, "cksum < a; head -c 40000000 /dev/zero > b || echo full; rm b", "2469157644 20000000\nfull\n"},
	} {
		j, err := create(step.disk)
		if step.script == "" {
			var refused *SpecError
			if !errors.As(err, &refused) || refused.Field != "limits.disk" {
				t.Errorf("80 MB of files on a disk of 50 MiB: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if o := sh(t, j, step.script); o.stdout != step.want {
			t.Errorf("%d: %q %s", step.disk, o.stdout, o.stderr)
		}
		if err := j.Destroy(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFilesMoveOntoTheDisk: a tenant from before there were images keeps its
// files, and so does one whose daemon was killed while they moved.
func TestFilesMoveOntoTheDisk(t *testing.T) {
	cfg := imageConfig(t)
	cfg.Disk = DiskNone
	m, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	sh(t, testJail(t, m, "alice"), "mkdir d; echo old > d/f; ln -s d/f l; echo h > ~/h")
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Disk = DiskImage
	if m, err = New(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	for range 2 {
		j := testJail(t, m, "alice")
		if o := sh(t, j, "cat l ~/h; stat -c %u d/f"); o.stdout != "old\nh\n1000\n" {
			t.Errorf("%q %s", o.stdout, o.stderr)
		}
		if err := j.Destroy(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(j.hostFilesDir()); err != nil || len(left) > 0 {
			t.Errorf("beneath the disk: %v, %v", left, err)
		}
		// As a kill leaves it after the copy and before the deletion.
		if err := os.MkdirAll(filepath.Join(j.hostFilesDir(), movedMark+"workspace", "d"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoDiskQuota: what cannot be held is refused, unless the operator accepts it.
func TestNoDiskQuota(t *testing.T) {
	cfg := testConfig(t)
	cfg.Disk, cfg.BestEffort = DiskNone, false
	var lacks *UnsupportedError
	if err := os.Mkdir(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (&Manager{cfg: cfg}).chooseDisk(t.Context()); !errors.As(err, &lacks) {
		t.Errorf("limits are to be held and nothing holds them: %v", err)
	}
	cfg.Disk = "floppy"
	var field *SpecError
	cfg.BestEffort = true
	if _, err := New(t.Context(), cfg); !errors.As(err, &field) {
		t.Error(err)
	}
	cfg.Disk = DiskNone
	m, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	if info := testJail(t, m, "alice").Info(); strings.Contains(strings.Join(info.Enforced, " "), "disk") || info.Usage.Disk != -1 {
		t.Errorf("%+v", info)
	}
}
