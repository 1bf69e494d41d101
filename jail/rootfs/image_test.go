package rootfs

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// imageFiles are what an image of these layers consists of as an OCI layout:
// each layer compressed in another way.
func imageFiles(t testing.TB, layers ...[]byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	var diffs, descs []string
	for i, l := range layers {
		packed, kind := l, "application/vnd.oci.image.layer.v1.tar"
		switch i % 3 {
		case 1:
			packed, kind = gzipped(t, l), kind+"+gzip"
		case 2:
			packed, kind = zstded(t, l), kind+"+zstd"
		}
		files["blobs/sha256/"+digestOf(packed)] = packed
		descs = append(descs, fmt.Sprintf(`{"mediaType":%q,"digest":"sha256:%s","size":%d}`, kind, digestOf(packed), len(packed)))
		diffs = append(diffs, fmt.Sprintf(`"sha256:%s"`, digestOf(l)))
	}
	config := fmt.Appendf(nil, `{"os":"linux","architecture":%q,"config":{"Env":["PATH=/opt/x:/bin","HOME=/nowhere","LANG=C","0BAD=1"],"User":"app","WorkingDir":"/srv/app","Entrypoint":["/bin/false"]},"rootfs":{"type":"layers","diff_ids":[%s]}}`,
		runtime.GOARCH, strings.Join(diffs, ","))
	files["blobs/sha256/"+digestOf(config)] = config
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%d},"layers":[%s]}`,
		digestOf(config), len(config), strings.Join(descs, ","))
	files["blobs/sha256/"+digestOf(manifest)] = manifest
	files["index.json"] = fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%d,"platform":{"os":"linux","architecture":%q}},{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%064d","size":1,"platform":{"os":"windows","architecture":"amd64"}}]}`,
		digestOf(manifest), len(manifest), runtime.GOARCH, 1)
	return files
}

// dockerFiles are the same image as docker save wrote it before it was a layout.
func dockerFiles(t testing.TB, layers ...[]byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	var diffs []string
	for _, l := range layers {
		diffs = append(diffs, fmt.Sprintf(`"sha256:%s"`, digestOf(l)))
	}
	config := fmt.Appendf(nil, `{"os":"linux","architecture":%q,"config":{"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":[%s]}}`, runtime.GOARCH, strings.Join(diffs, ","))
	files[digestOf(config)+".json"] = config
	var names []string
	for i, l := range layers {
		name := fmt.Sprintf("%064d/layer.tar", i)
		files[name], names = l, append(names, name)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": digestOf(config) + ".json", "RepoTags": []string{"x:latest"}, "Layers": names}})
	if err != nil {
		t.Fatal(err)
	}
	files["manifest.json"] = manifest
	return files
}

// pack puts the files in a tar, the blobs first or last.
func pack(t testing.TB, files map[string][]byte, first string) []byte {
	t.Helper()
	var head, tail []entry
	for name, b := range files {
		if strings.HasPrefix(name, first) {
			head = append(head, file(name, string(b)))
		} else {
			tail = append(tail, file(name, string(b)))
		}
	}
	return archiveOf(t, append(head, tail...)...)
}

func twoLayers(t testing.TB) (lower, upper []byte) {
	lower = archiveOf(t, folder("bin"), entry{tar.Header{Typeflag: tar.TypeDir, Name: "srv", Mode: 0o751}, ""}, file("bin/sh", "old"), file("etc/gone", "x"), file("etc/kept", "k"), file("lib/a", "a"), file("lib/b", "b"), file("var/x/f", "f"))
	upper = archiveOf(t, file("bin/sh", "new"), file("etc/.wh.gone", ""), file("lib/c", "c"), file("lib/.wh..wh..opq", ""), file("var/.wh.x", ""), folder("var/x"), file("var/x/g", "g"),
		file(".wh..wh.aufs", ""), file("etc/new", ""), file("etc/.wh.new", ""))
	return lower, upper
}

func TestImportOfAnImage(t *testing.T) {
	s := openStore(t, DefaultLimits())
	lower, upper := twoLayers(t)
	oci := imageFiles(t, lower, upper)
	var first *Template
	for name, archive := range map[string][]byte{
		"blobs-first": pack(t, oci, "blobs"), "blobs-last": pack(t, oci, "i"), "packed": zstded(t, pack(t, oci, "o")),
	} {
		tm, err := s.Import(t.Context(), name, bytes.NewReader(archive), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if first == nil {
			first = tm
		}
		if tm.ID != first.ID || tm.Kind != "oci" || len(tm.Layers) != 2 || tm.Layers[0] != digestOf(lower) {
			t.Errorf("%s: %+v", name, tm)
		}
		if tm.Env["PATH"] != "/opt/x:/bin" || tm.Env["LANG"] != "C" || len(tm.Env) != 2 || tm.WorkingDir != "/srv/app" || tm.User != "app" {
			t.Errorf("%s: defaults %+v", name, tm)
		}
	}
	docker, err := s.Import(t.Context(), "docker", bytes.NewReader(pack(t, dockerFiles(t, lower, upper), "x")), nil)
	if err != nil || docker.Kind != "docker" || docker.Layers[1] != first.Layers[1] {
		t.Fatalf("%+v, %v", docker, err)
	}
	layers, err := os.ReadDir(s.path("layers"))
	if err != nil || len(layers) != 4 {
		t.Errorf("%d layers, want two that all share, and two fits: %v", len(layers), err)
	}
	dir := s.tree(first, 1)
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "etc/gone"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("whiteout: %o %d, %v", st.Mode, st.Rdev, err)
	}
	if err := unix.Lstat(filepath.Join(dir, "etc/new"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		t.Errorf("a file beside its own whiteout: %o, %v", st.Mode, err)
	}
	for _, opaque := range []string{"lib", "var/x"} {
		b := make([]byte, 8)
		if n, err := unix.Lgetxattr(filepath.Join(dir, opaque), opaqueXattr, b); err != nil || string(b[:n]) != "y" {
			t.Errorf("%s is not opaque: %q, %v", opaque, b[:max(n, 0)], err)
		}
	}
	fit := s.path("layers", first.Fit, "tree")
	if err := unix.Lstat(filepath.Join(fit, "srv/app"), &st); err != nil || st.Uid != tenantID {
		t.Errorf("working folder: uid %d, %v", st.Uid, err)
	}
	if err := unix.Lstat(filepath.Join(fit, "srv"), &st); err != nil || st.Uid != 0 || st.Mode&0o7777 != 0o751 {
		t.Errorf("what leads to it: uid %d, mode %o, %v", st.Uid, st.Mode, err)
	}
}

func TestImagesThatLieAreRefused(t *testing.T) {
	lower, upper := twoLayers(t)
	change := func(files map[string][]byte, pick func(name string, b []byte) bool, to func([]byte) []byte) map[string][]byte {
		done := false
		for name, b := range files {
			if !done && pick(name, b) {
				files[name], done = to(bytes.Clone(b)), true
			}
		}
		if !done {
			t.Fatal("nothing to change")
		}
		return files
	}
	flip := func(b []byte) []byte { return bytes.Replace(b, []byte("new"), []byte("NEW"), 1) }
	replace := func(old, by string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(old), []byte(by), 1) }
	}
	contains := func(text string) func(string, []byte) bool {
		return func(name string, b []byte) bool {
			return strings.HasPrefix(name, "blobs/") && bytes.Contains(b, []byte(text)) || name == text
		}
	}
	is := func(want []byte) func(string, []byte) bool {
		return func(_ string, b []byte) bool { return bytes.Equal(b, want) }
	}
	for name, tc := range map[string]struct {
		files map[string][]byte
		want  string
	}{
		"a plain layer":        {change(imageFiles(t, lower, upper), is(lower), replace("old", "OLD")), "digest"},
		"a compressed layer":   {change(imageFiles(t, lower, upper), is(gzipped(t, upper)), func(b []byte) []byte { return append(b, gzipped(t, nil)...) }), "digest"},
		"another layer":        {change(imageFiles(t, lower, upper), is(gzipped(t, upper)), func([]byte) []byte { return gzipped(t, lower) }), "digest"},
		"the configuration":    {change(imageFiles(t, lower, upper), contains("diff_ids"), replace("LANG=C", "LANG=D")), "digest"},
		"the manifest":         {change(imageFiles(t, lower, upper), contains("schemaVersion"), replace(`"size"`, `"Size"`)), "digest"},
		"a docker layer":       {change(dockerFiles(t, lower, upper), is(upper), flip), "digest"},
		"a docker config":      {change(dockerFiles(t, lower, upper), func(_ string, b []byte) bool { return bytes.Contains(b, []byte("diff_ids")) }, replace("/bin", "/bim")), "digest"},
		"a layer too few":      {change(dockerFiles(t, lower, upper), contains("manifest.json"), replace(fmt.Sprintf(`,"%064d/layer.tar"`, 1), "")), "1 layers"},
		"a layer that is not":  {change(dockerFiles(t, lower, upper), contains("manifest.json"), replace(fmt.Sprintf(`%064d/layer.tar`, 1), "../../../etc/passwd")), "no file of an image archive"},
		"another digest":       {change(imageFiles(t, lower), contains("index.json"), replace("sha256:", "sha512:")), "cannot be read"},
		"hides the root":       {imageFiles(t, lower, archiveOf(t, file(".wh..wh..opq", ""))), "hides the whole root"},
		"hides its parent":     {imageFiles(t, lower, archiveOf(t, file("etc/.wh...", ""))), "hides nothing"},
		"hides by a long way":  {imageFiles(t, lower, archiveOf(t, link("d", "../.."), file("d/.wh.names", ""))), "a link is where"},
		"another architecture": {change(imageFiles(t, lower), contains("index.json"), func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(runtime.GOARCH), []byte("s390x")) }), "holds 0 images"},
	} {
		s := openStore(t, DefaultLimits())
		_, err := s.Import(t.Context(), "liar", bytes.NewReader(pack(t, tc.files, "blobs")), nil)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		wantEmpty(t, s, name)
	}
}

// A layer that the store has is still held to its digest.
func TestAKnownLayerIsCheckedAgain(t *testing.T) {
	s := openStore(t, DefaultLimits())
	lower, upper := twoLayers(t)
	if _, err := s.Import(t.Context(), "good", bytes.NewReader(pack(t, imageFiles(t, lower, upper), "blobs")), nil); err != nil {
		t.Fatal(err)
	}
	files := dockerFiles(t, lower, upper)
	for name, b := range files {
		if bytes.Equal(b, upper) {
			files[name] = archiveOf(t, file("other", ""))
		}
	}
	if _, err := s.Import(t.Context(), "bad", bytes.NewReader(pack(t, files, "x")), nil); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("%v", err)
	}
	if all, err := s.List(); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// Older docker save wrote a layer once and links to it.
func TestLinkedLayers(t *testing.T) {
	s := openStore(t, DefaultLimits())
	layer := archiveOf(t, file("f", "x"))
	files := dockerFiles(t, layer, layer)
	var entries []entry
	for name, b := range files {
		if name == fmt.Sprintf("%064d/layer.tar", 1) {
			entries = append(entries, entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: fmt.Sprintf("../%064d/layer.tar", 0)}, ""})
		} else {
			entries = append(entries, file(name, string(b)))
		}
	}
	tm, err := s.Import(t.Context(), "linked", bytes.NewReader(archiveOf(t, entries...)), nil)
	if err != nil || len(tm.Layers) != 2 {
		t.Errorf("%+v, %v", tm, err)
	}
}
