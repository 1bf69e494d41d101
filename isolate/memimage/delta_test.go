package memimage

import (
	"bytes"
	"errors"
	"testing"
)

func TestDelta(t *testing.T) {
	want := content(32)
	img := newImage(t, want)
	m := newMemory(t, img, 64*PageSize)
	for _, p := range []int{0, 1, 9, 100, 101, 400} {
		m.bytes()[p*hostPage+17]++
	}
	changed := bytes.Clone(m.bytes())
	if _, err := m.Delta(5 * hostPage); !errors.Is(err, ErrLargeDelta) {
		t.Errorf("six pages in room for five: %v", err)
	}
	d, err := m.Delta(6 * hostPage)
	if err != nil || d.Bytes() != 6*hostPage {
		t.Fatalf("%d bytes, %v", d.Bytes(), err)
	}
	// What the memory does later does not change what was taken of it.
	clear(m.bytes())
	other := newMemory(t, img, 64*PageSize)
	for round := range 3 {
		if err := other.Apply(d); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(other.bytes(), changed) {
			t.Fatalf("round %d: the memory is not as the one that the delta is of", round)
		}
		other.bytes()[1*hostPage]++
		if _, err := other.Reset(0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(other.bytes(), want) {
			t.Fatalf("round %d: the delta is not undone", round)
		}
	}
}

func TestDeltaOfAGrownMemory(t *testing.T) {
	img := newImage(t, content(4))
	m := newMemory(t, img, 16*PageSize)
	if m.Reallocate(6*PageSize) == nil {
		t.Fatal("it does not grow")
	}
	m.bytes()[5*PageSize+1] = 1
	want := bytes.Clone(m.bytes())
	d, err := m.Delta(1 << 20)
	if err != nil || d.Size() != 6*PageSize || d.Bytes() != hostPage {
		t.Fatalf("%d bytes of %d, %v", d.Bytes(), d.Size(), err)
	}
	other := newMemory(t, img, 16*PageSize)
	if err := other.Apply(d); err == nil {
		t.Error("it is applied to a memory that is too small")
	}
	if other.Reallocate(6*PageSize) == nil {
		t.Fatal("it does not grow")
	}
	if err := other.Apply(d); err != nil || !bytes.Equal(other.bytes(), want) {
		t.Errorf("after it grew: %v", err)
	}
}

// A delta of one image's memory means nothing over another one.
func TestDeltaOfAnotherImage(t *testing.T) {
	m := newMemory(t, newImage(t, content(4)), 16*PageSize)
	m.bytes()[0]++
	d, err := m.Delta(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	other := newMemory(t, newImage(t, content(4)), 16*PageSize)
	if err := other.Apply(d); !errors.Is(err, ErrOtherImage) {
		t.Errorf("applied over another image: %v", err)
	}
}
