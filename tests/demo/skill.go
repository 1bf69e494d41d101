package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// tellSkill runs a good function and four bad ones for alice.
func tellSkill(ctx context.Context, d *daemon, w *world) error {
	headline("The skill: a function for alice, in an isolate")
	say("alice's rows, put there by the service that owns them:")
	for _, sql := range []string{
		"create table orders (item text, cents integer, paid integer)",
		"insert into orders values ('lamp', 4000, 0), ('desk', 21000, 0), ('chair', 9900, 1)",
	} {
		if _, err := d.want(ctx, 0, nil, "db", "exec", "alice", sql); err != nil {
			return err
		}
	}
	skill := func(name string) string { return filepath.Join(d.skills, name) }

	say("The function queries them and fetches rates from %s. The proxy adds the token; the function never has it.", apiHost)
	o, err := d.want(ctx, 0, nil, "--json", "run", "-t", "alice", "--allow", apiHost, "--input", `{"currency":"USD"}`, skill("invoice.ts"))
	if err != nil {
		return err
	}
	if err := checkInvoice(o.stdout); err != nil {
		return err
	}
	if w.authorised.Load() != 1 || w.refused.Load() != 0 {
		return fmt.Errorf("the API saw %d requests with its token and %d without, not 1 and 0", w.authorised.Load(), w.refused.Load())
	}
	say("The API saw one request, with its token.")

	say("An endless loop:")
	if _, err := d.want(ctx, 1, []string{"limit_exceeded", "cpu"}, "run", "-t", "alice", skill("loop.js")); err != nil {
		return err
	}
	say("Memory without end:")
	if _, err := d.want(ctx, 1, []string{"limit_exceeded", "memory"}, "run", "-t", "alice", skill("hoard.js")); err != nil {
		return err
	}
	if err := snoop(ctx, d, skill("snoop.js")); err != nil {
		return err
	}
	say("A fetch to a host that was not granted:")
	_, err = d.want(ctx, 1, []string{"collector.example"}, "run", "-t", "alice", "--allow", apiHost, "--input", `{"card":"4242"}`, skill("elsewhere.js"))
	return err
}

func checkInvoice(answer string) error {
	var run struct {
		Status string
		Result struct {
			Orders   int
			Currency string
			Total    float64
		}
	}
	if err := json.Unmarshal([]byte(answer), &run); err != nil {
		return fmt.Errorf("the run's answer: %w", err)
	}
	if run.Status != "ok" || run.Result.Orders != 2 || run.Result.Total != 312.5 {
		return fmt.Errorf("the invoice came out as %+v, not as 2 orders for 312.5 USD", run.Result)
	}
	return nil
}

// snoop lets a function dump all it can reach; quiet holds the dump against the
// secrets.
func snoop(ctx context.Context, d *daemon, file string) error {
	say("A dump of everything a function can reach, and of the API's answer with its headers:")
	o, err := d.quiet(ctx, "--json", "run", "-t", "alice", "--allow", apiHost, file)
	if err != nil {
		return err
	}
	var run struct {
		Status string
		Result []string
	}
	if err := json.Unmarshal([]byte(o.stdout), &run); err != nil || run.Status != "ok" {
		return errors.Join(fmt.Errorf("the dump ended with %q: %s", run.Status, o.all()), err)
	}
	if len(run.Result) < 100 || !strings.Contains(o.stdout, "answer: ") {
		return fmt.Errorf("the dump is too short to mean anything: %d values", len(run.Result))
	}
	for _, line := range run.Result {
		if strings.HasPrefix(line, "env.") || strings.HasPrefix(line, "answer") {
			fmt.Printf("  │ %s\n", line)
		}
	}
	fmt.Printf("  │ … %d values in all; neither token is among them\n", len(run.Result))
	return nil
}
