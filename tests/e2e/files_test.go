package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

func TestFileChanges(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	files := jailPath(who) + "/files"
	want(t, "POST", files+"/workspace/a/b?mkdir&mode=0750", nil, nil)
	want(t, "PUT", files+"/workspace/a/b/log?append", []byte("one\n"), nil)
	want(t, "PUT", files+"/workspace/a/b/log?append=true", []byte("two\n"), nil)
	want(t, "POST", files+"/workspace/a/b/log?chmod=true&mode=0600", nil, nil)
	want(t, "POST", files+"/workspace/a/b/log?rename=true&to=/workspace/moved/log", nil, nil)
	if got := sh(t, who, "stat -c '%a %U' a/b moved/log; cat moved/log"); got != "750 user\n600 user\none\ntwo\n" {
		t.Errorf("the jail sees %q", got)
	}
	if a := want(t, "GET", files+"/workspace/moved/log?stat", nil, nil); !strings.Contains(string(a.Body), `"mode":"0600"`) {
		t.Errorf("stat: %s", a.Body)
	}
	if a := do(t, "GET", files+"/workspace/moved/log", nil, "Range", "bytes=4-6"); a.Status != http.StatusPartialContent || string(a.Body) != "two" {
		t.Errorf("a range: %d %q", a.Status, a.Body)
	}
	// Bytes that are not UTF-8 are addressed by their numbers, and listed so.
	want(t, "PUT", files+"/workspace/odd%FF%0A", []byte("x"), nil)
	var list api.FileList
	want(t, "GET", files+"/workspace?list", nil, &list)
	odd := false
	for _, f := range list.Files {
		odd = odd || f.NameBase64 == "b2Rk/wo="
	}
	if !odd {
		t.Errorf("the odd name is not listed by its bytes: %+v", list)
	}
	for _, tt := range []struct {
		path, code, field string
		status            int
	}{
		{"/workspace/x", api.CodeInvalidRequest, "query", 400},
		{"/workspace/x?mkdir&chmod&mode=0700", api.CodeInvalidRequest, "chmod", 400},
		{"/workspace/x?rename", api.CodeInvalidRequest, "to", 400},
		{"/workspace/x?chmod", api.CodeInvalidRequest, "mode", 400},
		{"/workspace/x?chmod&mode=4755", api.CodeInvalidRequest, "mode", 400},
		{"/workspace/none?chmod&mode=0700", api.CodeNotFound, "path", 404},
		{"/workspace/moved/log?rename&to=/workspace/a/b", api.CodeConflict, "", 409},
		{"/workspace/moved/log?rename&to=/tmp/log", api.CodeInvalidRequest, "to", 400},
		{"/workspace/moved/log?rename&to=/workspace/a/../../x", api.CodeDenied, "path", 403},
		{"/etc/passwd?chmod&mode=0777", api.CodeDenied, "path", 403},
	} {
		wantError(t, do(t, "POST", files+tt.path, nil), tt.status, tt.code, tt.field)
	}
}

func TestArchives(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	archive := jailPath(who) + "/archive"
	sh(t, who, "mkdir -p src/sub; echo one > src/one; ln -s ../one src/sub/link; mkfifo src/fifo; head -c 3000000 /dev/urandom > src/big; sha256sum src/big > sum")
	a := want(t, "GET", archive+"?path=/workspace/src", nil, nil)
	names := map[string]bool{}
	for r := tar.NewReader(bytes.NewReader(a.Body)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[h.Name] = true
	}
	for _, name := range []string{"one", "sub/", "sub/link", "big"} {
		if !names[name] {
			t.Errorf("%s is not in the archive: %v", name, names)
		}
	}
	var report api.ArchiveReport
	want(t, "PUT", archive+"?path=/workspace/dst", a.Body, &report)
	if report.Entries != 4 {
		t.Errorf("unpacked %+v", report)
	}
	sh(t, who, "rm src/fifo; diff -r --no-dereference src dst && sed 's/src/dst/' sum | sha256sum -c")
	// Another tenant's jail takes it as well.
	other := tenant(t, harness.AgentPrefix+"other-")
	want(t, "PUT", jailPath(other)+"/archive", a.Body, nil)
	if got := sh(t, other, "stat -c %U one; cat sub/link"); got != "user\none\n" {
		t.Errorf("%q", got)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../evil", Size: 0}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	e := wantError(t, do(t, "PUT", archive, b.Bytes()), 400, api.CodeInvalidRequest, "archive")
	if e.Used != "../evil" || e.Hint == "" {
		t.Errorf("%+v", e)
	}
	wantError(t, do(t, "PUT", archive, []byte(strings.Repeat("no tar", 200))), 400, api.CodeInvalidRequest, "archive")
	wantError(t, do(t, "GET", archive+"?path=/workspace/none", nil), 404, api.CodeNotFound, "path")
	// One that cannot be complete is cut off, not ended.
	sh(t, who, "mkdir cut; echo x > cut/a; truncate -s 10T cut/b")
	if a, err := sys.API.Do(deadline(t), "GET", archive+"?path=/workspace/cut", nil); err == nil {
		t.Errorf("an archive over the limit looks complete: %d, %d bytes", a.Status, len(a.Body))
	}
}

func TestWatch(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	wantError(t, do(t, "GET", jailPath(who)+"/watch", nil), 404, api.CodeNotFound, "")
	sh(t, who, "mkdir d")
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	var seen []string
	err := sys.API.Stream(ctx, "GET", jailPath(who)+"/watch?path=/workspace/d", nil, func(e api.Event) bool {
		if e.Seq != uint64(len(seen)+1) {
			t.Errorf("event %d after %d", e.Seq, len(seen))
		}
		if e.File == nil {
			seen = append(seen, e.Type)
			exec(t, who, api.ExecRequest{Command: "touch d/x; mv d/x d/y; rm d/y", Background: true})
			return true
		}
		seen = append(seen, e.File.Op+" "+strings.TrimPrefix(e.File.Path, "/workspace/d/"))
		return e.File.Op != "delete"
	})
	if got := strings.Join(seen, ", "); err != nil || got != "started, create x, modify x, rename y, delete y" {
		t.Errorf("%s; %v", got, err)
	}
	// The end of the jail ends the stream, and says so.
	last := ""
	err = sys.API.Stream(ctx, "GET", jailPath(who)+"/watch", nil, func(e api.Event) bool {
		if last = e.Type; e.Type == api.EventStarted {
			go sys.API.Do(ctx, "DELETE", jailPath(who), nil)
		}
		return true
	})
	if err != nil || last != api.EventError {
		t.Errorf("after the jail's end: %q, %v", last, err)
	}
}
