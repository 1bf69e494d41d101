package memimage

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A Delta is what a memory has more than its image, and in place of it: pages
// of its own. It does not change, and can be applied to any clean memory over
// the same image.
type Delta struct {
	img   *Image
	size  uint64 // of the memory
	spans []span
	data  []byte // of the spans, one after the other
}

// ErrLargeDelta says that a memory has more pages of its own than were wanted.
var ErrLargeDelta = errors.New("memimage: too many pages differ from the image")

// ErrOtherImage says that a Delta is not of this memory's image.
var ErrOtherImage = errors.New("memimage: the pages are another image's")

// Delta copies what m has of its own; more than most bytes of it are
// ErrLargeDelta. Where the kernel does not tell what was written it reads all of
// m, which takes a page fault here and there.
func (m *Memory) Delta(most uint64) (*Delta, error) {
	if m.img == nil {
		return nil, ErrOtherImage
	}
	d := &Delta{img: m.img, size: m.size}
	now, n := m.bytes(), uint64(0)
	look := func(p uint64) {
		page := now[p : p+hostPage]
		if p < m.img.size && bytes.Equal(page, m.img.all[p:p+hostPage]) || p >= m.img.size && zero(page) {
			return
		}
		n += hostPage
		d.spans = extend(d.spans, p, 0)
	}
	err := m.pages(func(p uint64, state page) {
		if state&ours != 0 {
			look(p)
		}
	})
	if err != nil {
		n, d.spans = 0, nil
		for p := uint64(0); p < m.img.size; p += hostPage {
			look(p)
		}
	}
	for p := m.img.size; p < m.size; p += hostPage {
		look(p)
	}
	if n > most {
		return nil, ErrLargeDelta
	}
	d.data = make([]byte, 0, n)
	for _, s := range d.spans {
		d.data = append(d.data, s.of(now)...)
	}
	return d, nil
}

// Size is that of the memory that the delta was taken of, which is the least
// that one may have to which it is applied.
func (d *Delta) Size() uint64 { return d.size }

// Bytes that the delta itself takes.
func (d *Delta) Bytes() uint64 { return uint64(len(d.data)) }

// Contains tells whether the pages hold b, which a test of cleanness asks.
func (d *Delta) Contains(b []byte) bool { return bytes.Contains(d.data, b) }

// Apply makes a clean memory, grown to d.Size, read as the one that d was taken
// of. Reset undoes it.
func (m *Memory) Apply(d *Delta) error {
	switch {
	case m.img == nil || m.img != d.img:
		return ErrOtherImage
	case m.size != d.size:
		return fmt.Errorf("memimage: memory has %d bytes, the pages are of one with %d", m.size, d.size)
	}
	b, data := m.bytes(), d.data
	for _, s := range d.spans {
		to := s.of(b)
		if len(to) > hostPage {
			// All at once are a fraction of as many faults; without it they are
			// taken one by one.
			_ = unix.Madvise(to, unix.MADV_POPULATE_WRITE)
		}
		data = data[copy(to, data):]
	}
	return nil
}
