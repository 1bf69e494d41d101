package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

func openStore(t *testing.T, limits Limits) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "templates"), limits)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// entry is one of a test's archives.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func folder(name string) entry {
	return entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func link(name, to string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}, ""}
}

func hard(name, to string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}, ""}
}

func archiveOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.content))
		h.ModTime = time.Unix(1700000000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

// tree is where the first layer of a template is.
func (s *Store) tree(tm *Template, layer int) string {
	return s.path("layers", tm.Layers[layer], "tree")
}

func TestImportOfATarHoweverCompressed(t *testing.T) {
	s := openStore(t, DefaultLimits())
	own := entry{tar.Header{Typeflag: tar.TypeReg, Name: "home/mine", Mode: 0o4755, Uid: 1000, Gid: 1000}, "m"}
	other := entry{tar.Header{Typeflag: tar.TypeReg, Name: "bin/su", Mode: 0o6755, Uid: 7, Gid: 42,
		PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x", "SCHILY.xattr.user.overlay.opaque": "y"}}, "s"}
	raw := archiveOf(t, folder("./"), folder("bin"), file("bin/sh", "#!"), other, link("sh", "/bin/sh"), hard("bin/bash", "bin/sh"), own,
		entry{tar.Header{Typeflag: tar.TypeChar, Name: "dev/sda", Devmajor: 8}, ""}, entry{tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}, ""},
		file(".wh.kept", "a name like any other"), file("\xff\n\x1b", "odd"), file("/abs", "beneath the root"))
	var first *Template
	for name, b := range map[string][]byte{"plain": raw, "gzip": gzipped(t, raw), "zstd": zstded(t, raw)} {
		tm, err := s.Import(t.Context(), name, bytes.NewReader(b), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if first == nil {
			first = tm
		}
		if tm.ID != first.ID || tm.Kind != "tar" || tm.LeftOut != 2 || tm.Entries != 12 {
			t.Errorf("%s is %+v, the first %+v", name, tm, first)
		}
	}
	layers, err := os.ReadDir(s.path("layers"))
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers for three times the same, want one and its fit: %v", len(layers), err)
	}
	dir := s.tree(first, 0)
	for name, want := range map[string]struct {
		mode uint32
		uid  uint32
	}{"bin/su": {0o755, 0}, "home/mine": {0o755, 1000}, "bin/bash": {0o644, 0}, ".wh.kept": {0o644, 0}, "abs": {0o644, 0}} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil || st.Mode&0o7777 != want.mode || st.Uid != want.uid || st.Gid != want.uid {
			t.Errorf("%s: mode %o, owner %d:%d, %v; want %o, %d", name, st.Mode&0o7777, st.Uid, st.Gid, err, want.mode, want.uid)
		}
		if n, err := unix.Llistxattr(filepath.Join(dir, name), nil); err != nil || n != 0 {
			t.Errorf("%s: %d bytes of attributes' names, %v", name, n, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "sh")); err != nil || to != "/bin/sh" {
		t.Errorf("sh → %q, %v", to, err)
	}
}

// What an archive may not do. Beside the store's folder lies one that none of
// them may touch.
func TestHostileArchivesAreRefusedAndLeaveNothing(t *testing.T) {
	s := openStore(t, Limits{Bytes: 1 << 20, Entries: 100})
	outside := filepath.Join(filepath.Dir(s.dir), "outside")
	if err := os.WriteFile(outside, []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
	many := make([]entry, 101)
	for i := range many {
		many[i] = file(fmt.Sprint("f", i), "")
	}
	deep := file(strings.Repeat("d/", 200)+"f", "")
	implied := make([]entry, 60)
	for i := range implied {
		implied[i] = file(fmt.Sprintf("d%d/e/f", i), "")
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	z.Close()
	cut := archiveOf(t, file("f", strings.Repeat("x", 5000)))[:2000]
	damaged := gzipped(t, archiveOf(t, file("f", strings.Repeat("x", 5000))))
	damaged[len(damaged)-5] ^= 1
	for name, tc := range map[string]struct {
		archive []byte
		want    string
	}{
		"dot dot":                {archiveOf(t, file("../../outside", "x")), `has ".."`},
		"dot dot inside":         {archiveOf(t, file("a/../../outside", "x")), `has ".."`},
		"through a link":         {archiveOf(t, link("d", "../../../.."), file("d/outside", "x")), "a link is where"},
		"through an absolute":    {archiveOf(t, link("d", filepath.Dir(outside)), file("d/outside", "x")), "a link is where"},
		"folder over a link":     {archiveOf(t, link("d", ".."), folder("d"), file("d/outside", "x")), "a link is where"},
		"folder in a link":       {archiveOf(t, link("d", ".."), folder("d/e")), "a link is where"},
		"hard link out":          {archiveOf(t, hard("f", "../../outside")), "not in the archive"},
		"hard link through link": {archiveOf(t, link("d", "/etc"), hard("f", "d/passwd")), "not there"},
		"hard link to a folder":  {archiveOf(t, folder("d"), hard("f", "d")), "no file"},
		"hard link to nothing":   {archiveOf(t, hard("f", "g")), "not there"},
		"file over a folder":     {archiveOf(t, file("d/e", ""), file("d", "")), "a folder is where it belongs"},
		"file as a folder":       {archiveOf(t, file("d", ""), file("d/e", "")), "a folder is where it belongs"},
		"long name":              {archiveOf(t, file(strings.Repeat("n", 300), "")), "over 255 bytes"},
		"deep":                   {archiveOf(t, deep), "folders deep"},
		"many":                   {archiveOf(t, many...), "over 100 entries"},
		"many implied":           {archiveOf(t, implied...), "over 100 entries"},
		"large":                  {archiveOf(t, file("f", strings.Repeat("x", 1<<20+1))), "over 1048576 bytes"},
		"bomb":                   {bomb.Bytes(), "too large"},
		"cut":                    {cut, "breaks off"},
		"damaged":                {damaged, "damaged"},
		"xz":                     {[]byte("\xfd7zXZ\x00 and more"), "xz"},
		"no tar":                 {bytes.Repeat([]byte("no tar "), 200), "is no tar"},
		"nothing":                {nil, "is empty"},
		"no image":               {archiveOf(t, file("oci-layout", "{}")), "lacks its file manifest.json"},
		"twice":                  {archiveOf(t, file("index.json", "{}"), file("index.json", "{}")), "comes twice"},
		"no one image":           {archiveOf(t, file("index.json", "{}")), "holds 0 images"},
		"blob elsewhere":         {archiveOf(t, file("manifest.json", `[{"Config":"../../outside","Layers":[]}]`)), "not its digest"},
		"special":                {archiveOf(t, entry{tar.Header{Typeflag: 'Z', Name: "z"}, ""}), "neither file"},
	} {
		_, err := s.Import(t.Context(), "evil", bytes.NewReader(tc.archive), nil)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		var bad *ImportError
		if !errors.As(err, &bad) && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %T is no fault of the archive's", name, err)
		}
		wantEmpty(t, s, name)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "as it was" {
		t.Errorf("the file outside is %q, %v", b, err)
	}
}

func wantEmpty(t *testing.T, s *Store, what string) {
	t.Helper()
	for _, dir := range []string{"staging", "layers", "names"} {
		if left, err := os.ReadDir(s.path(dir)); err != nil || len(left) > 0 {
			t.Errorf("%s: %v is left in %s, %v", what, left, dir, err)
		}
	}
}

func TestTheLaterOfTwoEntriesCounts(t *testing.T) {
	s := openStore(t, DefaultLimits())
	tm, err := s.Import(t.Context(), "twice", bytes.NewReader(archiveOf(t, file("a", "old"), hard("b", "a"), file("a", "new"),
		link("c", "a"), file("c", "no link"), folder("d"), file("d/f", "kept"), folder("d/"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "new", "b": "old", "c": "no link", "d/f": "kept"} {
		if b, err := os.ReadFile(filepath.Join(s.tree(tm, 0), name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// A file that is all zeros takes no place, and has its length.
func TestHolesStayHoles(t *testing.T) {
	s := openStore(t, DefaultLimits())
	tm, err := s.Import(t.Context(), "sparse", bytes.NewReader(archiveOf(t, file("z", string(make([]byte, 5<<20))), file("y", "y"+string(make([]byte, 1<<20))+"y"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(s.tree(tm, 0), "z"), &st); err != nil || st.Size != 5<<20 || st.Blocks > 16 {
		t.Errorf("size %d, %d blocks, %v", st.Size, st.Blocks, err)
	}
	b, err := os.ReadFile(filepath.Join(s.tree(tm, 0), "y"))
	if err != nil || len(b) != 1<<20+2 || b[0] != 'y' || b[len(b)-1] != 'y' {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// blocked stands for an upload that stops in the middle.
type blocked struct {
	r       io.Reader
	reached chan struct{}
	ctx     context.Context
}

func (b *blocked) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, io.EOF) {
		close(b.reached)
		<-b.ctx.Done()
		return 0, context.Cause(b.ctx)
	}
	return n, err
}

func TestACanceledImportLeavesNothing(t *testing.T) {
	s := openStore(t, DefaultLimits())
	ctx, cancel := context.WithCancel(t.Context())
	part := archiveOf(t, file("f", strings.Repeat("x", 1<<20)))[:1<<20]
	in := &blocked{bytes.NewReader(part), make(chan struct{}), ctx}
	go func() { <-in.reached; cancel() }()
	if _, err := s.Import(ctx, "half", in, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
	wantEmpty(t, s, "canceled")
}

// What a killed daemon leaves is gone when the store is opened: half an import,
// and a layer whose template was never written.
func TestHalfImportsVanish(t *testing.T) {
	s := openStore(t, DefaultLimits())
	keep, err := s.Import(t.Context(), "whole", bytes.NewReader(archiveOf(t, file("f", "x"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"staging/HALF/new-1/tree/etc", "layers/0123/tree"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if s, err = Open(s.dir, DefaultLimits()); err != nil {
		t.Fatal(err)
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].ID != keep.ID {
		t.Errorf("%+v, %v", all, err)
	}
	if left, _ := os.ReadDir(s.path("staging")); len(left) > 0 {
		t.Errorf("staging has %v", left)
	}
	if left, _ := os.ReadDir(s.path("layers")); len(left) != 2 {
		t.Errorf("layers are %v", left)
	}
}

func TestLayersStayUntilTheLastJailIsGone(t *testing.T) {
	s := openStore(t, DefaultLimits())
	tm, err := s.Import(t.Context(), "a", bytes.NewReader(archiveOf(t, file("f", "x"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := s.Open(tm)
	if err != nil {
		t.Fatal(err)
	}
	if len(layers.Files) != 2 {
		t.Errorf("%d layers", len(layers.Files))
	}
	if err := s.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.tree(tm, 0), "f")); err != nil {
		t.Errorf("the jail's layer: %v", err)
	}
	if _, err := s.Get("a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if err := s.Remove("a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove again: %v", err)
	}
	if err := layers.Release(); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, s, "released")
	if _, err := s.Open(tm); !errors.Is(err, ErrNotFound) {
		t.Errorf("open: %v", err)
	}
}

func TestNames(t *testing.T) {
	s := openStore(t, DefaultLimits())
	for _, name := range []string{"", "host", "../x", "A", "a/b", ".a", strings.Repeat("a", 64)} {
		var bad *ImportError
		if _, err := s.Import(t.Context(), name, bytes.NewReader(nil), nil); !errors.As(err, &bad) {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := s.Get(name); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A folder and its tar are the same template; what cannot be in one stays out.
func TestImportOfAFolder(t *testing.T) {
	s := openStore(t, DefaultLimits())
	dir := t.TempDir()
	for name, content := range map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/:/bin/sh", "etc/apt/apt.conf.d/01": "", "big": strings.Repeat("b", 1<<20)} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/etc", filepath.Join(dir, "link")), os.Link(filepath.Join(dir, "big"), filepath.Join(dir, "same")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	tm, err := s.ImportPath(t.Context(), "folder", dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tm.LeftOut != 1 || tm.Bytes < 1<<20 || tm.Bytes >= 2<<20 {
		t.Errorf("%+v", tm)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var packed bytes.Buffer
	if err := WriteTree(t.Context(), f, &packed); err != nil {
		t.Fatal(err)
	}
	again, err := s.Import(t.Context(), "tar", &packed, nil)
	if err != nil || again.ID != tm.ID {
		t.Errorf("%+v, %v", again, err)
	}
	// The fit: uid 1000 has a name, gid 1000 none.
	fit := s.path("layers", tm.Fit, "tree")
	if _, err := os.Lstat(filepath.Join(fit, "etc/passwd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("passwd in the fit: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(fit, "etc/group")); err != nil || !strings.Contains(string(b), "user:x:1000:") {
		t.Errorf("group: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(fit, "etc/apt/apt.conf.d/90sandboxd")); err != nil || string(b) != aptConfig {
		t.Errorf("apt: %q, %v", b, err)
	}
	for _, path := range []string{"relative", dir + "/../x", filepath.Join(dir, "fifo"), filepath.Join(dir, "missing"), "/proc/self/root"} {
		var bad *ImportError
		if _, err := s.ImportPath(t.Context(), "x", path, nil); !errors.As(err, &bad) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestProgressIsTold(t *testing.T) {
	s := openStore(t, DefaultLimits())
	var stages []string
	_, err := s.Import(t.Context(), "a", bytes.NewReader(archiveOf(t, file("f", "x"))), func(p Progress) { stages = append(stages, p.Stage) })
	if err != nil || len(stages) < 2 || stages[0] != "unpacking" || stages[len(stages)-1] != "storing" {
		t.Errorf("%v, %v", stages, err)
	}
}

func FuzzImport(f *testing.F) {
	f.Add(archiveOf(f, folder("d"), file("d/f", "x"), link("l", "d"), hard("h", "d/f")))
	f.Add(gzipped(f, archiveOf(f, file(".wh.x", ""))))
	f.Add(archiveOf(f, file("oci-layout", "{}"), file("index.json", `{"manifests":[]}`)))
	dir := f.TempDir()
	s, err := Open(filepath.Join(dir, "templates"), Limits{Bytes: 1 << 20, Entries: 1000})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := s.Import(t.Context(), "fuzz", bytes.NewReader(b), nil); err == nil {
			if err := s.Remove("fuzz"); err != nil {
				t.Fatal(err)
			}
		}
		wantEmpty(t, s, "fuzz")
		if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
			t.Fatalf("beside the store: %v, %v", names, err)
		}
	})
}
