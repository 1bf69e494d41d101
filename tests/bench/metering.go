package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// The packages' own benchmarks run the same code in metered and unmetered
// builds; here they are set against each other.
var meteringBenchmarks = []struct{ pkg, pattern, times, count string }{
	{"./isolate/wasmbin", "^Benchmark(Loops)$/^(tight|mix)$", "5x", "5"},
	{"./isolate/wasmbin", "^Benchmark(QuickJS)$/^(arithmetic|calls|json|sort)$", "60x", "1"},
	{"./isolate", "^BenchmarkPythonMetering$", "6x", "1"},
}

// metering measures what counting down costs.
func metering(ctx context.Context) ([]figure, error) {
	var out []figure
	for _, m := range meteringBenchmarks {
		cmd := exec.CommandContext(ctx, "go", "test", m.pkg, "-run", "^$", "-bench", m.pattern, "-benchtime", m.times, "-count", m.count, "-timeout", "5m")
		cmd.Stderr = os.Stderr
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", m.pkg, err, text)
		}
		out = append(out, pairs(text)...)
	}
	return out, nil
}

// pairs reads benchmarks named …/metered and …/plain or …/unmetered, and takes
// the fastest run of each: what is slower was disturbed.
func pairs(text []byte) []figure {
	took := map[string]float64{}
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || f[3] != "ns/op" {
			continue
		}
		var ns float64
		if _, err := fmt.Sscan(f[2], &ns); err != nil {
			continue
		}
		// BenchmarkName/case/build-processors
		name, _, _ := strings.Cut(strings.TrimPrefix(f[0], "Benchmark"), "-")
		name = strings.Replace(name, "/unmetered", "/plain", 1)
		old, again := took[name]
		if !again || ns < old {
			took[name] = ns
		}
		if base, ok := strings.CutSuffix(name, "/metered"); ok && !again {
			names = append(names, base)
		}
	}
	var out []figure
	for _, n := range names {
		if plain := took[n+"/plain"]; plain > 0 {
			out = append(out, figure{Name: "metering: " + n, Value: took[n+"/metered"] / plain, Unit: "× unmetered"})
		}
	}
	return out
}
