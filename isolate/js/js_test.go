package js

import (
	"slices"
	"testing"
)

// A file that no list names would be left out without a word.
func TestEveryFileIsUsed(t *testing.T) {
	all, err := files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if !slices.Contains(closure, f.Name()) {
			t.Errorf("%s is no part of the prelude", f.Name())
		}
	}
	if n := len(closure); n != len(all) {
		t.Errorf("the lists name %d files, there are %d", n, len(all))
	}
}
