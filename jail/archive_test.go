package jail

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const archiveLimit = 64 << 20

// tarOf makes an archive; a header without a size gets text as its content.
func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range headers {
		h := &headers[i]
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, h.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchiveRoundTrip(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	o := sh(t, j, `mkdir -p src/sub/deep src/empty src/locked; cd src; echo hello > a; echo x > sub/deep/b; ln a hard; ln -s ../a sub/link
		ln -s /etc/passwd out; mkfifo fifo; chmod 4751 a; chmod 500 empty; touch -d @1000000000 sub/deep/b; printf '' > "$(printf 'odd\nname\377')"
		name=$(printf 'n%.0s' $(seq 200)); mkdir -p $name/$name; echo long > $name/$name/f; chmod 0 locked`)
	if o.exit.Code != 0 {
		t.Fatal(o.stderr)
	}
	var b bytes.Buffer
	ready := 0
	stats, err := j.WriteArchive(t.Context(), "src", &b, archiveLimit, func() { ready++ })
	if err != nil || ready != 1 || stats.Skipped != 2 {
		t.Fatalf("%+v, %v", stats, err)
	}
	packed := slices.Clone(b.Bytes())
	in, err := j.ReadArchive(t.Context(), "dst/new", &b, archiveLimit)
	if err != nil || in.Entries != stats.Entries || in.Bytes != stats.Bytes {
		t.Fatalf("%+v, %v; written %+v", in, err, stats)
	}
	o = sh(t, j, `rm src/fifo; rmdir src/locked; chmod 751 src/a; cd dst/new; stat -c '%n %a %u' a sub/link empty; stat -c %Y sub/deep/b; [ a -ef hard ] && echo same; cd ../..; diff -r --no-dereference src dst/new && echo equal`)
	if want := "a 751 1000\nsub/link 777 1000\nempty 500 1000\n1000000000\nsame\nequal\n"; o.stdout != want {
		t.Errorf("got %q %s", o.stdout, o.stderr)
	}
	// The host's tar reads it too.
	for h, r := (*tar.Header)(nil), tar.NewReader(bytes.NewReader(packed)); ; {
		if h, err = r.Next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if h.Mode&^0o777 != 0 || h.Uid != 1000 {
			t.Errorf("%q has mode %o, owner %d", h.Name, h.Mode, h.Uid)
		}
	}
	if _, err := j.WriteArchive(t.Context(), "src", io.Discard, 3, func() {}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	b.Reset()
	if _, err := j.WriteArchive(t.Context(), "src/a", &b, archiveLimit, func() {}); err != nil {
		t.Error(err)
	} else if h, err := tar.NewReader(&b).Next(); err != nil || h.Name != "a" {
		t.Errorf("one file: %+v, %v", h, err)
	}
}

// TestHostileArchives: what each kind of bad entry is answered with, and that
// nothing of it lands.
func TestHostileArchives(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	outside := t.TempDir()
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	canary := filepath.Join(outside, "canary")
	if err := os.WriteFile(canary, []byte("host"), 0o666); err != nil {
		t.Fatal(err)
	}
	sh(t, j, "ln -s "+outside+" there; ln -s /tmp tmp; mkdir dir; echo old > dir/old; echo victim > /tmp/victim; ln -s /tmp/victim tovictim; mkfifo fifo fifo2")
	reg := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	hard := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
	}
	tests := map[string]struct {
		in   []byte
		want string // part of the reason; "" if all of it is taken
	}{
		"up":                  {tarOf(t, reg("a/../../x")), `".."`},
		"absolute":            {tarOf(t, reg("/etc/x")), "absolute"},
		"through a link":      {tarOf(t, reg("there/x")), "through a link"},
		"link, then through":  {tarOf(t, link("l", outside), reg("l/x")), "through a link"},
		"link out":            {tarOf(t, link("l2", "../../../../"+outside)), ""},
		"hard link out":       {tarOf(t, hard("h", "../"+canary)), "not in the archive's folder"},
		"hard link absolute":  {tarOf(t, hard("h", canary)), "not in the archive's folder"},
		"hard link by a link": {tarOf(t, hard("h", "there/canary")), "not there"},
		"hard link to a link": {tarOf(t, hard("h", "there")), "no file"},
		"hard link to a fifo": {tarOf(t, hard("h", "fifo2")), "no file"},
		"hard link to itself": {tarOf(t, reg("self"), hard("self", "self")), ""},
		"device":              {tarOf(t, tar.Header{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1, Devminor: 3}), "neither"},
		"block device":        {tarOf(t, tar.Header{Typeflag: tar.TypeBlock, Name: "d", Devmajor: 254}), "neither"},
		"fifo":                {tarOf(t, tar.Header{Typeflag: tar.TypeFifo, Name: "f"}), "neither"},
		"long part":           {tarOf(t, reg(strings.Repeat("n", 256))), "255"},
		"too deep":            {tarOf(t, reg(strings.Repeat("d/", maxArchiveDepth+1)+"x")), "deep"},
		"long path":           {tarOf(t, reg(strings.Repeat(strings.Repeat("n", 250)+"/", 20)+"x")), "too long"},
		"file for a folder":   {tarOf(t, reg("dir")), "a folder is where"},
		"folder for a file":   {tarOf(t, reg("plain"), reg("plain/x")), "a folder is where"},
		"over a link":         {tarOf(t, reg("tovictim")), ""},
		"over a fifo":         {tarOf(t, reg("fifo")), ""},
		"twice":               {tarOf(t, reg("twice"), link("twice", "x"), reg("twice")), ""},
		"set-id":              {tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o7755}), ""},
		"shut folder first": {tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "shut/", Mode: 0},
			reg("shut/in")), ""},
		"itself":       {tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0}), ""},
		"not a tar":    {bytes.Repeat([]byte("no tar "), 200), "no tar"},
		"cut":          {tarOf(t, reg(strings.Repeat("n", 200)))[:600], "no tar"},
		"time too far": {tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "late", ModTime: time.Unix(1<<40, 0), Format: tar.FormatGNU}), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := j.ReadArchive(ctx, "/workspace", bytes.NewReader(tt.in), archiveLimit)
			var refused *ArchiveError
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (!errors.As(err, &refused) || !strings.Contains(refused.Reason, tt.want)):
				t.Errorf("got %v, want a reason with %q", err, tt.want)
			}
		})
	}
	o := sh(t, j, "cat /tmp/victim; ls /tmp; stat -c '%a %F' suid twice shut tovictim; ls -d shut/in h d f 2>/dev/null; stat -c %U .")
	if want := "victim\nvictim\n755 regular file\n644 regular file\n0 directory\n644 regular file\nuser\n"; o.stdout != want {
		t.Errorf("got %q", o.stdout)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("the host's folder has %v, %v", entries, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(j.workspaceDir()+"/suid", &st); err != nil || st.Uid != j.uid+tenantUID {
		t.Errorf("owner %d, %v", st.Uid, err)
	}
	huge := tarOf(t, reg("ok"))
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "huge", Size: 1 << 62, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.ReadArchive(t.Context(), "/workspace", io.MultiReader(bytes.NewReader(huge[:1024]), &b), archiveLimit); !errors.Is(err, ErrTooLarge) {
		t.Errorf("four exbibytes: %v", err)
	}
	if _, err := j.ReadArchive(t.Context(), "/usr", bytes.NewReader(huge), archiveLimit); err == nil {
		t.Error("unpacked into /usr")
	}
}

// TestArchiveOfHostileTree: sparse giants, folders without end and a racer are
// answered.
func TestArchiveOfHostileTree(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("host secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	sh(t, j, "mkdir sparse deep race; truncate -s 8E sparse/x 2>/dev/null || truncate -s 15T sparse/x")
	if o := sh(t, j, fmt.Sprintf(`python3 -c 'import os
os.chdir("deep")
for i in range(%d):
    os.mkdir("d"); os.chdir("d")'`, maxArchiveDepth+5)); o.exit.Code != 0 {
		t.Fatal(o.stderr)
	}
	for _, dir := range []string{"sparse", "deep"} {
		if _, err := j.WriteArchive(t.Context(), dir, io.Discard, archiveLimit, func() {}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, err := j.WriteArchive(t.Context(), "/proc", io.Discard, archiveLimit, func() {}); !errors.Is(err, ErrNotRegular) {
		t.Error(err)
	}
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", fmt.Sprintf(
		`cd race; mkdir d; echo own > d/f; ln -s %s l; while :; do mv d x; mv l d; mv d l; mv x d; truncate -s 100k d/g; truncate -s 0 d/g; done`, outside)}})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		var b bytes.Buffer
		if _, err := j.WriteArchive(t.Context(), "race", &b, archiveLimit, func() {}); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b.Bytes(), []byte("host secret")) {
			t.Fatal("a link was followed")
		}
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// One that nobody reads ends with the jail.
	r, w := io.Pipe()
	ended := make(chan error, 1)
	sh(t, j, "rm -rf race/*; truncate -s 30M race/big")
	go func() {
		_, err := j.WriteArchive(context.Background(), "race", w, archiveLimit, func() {})
		w.Close()
		ended <- err
	}()
	if _, err := io.ReadFull(r, make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	if err := j.Destroy(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, r)
	if err := <-ended; !errors.Is(err, ErrGone) {
		t.Errorf("after the jail's end: %v", err)
	}
}

func FuzzEntryPath(f *testing.F) {
	for _, s := range []string{"a", "a/b/../c", "/a", "..", "./a//b/", "a\x00b", strings.Repeat("a/", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p, reason := entryPath(name)
		if reason != "" {
			return
		}
		if !filepath.IsLocal(p) || strings.Contains("/"+p+"/", "/../") {
			t.Errorf("%q became %q", name, p)
		}
	})
}

func TestChangeFiles(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	ctx := t.Context()
	for i, want := range []int64{3, 6} {
		if info, err := j.AppendFile(ctx, "log/a", strings.NewReader("abc"), 0o600, 10); err != nil || info.Size != want {
			t.Errorf("append %d: %+v, %v", i, info, err)
		}
	}
	if _, err := j.AppendFile(ctx, "log/a", strings.NewReader("abc"), 0, 2); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	sh(t, j, "mkfifo fifo; ln -s /tmp/x link; mkdir full; touch full/x b; ln -s /etc/passwd pw")
	for _, path := range []string{"fifo", "link", "full", "/dev/null"} {
		if _, err := j.AppendFile(ctx, path, strings.NewReader("x"), 0, 2); !errors.Is(err, ErrNotRegular) {
			t.Errorf("append to %s: %v", path, err)
		}
		if path == "fifo" || path == "full" {
			continue
		}
		if err := j.Chmod(ctx, path, 0o777); !errors.Is(err, ErrNotRegular) {
			t.Errorf("chmod %s: %v", path, err)
		}
	}
	if err := j.Chmod(ctx, "log/a", 0o640); err != nil {
		t.Error(err)
	}
	var field *SpecError
	if err := j.Chmod(ctx, "log/a", 0o4755); !errors.As(err, &field) {
		t.Error(err)
	}
	if err := j.Chmod(ctx, "/etc/passwd", 0o777); !errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
	if err := j.Rename(ctx, "log/a", "moved/to/a", false); err != nil {
		t.Error(err)
	}
	if err := j.Rename(ctx, "moved/to/a", "b", false); !errors.Is(err, os.ErrExist) {
		t.Error(err)
	}
	if err := j.Rename(ctx, "moved/to/a", "b", true); err != nil {
		t.Error(err)
	}
	if err := j.Rename(ctx, "b", "full", true); !errors.Is(err, unix.EISDIR) && !errors.Is(err, os.ErrExist) {
		t.Error(err)
	}
	if err := j.Rename(ctx, "b", "/tmp/b", true); !errors.As(err, &field) || field.Field != "to" {
		t.Error(err)
	}
	if err := j.Rename(ctx, "b", "../../x", true); !errors.Is(err, ErrOutside) {
		t.Error(err)
	}
	if err := j.Rename(ctx, "/etc/passwd", "x", true); err == nil {
		t.Error("moved the jail's passwd")
	}
	if err := j.Rename(ctx, "pw", "pw2", false); err != nil {
		t.Error(err)
	}
	if o := sh(t, j, "stat -c '%a %s %u' b; readlink pw2; ls -A"); o.stdout != "640 6 1000\n/etc/passwd\nb\nfifo\nfull\nlink\nlog\nmoved\npw2\n" {
		t.Errorf("%q", o.stdout)
	}
}
