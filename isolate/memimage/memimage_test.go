package memimage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// content is a memory with zeros in between, also a run of them longer than gap.
func content(pages int) []byte {
	b := make([]byte, pages*PageSize)
	r := rand.New(rand.NewPCG(1, 2))
	for p := 0; p < len(b); p += hostPage {
		if p/hostPage%5 != 0 && (p < 20*hostPage || p > 20*hostPage+2*gap) {
			for i := p; i < p+hostPage; i += 8 {
				b[i] = byte(r.Uint32())
			}
			b[p] = 1
		}
	}
	return b
}

func newImage(t *testing.T, b []byte) *Image {
	t.Helper()
	f, err := Seal("test", b)
	if err != nil {
		t.Fatal(err)
	}
	img, err := Open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := img.Close(); err != nil {
			t.Error(err)
		}
	})
	return img
}

func newMemory(t *testing.T, img *Image, reserved uint64) *Memory {
	t.Helper()
	m := NewMemory(img, reserved)
	m.Allocate(0, 0)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	if m.Reallocate(img.Size()) == nil {
		t.Fatal("the image's size is refused")
	}
	return m
}

func TestMemoryIsPrivate(t *testing.T) {
	want := content(32)
	img := newImage(t, want)
	a, b := newMemory(t, img, 64*PageSize), newMemory(t, img, 64*PageSize)
	if !bytes.Equal(a.bytes(), want) {
		t.Fatal("a new memory does not read as the image")
	}
	copy(a.bytes()[3*hostPage:], "written")
	if !bytes.Equal(b.bytes(), want) || !bytes.Equal(img.all, want) {
		t.Error("what one instance writes is seen by another")
	}
}

// TestReset writes anywhere, again and again, with and without knowing from the
// kernel what was written.
func TestReset(t *testing.T) {
	for _, blind := range []bool{false, true} {
		t.Run(fmt.Sprintf("blind=%v", blind), func(t *testing.T) { testReset(t, blind) })
	}
}

func testReset(t *testing.T, blind bool) {
	want := content(32)
	img := newImage(t, want)
	r := rand.New(rand.NewPCG(3, 4))
	write := func(m *Memory, page int) { m.bytes()[page*hostPage+r.IntN(hostPage)]++ }
	first := newMemory(t, img, 64*PageSize)
	for _, p := range []int{0, 1, 9, 100, 101, 102, 400} {
		write(first, p)
	}
	if err := img.Learn(first); err != nil {
		t.Fatal(err)
	}
	if img.Hot() != 7*hostPage {
		t.Errorf("%d bytes are hot", img.Hot())
	}
	if own, err := first.Own(); err != nil || own != 7*hostPage {
		t.Errorf("it holds %d bytes of its own: %v", own, err)
	}
	m := newMemory(t, img, 64*PageSize)
	if err := m.Prepare(); err != nil || !bytes.Equal(m.bytes(), want) {
		t.Fatalf("prepared, it does not read as the image: %v", err)
	}
	if blind {
		img.pagemap.Close()
		img.pagemap = nil
	}
	for round := range 50 {
		for range r.IntN(30) {
			write(m, r.IntN(len(want)/hostPage))
		}
		for _, p := range []int{0, 9, 101} {
			write(m, p)
		}
		held := m.warm
		most := uint64(round%3) * 9 * hostPage
		added, err := m.Reset(most)
		if err != nil {
			t.Fatal(err)
		}
		if !blind {
			want := img.Hot()
			if added < most {
				want += min(held+added, maxWarm)
			}
			if own, err := m.Own(); err != nil || own > want {
				t.Fatalf("round %d: %d bytes are held, %d may be: %v", round, own, want, err)
			}
		}
		if !bytes.Equal(m.bytes(), want) {
			t.Fatalf("round %d: the memory is not as new", round)
		}
	}
	err := m.Cool()
	if own, oerr := m.Own(); !blind && (err != nil || oerr != nil || own > img.Hot()) {
		t.Errorf("cooled, it holds %d bytes of its own: %v, %v", own, err, oerr)
	}
	if err != nil || !bytes.Equal(m.bytes(), want) {
		t.Errorf("cooled, it is not as new: %v", err)
	}
	for i := range m.bytes() {
		m.bytes()[i] = 0xff
	}
	if _, err := m.Reset(9 * hostPage); err != nil || !bytes.Equal(m.bytes(), want) {
		t.Errorf("written all over, it is not as new: %v", err)
	}
}

func TestDrop(t *testing.T) {
	want := content(8)
	m := newMemory(t, newImage(t, want), 16*PageSize)
	for i := range m.bytes() {
		m.bytes()[i] = 0xff
	}
	if err := m.Drop(); err != nil || !bytes.Equal(m.bytes(), want) {
		t.Errorf("the memory is not as new: %v", err)
	}
}

func TestGrowth(t *testing.T) {
	img := newImage(t, content(4))
	m := newMemory(t, img, 16*PageSize)
	var wanted uint64
	m.SetLimit(6*PageSize+17, func(want uint64) { wanted = want })
	if b := m.Reallocate(6 * PageSize); len(b) != 6*PageSize || b[5*PageSize] != 0 {
		t.Error("the limit itself is refused")
	}
	if m.Reallocate(7*PageSize) != nil || wanted != 7*PageSize {
		t.Errorf("more than the limit is given; over was told %d", wanted)
	}
	if _, err := m.Reset(0); err == nil {
		t.Error("a memory that has grown is taken for clean")
	}
}

func TestOpenRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, PageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(f); !errors.Is(err, ErrNotSealed) {
		t.Errorf("a file that others can change: %v", err)
	}
	odd, err := Seal("test", make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(odd); err == nil {
		t.Error("100 bytes are taken for a linear memory")
	}
}

func TestSealedCannotBeWritten(t *testing.T) {
	f, err := Seal("test", content(1))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("it can be written")
	}
	if err := f.Truncate(0); err == nil {
		t.Error("it can be cut")
	}
}

func TestSpans(t *testing.T) {
	outer := []span{{0, 4}, {10, 20}, {30, 40}}
	if got := widen([]span{{0, hostPage}, {near, 2 * near}, {4 * near, 5 * near}}); len(got) != 2 || got[0] != (span{0, 2 * near}) {
		t.Errorf("widen: %v", got)
	}
	if got := gaps(outer, 50); len(got) != 3 || got[0] != (span{4, 10}) || got[2] != (span{40, 50}) {
		t.Errorf("gaps: %v", got)
	}
}
