package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSaveTree: what a sandbox made stays in the new folder on the caller's side.
func TestSaveTree(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		headers []tar.Header
		bad     bool
		says    string
	}{
		"up":             {[]tar.Header{{Typeflag: tar.TypeReg, Name: "../x"}}, true, ""},
		"absolute":       {[]tar.Header{{Typeflag: tar.TypeReg, Name: outside + "/x"}}, true, ""},
		"link out":       {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, {Typeflag: tar.TypeReg, Name: "l/x"}}, false, "left out"},
		"link up":        {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../outside"}}, false, "left out"},
		"link in":        {[]tar.Header{{Typeflag: tar.TypeReg, Name: "d/x"}, {Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "../d/x"}}, false, ""},
		"two links":      {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "."}, {Typeflag: tar.TypeSymlink, Name: "b", Linkname: "a/.."}, {Typeflag: tar.TypeReg, Name: "b/x"}}, false, ""},
		"hard link out":  {[]tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/x"}}, true, ""},
		"the same twice": {[]tar.Header{{Typeflag: tar.TypeReg, Name: "x"}, {Typeflag: tar.TypeReg, Name: "x"}}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var b, errOut bytes.Buffer
			w := tar.NewWriter(&b)
			for i := range tt.headers {
				if err := w.WriteHeader(&tt.headers[i]); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			a := &app{errOut: &errOut}
			err := a.saveTree(&b, filepath.Join(filepath.Dir(outside), strings.ReplaceAll(name, " ", "-")))
			if name != "two links" && (err != nil) != tt.bad {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(errOut.String(), tt.says) {
				t.Errorf("says %q", errOut.String())
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Errorf("outside: %v, %v", left, err)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(outside), "x")); err == nil {
				t.Error("something is beside the folder")
			}
		})
	}
}
