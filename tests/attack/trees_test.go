package attack

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"sandboxd/jail"
)

// While the workspace swaps a folder for a link out of the jail, whole trees are
// packed, unpacked, watched, copied, compared and exported (E01, E06, E07): no
// byte of the host's comes in, and none of the jail's goes out.
func TestWholeTreesAgainstRacer(t *testing.T) {
	host := outside(t)
	for name, target := range map[string]string{"absolute": host, "magic": "/proc/self/root" + host, "init": "/proc/1/root" + host} {
		t.Run(name, func(t *testing.T) {
			j := newJail(t, "trees-"+name)
			p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: []string{"/workspace/probe", "race", target}, Stdin: true, Output: 1 << 16})
			if err != nil {
				t.Fatal(err)
			}
			waitOutput(t, p)
			// It runs on, and its own strings are in no archive.
			if err := j.Remove(t.Context(), "/workspace/probe", false); err != nil {
				t.Fatal(err)
			}
			var evil bytes.Buffer
			w := tar.NewWriter(&evil)
			for _, h := range []tar.Header{
				{Typeflag: tar.TypeReg, Name: "race/written", Mode: 0o666}, {Typeflag: tar.TypeDir, Name: "race/made/", Mode: 0o777},
				{Typeflag: tar.TypeSymlink, Name: "race/link", Linkname: "/"}, {Typeflag: tar.TypeLink, Name: "stolen", Linkname: "race/canary"},
			} {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			watched := make(chan struct{})
			events, err := j.Watch(ctx, "/workspace", true)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(watched)
				for range events {
				}
			}()
			mine, snapshots := 0, 0
			for n, end := 0, time.Now().Add(time.Minute); n < 300 || mine == 0 && time.Now().Before(end); n++ {
				var b bytes.Buffer
				// Errors are as good as success; what matters is what is in it.
				_, _ = j.WriteArchive(t.Context(), "/workspace", &b, 256<<20, func() {})
				if bytes.Contains(b.Bytes(), []byte("host's")) {
					t.Fatal("an archive holds the host's file")
				}
				if bytes.Contains(b.Bytes(), []byte("mine")) {
					mine++
				}
				_, _ = j.ReadArchive(t.Context(), "/workspace", bytes.NewReader(evil.Bytes()), 1<<20)
				_ = j.Chmod(t.Context(), "/workspace/race/canary", 0o600)
				_ = j.Rename(t.Context(), "/workspace/race/canary", "/workspace/race/gone", true)
				_ = j.Rename(t.Context(), "/workspace/race/gone", "/workspace/race/canary", true)
				if n%50 != 0 {
					continue
				}
				s, err := j.Snapshot(t.Context(), "")
				if err != nil {
					t.Errorf("snapshot: %v", err)
					continue
				}
				snapshots++
				var tree strings.Builder
				if _, err := manager.Export(t.Context(), j.Tenant(), s.ID, &tree, func() {}); err != nil {
					t.Errorf("export: %v", err)
				}
				if strings.Contains(tree.String(), "host's") {
					t.Fatal("a snapshot holds the host's file")
				}
				if _, err := j.Diff(t.Context(), s.ID); err != nil {
					t.Errorf("diff: %v", err)
				}
			}
			if err := p.Stdin().(io.Closer).Close(); err != nil {
				t.Error(err)
			}
			if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
				t.Errorf("the racer ended with %+v, %v", exit, err)
			}
			cancel()
			<-watched
			if mine == 0 || snapshots == 0 {
				t.Errorf("the file was there %d times, %d snapshots: no race took place", mine, snapshots)
			}
			untouched(t, host)
		})
	}
}

// Very many files are answered, whatever is asked of them: listed, packed or
// compared up to a bound, removed within the jail's end (E05).
func TestVeryManyFiles(t *testing.T) {
	j := newJail(t, "very-many")
	p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: []string{"python3", "-c", "import os\nos.mkdir('many')\nos.chdir('many')\nfor i in range(101000): os.close(os.open(str(i), os.O_CREAT))"}, Output: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if _, err := j.List(t.Context(), "/workspace/many", 1); err == nil {
		t.Error("listed more than the bound")
	}
	stats, err := j.WriteArchive(t.Context(), "/workspace/many", io.Discard, 1<<20, func() {})
	if err != nil || stats.Entries != 101000 {
		t.Errorf("packed %+v, %v", stats, err)
	}
	if d, err := j.Diff(t.Context(), ""); err != nil || !d.Truncated {
		t.Errorf("compared: truncated %+v, %v", d != nil && d.Truncated, err)
	}
	began := time.Now()
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Error(err)
	}
	t.Logf("removed in %v", time.Since(began))
}
