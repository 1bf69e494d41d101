package templates

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// imageOf makes an OCI layout of two layers as a tar, always the same bytes of
// the same system: the system itself, and a layer that adds a program, changes a
// file and hides another. Written to a file: it is large.
func imageOf(t *testing.T, system, to string) {
	t.Helper()
	upper := layerOf(t,
		tarEntry{"usr/local/bin/greet", 0o755, "#!/bin/sh\necho hello $WHO from $PWD\n"},
		tarEntry{"etc/motd", 0o644, "of the second layer\n"},
		tarEntry{"etc/.wh.issue", 0o644, ""})
	f, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	lower, err := os.Open(system)
	if err != nil {
		t.Fatal(err)
	}
	defer lower.Close()
	st, err := lower.Stat()
	if err != nil {
		t.Fatal(err)
	}
	lowerSum := sha256.New()
	if _, err := io.Copy(lowerSum, lower); err != nil {
		t.Fatal(err)
	}
	lowerDigest := hex.EncodeToString(lowerSum.Sum(nil))
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := encoder.EncodeAll(upper, nil)
	config := fmt.Appendf(nil, `{"os":"linux","architecture":%q,"config":{"Env":["WHO=image","PATH=/usr/local/bin:/usr/bin:/bin"],"WorkingDir":"/srv/app","User":"www-data","Entrypoint":["/bin/false"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s","sha256:%s"]}}`,
		runtime.GOARCH, lowerDigest, digest(upper))
	const media = "application/vnd.oci.image."
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"%[1]smanifest.v1+json","config":{"mediaType":"%[1]sconfig.v1+json","digest":"sha256:%[2]s","size":%[3]d},"layers":[{"mediaType":"%[1]slayer.v1.tar","digest":"sha256:%[4]s","size":%[5]d},{"mediaType":"%[1]slayer.v1.tar+zstd","digest":"sha256:%[6]s","size":%[7]d}]}`,
		media, digest(config), len(config), lowerDigest, st.Size(), digest(packed), len(packed))
	index := fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":"%smanifest.v1+json","digest":"sha256:%s","size":%d}]}`, media, digest(manifest), len(manifest))
	put := func(name string, size int64, r io.Reader) {
		t.Helper()
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, r); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(b []byte) { put("blobs/sha256/"+digest(b), int64(len(b)), bytes.NewReader(b)) }
	blob(config)
	blob(manifest)
	blob(packed)
	if _, err := lower.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	put("blobs/sha256/"+lowerDigest, st.Size(), lower)
	put("index.json", int64(len(index)), bytes.NewReader(index))
	put("oci-layout", 30, bytes.NewReader([]byte(`{"imageLayoutVersion":"1.0.0"}`)))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

type tarEntry struct {
	name    string
	mode    int64
	content string
}

func layerOf(t *testing.T, entries ...tarEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.content))}); err != nil {
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
