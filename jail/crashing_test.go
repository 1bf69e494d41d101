package jail

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// crashDoingEnv says in the midst of what the daemon is killed.
const crashDoingEnv = "JAIL_TEST_CRASH_DOING"

// crashFiles are so many that copying them takes a while.
const crashFiles = 4000

// crashDoing fills a workspace, begins something with it, and says so when it has
// begun.
func crashDoing(ctx context.Context, m *Manager, doing string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, doing, err)
		return 1
	}
	j, err := m.Create(ctx, Spec{Tenant: "alice", Limits: Limits{Disk: 200 << 20, Inodes: 20000}})
	if err != nil {
		return fail(err)
	}
	p, err := j.Exec(ctx, ExecSpec{Argv: []string{"sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i > f$i; i=$((i+1)); done; sync", crashFiles)}})
	if err != nil {
		return fail(err)
	}
	if exit, err := p.Wait(ctx); err != nil || exit.Code != 0 {
		return fail(fmt.Errorf("%+v, %w", exit, err))
	}
	begun := make(chan struct{})
	go func() {
		switch doing {
		case "snapshot":
			_, err = j.Snapshot(ctx, "")
		case "restore":
			var s Snapshot
			if s, err = j.Snapshot(ctx, ""); err == nil {
				_, err = m.StageRestore(ctx, "alice", s.ID)
			}
		case "unpack":
			_, err = j.ReadArchive(ctx, "/workspace", endlessTar(begun), 1<<30)
		}
		// Before it was killed: then the test proves nothing.
		os.Exit(fail(fmt.Errorf("it came to its end: %w", err)))
	}()
	for !crashBegun(m, doing, begun) {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready")
	select {}
}

// crashBegun reports whether a part of it is done.
func crashBegun(m *Manager, doing string, begun chan struct{}) bool {
	var part string
	switch doing {
	case "snapshot":
		part = m.snapshotsDir("alice") + "/.new-*/files/workspace/f*"
	case "restore":
		part = filepath.Join(m.tenantsDir(), "alice", "files.new/workspace/f*")
	default:
		select {
		case <-begun:
			return true
		default:
			return false
		}
	}
	some, err := filepath.Glob(part)
	return err == nil && len(some) > 0 && len(some) < crashFiles/2
}

// endlessTar has some files and then one whose content does not come.
func endlessTar(begun chan struct{}) io.Reader {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		for i := range 10 {
			if t.WriteHeader(&tar.Header{Name: fmt.Sprintf("t%d", i), Mode: 0o644, Size: 1, Typeflag: tar.TypeReg}) == nil {
				t.Write([]byte("x"))
			}
		}
		if t.WriteHeader(&tar.Header{Name: "half", Mode: 0o644, Size: 1 << 20, Typeflag: tar.TypeReg}) == nil {
			t.Write(make([]byte, 1<<19))
		}
		close(begun)
	}()
	return r
}

// TestCrashHalfWay: a daemon that is killed while it copies leaves all of the
// files as they were, and nothing of the copy, on images.
func TestCrashHalfWay(t *testing.T) {
	for _, doing := range []string{"snapshot", "restore", "unpack"} {
		t.Run(doing, func(t *testing.T) {
			cfg := imageConfig(t)
			plain := cfg
			plain.Log = nil
			b, err := json.Marshal(plain)
			if err != nil {
				t.Fatal(err)
			}
			daemon, out := startCrashing(t, string(b), crashDoingEnv+"="+doing)
			word := make([]byte, 6)
			_, err = io.ReadFull(out, word)
			if kerr := daemon.Process.Kill(); err != nil || kerr != nil {
				t.Fatalf("%q, %v, %v", word, err, kerr)
			}
			daemon.Wait()
			m, err := New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close(context.Background())
			if swept, err := m.Sweep(t.Context()); err != nil || len(swept) != 1 {
				t.Fatalf("swept %q, %v", swept, err)
			}
			checkCrashLeft(t, m)
			j, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{Disk: 200 << 20, Inodes: 20000}})
			if err != nil {
				t.Fatal(err)
			}
			if o := sh(t, j, fmt.Sprintf("ls f* | wc -l; cat f*| wc -l; cat f%d", crashFiles-1)); o.stdout != fmt.Sprintf("%d\n%d\n%d\n", crashFiles, crashFiles, crashFiles-1) {
				t.Errorf("its files: %q %s", o.stdout, o.stderr)
			}
			if _, err := j.Snapshot(t.Context(), ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkCrashLeft wants no half of anything in the tenant's folder.
func checkCrashLeft(t *testing.T, m *Manager) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(m.tenantsDir(), "alice", "files.new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files.new: %v", err)
	}
	left, err := os.ReadDir(m.snapshotsDir("alice"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range left {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left: %s", e.Name())
		}
	}
}
