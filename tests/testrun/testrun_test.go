package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func events(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

func TestTally(t *testing.T) {
	const (
		runA  = `{"Action":"run","Package":"p","Test":"TestA"}`
		passA = `{"Action":"pass","Package":"p","Test":"TestA"}`
		runB  = `{"Action":"run","Package":"p","Test":"TestB"}`
		outB  = `{"Action":"output","Package":"p","Test":"TestB","Output":"b_test.go:1: no\n"}`
		failB = `{"Action":"fail","Package":"p","Test":"TestB"}`
		skipB = `{"Action":"skip","Package":"p","Test":"TestB"}`
		passP = `{"Action":"pass","Package":"p"}`
		failP = `{"Action":"fail","Package":"p"}`
	)
	tests := []struct {
		name, in string
		passed   int
		failed   []string
		skipped  []string
		shows    string
	}{
		{"pass", events(runA, passA, passP), 1, nil, nil, "ok    p"},
		{"a failed test fails its package once", events(runA, passA, runB, outB, failB, failP), 1, []string{"p TestB"}, nil, "b_test.go:1: no"},
		{"a package that fails by itself", events(runA, passA, failP), 1, []string{"p"}, nil, "FAIL  p"},
		{"skips are told", events(runB, skipB, passP), 0, nil, []string{"p TestB"}, "SKIP  p TestB"},
		{"died under a test", events(runA, passA, runB, outB), 1, []string{"p TestB"}, nil, "FAIL  p TestB"},
		{"did not build", events(`{"Action":"build-output","ImportPath":"p","Output":"x.go:1: syntax\n"}`, `{"Action":"build-fail","ImportPath":"p"}`, failP),
			0, []string{"p"}, nil, "x.go:1: syntax"},
		{"other text", events("booting", runA, passA), 1, nil, nil, "booting"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r result
			var log, show bytes.Buffer
			tally := newTally(&r, &log, &show)
			for line := range strings.Lines(tt.in) {
				tally.line([]byte(line))
			}
			tally.close()
			if r.Passed != tt.passed || !slices.Equal(r.Failed, tt.failed) || !slices.Equal(r.Skipped, tt.skipped) {
				t.Errorf("counted %d passed, failed %q, skipped %q", r.Passed, r.Failed, r.Skipped)
			}
			if !strings.Contains(show.String(), tt.shows) {
				t.Errorf("shows %q, want %q in it", show.String(), tt.shows)
			}
		})
	}
}

func TestStagesAndSummary(t *testing.T) {
	dir := t.TempDir()
	good := `printf '{"Action":"run","Package":"p","Test":"TestA"}\n{"Action":"pass","Package":"p","Test":"TestA"}\n'`
	tests := []struct {
		stage string
		args  []string
		fails bool
	}{
		{"unit", []string{"run", "-stage", "unit", "-where", "here", "-out", dir, "--", "sh", "-c", good}, false},
		{"vet", []string{"check", "-stage", "lint", "-name", "vet", "-out", dir, "--", "true"}, false},
		{"fmt", []string{"check", "-stage", "lint", "-name", "fmt", "-out", dir, "--", "false"}, true},
		{"no test", []string{"run", "-stage", "none", "-out", dir, "--", "true"}, true},
		{"dies after its tests", []string{"run", "-stage", "dies", "-out", dir, "--", "sh", "-c", good + "; exit 3"}, true},
		{"hangs", []string{"run", "-stage", "hangs", "-timeout", "100ms", "-out", dir, "--", "sleep", "60"}, true},
	}
	for _, tt := range tests {
		start := time.Now()
		if err := run(context.Background(), tt.args); errors.Is(err, errFailed) != tt.fails {
			t.Errorf("%s: %v", tt.stage, err)
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("%s: took %v", tt.stage, took)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "unit.log")); err != nil {
		t.Error(err)
	}
	var out bytes.Buffer
	err := summarise(&out, dir, []string{"lint", "unit", "none", "dies", "hangs", "forgotten"})
	if !errors.Is(err, errFailed) {
		t.Errorf("summary: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got, want := lines[len(lines)-1], "3 passed, 5 failed"; got != want {
		t.Errorf("closing line %q, want %q\n%s", got, want, out.String())
	}
	for _, want := range []string{"none: ran no test", "took longer than 100ms", "forgotten: did not run", "lint/fmt"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("summary lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	if err := summarise(&out, dir, []string{"unit"}); err != nil || !strings.HasSuffix(out.String(), "\n1 passed, 0 failed\n") {
		t.Errorf("summary of what passed: %v\n%s", err, out.String())
	}
}
