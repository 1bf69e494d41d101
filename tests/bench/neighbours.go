package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// greedy is code that leaves its neighbours as little as it can, by the way in
// which it works: compiled code of the interpreter, one of its built-in functions,
// a function of the host's that is given as much as it takes, C.
var greedy = []struct{ name, language, code string }{
	{"JavaScript loops", "js", "export default () => { for (;;); }"},
	{"JavaScript, long text to bytes and back", "js", `export default () => {
	const s = 'x'.repeat(8e6), e = new TextEncoder, d = new TextDecoder('utf-16le');
	for (;;) d.decode(e.encode(s));
}`},
	{"JavaScript, large built-ins", "js", `export default () => {
	const a = new Uint8Array(20e6), b = new Array(1e5).fill('abc');
	for (;;) { a.fill(1); a.copyWithin(1, 0); JSON.stringify(b); String(7n ** 30000n); /^(a+)+$/.test('a'.repeat(18) + 'b'); }
}`},
	{"Python loops", "python", "def main(i, env):\n  while True: pass"},
	{"Python, files of 20 MB", "python", "def main(i, env):\n  b = bytes(20000000)\n  while True: open('/tmp/x', 'wb').write(b)"},
}

// crowds are the numbers of greedy runs, each of another tenant.
var crowds = []int{2, 4, 8}

// neighbours measures a small call alone and beside code of others.
func neighbours(ctx context.Context, sys *harness.System, rounds int) ([]row, error) {
	call := step{"fresh JavaScript call, alone", increment(sys.API, tenant, "js", trivial)}
	rows, err := measure(ctx, rounds, []step{call})
	if err != nil {
		return nil, err
	}
	for _, g := range greedy {
		body, err := json.Marshal(api.RunRequest{Language: g.language, Code: g.code})
		if err != nil {
			return nil, err
		}
		for _, n := range crowds {
			beside, err := besides(ctx, sys, body, n, rounds, step{fmt.Sprintf("beside %d × %s", n, g.name), call.do})
			if err != nil {
				return nil, err
			}
			beside.against(&rows[0])
			rows = append(rows, *beside)
		}
	}
	return rows, nil
}

// besides measures s while n tenants run a body.
func besides(ctx context.Context, sys *harness.System, body []byte, n, rounds int, s step) (*row, error) {
	ctx, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	for i := range n {
		group.Go(func() {
			c := harness.NewClient(sys.API.Socket)
			defer c.Close()
			for ctx.Err() == nil {
				// It ends with its limit; what it says is of no interest.
				_, _ = c.Do(ctx, "POST", fmt.Sprintf("/v1/tenants/%s-greedy-%d/run", tenant, i), body)
			}
		})
	}
	rows, err := measure(ctx, rounds, []step{s})
	if err != nil {
		return nil, err
	}
	return &rows[0], nil
}

// collector measures what the garbage collector of a worker waits for greedy code
// at p90: a worker of the package's own test collects all the time and says so.
func collector(ctx context.Context) ([]figure, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "./isolate", "-run", "^TestCollector$", "-v", "-count", "1", "-timeout", "5m")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("./isolate: %w: %s", err, text)
	}
	return waits(text), nil
}

// waits reads lines such as "x_test.go:1: beside a loop the collector waited 80µs".
func waits(text []byte) []figure {
	var out []figure
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		_, after, _ := strings.Cut(lines.Text(), ": beside ")
		name, took, ok := strings.Cut(after, " the collector waited ")
		d, err := time.ParseDuration(took)
		if ok && err == nil {
			out = append(out, figure{Name: "collector's wait beside " + name, Value: float64(d.Microseconds()) / 1000, Unit: "ms", Note: "p90 in a worker that always collects"})
		}
	}
	return out
}
