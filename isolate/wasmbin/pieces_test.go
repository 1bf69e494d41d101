package wasmbin

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// movers is a module that fills and copies what it is told, straight on and in a
// loop that calls nothing.
func moversModule() []byte {
	var a asm
	a.memory = &Memory{Min: 80}
	three := types(I32, I32, I32)
	args := slices.Concat(get(0), get(1), get(2))
	a.fn("fill", three, nil, nil, args, fc(fcMemoryFill, 0))
	a.fn("copy", three, nil, nil, args, fc(fcMemoryCopy, 0, 0))
	once := func(instr []byte) []byte {
		return slices.Concat(op(opLoop, blockEmpty), args, instr, i32(0), op(opBrIf, 0), op(opEnd))
	}
	a.fn("fill in a loop", three, nil, nil, once(fc(fcMemoryFill, 0)))
	a.fn("copy in a loop", three, nil, nil, once(fc(fcMemoryCopy, 0, 0)))
	return a.bytes()
}

// TestPieces compares what is moved in pieces with what one instruction does, and
// looks that the host is called in between.
func TestPieces(t *testing.T) {
	const size = 80 << 16
	h := newHost(t)
	m := h.instantiate(metered(t, moversModule()))
	mem, _ := m.Memory().Read(0, size)
	chacha := rand.NewChaCha8([32]byte{1})
	want := make([]byte, size)
	for _, c := range []struct {
		to, from, n uint32
		trap        bool
	}{
		{0, 7, 0, false}, {5, 7, 1, false}, {5, 70, piece - 1, false}, {5, 7, piece, false}, {5, 7, piece + 1, false},
		{0, piece / 2, 4 * piece, false}, {piece / 2, 0, 4 * piece, false}, // overlap
		{1, 0, size - 1, false}, {0, 1, size - 1, false}, {0, 0, size, false},
		{2 * piece, 0, 2*piece + 3, false}, {0, 2 * piece, 2*piece + 3, false},
		{1, 0, size, true}, {0, 1, size, true}, {size - piece, 0, piece + 1, true}, {0, 0, 0xffffffff, true}, {0xfffffff0, 3, 3 * piece, true}, {3, 0xfffffff0, 3 * piece, true},
	} {
		for _, name := range []string{"fill", "copy", "fill in a loop", "copy in a loop"} {
			chacha.Read(mem)
			copy(want, mem)
			trap := c.trap
			switch name[:4] {
			case "fill":
				if trap = uint64(c.to)+uint64(c.n) > size; !trap {
					for i := range c.n {
						want[c.to+i] = byte(c.from)
					}
				}
			default:
				if !trap {
					copy(want[c.to:c.to+c.n], want[c.from:c.from+c.n])
				}
			}
			before := h.refills
			_, err := m.ExportedFunction(name).Call(h.ctx, uint64(c.to), uint64(c.from), uint64(c.n))
			if (err != nil) != trap {
				t.Fatalf("%s %+v: %v", name, c, err)
			}
			if !bytes.Equal(mem, want) {
				t.Fatalf("%s %+v: the memory is not what it should be", name, c)
			}
			if pieces := int(c.n / piece); !trap && h.refills-before < pieces-1 {
				t.Errorf("%s %+v: the host was called %d times for %d pieces", name, c, h.refills-before, pieces)
			}
		}
	}
}
