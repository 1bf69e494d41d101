package cpython

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func testFiles(given map[string]string, room int64) *fileSystem {
	return newFileSystem(given, room, func() uint64 { return 1 })
}

func TestFind(t *testing.T) {
	fs := testFiles(map[string]string{"a/b/c.txt": "c", "top.py": "t", "a/b": "hidden by the directory"}, 1<<20)
	for path, want := range map[string]struct {
		errno uint64
		found bool
	}{
		"a/b/c.txt": {0, true}, "./a//b/../b/c.txt": {0, true}, "": {0, true}, ".": {0, true}, "..": {0, true}, "../../../a": {0, true},
		"none": {0, false}, "a/none": {0, false}, "none/x": {wasiNoent, false}, "top.py/x": {wasiNotdir, false},
		strings.Repeat("x", 256): {wasiNametoolong, false}, strings.Repeat("a/", 3000): {wasiNametoolong, false},
	} {
		_, _, n, errno := fs.find(fdRoot, path)
		if errno != want.errno || (n != nil) != want.found {
			t.Errorf("%.40q: errno %d, node %v", path, errno, n)
		}
	}
	if _, _, _, errno := fs.find(77, "a"); errno != wasiBadf {
		t.Errorf("a descriptor that is not open: %d", errno)
	}
}

// TestFilesAsTheSystem makes the same random moves here and in a directory of
// the host's, and compares what works and what comes of it.
func TestFilesAsTheSystem(t *testing.T) {
	fs, dir := testFiles(nil, 1<<30), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	path := func() string {
		var parts []string
		for range 1 + r.IntN(3) {
			parts = append(parts, string(rune('a'+r.IntN(3))))
		}
		return strings.Join(parts, "/")
	}
	write := func(p string) bool {
		parent, name, n, errno := fs.find(fdRoot, p)
		if errno == wasiSuccess && n == nil {
			n, errno = fs.create(parent, name, false)
		}
		if errno == wasiSuccess && n.dir() {
			errno = wasiIsdir
		}
		if errno == wasiSuccess {
			errno = fs.write(n, int64(len(n.content)), []byte(p))
		}
		return errno == wasiSuccess
	}
	for i := range 20000 {
		p, q := path(), path()
		host, to := filepath.Join(dir, p), filepath.Join(dir, q)
		var ok bool
		var err error
		var what string
		switch r.IntN(5) {
		case 0:
			what = "mkdir"
			err = os.Mkdir(host, 0o700)
			parent, name, n, errno := fs.find(fdRoot, p)
			if errno == wasiSuccess && n == nil {
				_, errno = fs.create(parent, name, true)
				ok = errno == wasiSuccess
			}
		case 1:
			what = "write"
			var f *os.File
			if f, err = os.OpenFile(host, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
				_, err = f.WriteString(p)
				f.Close()
			}
			ok = write(p)
		case 2:
			what = "rename"
			err = unix.Rename(host, to) // os.Rename replaces no directory
			ok = fs.rename(fdRoot, p, fdRoot, q) == wasiSuccess
		default:
			what = "remove"
			st, e := os.Stat(host)
			err = e
			if e == nil {
				err = os.Remove(host)
				ok = fs.remove(fdRoot, p, st.IsDir()) == wasiSuccess
			} else {
				ok = fs.remove(fdRoot, p, false) == wasiSuccess
			}
		}
		if ok != (err == nil) {
			t.Fatalf("move %d: %s %s %s: here %v, there %v", i, what, p, q, ok, err)
		}
	}
	var there []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if err == nil && rel != "." {
			line := rel + "/"
			if !info.IsDir() {
				b, _ := os.ReadFile(path)
				line = rel + " " + string(b)
			}
			there = append(there, line)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var here []string
	bytes, nodes := fs.walk(fs.root, "", &here)
	sort.Strings(here)
	sort.Strings(there)
	if fmt.Sprint(here) != fmt.Sprint(there) {
		t.Errorf("here %v\nthere %v", here, there)
	}
	if bytes != fs.bytes || nodes != fs.nodes {
		t.Errorf("%d bytes and %d nodes are counted, there are %d and %d", fs.bytes, fs.nodes, bytes, nodes)
	}
}

func (fs *fileSystem) walk(n *node, path string, out *[]string) (bytes int64, nodes int) {
	bytes, nodes = nodeOverhead+int64(len(n.content)), 1
	for name, c := range n.children {
		p := strings.TrimPrefix(path+"/"+name, "/")
		if c.dir() {
			*out = append(*out, p+"/")
		} else {
			*out = append(*out, p+" "+string(c.content))
		}
		b, k := fs.walk(c, p, out)
		bytes, nodes = bytes+b, nodes+k
	}
	return bytes, nodes
}

func TestRoom(t *testing.T) {
	fs := testFiles(nil, 10<<10)
	n, errno := fs.create(fs.root, "f", false)
	if errno != wasiSuccess {
		t.Fatal(errno)
	}
	if errno := fs.write(n, 0, make([]byte, 20<<10)); errno != wasiNospc || len(n.content) != 0 {
		t.Errorf("more than the room: %d, %d bytes", errno, len(n.content))
	}
	if errno := fs.write(n, 1<<40, []byte("x")); errno == wasiSuccess {
		t.Error("a write far behind the end is taken")
	}
	if errno := fs.resize(n, -1); errno == wasiSuccess {
		t.Error("a negative size is taken")
	}
	for i := 0; ; i++ {
		if _, errno := fs.create(fs.root, fmt.Sprint(i), true); errno == wasiNospc {
			break
		} else if errno != wasiSuccess || i > 20 {
			t.Fatalf("directory %d: %d", i, errno)
		}
	}
	for i := 0; i < maxOpen; i++ {
		if _, errno := fs.open(n, false); errno == wasiMfile {
			if i != maxOpen-fdRoot-1 {
				t.Errorf("%d descriptors", i)
			}
			return
		}
	}
	t.Error("descriptors without end")
}
