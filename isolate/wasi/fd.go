package wasi

import (
	"encoding/binary"
	"io"
)

// Rights of a descriptor that are heeded; the others are only kept.
const (
	rightRead  = 1 << 1
	rightWrite = 1 << 6
	allRights  = 1<<30 - 1
)

// Flags of a descriptor.
const (
	flagAppend = 1
	knownFlags = 1<<5 - 1
)

// stream tells whether fd is one of the three streams, and open.
func (s *System) stream(fd uint64) bool { return fd < uint64(len(s.closed)) && !s.closed[fd] }

// open gives what a descriptor of the file system stands for, nil if there is
// none.
func (s *System) open(fd uint64) *openFile {
	if fd < fdRoot {
		return nil
	}
	return s.tree().fds[uint32(fd)]
}

// file is open for what only files can do.
func (s *System) file(fd, right uint64) (*openFile, Errno) {
	f := s.open(fd)
	switch {
	case f == nil:
		return nil, Badf
	case f.node.dir():
		return nil, Isdir
	case right != 0 && f.rights&right == 0:
		return nil, Badf
	}
	return f, Success
}

func (s *System) fdWrite(a []uint64) Errno {
	fd, done := a[0], a[3]
	if fd >= fdRoot {
		f, errno := s.file(fd, rightWrite)
		if errno != Success {
			return errno
		}
		if f.flags&flagAppend != 0 {
			f.offset = int64(len(f.node.content))
		}
		return s.transfer(a, f, &f.offset, true, done)
	}
	if !s.stream(fd) || fd == 0 && s.Message == nil {
		return Badf
	}
	parts, errno := s.vectors(a[1], a[2])
	if errno != Success {
		return errno
	}
	n := uint64(0)
	for _, b := range parts {
		if n += uint64(len(b)); n > 1<<31-1 {
			return Inval
		}
	}
	for _, b := range parts {
		if len(b) > 0 {
			s.output(int(fd), b)
		}
	}
	return s.put32(done, uint32(n))
}

func (s *System) output(fd int, b []byte) {
	if fd == 0 {
		s.announce(int64(len(b)))
		s.Message(b)
		return
	}
	for len(b) > 0 {
		part := b[:min(len(b), chunk)]
		b = b[len(part):]
		s.Host.Charge(int64(len(part)))
		if err := s.Host.Write(fd, part); err != nil {
			s.Host.Abort(err)
		}
	}
}

func (s *System) fdRead(a []uint64) Errno {
	fd, done := a[0], a[3]
	if fd >= fdRoot {
		f, errno := s.file(fd, rightRead)
		if errno != Success {
			return errno
		}
		return s.transfer(a, f, &f.offset, false, done)
	}
	if fd != 0 || !s.stream(fd) {
		return Badf
	}
	parts, errno := s.vectors(a[1], a[2])
	if errno != Success {
		return errno
	}
	n := 0
	for _, b := range parts {
		c := copy(b, s.Stdin)
		s.Stdin = s.Stdin[c:]
		n += c
	}
	s.Host.Charge(int64(n / 8))
	return s.put32(done, uint32(n))
}

// announce tells the host of bytes that are moved next.
func (s *System) announce(bytes int64) {
	if bytes >= LargeCopy {
		s.Host.Large()
	}
}

// maxTransfer is what one read or write moves: programs ask again for the rest.
const maxTransfer = 1 << 20

// transfer moves bytes between parts of the guest's memory and a file, at its
// offset or at another place.
func (s *System) transfer(a []uint64, f *openFile, at *int64, write bool, done uint64) Errno {
	parts, errno := s.vectors(a[1], a[2])
	if errno != Success {
		return errno
	}
	total := 0
	for _, b := range parts {
		b = b[:min(len(b), maxTransfer-total)]
		n := len(b)
		if write {
			if n == 0 {
				continue // or an empty write behind the end would lengthen the file
			}
			if end := *at + int64(n); end > int64(cap(f.node.content)) {
				s.announce(end) // all of it moves
			}
			if errno := s.files.write(f.node, *at, b); errno != Success {
				return s.did(errno)
			}
		} else {
			n = f.node.read(*at, b)
		}
		*at += int64(n)
		total += n
		if n < len(b) {
			break
		}
	}
	s.did(Success)
	s.Host.Charge(int64(total / 4))
	return s.put32(done, uint32(total))
}

func (s *System) positioned(a []uint64, right uint64) Errno {
	if a[0] < fdRoot {
		return s.unseekable(a[0])
	}
	f, errno := s.file(a[0], right)
	at := int64(a[3])
	switch {
	case errno != Success:
		return errno
	case at < 0:
		return Inval
	}
	return s.transfer(a, f, &at, right == rightWrite, a[4])
}

// unseekable is what a stream answers where only files have an offset.
func (s *System) unseekable(fd uint64) Errno {
	if s.stream(fd) {
		return Spipe
	}
	return Badf
}

func (s *System) fdSeek(a []uint64) Errno {
	if a[0] < fdRoot {
		return s.unseekable(a[0])
	}
	f, errno := s.file(a[0], 0)
	if errno != Success {
		return errno
	}
	to, from := int64(a[1]), int64(0)
	switch a[2] {
	case io.SeekStart:
	case io.SeekCurrent:
		from = f.offset
	case io.SeekEnd:
		from = int64(len(f.node.content))
	default:
		return Inval
	}
	if to > 0 && from+to < from || from+to < 0 {
		return Inval
	}
	f.offset = from + to
	return s.put64(a[3], uint64(f.offset))
}

func (s *System) fdTell(a []uint64) Errno {
	if a[0] < fdRoot {
		return s.unseekable(a[0])
	}
	f, errno := s.file(a[0], 0)
	if errno != Success {
		return errno
	}
	return s.put64(a[1], uint64(f.offset))
}

func (s *System) fdClose(a []uint64) Errno {
	fd := a[0]
	switch {
	case s.stream(fd):
		if s.Message != nil {
			return Badf
		}
		s.closed[fd] = true
		return Success
	case s.open(fd) == nil:
		return Badf
	case fd == fdRoot:
		return Notsup // there would be no way back
	}
	s.files.close(uint32(fd))
	return s.did(Success)
}

// fdRenumber closes the second descriptor and makes the first one it.
func (s *System) fdRenumber(a []uint64) Errno {
	from, to := uint32(a[0]), uint32(a[1])
	f := s.open(a[0])
	if f == nil || s.open(a[1]) == nil {
		if s.stream(a[0]) || s.stream(a[1]) {
			return Notsup
		}
		return Badf
	}
	switch {
	case from == to:
		return Success
	case from == fdRoot || to == fdRoot:
		return Notsup
	}
	s.files.close(to)
	delete(s.files.fds, from)
	s.files.fds[to] = f
	return s.did(Success)
}

func (s *System) fdStat(a []uint64) Errno {
	var b [24]byte
	b[0] = fileTypeBlockDevice
	// Not a character device, and with all rights, also to seek: libraries take
	// one or the other for a terminal.
	rights := ^uint64(0)
	if !s.stream(a[0]) {
		f := s.open(a[0])
		if f == nil {
			return Badf
		}
		b[0] = f.node.kind
		binary.LittleEndian.PutUint16(b[2:], f.flags)
		rights = f.rights
	}
	binary.LittleEndian.PutUint64(b[8:], rights)
	binary.LittleEndian.PutUint64(b[16:], rights)
	return s.put(a[1], b[:])
}

func (s *System) fdStatSetFlags(a []uint64) Errno {
	if a[1]&^knownFlags != 0 {
		return Inval
	}
	if s.stream(a[0]) {
		return Success // they never block
	}
	f := s.open(a[0])
	if f == nil {
		return Badf
	}
	f.flags = uint16(a[1])
	return Success
}

// fdStatSetRights can only take rights away.
func (s *System) fdStatSetRights(a []uint64) Errno {
	if s.stream(a[0]) {
		return Success
	}
	f := s.open(a[0])
	switch {
	case f == nil:
		return Badf
	case a[1]&^f.rights != 0:
		return Notcapable
	}
	f.rights = a[1]
	return Success
}

func (s *System) fileStat(a []uint64) Errno {
	var b [64]byte
	if s.stream(a[0]) {
		b[16] = fileTypeBlockDevice
		b[24] = 1 // links
	} else {
		f := s.open(a[0])
		if f == nil {
			return Badf
		}
		b = f.node.stat()
	}
	return s.put(a[1], b[:])
}

func (n *node) stat() (b [64]byte) {
	b[0] = 1 // device
	binary.LittleEndian.PutUint64(b[8:], uint64(n.serial))
	b[16] = n.kind
	binary.LittleEndian.PutUint64(b[24:], uint64(n.links))
	binary.LittleEndian.PutUint64(b[32:], uint64(len(n.content)+len(n.target)))
	for i, t := range []uint64{n.accessed, n.modified, n.changed} {
		binary.LittleEndian.PutUint64(b[40+8*i:], t)
	}
	return b
}

// Flags of times to set.
const (
	setAccessed    = 1
	setAccessedNow = 2
	setModified    = 4
	setModifiedNow = 8
)

// setTimes sets times of n to what the flags say.
func (s *System) setTimes(n *node, accessed, modified, flags uint64) Errno {
	both := func(a, b uint64) bool { return flags&a != 0 && flags&b != 0 }
	if both(setAccessed, setAccessedNow) || both(setModified, setModifiedNow) || flags > 15 {
		return Inval
	}
	now := s.realtime()
	for _, x := range []struct {
		to         *uint64
		v          uint64
		given, now uint64
	}{{&n.accessed, accessed, setAccessed, setAccessedNow}, {&n.modified, modified, setModified, setModifiedNow}} {
		switch {
		case flags&x.given != 0:
			*x.to = x.v
		case flags&x.now != 0:
			*x.to = now
		}
	}
	n.changed = now
	return Success
}

func (s *System) fdSetTimes(a []uint64) Errno {
	f := s.open(a[0])
	if f == nil {
		return Badf
	}
	return s.setTimes(f.node, a[1], a[2], a[3])
}

// touch answers what needs a file and has no effect here.
func (s *System) touch(a []uint64) Errno {
	if s.open(a[0]) == nil {
		return Badf
	}
	return Success
}

func (s *System) fdSetSize(a []uint64) Errno {
	f, errno := s.file(a[0], rightWrite)
	if errno != Success {
		return errno
	}
	return s.grow(f.node, int64(a[1]))
}

// grow resizes a file and charges what is zeroed.
func (s *System) grow(n *node, size int64) Errno {
	before := len(n.content)
	s.announce(max(size, int64(before)))
	errno := s.did(s.files.resize(n, size))
	s.Host.Charge(int64(max(len(n.content)-before, 0) / 4))
	return errno
}

func (s *System) fdAllocate(a []uint64) Errno {
	f, errno := s.file(a[0], rightWrite)
	if errno != Success {
		return errno
	}
	from, n := int64(a[1]), int64(a[2])
	switch {
	case from < 0 || n <= 0 || from+n < 0:
		return Inval
	case from+n <= int64(len(f.node.content)):
		return Success
	}
	return s.grow(f.node, from+n)
}

func (s *System) prestatGet(a []uint64) Errno {
	if a[0] != fdRoot {
		return Badf
	}
	return s.put(a[1], []byte{0, 0, 0, 0, 1, 0, 0, 0}) // a directory whose name has one byte
}

func (s *System) prestatDirName(a []uint64) Errno {
	switch {
	case a[0] != fdRoot:
		return Badf
	case a[2] < 1:
		return Nametoolong
	}
	return s.put(a[1], []byte("/"))
}

const direntSize = 24

func (s *System) fdReaddir(a []uint64) Errno {
	f := s.open(a[0])
	buf, ok := s.Memory.Read(uint32(a[1]), uint32(a[2]))
	switch {
	case f == nil:
		return Badf
	case !f.node.dir():
		return Notdir
	case !ok:
		return Fault
	}
	cookie := a[3]
	names := s.files.list(f, cookie == 0)
	used := 0
	for i := min(cookie, uint64(len(names))); i < uint64(len(names)) && used < len(buf); i++ {
		s.files.work++
		n := f.node.children[names[i]]
		if names[i] == "." || names[i] == ".." {
			n = f.node // its parent is not asked for
		}
		if n == nil {
			continue // it was removed meanwhile
		}
		var entry [direntSize]byte
		binary.LittleEndian.PutUint64(entry[:], i+1)
		binary.LittleEndian.PutUint64(entry[8:], uint64(n.serial))
		binary.LittleEndian.PutUint32(entry[16:], uint32(len(names[i])))
		entry[20] = n.kind
		// An entry that does not fit is cut off; the guest asks again.
		used += copy(buf[used:], entry[:])
		used += copy(buf[used:], names[i])
	}
	return s.did(s.put32(a[4], uint32(used)))
}
