package proxy

import (
	"compress/gzip"
	"context"
	"crypto/sha1"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"hash"
	"io"
	"regexp"
	"strings"

	"golang.org/x/crypto/blake2b"

	"sandboxd/netproxy/internal/pkgcache"
)

// A published is a hash that is known of a file before it comes.
type published struct {
	name string
	sum  hash.Hash
	want []byte
}

func (p *published) holds() bool { return string(p.sum.Sum(nil)) == string(p.want) }

// publishedHash returns the hash that the file at an address must have: where
// the address says it, or a document that is kept. nil: nothing says it, and the
// client's own check is the only one.
func (p *packages) publishedHash(ctx context.Context, r *packageRequest) *published {
	at := r.out.URL.Opaque
	if m := hashInPath.FindStringSubmatch(at); m != nil {
		want, err := hex.DecodeString(m[1] + m[2] + m[3])
		sum, sumErr := blake2b.New256(nil)
		if err != nil || sumErr != nil {
			return nil
		}
		return &published{name: "blake2b-256 of its address", sum: sum, want: want}
	}
	name, file, ok := strings.Cut(at, "/-/")
	if !ok || !strings.HasSuffix(file, ".tgz") {
		return nil
	}
	return p.npmHash(ctx, documentName(r.origin, name), file)
}

// hashInPath is how the Python index names files: below the BLAKE2b-256 of their
// content, split after two and four digits.
var hashInPath = regexp.MustCompile(`/packages/([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{60})/[^/]+(?:\.whl|\.tar\.gz|\.tar\.bz2|\.zip|\.egg)$`)

const (
	// maxDocument bounds a package's document in bytes, as it comes and unpacked.
	maxDocument = 64 << 20
	// maxDocuments bounds how many packages' documents are known by name.
	maxDocuments = 4096
)

// documentName names an npm package: its path, in the one form that files'
// addresses have.
func documentName(origin, path string) string {
	return origin + strings.NewReplacer("%2f", "/", "%2F", "/").Replace(path)
}

// document notes under which key a package's document is kept.
func (p *packages) document(r *packageRequest, contentType string) {
	if strings.Contains(r.out.URL.Opaque, "/-/") || !strings.Contains(contentType, "json") {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.documents) >= maxDocuments {
		clear(p.documents)
	}
	p.documents[documentName(r.origin, r.out.URL.Opaque)] = r.key
}

// npmHash looks a file's hash up in its package's document.
func (p *packages) npmHash(ctx context.Context, name, file string) *published {
	p.mu.Lock()
	key := p.documents[name]
	p.mu.Unlock()
	if key == "" {
		return nil
	}
	meta, f, err := p.store.Find(ctx, key)
	if err != nil {
		return nil
	}
	defer f.Close()
	versions := p.versions(ctx, &meta, f)
	d, ok := versions[file]
	if !ok {
		return nil
	}
	return npmPublished(d.Integrity, d.Shasum)
}

// An npmDist is what a document says of one archive.
type npmDist struct{ Tarball, Integrity, Shasum string }

const (
	// maxRead is how many documents' hashes are remembered, maxReadVersions of how
	// many versions at most: an install asks for one package's archives once, but
	// a tenant may ask for all that there are.
	maxRead         = 16
	maxReadVersions = 10_000
)

// versions reads the archives of a document, by file name. A document may be
// large, takes several times its size to be read, and any number may be asked
// for at once by whoever wants them: so one is read at a time, and once.
func (p *packages) versions(ctx context.Context, meta *pkgcache.Meta, f io.Reader) map[string]npmDist {
	known := func() (map[string]npmDist, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		v, ok := p.read[meta.SHA256]
		return v, ok
	}
	if v, ok := known(); ok {
		return v
	}
	select {
	case p.reading <- struct{}{}:
		defer func() { <-p.reading }()
	case <-ctx.Done():
		return nil
	}
	if v, ok := known(); ok {
		return v
	}
	v := readVersions(f, meta.Header["Content-Encoding"] == "gzip")
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(v) <= maxReadVersions {
		if len(p.read) >= maxRead {
			clear(p.read)
		}
		p.read[meta.SHA256] = v
	}
	return v
}

// readVersions returns nil for what is no such document.
func readVersions(r io.Reader, zipped bool) map[string]npmDist {
	r = io.LimitReader(r, maxDocument)
	if zipped {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil
		}
		r = io.LimitReader(z, maxDocument)
	}
	var doc struct {
		Versions map[string]struct{ Dist npmDist }
	}
	if err := json.NewDecoder(r).Decode(&doc); err != nil {
		return nil
	}
	out := make(map[string]npmDist, len(doc.Versions))
	for _, v := range doc.Versions {
		if _, file, ok := strings.Cut(v.Dist.Tarball, "/-/"); ok {
			out[file] = npmDist{Integrity: v.Dist.Integrity, Shasum: v.Dist.Shasum}
		}
	}
	return out
}

// npmPublished reads a version's hash: SHA-512 as in subresource integrity, or
// the SHA-1 of old packages.
func npmPublished(integrity, shasum string) *published {
	for one := range strings.FieldsSeq(integrity) {
		text, ok := strings.CutPrefix(one, "sha512-")
		if !ok {
			continue
		}
		text, _, _ = strings.Cut(text, "?")
		if want, err := base64.StdEncoding.DecodeString(text); err == nil && len(want) == sha512.Size {
			return &published{name: "sha512 of its package's document", sum: sha512.New(), want: want}
		}
	}
	if want, err := hex.DecodeString(shasum); err == nil && len(want) == sha1.Size {
		return &published{name: "sha1 of its package's document", sum: sha1.New(), want: want}
	}
	return nil
}
