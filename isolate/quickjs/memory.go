package quickjs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

const (
	wasmPage = 64 << 10
	hostPage = 4 << 10
)

// An image is the content of a linear memory, kept in a sealed memfd.
type image struct {
	file *os.File
	// size is that of the linear memory. extents are the parts of it that the
	// memfd holds, in order, each at its own address; the rest is zero and is
	// mapped anonymously, because a write to a hole of a memfd costs two page
	// allocations.
	size    uint64
	extents []span
	// hot are page ranges that nearly every call writes, cold all the others.
	// hotData is what the image holds in the hot ones, one after the other.
	hot, cold []span
	hotData   []byte
}

// A span is a range of page-aligned addresses.
type span struct{ from, to uint64 }

// gap is the largest run of zero bytes within one extent: more extents are more
// mappings in each VM.
const gap = 256 << 10

// newImage copies mem into a sealed memfd.
func newImage(mem []byte) (*image, error) {
	fd, err := unix.MemfdCreate("isolate-image", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("isolate-image", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("quickjs: memfd for the image: %w", err)
	}
	img := &image{file: os.NewFile(uintptr(fd), "isolate-image"), size: uint64(len(mem))}
	img.cold = []span{{0, img.size}}
	if err := img.fill(mem); err != nil {
		img.file.Close()
		return nil, err
	}
	return img, nil
}

func (img *image) fill(mem []byte) error {
	fd := int(img.file.Fd())
	if err := unix.Ftruncate(fd, int64(len(mem))); err != nil {
		return fmt.Errorf("quickjs: size of the image: %w", err)
	}
	for p := uint64(0); p < img.size; p += hostPage {
		page := mem[p : p+hostPage]
		if zero(page) {
			continue
		}
		if _, err := img.file.WriteAt(page, int64(p)); err != nil {
			return fmt.Errorf("quickjs: write the image: %w", err)
		}
		if n := len(img.extents); n > 0 && p-img.extents[n-1].to <= gap {
			img.extents[n-1].to = p + hostPage
		} else {
			img.extents = append(img.extents, span{p, p + hostPage})
		}
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("quickjs: seal the image: %w", err)
	}
	return nil
}

func (img *image) close() error { return img.file.Close() }

func zero(b []byte) bool {
	for len(b) >= 8 {
		if *(*uint64)(unsafe.Pointer(&b[0])) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// A linear is a linear memory: an address range reserved once, of which the
// first size bytes may be touched. It is made by an allocator and belongs to
// one instance.
type linear struct {
	base     unsafe.Pointer
	reserved uint64
	size     uint64
	img      *image // nil while booting
	err      error  // why Allocate failed; instantiation then fails
	// limit is the largest size that the VM may grow to; beyond it, over is
	// called and may panic.
	limit uint64
	over  func(want uint64)
}

var _ experimental.LinearMemory = (*linear)(nil)

// Allocate implements experimental.MemoryAllocator. What wazero suggests as
// capacity and maximum are the module's own; ours are smaller.
func (l *linear) Allocate(_, _ uint64) experimental.LinearMemory {
	l.err = l.reserve()
	return l
}

func (l *linear) reserve() error {
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(l.reserved), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("quickjs: reserve %d bytes of address space: %w", l.reserved, err)
	}
	l.base = base
	if l.img == nil {
		return nil
	}
	if err := protect(base, l.img.size); err != nil {
		return err
	}
	for _, x := range l.img.extents {
		_, err = unix.MmapPtr(int(l.img.file.Fd()), int64(x.from), unsafe.Add(base, x.from), uintptr(x.to-x.from),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE)
		if err != nil {
			return fmt.Errorf("quickjs: map the image: %w", err)
		}
	}
	return nil
}

// Reallocate implements experimental.LinearMemory. The address never changes.
func (l *linear) Reallocate(size uint64) []byte {
	if l.err != nil {
		// wazero has no way to say no to the first allocation; see Engine.
		return make([]byte, size)
	}
	if size > l.limit || size > l.reserved {
		if l.over != nil {
			l.over(size)
		}
		return nil
	}
	from := l.size
	if l.img != nil {
		from = max(from, l.img.size)
	}
	if size > from {
		if err := protect(unsafe.Add(l.base, from), size-from); err != nil {
			return nil
		}
	}
	l.size = max(l.size, size)
	return unsafe.Slice((*byte)(l.base), l.size)[:size:size]
}

func protect(p unsafe.Pointer, n uint64) error {
	if err := unix.Mprotect(unsafe.Slice((*byte)(p), n), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("quickjs: open %d bytes of memory: %w", n, err)
	}
	return nil
}

// Free implements experimental.LinearMemory.
func (l *linear) Free() {
	if l.base != nil {
		// Nothing to be done about a failure: the range stays reserved.
		_ = unix.MunmapPtr(l.base, uintptr(l.reserved))
		l.base = nil
	}
}

func (l *linear) bytes() []byte { return unsafe.Slice((*byte)(l.base), l.size) }

// reset makes the memory read as the image again: the pages that every call
// writes are overwritten with the image's content, all others are dropped. A
// page fault costs ten times as much as the copy of a page.
func (l *linear) reset() error {
	if l.size != l.img.size {
		return fmt.Errorf("quickjs: memory has %d bytes, the image %d", l.size, l.img.size)
	}
	for _, c := range l.img.cold {
		if err := unix.Madvise(l.span(c), unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("quickjs: drop written pages: %w", err)
		}
	}
	data := l.img.hotData
	for _, h := range l.img.hot {
		data = data[copy(l.span(h), data):]
	}
	return nil
}

func (l *linear) span(s span) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(l.base, s.from)), s.to-s.from)
}

// near is the distance at which two hot ranges are taken for one: dropping the
// pages between them costs a system call.
const near = 4 * hostPage

// learn divides the pages of the image by whether l has written them.
func (img *image) learn(l *linear) error {
	var hot, cold []span
	was := make([]byte, hostPage)
	now := l.bytes()
	for p := uint64(0); p < img.size; p += hostPage {
		if _, err := img.file.ReadAt(was, int64(p)); err != nil {
			return fmt.Errorf("quickjs: read the image: %w", err)
		}
		if bytes.Equal(now[p:p+hostPage], was) {
			continue
		}
		if n := len(hot); n > 0 && p-hot[n-1].to <= near {
			hot[n-1].to = p + hostPage
		} else {
			hot = append(hot, span{p, p + hostPage})
		}
	}
	var data []byte
	at := uint64(0)
	for _, h := range hot {
		if h.from > at {
			cold = append(cold, span{at, h.from})
		}
		at = h.to
		b := make([]byte, h.to-h.from)
		if _, err := img.file.ReadAt(b, int64(h.from)); err != nil {
			return fmt.Errorf("quickjs: read the image: %w", err)
		}
		data = append(data, b...)
	}
	if at < img.size {
		cold = append(cold, span{at, img.size})
	}
	img.hot, img.cold, img.hotData = hot, cold, data
	return nil
}
