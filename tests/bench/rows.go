package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// A row is one measured thing. Times are in nanoseconds in JSON.
type row struct {
	Name   string        `json:"name"`
	Floor  string        `json:"floor,omitempty"` // name of the row it is held against
	Rounds int           `json:"rounds"`
	P50    time.Duration `json:"p50_ns"`
	P99    time.Duration `json:"p99_ns"`
	// Ratio50 and Ratio99 are P50 and P99 over the floor's.
	Ratio50 float64 `json:"p50_ratio,omitempty"`
	Ratio99 float64 `json:"p99_ratio,omitempty"`
	Note    string  `json:"note,omitempty"`
}

// A step is one timed part of a round.
type step struct {
	name string // "": it is done between two others, and has no row
	do   func(ctx context.Context) error
}

// warmUp rounds are not counted: connections, page cache, pools.
const warmUp = 10

// measure runs the steps in turn, round after round. The first step is the
// floor of the others.
func measure(ctx context.Context, rounds int, steps []step) ([]row, error) {
	times := make([][]time.Duration, len(steps))
	for i := range warmUp + rounds {
		for j, s := range steps {
			began := time.Now()
			if err := s.do(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			if i >= warmUp {
				times[j] = append(times[j], time.Since(began))
			}
		}
	}
	var rows []row
	for j, s := range steps {
		if s.name == "" {
			continue
		}
		r := row{Name: s.name, Rounds: rounds, P50: quantile(times[j], 0.50), P99: quantile(times[j], 0.99)}
		if j > 0 {
			r.against(&rows[0])
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// against makes floor the row's floor.
func (r *row) against(floor *row) {
	r.Floor, r.Ratio50, r.Ratio99 = floor.Name, float64(r.P50)/float64(floor.P50), float64(r.P99)/float64(floor.P99)
}

// quantile is the nearest-rank quantile.
func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

const tenant = harness.AgentPrefix + "bench"

// trivial is the code of the rows.
const trivial = "export default (input) => input + 1"

// isolateRow: a trivial function in a fresh isolate, over the same socket and
// connection as a request that does nothing.
func isolateRow(sys *harness.System) []step {
	return []step{nothing(sys), {"trivial function in a fresh isolate", increment(sys.API, tenant, "js", trivial)}}
}

// functionRow: the same function, deployed before.
func functionRow(ctx context.Context, sys *harness.System) ([]step, error) {
	const path = "/v1/tenants/" + tenant + "/functions/increment"
	code, err := json.Marshal(api.FunctionRequest{Language: "js", Code: trivial})
	if err != nil {
		return nil, err
	}
	if _, err := call(ctx, sys.API, "PUT", path, code); err != nil {
		return nil, err
	}
	return []step{nothing(sys), {"the same as a deployed function", incrementAt(sys.API, path+"/invoke", []byte(`{"input":1}`))}}, nil
}

// anewRow: the same call against a server that instantiates the interpreter for
// every request, see anew.go. A group of its own, because what that leaves in the
// processor's caches slows what comes next.
func anewRow(sys *harness.System, other *harness.Client, name, path string) []step {
	body, err := json.Marshal(map[string]any{"code": "(input) => input + 1", "input": 1})
	return []step{
		{name, func(ctx context.Context) error {
			if err != nil {
				return err
			}
			text, err := call(ctx, other, "POST", path, body)
			if err == nil && string(text) != `{"result":2}`+"\n" {
				err = fmt.Errorf("1 + 1 came out as %q", text)
			}
			return err
		}},
		{"trivial function in a fresh isolate", increment(sys.API, tenant, "js", trivial)},
	}
}

// pythonRow is a group of its own: Python's memory is made clean after the
// answer, which takes a core from the request that follows (its floor is slower
// than isolateRow's for that reason).
func pythonRow(sys *harness.System) []step {
	return []step{nothing(sys), {"trivial Python function in a fresh isolate", increment(sys.API, tenant, "python", "def main(input, env):\n    return input + 1\n")}}
}

func nothing(sys *harness.System) step {
	return step{"HTTP request that does nothing (/healthz)", func(ctx context.Context) error {
		_, err := call(ctx, sys.API, "GET", "/healthz", nil)
		return err
	}}
}

// increment runs code that adds one.
func increment(c *harness.Client, tenant, language, code string) func(context.Context) error {
	// Encoded once: the client's work is the same for all requests.
	body, err := json.Marshal(api.RunRequest{Language: language, Code: code, Input: json.RawMessage("1")})
	if err != nil {
		return func(context.Context) error { return err }
	}
	return incrementAt(c, "/v1/tenants/"+tenant+"/run", body)
}

// incrementAt makes a request whose run adds one to one.
func incrementAt(c *harness.Client, path string, body []byte) func(context.Context) error {
	return func(ctx context.Context) error {
		text, err := call(ctx, c, "POST", path, body)
		if err != nil {
			return err
		}
		var r api.Run
		if err := json.Unmarshal(text, &r); err != nil {
			return err
		}
		if string(r.Result) != "2" {
			return fmt.Errorf("1 + 1 came out as %q: %+v", r.Result, r.Error)
		}
		return nil
	}
}

func call(ctx context.Context, c *harness.Client, method, path string, body []byte) ([]byte, error) {
	var content any
	if body != nil {
		content = body
	}
	a, err := c.Do(ctx, method, path, content)
	if err != nil {
		return nil, err
	}
	if a.Status/100 != 2 {
		return nil, fmt.Errorf("%s %s: %d: %s", method, path, a.Status, a.Body)
	}
	return a.Body, nil
}
