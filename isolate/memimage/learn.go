package memimage

import (
	"cmp"
	"slices"
)

// near is the distance at which two ranges are taken for one where that does no
// harm: each costs a system call.
const near = 8 * hostPage

// Learn divides the pages of the image by what m, a memory over it that was used
// and not reset, was used for. What all memories that it is called with have
// written is hot; what any of them has used besides is only read ahead.
func (img *Image) Learn(m *Memory) error {
	var hot, used []span
	err := m.pages(func(p uint64, state page) {
		if state&ours != 0 {
			hot = extend(hot, p, 0)
		}
		used = extend(used, p, 0)
	})
	if err != nil {
		return err
	}
	if img.learnt {
		hot = within(hot, img.hot)
		used = append(used, img.used...)
		slices.SortFunc(used, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	}
	img.learnt, img.hot, img.used = true, hot, widen(used)
	return nil
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

// widen joins spans that are near each other.
func widen(spans []span) []span {
	var out []span
	for _, s := range spans {
		if n := len(out); n > 0 && s.from-out[n-1].to <= near {
			out[n-1].to = max(out[n-1].to, s.to)
		} else {
			out = append(out, s)
		}
	}
	return out
}
