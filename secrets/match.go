package secrets

import "bytes"

// A matcher finds every place of every form in one pass that skips most bytes
// (Wu and Manber, 1994): the two bytes at the end of a window say how far the
// window can move without missing the beginning of any form.
type matcher struct {
	forms [][]byte
	least int // length of the shortest form
	most  int // of the longest
	shift [blocks]uint8
	heads map[uint16][]int // forms whose window ends with the block
}

const blocks = 1 << 13

func block(a, b byte) uint16 { return (uint16(a)<<5 ^ uint16(b)) & (blocks - 1) }

// newMatcher prepares forms of at least two bytes.
func newMatcher(forms [][]byte) *matcher {
	m := &matcher{forms: forms, heads: map[uint16][]int{}}
	if len(forms) == 0 {
		return m
	}
	m.least = len(forms[0])
	for _, f := range forms {
		m.least, m.most = min(m.least, len(f)), max(m.most, len(f))
	}
	m.least = min(m.least, 255)
	for i := range m.shift {
		m.shift[i] = uint8(m.least - 1)
	}
	for i, f := range forms {
		for j := 1; j < m.least; j++ {
			b := block(f[j-1], f[j])
			m.shift[b] = min(m.shift[b], uint8(m.least-1-j))
		}
		b := block(f[m.least-2], f[m.least-1])
		m.heads[b] = append(m.heads[b], i)
	}
	return m
}

// each calls f for every form at every place in b, in order of places.
func (m *matcher) each(b []byte, f func(at, length int)) {
	if len(m.forms) == 0 {
		return
	}
	for end := m.least - 1; end < len(b); {
		k := block(b[end-1], b[end])
		if s := m.shift[k]; s > 0 {
			end += int(s)
			continue
		}
		at := end - m.least + 1
		for _, i := range m.heads[k] {
			if bytes.HasPrefix(b[at:], m.forms[i]) {
				f(at, len(m.forms[i]))
			}
		}
		end++
	}
}

// held is the length of the longest end of b that begins a form and does not
// complete it.
func (m *matcher) held(b []byte) int {
	longest := 0
	for _, form := range m.forms {
		tail := b[max(0, len(b)-len(form)+1):]
		for len(tail) > longest {
			i := bytes.IndexByte(tail, form[0])
			if i < 0 || len(tail)-i <= longest {
				break
			}
			tail = tail[i:]
			if bytes.HasPrefix(form, tail) {
				longest = len(tail)
				break
			}
			tail = tail[1:]
		}
	}
	return longest
}
