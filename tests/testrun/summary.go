package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// summarise prints a line for each stage that was to run and, last, the counts.
// A stage that left no result is a failure: nothing is skipped silently.
func summarise(w io.Writer, dir string, stages []string) error {
	byStage, err := load(dir)
	if err != nil {
		return err
	}
	var failed, skipped []string
	passed := 0
	fmt.Fprintf(w, "\n%-12s %7s %7s %8s %9s  %s\n", "stage", "passed", "failed", "skipped", "time", "where")
	for _, name := range stages {
		parts := byStage[name]
		if len(parts) == 0 {
			parts = []result{{Stage: name, Where: "nowhere: it left no result", Failed: []string{name + ": did not run"}}}
		}
		var sum result
		for _, r := range parts {
			sum.Passed += r.Passed
			sum.Failed = append(sum.Failed, r.Failed...)
			sum.Skipped = append(sum.Skipped, r.Skipped...)
			sum.Elapsed += r.Elapsed
			sum.Where = r.Where
		}
		fmt.Fprintf(w, "%-12s %7d %7d %8d %9s  %s\n", name, sum.Passed, len(sum.Failed), len(sum.Skipped), sum.Elapsed.Round(100*time.Millisecond), sum.Where)
		passed += sum.Passed
		failed = append(failed, sum.Failed...)
		skipped = append(skipped, sum.Skipped...)
	}
	for _, name := range skipped {
		fmt.Fprintln(w, "skipped:", name)
	}
	for _, name := range failed {
		fmt.Fprintln(w, "failed: ", name)
	}
	fmt.Fprintln(w)
	if len(skipped) > 0 {
		fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", passed, len(failed), len(skipped))
	} else {
		fmt.Fprintf(w, "%d passed, %d failed\n", passed, len(failed))
	}
	if len(failed) > 0 {
		return errFailed
	}
	return nil
}

func load(dir string) (map[string][]result, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	byStage := make(map[string][]result)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var r result
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		byStage[r.Stage] = append(byStage[r.Stage], r)
	}
	return byStage, nil
}
