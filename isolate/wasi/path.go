package wasi

// Flags of path_open and of look-ups.
const (
	openCreate    = 1
	openDirectory = 2
	openExclusive = 4
	openTruncate  = 8

	lookupFollow = 1
)

// at finds a path; the answer has a node unless it may be missing.
func (s *System) at(fd, p, n uint64, follow, missing bool) (place, Errno) {
	if fd < fdRoot {
		if s.stream(fd) {
			return place{}, Notdir
		}
		return place{}, Badf
	}
	path, errno := s.path(p, n)
	if errno != Success {
		return place{}, errno
	}
	x, errno := s.tree().find(uint32(fd), path, follow)
	if errno == Success && x.node == nil && !missing {
		errno = Noent
	}
	return x, s.did(errno)
}

func (s *System) pathOpen(a []uint64) Errno {
	oflags, rights, flags, out := a[4], a[5], a[7], a[8]
	if flags&^knownFlags != 0 || oflags > 15 {
		return Inval
	}
	x, errno := s.at(a[0], a[2], a[3], a[1]&lookupFollow != 0, true)
	if errno != Success {
		return errno
	}
	n, errno := s.opened(x, oflags, rights)
	if errno != Success {
		return s.did(errno)
	}
	f := &openFile{node: n, flags: uint16(flags), rights: rights & allRights}
	if n.dir() {
		f.rights &^= rightRead | rightWrite
	}
	fd, errno := s.files.open(f)
	if errno == Success {
		errno = s.put32(out, fd)
	}
	return s.did(errno)
}

// opened is the node that path_open opens, made if that was asked for.
func (s *System) opened(x place, oflags, rights uint64) (*node, Errno) {
	n := x.node
	switch {
	case n == nil && oflags&openCreate == 0:
		return nil, Noent
	case n == nil && oflags&openDirectory != 0:
		return nil, Inval
	case n == nil:
		return s.files.create(x, fileTypeRegular)
	case oflags&openCreate != 0 && oflags&openExclusive != 0:
		return nil, Exist
	case n.kind == fileTypeSymbolicLink:
		return nil, Loop
	case !n.dir() && (oflags&openDirectory != 0 || x.slash):
		return nil, Notdir
	case n.dir() && (rights&rightWrite != 0 && oflags&openDirectory == 0 || oflags&openTruncate != 0):
		return nil, Isdir
	case oflags&openTruncate != 0:
		return n, s.files.resize(n, 0)
	}
	return n, Success
}

func (s *System) pathStat(a []uint64) Errno {
	x, errno := s.at(a[0], a[2], a[3], a[1]&lookupFollow != 0, false)
	if errno != Success {
		return errno
	}
	b := x.node.stat()
	return s.put(a[4], b[:])
}

func (s *System) pathSetTimes(a []uint64) Errno {
	x, errno := s.at(a[0], a[2], a[3], a[1]&lookupFollow != 0, false)
	if errno != Success {
		return errno
	}
	return s.setTimes(x.node, a[4], a[5], a[6])
}

func (s *System) pathCreateDirectory(a []uint64) Errno {
	x, errno := s.at(a[0], a[1], a[2], false, true)
	if errno != Success {
		return errno
	}
	if x.node != nil {
		return Exist
	}
	_, errno = s.files.create(x, fileTypeDirectory)
	return s.did(errno)
}

func (s *System) remove(a []uint64, dir bool) Errno {
	if a[0] < fdRoot {
		return Badf
	}
	path, errno := s.path(a[1], a[2])
	if errno != Success {
		return errno
	}
	return s.did(s.tree().remove(uint32(a[0]), path, dir))
}

func (s *System) pathRename(a []uint64) Errno {
	if a[0] < fdRoot || a[3] < fdRoot {
		return Badf
	}
	from, errno := s.path(a[1], a[2])
	if errno != Success {
		return errno
	}
	to, errno := s.path(a[4], a[5])
	if errno != Success {
		return errno
	}
	return s.did(s.tree().rename(uint32(a[0]), from, uint32(a[3]), to))
}

func (s *System) pathLink(a []uint64) Errno {
	if a[1]&lookupFollow != 0 {
		return Inval
	}
	x, errno := s.at(a[0], a[2], a[3], false, false)
	if errno != Success {
		return errno
	}
	y, errno := s.at(a[4], a[5], a[6], false, true)
	if errno != Success {
		return errno
	}
	return s.did(s.files.link(x.node, y))
}

func (s *System) pathSymlink(a []uint64) Errno {
	target, errno := s.path(a[0], a[1])
	if errno != Success {
		return errno
	}
	x, errno := s.at(a[2], a[3], a[4], false, true)
	if errno != Success {
		return errno
	}
	return s.did(s.files.symlink(target, x))
}

func (s *System) pathReadlink(a []uint64) Errno {
	x, errno := s.at(a[0], a[1], a[2], false, false)
	switch {
	case errno != Success:
		return errno
	case x.node.kind != fileTypeSymbolicLink:
		return Inval
	}
	text := []byte(x.node.target)
	text = text[:min(uint64(len(text)), a[4])]
	if errno := s.put(a[3], text); errno != Success {
		return errno
	}
	return s.put32(a[5], uint32(len(text)))
}
