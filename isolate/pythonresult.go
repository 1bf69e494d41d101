package isolate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"sandboxd/isolate/cpython"
)

// A raised is what the guest tells of an exception.
type raised struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Stack   string `json:"stack"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Hint    string `json:"hint"`
	// Depth is how many calls were nested, where that was too much.
	Depth int `json:"depth"`
}

// failed makes an Error of an exception.
func (r *pythonRun) failed(text string) *Error {
	var x raised
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		return &Error{Kind: KindThrown, Message: "the code raised something that cannot be shown"}
	}
	e := &Error{Kind: KindThrown, Message: cut(x.Message, maxMessage), File: cut(x.File, 255), Line: x.Line, Column: x.Column,
		Stack: cut(x.Stack, maxStackText), Hint: cut(x.Hint, maxMessage)}
	switch x.Kind {
	case "syntax":
		e.Kind = KindRejected
	case "binding":
		e.Kind = KindBinding
	case "stack":
		return overStack(e, x.Depth+1, x.Depth, "nested calls")
	}
	return e
}

// result turns how the VM's run ended into a Result.
func (r *pythonRun) result(err error) *Result {
	r.usage.Wall, r.usage.CPU, r.usage.MemoryPeak = time.Since(r.started), r.cpu(), int64(r.vm.Memory())
	res := &Result{Phase: r.phase, Usage: r.usage}
	e := r.failure(err)
	switch {
	case e == nil:
		res.Status, res.Phase, res.Value = StatusOK, PhaseFinished, r.outcome.value
		return res
	case e.Kind == KindLimit || e.Kind == KindCanceled:
		res.Status = StatusKilled
	default:
		res.Status = StatusError
		if r.phase != PhaseNotStarted {
			res.Phase = PhaseFinished
		}
	}
	res.Error = e
	if e.Kind == KindLimit && e.File == "" && r.phase != PhaseNotStarted {
		r.locate(e)
	}
	e.addSource(r.req)
	return res
}

// maxLocated is how many frames a limit's error shows, innermost ones.
const maxLocated = 12

// locate says what the code was at when a limit ended it.
func (r *pythonRun) locate(e *Error) {
	frames, before := r.vm.Where(func(file string) bool { _, own := r.req.Modules[file]; return own }, maxLocated)
	if len(frames) == 0 {
		return
	}
	var b strings.Builder
	last := frames[len(frames)-1]
	e.File, e.Line, e.Column = last.File, last.Line, last.Column
	if before > 0 {
		fmt.Fprintf(&b, "  [%d frames before]\n", before)
	}
	for _, f := range frames {
		fmt.Fprintf(&b, "  File %q, line %d, in %s\n", f.File, f.Line, f.Function)
		lines := strings.SplitN(r.req.Modules[f.File], "\n", f.Line+1)
		if f.Line > 0 && f.Line <= len(lines) {
			fmt.Fprintf(&b, "    %s\n", cut(strings.TrimSpace(lines[f.Line-1]), 200))
		}
	}
	e.Stack = cut("The code was here when it was ended (most recent call last):\n"+strings.ToValidUTF8(b.String(), "\uFFFD"), maxStackText)
}

// failure is the *Error of a run, nil if it has a result.
func (r *pythonRun) failure(err error) *Error {
	var e *Error
	var mem *cpython.MemoryError
	var exit *cpython.ExitError
	var crash *cpython.CrashError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &mem):
		return limitError("memory", mem.Want, mem.Limit)
	case errors.As(err, &exit):
		return &Error{Kind: KindThrown, Message: fmt.Sprintf("the code ended its process with status %d", exit.Code),
			Hint: "return from main, or raise SystemExit", Stack: string(bytes.ToValidUTF8(r.streams[1].buf, []byte("?")))}
	case errors.As(err, &crash):
		return &Error{Kind: KindThrown, Message: "the code crashed the interpreter: " + crashReason(crash),
			Hint: "recursion through functions written in C, as of __getattr__ or __eq__, can exhaust the interpreter's own stack"}
	case err == nil && r.outcome != nil:
		return r.outcome.err
	}
	return &Error{Kind: KindInternal, Message: "the interpreter failed", Stack: cut(fmt.Sprint(err), 2000)}
}

// crashReason is the first line of a trap, which names it.
func crashReason(err *cpython.CrashError) string {
	text, _, _ := strings.Cut(err.Err.Error(), "\n")
	return cut(strings.TrimPrefix(text, "wasm error: "), 200)
}
