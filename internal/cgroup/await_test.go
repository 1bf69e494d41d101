package cgroup

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// group makes a cgroup with a process that ends when the returned function is
// called.
func group(t *testing.T) (dir string, end func()) {
	t.Helper()
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root := ""
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			root = fields[1]
		}
	}
	if root == "" {
		t.Fatal("no cgroup v2 is mounted")
	}
	if dir, err = os.MkdirTemp(root, "sandboxd-await-test-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder.Fd())}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		in.Close()
		cmd.Wait()
	}
	t.Cleanup(end)
	return dir, end
}

func await(ctx context.Context, dir, key string, want int) chan error {
	done := make(chan error, 1)
	go func() { done <- Await(ctx, dir, key, want) }()
	return done
}

func TestAwait(t *testing.T) {
	dir, end := group(t)
	if err := Await(t.Context(), dir, Populated, 1); err != nil {
		t.Fatalf("what is so already: %v", err)
	}
	frozen := await(t.Context(), dir, Frozen, 1)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-frozen; err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	empty := await(t.Context(), dir, Populated, 0)
	end()
	if err := <-empty; err != nil {
		t.Fatal(err)
	}
	// An empty group can be removed at once.
	if err := unix.Rmdir(dir); err != nil {
		t.Fatal(err)
	}
	if err := Await(t.Context(), dir, Populated, 1); err != nil {
		t.Fatalf("a group that is gone: %v", err)
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	dir, _ := group(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Await(ctx, dir, Populated, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}
