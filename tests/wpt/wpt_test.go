package wpt

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"sandboxd/isolate"
)

// An area is one interface with its files of tests, as patterns.
type area struct {
	Name  string
	Files []string
	// Least is the percentage that must pass.
	Least float64
}

// known is what fails, and why, from expected.json.
type known struct {
	// Left are patterns of files that are not run.
	Left []struct {
		Files  []string
		Reason string
	}
	// Fails are subtests by their names.
	Fails []struct {
		File, Reason string
		Tests        []string
	}
}

var areas = []area{
	{"url", []string{"url/*.any.js"}, 95},
	{"encoding", []string{"encoding/*.any.js", "encoding/streams/*.any.js"}, 95},
	{"streams", []string{"streams/*/*.any.js", "streams/*.any.js"}, 95},
	{"blob", []string{"FileAPI/blob/*.any.js", "FileAPI/file/*.any.js"}, 90},
	{"abort", []string{"dom/abort/*.any.js"}, 95},
	{"events", []string{"dom/events/*.any.js"}, 95},
	{"structured clone", []string{"html/webappapis/structured-clone/*.any.js"}, 85},
	{"base64", []string{"html/webappapis/atob/*.any.js"}, 95},
	{"timers", []string{"html/webappapis/timers/*.any.js", "html/webappapis/microtask-queuing/*.any.js"}, 80},
	{"crypto", []string{"WebCryptoAPI/digest/*.any.js", "WebCryptoAPI/*HMAC*/*.any.js", "WebCryptoAPI/generateKey/*HMAC*.any.js", "WebCryptoAPI/sign_verify/hmac*.any.js", "WebCryptoAPI/*.any.js"}, 90},
}

// TestWebPlatform runs the public tests and compares what fails with what is
// known to. UPDATE=FILE writes what fails to FILE instead.
func TestWebPlatform(t *testing.T) {
	k := readKnown(t)
	p := newPool(t)
	var report strings.Builder
	failed := map[string][]subtest{}
	for _, a := range areas {
		t.Run(a.Name, func(t *testing.T) {
			passed, total := 0, 0
			files := a.files(t, k)
			for _, file := range files {
				list := runWPT(t, p, file)
				if len(list) == 0 {
					t.Errorf("%s has no tests", file)
				}
				total += len(list)
				for _, s := range list {
					if s.Passed {
						passed++
					} else {
						failed[file] = append(failed[file], s)
					}
				}
				compare(t, k, file, list)
			}
			share := 100 * float64(passed) / float64(max(total, 1))
			line := fmt.Sprintf("%-17s %5d/%-5d %5.1f %%  %d files", a.Name, passed, total, share, len(files))
			fmt.Fprintln(&report, line)
			if share < a.Least {
				t.Errorf("%s: at least %.0f %% have to pass", line, a.Least)
			}
		})
	}
	t.Log("\n" + report.String())
	if name := os.Getenv("UPDATE"); name != "" {
		b, err := json.MarshalIndent(failed, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func readKnown(t *testing.T) *known {
	t.Helper()
	b, err := os.ReadFile("expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var k known
	if err := json.Unmarshal(b, &k); err != nil {
		t.Fatal(err)
	}
	return &k
}

func newPool(t *testing.T) isolate.Pool {
	t.Helper()
	p, err := isolate.NewInProcess(context.Background(), isolate.Config{GuestDir: guests})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// files are those of an area that are run.
func (a *area) files(t *testing.T, k *known) []string {
	t.Helper()
	root := filepath.Join(suites, "wpt")
	var out []string
	for _, pattern := range a.Files {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if rel, err := filepath.Rel(root, name); err != nil {
				t.Fatal(err)
			} else if !k.leaves(rel) {
				out = append(out, rel)
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("there are no tests in %s; `make wpt` fetches them", root)
	}
	sort.Strings(out)
	return out
}

func (k *known) leaves(file string) bool {
	for _, l := range k.Left {
		for _, pattern := range l.Files {
			if ok, _ := filepath.Match(pattern, file); ok {
				return true
			}
		}
	}
	return false
}

// compare complains of what fails unexpectedly, and of what passes so.
func compare(t *testing.T, k *known, file string, list []subtest) {
	t.Helper()
	reasons := map[string]string{}
	for _, f := range k.Fails {
		if f.File == file {
			for _, name := range f.Tests {
				reasons[name] = f.Reason
			}
		}
	}
	for _, s := range list {
		reason, known := reasons[s.Name]
		switch {
		case s.Passed && known:
			t.Errorf("%s: %q passes, which is said to fail: %s", file, s.Name, reason)
		case !s.Passed && !known:
			t.Errorf("%s: %q: %s", file, s.Name, s.Message)
		}
		delete(reasons, s.Name)
	}
	for name := range reasons {
		t.Errorf("%s: %q is said to fail, and was not run", file, name)
	}
}
