package cpython

import (
	"maps"
	"slices"
	"strings"
)

// A file system of one run: a tree in memory that begins with an empty /tmp and
// the run's own files, and is gone with the run. It is all that the guest has
// beside its standard library. It has no links, owners or permissions.
type fileSystem struct {
	root   *node
	fds    map[uint32]*openFile
	bytes  int64 // that files hold
	nodes  int
	room   int64 // what files may hold together
	serial int64 // of the last node
	now    func() uint64
}

const (
	maxNodes     = 4096
	maxOpen      = 256
	maxName      = 255
	maxPath      = 4096
	nodeOverhead = 512 // what a node is counted for beside its content
)

// A node is a file or a directory.
type node struct {
	serial   int64
	content  []byte
	children map[string]*node // nil for a file
	time     uint64
}

func (n *node) dir() bool { return n.children != nil }

// An openFile is what a descriptor stands for.
type openFile struct {
	node   *node
	offset int64
	append bool
	names  []string // of a directory, while it is read
}

const fdRoot = 3

func newFileSystem(files map[string]string, room int64, now func() uint64) *fileSystem {
	fs := &fileSystem{room: room, now: now}
	fs.root = fs.newNode(true)
	fs.root.children["tmp"] = fs.newNode(true)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text, dir := files[name], fs.root
		parts := strings.Split(name, "/")
		for _, p := range parts[:len(parts)-1] {
			next := dir.children[p]
			if next == nil || !next.dir() {
				if next != nil {
					fs.drop(next)
				}
				next = fs.newNode(true)
				dir.children[p] = next
			}
			dir = next
		}
		if last := parts[len(parts)-1]; dir.children[last] == nil {
			f := fs.newNode(false)
			f.content = []byte(text)
			fs.bytes += int64(len(text))
			dir.children[last] = f
		}
	}
	fs.fds = map[uint32]*openFile{fdRoot: {node: fs.root}}
	return fs
}

func (fs *fileSystem) newNode(dir bool) *node {
	fs.serial++
	fs.nodes++
	fs.bytes += nodeOverhead
	n := &node{serial: fs.serial, time: fs.now()}
	if dir {
		n.children = map[string]*node{}
	}
	return n
}

func (fs *fileSystem) drop(n *node) {
	fs.nodes--
	fs.bytes -= nodeOverhead + int64(len(n.content))
	// Who has it open reads nothing any more, but its bytes are not counted.
	n.content = nil
}

// find walks path from descriptor fd. parent and name are those of the last
// part, n is nil if that does not exist. There is no way above the root.
func (fs *fileSystem) find(fd uint32, path string) (parent *node, name string, n *node, errno uint64) {
	at := fs.fds[fd]
	switch {
	case at == nil:
		return nil, "", nil, wasiBadf
	case !at.node.dir():
		return nil, "", nil, wasiNotdir
	case len(path) > maxPath:
		return nil, "", nil, wasiNametoolong
	}
	trail := []*node{at.node}
	n = at.node
	for part := range strings.SplitSeq(path, "/") {
		if n == nil {
			return nil, "", nil, wasiNoent
		}
		switch {
		case part == "" || part == ".":
			continue
		case !n.dir():
			return nil, "", nil, wasiNotdir
		case part == "..":
			if len(trail) > 1 {
				trail = trail[:len(trail)-1]
			}
			n = trail[len(trail)-1]
			parent, name = nil, ""
			continue
		case len(part) > maxName:
			return nil, "", nil, wasiNametoolong
		}
		parent, name = n, part
		if n = n.children[part]; n != nil {
			trail = append(trail, n)
		}
	}
	return parent, name, n, wasiSuccess
}

// create makes a file or directory where find has found none.
func (fs *fileSystem) create(parent *node, name string, dir bool) (*node, uint64) {
	if parent == nil {
		return nil, wasiExist
	}
	if fs.nodes >= maxNodes || fs.bytes+nodeOverhead > fs.room {
		return nil, wasiNospc
	}
	n := fs.newNode(dir)
	parent.children[name] = n
	parent.time = n.time
	return n, wasiSuccess
}

// open gives the lowest free descriptor.
func (fs *fileSystem) open(n *node, appends bool) (uint32, uint64) {
	for fd := uint32(fdRoot + 1); fd < maxOpen; fd++ {
		if fs.fds[fd] == nil {
			fs.fds[fd] = &openFile{node: n, append: appends}
			return fd, wasiSuccess
		}
	}
	return 0, wasiMfile
}

// resize makes a file's content size bytes long.
func (fs *fileSystem) resize(n *node, size int64) uint64 {
	grow := size - int64(len(n.content))
	if size < 0 {
		return wasiInval
	}
	if fs.bytes+grow > fs.room {
		return wasiNospc
	}
	if grow > 0 {
		n.content = append(n.content, make([]byte, grow)...)
	} else {
		n.content = n.content[:size]
	}
	fs.bytes += grow
	n.time = fs.now()
	return wasiSuccess
}

func (fs *fileSystem) write(n *node, at int64, b []byte) uint64 {
	if at < 0 || at > fs.room {
		return wasiInval
	}
	if end := at + int64(len(b)); end > int64(len(n.content)) {
		if errno := fs.resize(n, end); errno != wasiSuccess {
			return errno
		}
	}
	copy(n.content[at:], b)
	n.time = fs.now()
	return wasiSuccess
}

func (n *node) read(at int64, b []byte) int {
	if at < 0 || at >= int64(len(n.content)) {
		return 0
	}
	return copy(b, n.content[at:])
}

// remove takes a file or an empty directory out of its parent.
func (fs *fileSystem) remove(fd uint32, path string, dir bool) uint64 {
	parent, name, n, errno := fs.find(fd, path)
	switch {
	case errno != wasiSuccess:
		return errno
	case n == nil:
		return wasiNoent
	case parent == nil:
		return wasiPerm
	case dir && !n.dir():
		return wasiNotdir
	case !dir && n.dir():
		return wasiIsdir
	case len(n.children) > 0:
		return wasiNotempty
	}
	delete(parent.children, name)
	fs.drop(n)
	return wasiSuccess
}

func (fs *fileSystem) rename(fromFD uint32, from string, toFD uint32, to string) uint64 {
	p, name, n, errno := fs.find(fromFD, from)
	if errno != wasiSuccess {
		return errno
	}
	q, target, old, errno := fs.find(toFD, to)
	switch {
	case errno != wasiSuccess:
		return errno
	case n == nil:
		return wasiNoent
	case p == nil || q == nil:
		return wasiPerm
	case old == n:
		return wasiSuccess
	case n.holds(q):
		return wasiInval
	case old != nil && old.dir() != n.dir():
		if old.dir() {
			return wasiIsdir
		}
		return wasiNotdir
	case old != nil && len(old.children) > 0:
		return wasiNotempty
	}
	if old != nil {
		fs.drop(old)
	}
	delete(p.children, name)
	q.children[target] = n
	return wasiSuccess
}

// holds tells whether d is n or below it.
func (n *node) holds(d *node) bool {
	if n == d {
		return true
	}
	for _, c := range n.children {
		if c.dir() && c.holds(d) {
			return true
		}
	}
	return false
}

// list gives the names in a directory as they were when the reading began.
func (f *openFile) list(again bool) []string {
	if f.names == nil || again {
		f.names = slices.Sorted(maps.Keys(f.node.children))
	}
	return f.names
}
