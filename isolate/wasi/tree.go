package wasi

import (
	"maps"
	"slices"
	"strings"
)

// A tree is the file system of one run, with all of its open descriptors. It
// has links and times, and no owners or permissions.
type tree struct {
	root   *node
	fds    map[uint32]*openFile
	bytes  int64 // that files hold
	nodes  int
	room   int64 // what files may hold together
	serial int64 // of the last node
	work   int64 // done since it was last charged, in steps
	now    func() uint64
}

const (
	maxNodes     = 4096
	maxOpen      = 256
	maxName      = 255
	maxPath      = 4096
	maxFollowed  = 32  // symbolic links on one way
	nodeOverhead = 512 // what a node is counted for beside its content
)

// A node is a file, a directory or a symbolic link.
type node struct {
	serial   int64
	kind     byte // fileType…
	content  []byte
	target   string           // of a symbolic link
	children map[string]*node // of a directory
	links    int              // names that it has
	opens    int              // descriptors that stand for it

	accessed, modified, changed uint64
}

// File types, as WASI numbers them.
const (
	fileTypeBlockDevice  = 1
	fileTypeDirectory    = 3
	fileTypeRegular      = 4
	fileTypeSymbolicLink = 7
)

func (n *node) dir() bool { return n.kind == fileTypeDirectory }

// An openFile is what a descriptor stands for.
type openFile struct {
	node   *node
	offset int64
	flags  uint16
	rights uint64
	names  []string // of a directory, while it is read
}

const fdRoot = 3

func newTree(files map[string]string, room int64, now func() uint64) *tree {
	fs := &tree{room: room, now: now}
	fs.root = fs.newNode(fileTypeDirectory)
	fs.root.links = 1
	fs.attach(fs.root, "tmp", fs.newNode(fileTypeDirectory))
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fs.place(strings.Split(name, "/"), files[name])
	}
	fs.fds = map[uint32]*openFile{fdRoot: {node: fs.root, rights: allRights}}
	fs.root.opens++
	return fs
}

// place puts a file where the run begins with it; a directory of the same name
// hides it.
func (fs *tree) place(parts []string, text string) {
	dir := fs.root
	for _, p := range parts[:len(parts)-1] {
		next := dir.children[p]
		if next == nil || !next.dir() {
			if next != nil {
				fs.detach(dir, p)
			}
			next = fs.newNode(fileTypeDirectory)
			fs.attach(dir, p, next)
		}
		dir = next
	}
	if last := parts[len(parts)-1]; dir.children[last] == nil {
		f := fs.newNode(fileTypeRegular)
		f.content = []byte(text)
		fs.bytes += int64(len(text))
		fs.attach(dir, last, f)
	}
}

func (fs *tree) newNode(kind byte) *node {
	fs.serial++
	fs.nodes++
	fs.bytes += nodeOverhead
	t := fs.now()
	n := &node{serial: fs.serial, kind: kind, accessed: t, modified: t, changed: t}
	if n.dir() {
		n.children = map[string]*node{}
	}
	return n
}

func (fs *tree) attach(dir *node, name string, n *node) {
	dir.children[name] = n
	n.links++
}

// detach takes a name away, and what it named with the last name and
// descriptor.
func (fs *tree) detach(dir *node, name string) {
	n := dir.children[name]
	delete(dir.children, name)
	if n.links--; n.links > 0 {
		fs.nodes-- // a name counts as much
		fs.bytes -= nodeOverhead
		return
	}
	fs.release(n)
}

func (fs *tree) release(n *node) {
	if n.links > 0 || n.opens > 0 {
		return
	}
	fs.nodes--
	fs.bytes -= nodeOverhead + int64(len(n.content)) + int64(len(n.target))
	n.content = nil
}

// A place is where a path leads: to the name of node in parent. node is nil if
// it does not exist; parent is nil for a way that ends in a dot or the root.
type place struct {
	parent *node
	name   string
	node   *node
	// slash: the path ends in one, so it names a directory.
	slash bool
}

// find walks a path from descriptor fd. A symbolic link at its end is followed
// if follow is set. There is no way above the root.
func (fs *tree) find(fd uint32, path string, follow bool) (place, Errno) {
	at := fs.fds[fd]
	switch {
	case at == nil:
		return place{}, Badf
	case !at.node.dir():
		return place{}, Notdir
	case len(path) > maxPath:
		return place{}, Nametoolong
	case path == "":
		return place{}, Noent
	case strings.IndexByte(path, 0) >= 0:
		return place{}, Inval
	}
	w := walk{fs: fs, trail: []*node{at.node}, parts: strings.Split(path, "/")}
	w.node = at.node
	if path[0] == '/' {
		// Not WASI's way to say it, but clear, and no way out of the tree.
		w.restart(fs.root)
	}
	for len(w.parts) > 0 {
		if errno := w.step(follow); errno != Success {
			return place{}, errno
		}
	}
	w.slash = strings.HasSuffix(path, "/")
	return w.place, Success
}

// A walk is a path on its way.
type walk struct {
	place
	fs       *tree
	trail    []*node // the directories above and the one that it is at
	parts    []string
	followed int
}

func (w *walk) restart(n *node) { w.trail, w.node, w.parent = append(w.trail[:0], n), n, nil }

// step takes one part of the path.
func (w *walk) step(follow bool) Errno {
	part := w.parts[0]
	w.parts = w.parts[1:]
	w.fs.work++
	switch {
	case w.node == nil && (part != "" || len(w.parts) > 0):
		return Noent
	case w.node == nil || part == "" && w.node.dir():
		return Success
	case !w.node.dir():
		return Notdir
	case part == ".":
		w.parent = nil
		return Success
	case part == "..":
		return w.up()
	case len(part) > maxName:
		return Nametoolong
	}
	dir := w.node
	w.parent, w.name, w.node = dir, part, dir.children[part]
	switch {
	case w.node == nil:
		return Success
	case w.node.kind == fileTypeSymbolicLink && (follow || len(w.parts) > 0):
		return w.follow(dir)
	case w.node.dir():
		w.trail = append(w.trail, w.node)
	}
	return Success
}

func (w *walk) up() Errno {
	switch {
	case len(w.trail) > 1:
		w.trail = w.trail[:len(w.trail)-1]
	case w.trail[0] != w.fs.root:
		return Perm // out of the directory that the descriptor is for
	}
	w.node, w.parent = w.trail[len(w.trail)-1], nil
	return Success
}

// follow goes on where a symbolic link in dir points.
func (w *walk) follow(dir *node) Errno {
	if w.followed++; w.followed > maxFollowed {
		return Loop
	}
	target := w.node.target
	w.parts = append(strings.Split(target, "/"), w.parts...)
	w.node, w.parent = dir, nil
	if strings.HasPrefix(target, "/") {
		w.restart(w.fs.root)
	}
	return Success
}

// create makes what find has not found.
func (fs *tree) create(p place, kind byte) (*node, Errno) {
	switch {
	case p.parent == nil:
		return nil, Exist
	case p.slash && kind != fileTypeDirectory:
		return nil, Noent
	case p.parent.links == 0:
		return nil, Noent // the directory was removed
	case fs.nodes >= maxNodes || fs.bytes+nodeOverhead > fs.room:
		return nil, Nospc
	}
	n := fs.newNode(kind)
	fs.attach(p.parent, p.name, n)
	p.parent.touch(n.changed)
	return n, Success
}

func (n *node) touch(t uint64) { n.modified, n.changed = t, t }

// open gives the lowest free descriptor.
func (fs *tree) open(f *openFile) (uint32, Errno) {
	for fd := uint32(fdRoot); fd < maxOpen; fd++ {
		if fs.fds[fd] == nil {
			fs.fds[fd] = f
			f.node.opens++
			return fd, Success
		}
	}
	return 0, Mfile
}

func (fs *tree) close(fd uint32) {
	f := fs.fds[fd]
	delete(fs.fds, fd)
	f.node.opens--
	fs.release(f.node)
}

// resize makes a file's content size bytes long.
func (fs *tree) resize(n *node, size int64) Errno {
	grow := size - int64(len(n.content))
	switch {
	case size < 0:
		return Inval
	case grow > 0 && (size > fs.room || fs.bytes+grow > fs.room):
		return Nospc
	case size > int64(cap(n.content)):
		// With some room, so that a file that grows is copied seldom.
		fs.move(n, size, max(size, int64(len(n.content))*5/4))
	case size < int64(cap(n.content))/2:
		fs.move(n, size, size)
	case grow > 0:
		n.content = n.content[:size]
		for more := n.content[size-grow:]; len(more) > 0; {
			part := more[:min(len(more), maxTransfer)]
			clear(part)
			more = more[len(part):]
		}
	default:
		n.content = n.content[:size]
	}
	fs.bytes += grow
	n.touch(fs.now())
	return Success
}

// move gives a file's content another place, where it has size bytes and room for
// more. It is copied in pieces: Go stops no copy in the middle of it, and the
// garbage collector would wait for all of it.
func (fs *tree) move(n *node, size, room int64) {
	from := n.content[:min(int64(len(n.content)), size)]
	to := make([]byte, 0, room)
	fs.work += room / bytesPerStep
	for len(from) > 0 {
		part := from[:min(len(from), maxTransfer)]
		to, from = append(to, part...), from[len(part):]
	}
	n.content = to[:size]
}

// bytesPerStep is how much is copied or zeroed for a step of work.
const bytesPerStep = 4 * stepUnits

func (fs *tree) write(n *node, at int64, b []byte) Errno {
	if at < 0 {
		return Inval
	}
	if at > fs.room {
		return Nospc
	}
	if end := at + int64(len(b)); end > int64(len(n.content)) {
		if errno := fs.resize(n, end); errno != Success {
			return errno
		}
	}
	copy(n.content[at:], b)
	n.touch(fs.now())
	return Success
}

func (n *node) read(at int64, b []byte) int {
	if at < 0 || at >= int64(len(n.content)) {
		return 0
	}
	return copy(b, n.content[at:])
}

// remove takes a name away: of an empty directory, or of anything else.
func (fs *tree) remove(fd uint32, path string, dir bool) Errno {
	p, errno := fs.find(fd, path, false)
	switch {
	case errno != Success:
		return errno
	case p.node == nil:
		return Noent
	case p.node == fs.root:
		return Perm
	case p.parent == nil:
		return Inval
	case dir && !p.node.dir() || !dir && p.slash && !p.node.dir():
		return Notdir
	case !dir && p.node.dir():
		return Isdir
	case len(p.node.children) > 0:
		return Notempty
	}
	fs.detach(p.parent, p.name)
	p.parent.touch(fs.now())
	return Success
}

func (fs *tree) rename(fromFD uint32, from string, toFD uint32, to string) Errno {
	p, errno := fs.find(fromFD, from, false)
	if errno != Success {
		return errno
	}
	q, errno := fs.find(toFD, to, false)
	n, old := p.node, q.node
	switch {
	case errno != Success:
		return errno
	case n == nil:
		return Noent
	case p.parent == nil || q.parent == nil:
		return Perm
	case !n.dir() && (p.slash || q.slash):
		return Notdir
	case old == n:
		return Success
	case fs.holds(n, q.parent):
		return Inval
	case q.parent.links == 0:
		return Noent
	case old != nil && old.dir() && !n.dir():
		return Isdir
	case old != nil && !old.dir() && n.dir():
		return Notdir
	case old != nil && len(old.children) > 0:
		return Notempty
	}
	if old != nil {
		fs.detach(q.parent, q.name)
	}
	delete(p.parent.children, p.name)
	q.parent.children[q.name] = n
	t := fs.now()
	p.parent.touch(t)
	q.parent.touch(t)
	return Success
}

// link gives a file another name.
func (fs *tree) link(n *node, q place) Errno {
	switch {
	case n.dir():
		return Perm
	case q.node != nil:
		return Exist
	case q.parent == nil || q.slash || q.parent.links == 0:
		return Noent
	case fs.nodes >= maxNodes || fs.bytes+nodeOverhead > fs.room:
		return Nospc
	}
	fs.nodes++
	fs.bytes += nodeOverhead
	fs.attach(q.parent, q.name, n)
	n.changed = fs.now()
	q.parent.touch(n.changed)
	return Success
}

// symlink makes a link to a path, whatever that leads to.
func (fs *tree) symlink(target string, q place) Errno {
	switch {
	case target == "" || strings.IndexByte(target, 0) >= 0:
		return Noent
	case q.node != nil:
		return Exist
	case fs.bytes+nodeOverhead+int64(len(target)) > fs.room:
		return Nospc
	}
	n, errno := fs.create(q, fileTypeSymbolicLink)
	if errno == Success {
		n.target = target
		fs.bytes += int64(len(target))
	}
	return errno
}

// holds tells whether d is n or below it.
func (fs *tree) holds(n, d *node) bool {
	if n == d {
		return true
	}
	for _, c := range n.children {
		fs.work++
		if c.dir() && fs.holds(c, d) {
			return true
		}
	}
	return false
}

// list gives the names in a directory as they were when the reading began.
func (fs *tree) list(f *openFile, again bool) []string {
	if f.names == nil || again {
		fs.work += 4 * int64(len(f.node.children))
		f.names = append([]string{".", ".."}, slices.Sorted(maps.Keys(f.node.children))...)
	}
	return f.names
}
