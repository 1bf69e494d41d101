package isolate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sandboxd/isolate/quickjs"
)

// result turns how main ended into a Result.
func (r *run) result(err error) *Result {
	r.usage.Wall = time.Since(r.started)
	r.usage.CPU = r.cpu()
	r.usage.MemoryPeak = int64(r.vm.Memory())
	res := &Result{Phase: r.phase}
	switch e := r.failure(err); {
	case e != nil:
		e.addSource(r.req)
		res.Error, res.Status = e, StatusError
		if e.Kind == KindLimit || e.Kind == KindCanceled {
			res.Status = StatusKilled
		} else if r.phase != PhaseNotStarted {
			res.Phase = PhaseFinished
		}
	default:
		res.Status, res.Phase, res.Value = StatusOK, PhaseFinished, r.outcome.value
		r.reportRejections()
	}
	res.Usage = r.usage
	return res
}

// failure is the *Error of a run, nil if it has a result.
func (r *run) failure(err error) *Error {
	var e *Error
	var mem *quickjs.MemoryError
	switch {
	case err == nil && r.outcome != nil:
		return r.outcome.err
	case errors.As(err, &e):
		return e
	case errors.As(err, &mem):
		return limitError("memory", mem.Want, mem.Limit)
	}
	return &Error{Kind: KindInternal, Message: "the interpreter failed", Stack: cut(fmt.Sprint(err), 2000)}
}

// reportRejections logs what was rejected and never handled.
func (r *run) reportRejections() {
	for _, x := range r.rejected {
		e := r.code.errorOf(x.text, KindThrown)
		message := "unhandled promise rejection: " + e.Message
		if e.Stack != "" {
			message += "\n" + e.Stack
		}
		r.host.Event(Event{Time: r.clock.wall(), Kind: "log", Level: "error", Message: strings.ToValidUTF8(message, "\uFFFD")})
	}
}

// limitError says which limit ended the run.
func limitError(limit string, used, allowed any) *Error {
	e := &Error{Kind: KindLimit, Limit: limit, Used: text(used), Allowed: text(allowed)}
	e.Message = limitText[limit] + ": " + e.Used + " used, " + e.Allowed + " allowed"
	return e
}

// hintStack is what to do where calls nest too deeply.
const hintStack = "use a loop, or a list as a stack"

// overStack makes an error of the language that calls nest too deeply one of that
// limit, at the same place.
func overStack(e *Error, used, allowed any, unit string) *Error {
	l := limitError("stack", used, allowed)
	l.Message = limitText["stack"] + ": " + l.Used + " " + unit + " used, " + l.Allowed + " allowed (" + cut(e.Message, 200) + ")"
	l.File, l.Line, l.Column, l.Stack, l.Hint = e.File, e.Line, e.Column, e.Stack, hintStack
	return l
}

// overflow is e, or the limit that it tells of: the interpreter's own error that
// nobody caught. What only looks like it stays what it is.
func (r *run) overflow(e *Error) *Error {
	if e.Kind == KindThrown && e.Message == "RangeError: Maximum call stack size exceeded" && r.vm.StackSpent() {
		return overStack(e, quickjs.StackSize, quickjs.StackSize, "bytes of stack")
	}
	return e
}

var limitText = map[string]string{
	"wall":     "the run took too long",
	"compile":  "the module took too long to compile",
	"cpu":      "the code computed too long",
	"memory":   "the code wanted too much memory (bytes)",
	"answers":  "the answers of host calls that the code has not taken yet are too large (bytes)",
	"output":   "the code printed too much (bytes)",
	"timers":   "the code set too many timers",
	"lines":    "the code printed too many lines",
	"result":   "the result is too large (bytes of JSON)",
	"calls":    "the code made too many host calls",
	"requests": "the code made too many requests",
	"stack":    "the calls nest too deeply",
}

func text(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return v.String()
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	}
	return ""
}
