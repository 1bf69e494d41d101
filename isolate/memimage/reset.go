package memimage

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Drop gives back all that the memory holds of its own. It reads as the image
// then, as after Reset, and takes its page faults anew.
func (m *Memory) Drop() error {
	if err := m.grown(); err != nil {
		return err
	}
	m.warm = 0
	return m.drop(span{0, m.size})
}

// Reset makes the memory read as the image again: of the pages that it has
// written, those that nearly every call writes are overwritten with the image's
// content. So are the others, since a call like this one may be next, unless
// they are more than maxWarm or the call has added as much as most: then they
// are dropped. A page fault costs ten times as much as the copy of a page. added
// is how many bytes the call has added to these, 0 where the kernel does not tell
// what was written. Cool drops what is kept beyond the hot pages. A memory that
// has grown cannot be reset.
func (m *Memory) Reset(most uint64) (added uint64, err error) {
	if err := m.grown(); err != nil {
		return 0, err
	}
	if m.img.pagemap == nil {
		return 0, m.resetBlindly()
	}
	hot := m.img.hot
	b := m.bytes()
	rest, n := m.rest[:0], uint64(0)
	err = m.pages(func(p uint64, state page) {
		if state&ours == 0 {
			return
		}
		for len(hot) > 0 && hot[0].to <= p {
			hot = hot[1:]
		}
		if len(hot) > 0 && p >= hot[0].from {
			copy(b[p:p+hostPage], m.img.all[p:p+hostPage])
			return
		}
		rest = extend(rest, p, 0)
		n += hostPage
	})
	if cap(rest) <= keepRest {
		m.rest = rest
	}
	if err != nil {
		return 0, err
	}
	added = n - min(n, m.warm)
	keep := n <= maxWarm && added < most
	m.warm = 0
	if keep {
		m.warm = n
	}
	for _, s := range rest {
		if keep {
			copy(s.of(b), s.of(m.img.all))
		} else if err := m.drop(s); err != nil {
			return 0, err
		}
	}
	return added, nil
}

const (
	// maxWarm bounds what a memory keeps of its own beside the hot pages until it
	// is cooled, in bytes: some kinds of small calls one after the other.
	maxWarm = 128 << 10
	// keepRest is how many spans it keeps room for between two resets.
	keepRest = 64
)

// Cool drops the pages that Reset has kept beyond the hot ones. The memory must
// read as the image.
func (m *Memory) Cool() error {
	if m.img.pagemap == nil {
		return nil // nothing is kept
	}
	_, err := m.Reset(0)
	return err
}

// resetBlindly is Reset without knowing what was written.
func (m *Memory) resetBlindly() error {
	b := m.bytes()
	hot := widen(m.img.hot)
	for _, c := range gaps(hot, m.img.size) {
		if err := m.drop(c); err != nil {
			return err
		}
	}
	for _, h := range hot {
		copy(h.of(b), h.of(m.img.all))
	}
	return nil
}

// Prepare takes the page faults that nearly every call takes. The memory must
// read as the image.
func (m *Memory) Prepare() error {
	if err := m.grown(); err != nil {
		return err
	}
	b := m.bytes()
	for _, r := range m.img.used {
		// Without it the faults are taken later.
		_ = unix.Madvise(r.of(b), unix.MADV_POPULATE_READ)
	}
	for _, h := range m.img.hot {
		copy(h.of(b), h.of(m.img.all))
	}
	return nil
}

func (m *Memory) grown() error {
	if m.size != m.img.size {
		return fmt.Errorf("memimage: memory has %d bytes, the image %d", m.size, m.img.size)
	}
	return nil
}

func (m *Memory) drop(s span) error {
	if s.from == s.to {
		return nil
	}
	if err := unix.Madvise(s.of(m.bytes()), unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("memimage: drop written pages: %w", err)
	}
	return nil
}

// Own is how much of the image's range the memory holds of its own, in bytes.
func (m *Memory) Own() (n uint64, err error) {
	err = m.pages(func(_ uint64, state page) {
		if state&ours != 0 {
			n += hostPage
		}
	})
	return n, err
}

// page is what is known of a page: whether it has a frame, and whether that is
// the memory's own, which one that was never written is not.
type page int

const (
	mapped page = 1 << iota
	ours
)

// Bits of an entry in a process's page map.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageFile    = 1 << 61 // the memfd's
	entrySize   = 8
)

// entries are buffers for parts of a page map.
var entries = sync.Pool{New: func() any { return new([4096 * entrySize]byte) }}

// pages calls f for the pages of the image's range that have a frame, in order.
func (m *Memory) pages(f func(at uint64, state page)) error {
	if m.img.pagemap == nil {
		return fmt.Errorf("memimage: no page map: %w", unix.ENOENT)
	}
	fd := int(m.img.pagemap.Fd())
	buf := entries.Get().(*[4096 * entrySize]byte)
	defer entries.Put(buf)
	first := uint64(uintptr(m.base)) / hostPage
	for at, all := uint64(0), m.img.size/hostPage; at < all; {
		part := buf[:min(len(buf), int(all-at)*entrySize)]
		n, err := unix.Pread(fd, part, int64((first+at)*entrySize))
		if err == nil && (n <= 0 || n%entrySize != 0) {
			err = unix.EIO
		}
		if err != nil {
			return fmt.Errorf("memimage: page map: %w", err)
		}
		for i := 0; i < n; i += entrySize {
			entry := binary.LittleEndian.Uint64(part[i:])
			if entry&(pagePresent|pageSwapped) == 0 {
				continue
			}
			state := mapped
			if entry&pageFile == 0 {
				// The shared page of zeros looks like one of our own; to treat it
				// so does no harm.
				state |= ours
			}
			f((at+uint64(i/entrySize))*hostPage, state)
		}
		at += uint64(n / entrySize)
	}
	return nil
}
