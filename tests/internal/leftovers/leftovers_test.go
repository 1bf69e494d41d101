package leftovers

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFindsWhatWasLeft(t *testing.T) {
	before, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sandboxd-leftover-test-")
	if err != nil {
		t.Fatal(err)
	}
	mounted := filepath.Join(dir, "m")
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	left, err := Settle(before, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"temporary file: " + dir: true, "mount: " + mounted: true}
	for _, l := range left {
		delete(want, l)
	}
	if len(want) > 0 {
		t.Errorf("not found: %v (found %v)", want, left)
	}
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(dir)
	now, err := Settle(before, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range now {
		if l == "temporary file: "+dir || l == "mount: "+mounted {
			t.Errorf("still reported after it went: %s", l)
		}
	}
}
