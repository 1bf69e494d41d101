package memimage

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

// PageSize is that of WebAssembly, in bytes.
const PageSize = 64 << 10

// A Memory is a linear memory: an address range reserved once, of which the
// first part may be touched. It is its own allocator, for one instance.
type Memory struct {
	img      *Image // nil while an image is made
	base     unsafe.Pointer
	reserved uint64
	size     uint64
	err      error  // why Allocate failed; instantiation must then fail
	rest     []span // for Reset
	warm     uint64 // what the last Reset kept beside the hot pages
	// limit is the largest size that the instance may grow to; beyond it, over
	// is called and may panic.
	limit uint64
	over  func(want uint64)
}

var (
	_ experimental.LinearMemory    = (*Memory)(nil)
	_ experimental.MemoryAllocator = (*Memory)(nil)
)

// NewMemory makes a memory over img, or an empty one if that is nil. It can
// grow to reserved bytes.
func NewMemory(img *Image, reserved uint64) *Memory {
	return &Memory{img: img, reserved: reserved, limit: reserved}
}

// SetLimit sets the largest size. Where more is wanted, over is called, which
// may panic; if it returns, or is nil, the guest is told that it cannot grow.
func (m *Memory) SetLimit(limit uint64, over func(want uint64)) {
	m.limit, m.over = limit/PageSize*PageSize, over
}

// Image is what the memory is made from, nil while an image is made.
func (m *Memory) Image() *Image { return m.img }

// Limit is the largest size in bytes, as it was set last.
func (m *Memory) Limit() uint64 { return m.limit }

// Err says why the memory could not be allocated: wazero cannot be told.
func (m *Memory) Err() error { return m.err }

// Size is that of the linear memory, which only Reset may lower.
func (m *Memory) Size() uint64 { return m.size }

// Reserved is the largest size that the memory can have.
func (m *Memory) Reserved() uint64 { return m.reserved }

// Allocate implements experimental.MemoryAllocator. What wazero suggests as
// capacity and maximum are the module's own; ours are smaller.
func (m *Memory) Allocate(_, _ uint64) experimental.LinearMemory {
	m.err = m.reserve()
	return m
}

func (m *Memory) reserve() error {
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(m.reserved), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("memimage: reserve %d bytes of address space: %w", m.reserved, err)
	}
	m.base = base
	if m.img == nil {
		return nil
	}
	if err := protect(base, m.img.size); err != nil {
		return err
	}
	// A huge page would be a copy of what no call has written.
	if err := unix.Madvise(unsafe.Slice((*byte)(base), m.img.size), unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("memimage: no huge pages: %w", err)
	}
	for _, x := range m.img.extents {
		_, err = unix.MmapPtr(int(m.img.file.Fd()), int64(x.from), unsafe.Add(base, x.from), uintptr(x.to-x.from),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE)
		if err != nil {
			return fmt.Errorf("memimage: map the image: %w", err)
		}
	}
	return nil
}

// Reallocate implements experimental.LinearMemory. The address never changes.
func (m *Memory) Reallocate(size uint64) []byte {
	if m.err != nil {
		// wazero has no way to say no to the first allocation; see Err.
		return make([]byte, size)
	}
	if size > m.limit || size > m.reserved {
		if m.over != nil {
			m.over(size)
		}
		return nil
	}
	from := m.size
	if m.img != nil {
		from = max(from, m.img.size)
	}
	if size > from {
		if err := protect(unsafe.Add(m.base, from), size-from); err != nil {
			return nil
		}
	}
	m.size = max(m.size, size)
	return unsafe.Slice((*byte)(m.base), m.size)[:size:size]
}

func protect(p unsafe.Pointer, n uint64) error {
	if err := unix.Mprotect(unsafe.Slice((*byte)(p), n), unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("memimage: open %d bytes of memory: %w", n, err)
	}
	return nil
}

// Free implements experimental.LinearMemory.
func (m *Memory) Free() {
	if m.base != nil {
		// Nothing to be done about a failure: the range stays reserved.
		_ = unix.MunmapPtr(m.base, uintptr(m.reserved))
		m.base = nil
	}
}

func (m *Memory) bytes() []byte { return unsafe.Slice((*byte)(m.base), m.size) }
