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
	return res
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
