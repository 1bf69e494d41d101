package recording

import (
	"encoding/json"
	"fmt"

	"sandboxd/daemon/api"
)

// An Outcome is how a run ended, by hashes of what it gave.
type Outcome struct {
	Status string
	Phase  string
	Result string
	Error  string
	// ErrorCode and ErrorText are what a person wants to know of the error.
	ErrorCode string
	ErrorText string
	Logs      []string // the beginning of each line's hash
	Stdout    string
	Stderr    string
	ExitCode  int   // -1: none
	CPU       int64 // ns
	Memory    int64
	Output    int64
	Requests  int64
	// Timed says why the end depended on real time, "" if it did not.
	Timed string
}

// logHash is how many characters of the hash of a log line are kept.
const logHash = 16

// OutcomeOf describes a run that has ended.
func OutcomeOf(r *api.Run) (Outcome, error) {
	o := Outcome{Status: r.Status, Phase: r.Phase, Memory: used(r.Usage.MemoryPeak), Output: used(r.Usage.Output), Requests: used(r.Usage.Requests)}
	if o.ExitCode = -1; r.ExitCode != nil {
		o.ExitCode = *r.ExitCode
	}
	if r.Usage.CPU.Used != nil {
		o.CPU = int64(*r.Usage.CPU.Used)
	}
	if r.Result != nil {
		o.Result = hashOf(r.Result)
	}
	for _, text := range []struct {
		from string
		to   *string
	}{{r.Stdout, &o.Stdout}, {r.Stderr, &o.Stderr}} {
		if text.from != "" {
			*text.to = hashOf([]byte(text.from))
		}
	}
	if r.Error != nil {
		b, err := json.Marshal(r.Error)
		if err != nil {
			return o, fmt.Errorf("recording: an error: %w", err)
		}
		o.Error, o.ErrorCode, o.ErrorText = hashOf(b), r.Error.Code, clip(r.Error.Message)
		o.Timed = timed(r.Error)
	}
	for i := range r.Logs {
		b, err := json.Marshal(&r.Logs[i])
		if err != nil {
			return o, fmt.Errorf("recording: a log line: %w", err)
		}
		o.Logs = append(o.Logs, hashOf(b)[:logHash])
	}
	return o, nil
}

func clip(s string) string {
	const most = 500
	if len(s) > most {
		return string([]rune(s[:most])) + "…"
	}
	return s
}

func used(u api.CountUse) int64 {
	if u.Used == nil {
		return 0
	}
	return *u.Used
}

// timed tells an end that came by the clock on the wall or from outside from one
// that the code came to by itself.
func timed(e *api.Error) string {
	switch {
	case e.Code == api.CodeCanceled:
		return "it was canceled"
	case e.Code == api.CodeLimit && e.Limit == "wall":
		return "it was ended by its limit of real time (wall)"
	case e.Code == api.CodeLimit && e.Limit == "compile":
		return "its code could not be compiled in time"
	case e.Code == api.CodeLimit && e.Limit == "answers":
		return "it was ended because answers came faster than it took them"
	case e.Code == api.CodeInternal:
		return "its worker was lost"
	}
	return ""
}

// maxDiffers is how many differences are named.
const maxDiffers = 32

// Differs names what of a replay is not as it was recorded.
func (o *Outcome) Differs(now *Outcome) []string {
	var out []string
	for _, p := range []struct {
		name string
		same bool
	}{
		{"status", o.Status == now.Status}, {"phase", o.Phase == now.Phase}, {"result", o.Result == now.Result}, {"error", o.Error == now.Error},
		{"exit_code", o.ExitCode == now.ExitCode}, {"stdout", o.Stdout == now.Stdout}, {"stderr", o.Stderr == now.Stderr}, {"usage.cpu", o.CPU == now.CPU},
		{"usage.memory_peak", o.Memory == now.Memory}, {"usage.output", o.Output == now.Output}, {"usage.requests", o.Requests == now.Requests},
	} {
		if !p.same {
			out = append(out, p.name)
		}
	}
	for i := range max(len(o.Logs), len(now.Logs)) {
		if i >= len(o.Logs) || i >= len(now.Logs) || o.Logs[i] != now.Logs[i] {
			out = append(out, fmt.Sprintf("logs[%d]", i))
		}
		if len(out) >= maxDiffers {
			break
		}
	}
	return out
}
