package daemon

import (
	"context"
	"errors"
	"strconv"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/jail"
)

// What a command's receipt tells beside its exit and use: what it was refused,
// and the files that changed. Refusals of the network come while it runs, see
// observe; those of the path are not known to us, for the programs hear of them
// alone (the kernel tells others only through its audit log, which is the whole
// host's and off by default).

func refusedCalls(calls []jail.RefusedCall) []api.Denial {
	var out []api.Denial
	for _, r := range calls {
		d := api.Denial{Kind: "syscall", What: r.Name, Rule: "seccomp", Time: r.First.UTC(), Scope: "run"}
		if r.Count > 1 {
			d.Count = r.Count
		}
		out = append(out, d)
	}
	return out
}

// exitDenials are the refusals that are known once the command has ended.
func (e *execution) exitDenials(exit *jail.Exit) []api.Denial {
	out := refusedCalls(exit.Refused)
	now := time.Now().UTC()
	if exit.Signal == "SIGSYS" {
		out = append(out, api.Denial{Kind: "syscall", What: "a call that ends the program: of modules, kexec, reboot or another ABI", Rule: "seccomp", Time: now, Scope: "run"})
	}
	limit := func(name, rule, scope string, count int64) {
		out = append(out, api.Denial{Kind: "limit", What: name, Rule: rule, Time: now, Scope: scope, Count: count})
	}
	if exit.TimedOut {
		limit("wall", e.timeout.String(), "run", 0)
	}
	if exit.OOMKilled {
		limit("memory", e.j.bounds().Memory.String(), "run", 0)
	}
	if exit.Truncated {
		limit("output", strconv.FormatInt(e.output, 10), "run", 0)
	}
	if exit.PidsRefused > 0 {
		limit("pids", strconv.Itoa(e.j.bounds().Pids), "jail", exit.PidsRefused)
	}
	if exit.Code != 0 {
		if full := e.j.jail.DiskFull(); full != "" {
			limit(full, "limits."+full, "jail", 0)
		}
	}
	return out
}

const (
	// maxReceiptChanges bounds the files of a receipt, receiptTime the search for
	// them.
	maxReceiptChanges = 1000
	receiptTime       = 5 * time.Second
)

// noteChanges looks for the files that changed, if they are wanted.
func (e *execution) noteChanges(ctx context.Context) {
	if !e.wantChanges {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, receiptTime)
	defer cancel()
	found, err := e.j.jail.ChangedSince(ctx, e.moment, maxReceiptChanges)
	if err != nil {
		if !errors.Is(err, jail.ErrGone) {
			e.j.d.log.Warn("the files that a command changed could not be listed", "tenant", e.j.tenant, "exec", e.id, "error", err)
		}
		found = &jail.DiffResult{Truncated: true}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changes = changes(found)
}

// addDenial adds a refusal to a list of bounded length; what is there already is
// counted.
func addDenial(list []api.Denial, d api.Denial) []api.Denial {
	for i := range list {
		if old := &list[i]; old.Kind == d.Kind && old.What == d.What && old.Rule == d.Rule && old.Scope == d.Scope {
			old.Count = max(old.Count, 1) + max(d.Count, 1)
			return list
		}
	}
	return append(list, d)
}
