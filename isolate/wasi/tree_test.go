package wasi

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

func testFiles(given map[string]string, room int64) *tree {
	return newTree(given, room, func() uint64 { return 1 })
}

func TestFind(t *testing.T) {
	fs := testFiles(map[string]string{"a/b/c.txt": "c", "top.py": "t", "a/b": "hidden by the directory"}, 1<<20)
	for path, want := range map[string]struct {
		errno uint64
		found bool
	}{
		"a/b/c.txt": {0, true}, "./a//b/../b/c.txt": {0, true}, ".": {0, true}, "/": {0, true}, "/a/b": {0, true}, "..": {0, true}, "../../../a": {0, true},
		"none": {0, false}, "a/none": {0, false}, "": {Noent, false}, "a\x00b": {Inval, false}, "none/x": {Noent, false}, "top.py/x": {Notdir, false},
		strings.Repeat("x", 256): {Nametoolong, false}, strings.Repeat("a/", 3000): {Nametoolong, false},
	} {
		p, errno := fs.find(fdRoot, path, true)
		if errno != want.errno || (p.node != nil) != want.found {
			t.Errorf("%.40q: errno %d, node %v", path, errno, p.node)
		}
	}
	if _, errno := fs.find(77, "a", true); errno != Badf {
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
		x, errno := fs.find(fdRoot, p, true)
		n := x.node
		if errno == Success && n == nil {
			n, errno = fs.create(x, fileTypeRegular)
		}
		if errno == Success && n.dir() {
			errno = Isdir
		}
		if errno == Success {
			errno = fs.write(n, int64(len(n.content)), []byte(p))
		}
		return errno == Success
	}
	for i := range 20000 {
		p, q := path(), path()
		host, to := filepath.Join(dir, p), filepath.Join(dir, q)
		var ok bool
		var err error
		var what string
		switch r.IntN(7) {
		case 0:
			what = "mkdir"
			err = os.Mkdir(host, 0o700)
			x, errno := fs.find(fdRoot, p, false)
			if errno == Success && x.node == nil {
				_, errno = fs.create(x, fileTypeDirectory)
				ok = errno == Success
			}
		case 1:
			what = "write"
			var f *os.File
			if f, err = os.OpenFile(host, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
				_, err = f.WriteString(p)
				f.Close()
			}
			ok = write(p)
		case 5:
			what = "symlink"
			target := q
			if r.IntN(2) == 0 {
				target = path()
			}
			err = os.Symlink(target, host)
			x, errno := fs.find(fdRoot, p, false)
			if errno == Success {
				errno = fs.symlink(target, x)
			}
			ok = errno == Success
		case 6:
			what = "link"
			err = os.Link(host, to)
			x, errno := fs.find(fdRoot, p, false)
			y, errno2 := fs.find(fdRoot, q, false)
			if errno == Success && errno2 == Success && x.node != nil {
				errno = fs.link(x.node, y)
			} else {
				errno = Noent
			}
			ok = errno == Success
		case 2:
			what = "rename"
			err = unix.Rename(host, to) // os.Rename replaces no directory
			ok = fs.rename(fdRoot, p, fdRoot, q) == Success
		default:
			what = "remove"
			st, e := os.Lstat(host)
			err = e
			if e == nil {
				err = os.Remove(host)
				ok = fs.remove(fdRoot, p, st.IsDir()) == Success
			} else {
				ok = fs.remove(fdRoot, p, false) == Success
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
			if info.Mode()&os.ModeSymlink != 0 {
				to, _ := os.Readlink(path)
				line = rel + " -> " + to
			} else if !info.IsDir() {
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

// walk lists what is there, and counts it: each name, and each content once.
func (fs *tree) walk(n *node, path string, out *[]string) (bytes int64, nodes int) {
	seen := map[*node]bool{}
	var visit func(n *node, path string)
	visit = func(n *node, path string) {
		if bytes, nodes = bytes+nodeOverhead, nodes+1; !seen[n] {
			seen[n] = true
			bytes += int64(len(n.content) + len(n.target))
		}
		for name, c := range n.children {
			p := strings.TrimPrefix(path+"/"+name, "/")
			switch c.kind {
			case fileTypeDirectory:
				*out = append(*out, p+"/")
			case fileTypeSymbolicLink:
				*out = append(*out, p+" -> "+c.target)
			default:
				*out = append(*out, p+" "+string(c.content))
			}
			visit(c, p)
		}
	}
	visit(n, path)
	return bytes, nodes
}

func TestRoom(t *testing.T) {
	fs := testFiles(nil, 10<<10)
	n, errno := fs.create(place{parent: fs.root, name: "f"}, fileTypeRegular)
	if errno != Success {
		t.Fatal(errno)
	}
	if errno := fs.write(n, 0, make([]byte, 20<<10)); errno != Nospc || len(n.content) != 0 {
		t.Errorf("more than the room: %d, %d bytes", errno, len(n.content))
	}
	if errno := fs.write(n, 1<<40, []byte("x")); errno == Success {
		t.Error("a write far behind the end is taken")
	}
	if errno := fs.resize(n, -1); errno == Success {
		t.Error("a negative size is taken")
	}
	for i := 0; ; i++ {
		if _, errno := fs.create(place{parent: fs.root, name: fmt.Sprint(i)}, fileTypeDirectory); errno == Nospc {
			break
		} else if errno != Success || i > 20 {
			t.Fatalf("directory %d: %d", i, errno)
		}
	}
	for i := 0; i < maxOpen; i++ {
		if _, errno := fs.open(&openFile{node: n}); errno == Mfile {
			if i != maxOpen-fdRoot-1 {
				t.Errorf("%d descriptors", i)
			}
			return
		}
	}
	t.Error("descriptors without end")
}

// FuzzFiles does to a file system what the bytes say, and counts again what it
// counts.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("mkdir a/b write rename remove"))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100})
	f.Fuzz(func(t *testing.T, moves []byte) {
		fs := testFiles(map[string]string{"main.py": "x", "a/b": "y"}, 64<<10)
		path := func(c byte) string {
			return [...]string{"a", "a/b", "b", "b/../a", "..", "", "main.py", "a/b/c", "c/d", "tmp/x", "/", "c", "c/d/../../a/x"}[int(c)%13]
		}
		var opened []uint32
		for ; len(moves) >= 3; moves = moves[3:] {
			p, q := path(moves[1]), path(moves[2])
			x, errno := fs.find(fdRoot, p, moves[0]%2 == 0)
			if errno != Success {
				continue
			}
			n := x.node
			switch moves[0] % 9 {
			case 0, 1:
				if n == nil {
					fs.create(x, []byte{fileTypeRegular, fileTypeDirectory}[moves[0]%2])
				}
			case 6:
				if n != nil {
					y, errno := fs.find(fdRoot, q, false)
					if errno == Success {
						fs.link(n, y)
					}
				}
			case 7:
				fs.symlink(q, x)
			case 8:
				if n != nil {
					if fd, errno := fs.open(&openFile{node: n}); errno == Success {
						opened = append(opened, fd)
					}
				}
			case 2:
				if n != nil && n.kind == fileTypeRegular {
					fs.write(n, int64(moves[2])*257, make([]byte, int(moves[0])*100))
				}
			case 3:
				fs.rename(fdRoot, p, fdRoot, q)
			case 4:
				fs.remove(fdRoot, p, n != nil && n.dir())
			case 5:
				if n != nil && n.kind == fileTypeRegular {
					fs.resize(n, int64(moves[2])*1000)
				}
			}
		}
		var all []string
		for _, fd := range opened {
			fs.close(fd)
		}
		if bytes, nodes := fs.walk(fs.root, "", &all); bytes != fs.bytes || nodes != fs.nodes || bytes > fs.room {
			t.Errorf("%d bytes and %d nodes are counted, there are %d and %d: %v", fs.bytes, fs.nodes, bytes, nodes, all)
		}
	})
}
