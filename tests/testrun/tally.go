package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// An event is one line of `go test -json`.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
	// ImportPath stands in for Package in build events.
	ImportPath string
}

// shown is how much output of one failed test goes to the terminal; all of it
// is in the log.
const shown = 8 << 10

// A tally counts test events into a result and shows what a person wants to
// see: a line for each package, and the output of what failed.
type tally struct {
	result *result
	log    io.Writer
	show   io.Writer
	output map[string]*bytes.Buffer // of each test and package that still runs
	open   map[string]bool          // tests begun and not ended
	inPkg  map[string]int           // failures noted for a package
}

func newTally(r *result, log, show io.Writer) *tally {
	return &tally{result: r, log: log, show: show,
		output: make(map[string]*bytes.Buffer), open: make(map[string]bool), inPkg: make(map[string]int)}
}

func (t *tally) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		// Not of the test runner: a program's own words.
		t.print(string(line))
		return
	}
	if e.Package == "" {
		e.Package = e.ImportPath
	}
	key := e.Package
	if e.Test != "" {
		key += " " + e.Test
	}
	switch e.Action {
	case "run":
		t.open[key] = true
	case "output", "build-output":
		fmt.Fprint(t.log, e.Output)
		if t.output[key] == nil {
			t.output[key] = new(bytes.Buffer)
		}
		t.output[key].WriteString(e.Output)
	case "pass", "fail", "skip", "build-fail":
		t.end(e, key)
		delete(t.output, key)
		delete(t.open, key)
	}
}

func (t *tally) end(e event, key string) {
	switch {
	case e.Test != "" && e.Action == "pass":
		t.result.Passed++
	case e.Test != "" && e.Action == "skip":
		t.result.Skipped = append(t.result.Skipped, key)
		t.fragment("SKIP", key)
	case e.Action == "fail" && e.Test != "", e.Action == "build-fail":
		t.fail(e.Package, key)
	case e.Action == "fail":
		// The package failed: for a test already told, or by itself (it did
		// not build, its TestMain failed, it was killed).
		if t.inPkg[e.Package] == 0 {
			t.fail(e.Package, key)
		}
		t.print(fmt.Sprintf("FAIL  %s  %.1fs\n", e.Package, e.Elapsed))
	case e.Action == "pass":
		t.print(fmt.Sprintf("ok    %s  %.1fs\n", e.Package, e.Elapsed))
	}
}

// close counts the tests that never ended: the program died under them.
func (t *tally) close() {
	var left []string
	for key := range t.open {
		left = append(left, key)
	}
	slices.Sort(left)
	for _, key := range left {
		t.fail(strings.Fields(key)[0], key)
	}
}

func (t *tally) fail(pkg, key string) {
	t.inPkg[pkg]++
	t.result.Failed = append(t.result.Failed, key)
	t.fragment("FAIL", key)
}

func (t *tally) fragment(word, key string) {
	text := ""
	if b := t.output[key]; b != nil {
		text = b.String()
	}
	if len(text) > shown {
		text = text[:shown/2] + "\n… the middle is in the log …\n" + text[len(text)-shown/2:]
	}
	t.print(fmt.Sprintf("%s  %s\n%s", word, key, text))
}

func (t *tally) print(text string) {
	fmt.Fprint(t.log, text)
	fmt.Fprint(t.show, text)
}
