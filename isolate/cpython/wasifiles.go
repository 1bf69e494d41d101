package cpython

import (
	"encoding/binary"
	"io"
)

// Flags and sizes of WASI's files.
const (
	openCreate    = 1
	openDirectory = 2
	openExclusive = 4
	openTruncate  = 8

	flagAppend = 1

	rightWrite = 1 << 6

	fileTypeCharacterDevice = 2
	fileTypeDirectory       = 3
	fileTypeRegular         = 4

	direntSize = 24
)

// fs gives the run's files, which most runs do not use.
func (vm *VM) fs() *fileSystem {
	if vm.files == nil {
		vm.files = newFileSystem(vm.given, int64(vm.limit)-int64(vm.mem.Size()), func() uint64 {
			real, _, err := vm.hooks.Now()
			if err != nil {
				vm.abort(err)
			}
			return uint64(real)
		})
	}
	return vm.files
}

// counted lets the linear memory have only what files leave of the limit.
func (vm *VM) counted(errno uint64) uint64 {
	vm.limitMemory(uint64(max(vm.files.bytes, 0)))
	return errno
}

// path reads a path out of the guest's memory.
func (vm *VM) path(at, n uint64) (string, bool) {
	b, ok := vm.mod.Memory().Read(uint32(at), uint32(n))
	return string(b), ok
}

// open gives what a descriptor of the file system stands for, nil if there is
// none.
func (vm *VM) open(fd uint64) *openFile {
	if uint32(fd) <= fdLast {
		return nil
	}
	return vm.fs().fds[uint32(fd)]
}

func (vm *VM) prestatGet(stack []uint64) {
	if uint32(stack[0]) != fdRoot {
		stack[0] = wasiBadf
		return
	}
	vm.put(stack, stack[1], []byte{0, 0, 0, 0, 1, 0, 0, 0}) // a directory whose name has one byte
}

func (vm *VM) prestatDirName(stack []uint64) {
	if uint32(stack[0]) != fdRoot {
		stack[0] = wasiBadf
		return
	}
	vm.put(stack, stack[1], []byte("/"))
}

func (vm *VM) pathOpen(stack []uint64) {
	path, ok := vm.path(stack[2], stack[3])
	oflags, rights, flags, out := uint32(stack[4]), stack[5], uint32(stack[7]), stack[8]
	if !ok {
		stack[0] = wasiFault
		return
	}
	fs := vm.fs()
	parent, name, n, errno := fs.find(uint32(stack[0]), path)
	switch {
	case errno != wasiSuccess:
	case n == nil && oflags&openCreate == 0:
		errno = wasiNoent
	case n == nil:
		if errno = wasiNotdir; oflags&openDirectory == 0 {
			n, errno = fs.create(parent, name, false)
		}
	case oflags&openExclusive != 0:
		errno = wasiExist
	case oflags&openDirectory != 0 && !n.dir():
		errno = wasiNotdir
	case n.dir() && (rights&rightWrite != 0 || oflags&openTruncate != 0):
		errno = wasiIsdir
	case oflags&openTruncate != 0:
		errno = fs.resize(n, 0)
	}
	var fd uint32
	if errno == wasiSuccess {
		fd, errno = fs.open(n, flags&flagAppend != 0)
	}
	if stack[0] = vm.counted(errno); errno == wasiSuccess {
		vm.put(stack, out, word(fd))
	}
}

func (vm *VM) fdClose(stack []uint64) {
	if uint32(stack[0]) <= fdRoot || vm.open(stack[0]) == nil {
		stack[0] = wasiBadf
		return
	}
	delete(vm.files.fds, uint32(stack[0]))
	stack[0] = wasiSuccess
}

// transfer moves bytes between parts of the guest's memory and a file, at its
// offset or at another place.
func (vm *VM) transfer(stack []uint64, f *openFile, at *int64, write bool, done uint64) {
	parts := vm.vectors(uint32(stack[1]), uint32(stack[2]))
	switch {
	case parts == nil:
		stack[0] = wasiFault
		return
	case f.node.dir():
		stack[0] = wasiIsdir
		return
	}
	total := 0
	for _, b := range parts {
		n := len(b)
		if write {
			if errno := vm.counted(vm.files.write(f.node, *at, b)); errno != wasiSuccess {
				stack[0] = errno
				return
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
	vm.put(stack, done, word(uint32(total)))
}

func (vm *VM) fdPread(stack []uint64)  { vm.positioned(stack, false) }
func (vm *VM) fdPwrite(stack []uint64) { vm.positioned(stack, true) }

func (vm *VM) positioned(stack []uint64, write bool) {
	f, at, done := vm.open(stack[0]), int64(stack[3]), stack[4]
	if f == nil {
		stack[0] = wasiBadf
		return
	}
	vm.transfer(stack, f, &at, write, done)
}

func (vm *VM) fdSeek(stack []uint64) {
	if uint32(stack[0]) <= fdLast {
		stack[0] = wasiSpipe
		return
	}
	f, to, out := vm.open(stack[0]), int64(stack[1]), stack[3]
	if f == nil {
		stack[0] = wasiBadf
		return
	}
	switch uint32(stack[2]) {
	case io.SeekCurrent:
		to += f.offset
	case io.SeekEnd:
		to += int64(len(f.node.content))
	}
	if to < 0 {
		stack[0] = wasiInval
		return
	}
	f.offset = to
	vm.put(stack, out, doubleWord(uint64(to)))
}

func (vm *VM) fdTell(stack []uint64) {
	f := vm.open(stack[0])
	if f == nil {
		stack[0] = wasiSpipe
		return
	}
	vm.put(stack, stack[1], doubleWord(uint64(f.offset)))
}

func (vm *VM) fdStat(stack []uint64) {
	var b [24]byte
	b[0] = fileTypeCharacterDevice
	if uint32(stack[0]) > fdLast {
		f := vm.open(stack[0])
		if f == nil {
			stack[0] = wasiBadf
			return
		}
		b[0] = f.node.fileType()
		if f.append {
			b[2] = flagAppend
		}
	}
	// All rights, also to seek: what cannot seek is taken for a terminal.
	binary.LittleEndian.PutUint64(b[8:], ^uint64(0))
	binary.LittleEndian.PutUint64(b[16:], ^uint64(0))
	vm.put(stack, stack[1], b[:])
}

func (n *node) fileType() byte {
	if n.dir() {
		return fileTypeDirectory
	}
	return fileTypeRegular
}

func (vm *VM) fdStatSetFlags(stack []uint64) {
	f := vm.open(stack[0])
	if f == nil {
		stack[0] = wasiBadf
		return
	}
	f.append = uint32(stack[1])&flagAppend != 0
	stack[0] = wasiSuccess
}

func (vm *VM) fileStat(stack []uint64) {
	var b [64]byte
	b[16] = fileTypeCharacterDevice
	b[24] = 1 // links
	if uint32(stack[0]) > fdLast {
		f := vm.open(stack[0])
		if f == nil {
			stack[0] = wasiBadf
			return
		}
		b = f.node.stat()
	}
	vm.put(stack, stack[1], b[:])
}

func (n *node) stat() (b [64]byte) {
	b[0] = 1 // device
	binary.LittleEndian.PutUint64(b[8:], uint64(n.serial))
	b[16] = n.fileType()
	b[24] = 1 // links
	binary.LittleEndian.PutUint64(b[32:], uint64(len(n.content)))
	for at := 40; at < 64; at += 8 {
		binary.LittleEndian.PutUint64(b[at:], n.time)
	}
	return b
}

func (vm *VM) pathStat(stack []uint64) {
	path, ok := vm.path(stack[2], stack[3])
	if !ok {
		stack[0] = wasiFault
		return
	}
	_, _, n, errno := vm.fs().find(uint32(stack[0]), path)
	if errno == wasiSuccess && n == nil {
		errno = wasiNoent
	}
	if stack[0] = errno; errno == wasiSuccess {
		b := n.stat()
		vm.put(stack, stack[4], b[:])
	}
}

// pathSetTimes keeps the one time that there is.
func (vm *VM) pathSetTimes(stack []uint64) {
	path, ok := vm.path(stack[2], stack[3])
	if !ok {
		stack[0] = wasiFault
		return
	}
	_, _, n, errno := vm.fs().find(uint32(stack[0]), path)
	if errno == wasiSuccess && n == nil {
		errno = wasiNoent
	}
	stack[0] = errno
}

// touch answers what needs a file and has no effect here.
func (vm *VM) touch(stack []uint64) {
	if vm.open(stack[0]) == nil {
		stack[0] = wasiBadf
		return
	}
	stack[0] = wasiSuccess
}

func (vm *VM) fdSetSize(stack []uint64) {
	f := vm.open(stack[0])
	if f == nil {
		stack[0] = wasiBadf
		return
	}
	if f.node.dir() {
		stack[0] = wasiIsdir
		return
	}
	stack[0] = vm.counted(vm.files.resize(f.node, int64(stack[1])))
}

func (vm *VM) fdAllocate(stack []uint64) {
	f := vm.open(stack[0])
	end := int64(stack[1]) + int64(stack[2])
	switch {
	case f == nil:
		stack[0] = wasiBadf
	case f.node.dir():
		stack[0] = wasiIsdir
	case end <= int64(len(f.node.content)):
		stack[0] = wasiSuccess
	default:
		stack[0] = vm.counted(vm.files.resize(f.node, end))
	}
}

func (vm *VM) fdReaddir(stack []uint64) {
	f := vm.open(stack[0])
	buf, ok := vm.mod.Memory().Read(uint32(stack[1]), uint32(stack[2]))
	cookie, out := stack[3], stack[4]
	switch {
	case f == nil:
		stack[0] = wasiBadf
		return
	case !f.node.dir():
		stack[0] = wasiNotdir
		return
	case !ok:
		stack[0] = wasiFault
		return
	}
	names := f.list(cookie == 0)
	used := 0
	for i := min(cookie, uint64(len(names))); i < uint64(len(names)) && used < len(buf); i++ {
		n := f.node.children[names[i]]
		if n == nil {
			continue // it was removed meanwhile
		}
		var entry [direntSize]byte
		binary.LittleEndian.PutUint64(entry[:], i+1)
		binary.LittleEndian.PutUint64(entry[8:], uint64(n.serial))
		binary.LittleEndian.PutUint32(entry[16:], uint32(len(names[i])))
		entry[20] = n.fileType()
		// An entry that does not fit is cut off; the guest asks again.
		used += copy(buf[used:], entry[:])
		used += copy(buf[used:], names[i])
	}
	vm.put(stack, out, word(uint32(used)))
}

func (vm *VM) pathCreateDirectory(stack []uint64) {
	path, ok := vm.path(stack[1], stack[2])
	if !ok {
		stack[0] = wasiFault
		return
	}
	fs := vm.fs()
	parent, name, n, errno := fs.find(uint32(stack[0]), path)
	if errno == wasiSuccess {
		if errno = wasiExist; n == nil {
			_, errno = fs.create(parent, name, true)
		}
	}
	stack[0] = vm.counted(errno)
}

func (vm *VM) pathRemoveDirectory(stack []uint64) { vm.remove(stack, true) }
func (vm *VM) pathUnlink(stack []uint64)          { vm.remove(stack, false) }

func (vm *VM) remove(stack []uint64, dir bool) {
	path, ok := vm.path(stack[1], stack[2])
	if !ok {
		stack[0] = wasiFault
		return
	}
	errno := vm.fs().remove(uint32(stack[0]), path, dir)
	stack[0] = vm.counted(errno)
}

func (vm *VM) pathRename(stack []uint64) {
	from, ok1 := vm.path(stack[1], stack[2])
	to, ok2 := vm.path(stack[4], stack[5])
	if !ok1 || !ok2 {
		stack[0] = wasiFault
		return
	}
	errno := vm.fs().rename(uint32(stack[0]), from, uint32(stack[3]), to)
	stack[0] = vm.counted(errno)
}
