package memimage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// near is the distance at which two hot ranges are taken for one: dropping the
// pages between them costs a system call.
const near = 8 * hostPage

// present is the bit of a page in the process's page map.
const present = 1 << 63

// Learn divides the pages of the image by what m, a memory over it, was used
// for: written, read, or neither. It opens a file in /proc, so it must be called
// before the process gives up its rights.
func (img *Image) Learn(m *Memory) error {
	touched, err := m.touched()
	if err != nil {
		return err
	}
	img.hot, img.cold, img.read = nil, nil, nil
	now := m.bytes()
	for p := uint64(0); p < img.size; p += hostPage {
		if !bytes.Equal(now[p:p+hostPage], img.all[p:p+hostPage]) {
			img.hot = extend(img.hot, p, near)
		} else if touched[p/hostPage] {
			img.read = extend(img.read, p, near)
		}
	}
	img.cold = gaps(img.hot, img.size)
	img.read = within(img.read, img.cold)
	return nil
}

// touched tells which pages of the image m has in its page table.
func (m *Memory) touched() ([]bool, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, fmt.Errorf("memimage: %w", err)
	}
	defer f.Close()
	pages := m.img.size / hostPage
	entries := make([]byte, 8*pages)
	if _, err := f.ReadAt(entries, int64(uintptr(m.base)/hostPage*8)); err != nil {
		return nil, fmt.Errorf("memimage: page map: %w", err)
	}
	out := make([]bool, pages)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(entries[8*i:])&present != 0
	}
	return out, nil
}

// gaps are the ranges up to size that spans leave out.
func gaps(spans []span, size uint64) []span {
	var out []span
	at := uint64(0)
	for _, s := range spans {
		if s.from > at {
			out = append(out, span{at, s.from})
		}
		at = s.to
	}
	if at < size {
		out = append(out, span{at, size})
	}
	return out
}

// within cuts spans to what lies in outer. Both are in order.
func within(spans, outer []span) []span {
	var out []span
	for _, s := range spans {
		for _, o := range outer {
			if from, to := max(s.from, o.from), min(s.to, o.to); from < to {
				out = append(out, span{from, to})
			}
		}
	}
	return out
}
