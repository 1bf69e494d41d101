package isolate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sandboxd/isolate/wasm"
)

const languageWasm = "wasm"

// A wasmRun is one Request in an instance of a tenant's module.
type wasmRun struct {
	guestRun
	run    *wasm.Run
	result json.RawMessage // what sandboxd.result was given
	stdout bytes.Buffer    // to find a result in, up to maxStdout
	long   bool            // there was more
}

// maxStdout is how much standard output is looked at for a result.
const maxStdout = 1 << 20

// executeWasm runs a job in a module of its tenant. It always returns a Result.
func executeWasm(ctx context.Context, m *wasm.Module, job *jobMessage, host Host) *Result {
	req, r := job.Request, &wasmRun{}
	defer r.begin(ctx, job, host, func() int64 { return r.run.Fuel() })()
	r.run = m.NewRun(r, wasm.Job{
		Args: append([]string{req.Main}, req.Args...), Env: environment(req.Env), Input: req.Input, Files: req.Modules, Memory: uint64(req.Limits.Memory),
	})
	r.phase = PhaseStarted
	status, err := r.run.Do()
	if ferr := r.flush(true); err == nil {
		err = ferr
	}
	return r.end(status, err)
}

// environment is NAME=VALUE for each, in order.
func environment(env map[string]string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}

// Write implements wasm.Hooks.
func (r *wasmRun) Write(fd int, b []byte) error {
	if fd == 1 {
		keep := b[:min(len(b), maxStdout-r.stdout.Len())]
		r.stdout.Write(keep)
		r.long = r.long || len(keep) < len(b)
	}
	return r.guestRun.Write(fd, b)
}

// maxCallNames is room for what a call says beside its arguments, in bytes.
const maxCallNames = 4 << 10

// Call implements wasm.Hooks: sandboxd.call.
func (r *wasmRun) Call(request []byte) ([]byte, error) {
	var c struct {
		Binding string          `json:"binding"`
		Method  string          `json:"method"`
		Args    json.RawMessage `json:"args"`
	}
	if len(request) > MaxArgs+maxCallNames {
		return wasmAnswer(reply{err: fmt.Errorf("the call has %d bytes, its arguments may have %d", len(request), MaxArgs)}), nil
	}
	if err := json.Unmarshal(request, &c); err != nil {
		return wasmAnswer(reply{err: errors.New(`a call is JSON: {"binding": "KV", "method": "get", "args": ["key"]}`)}), nil
	}
	if len(c.Args) == 0 {
		c.Args = json.RawMessage("[]")
	}
	if c.Args[0] != '[' {
		return wasmAnswer(reply{err: errors.New("args of a call is an array")}), nil
	}
	if !r.req.granted(c.Binding, c.Method) {
		return wasmAnswer(reply{err: fmt.Errorf("%s is not granted; granted: %s", cut(c.Binding+"."+c.Method, 100), r.grantedNames())}), nil
	}
	a, err := r.ask(Call{Binding: c.Binding, Method: c.Method, Args: c.Args})
	if err != nil {
		return nil, err
	}
	return wasmAnswer(a), nil
}

// grantedNames lists what the run may call.
func (r *wasmRun) grantedNames() string {
	var names []string
	if r.req.Fetch {
		names = append(names, fetchBinding+"."+fetchBinding)
	}
	for _, b := range r.req.Bindings {
		for _, m := range b.Methods {
			if b.Name != logBinding {
				names = append(names, b.Name+"."+m)
			}
		}
	}
	if len(names) == 0 {
		return "nothing"
	}
	return cut(strings.Join(names, ", "), 500)
}

func wasmAnswer(a reply) []byte {
	if a.err == nil {
		return append(append([]byte(`{"value":`), a.value...), '}')
	}
	text, err := json.Marshal(map[string]any{"error": map[string]string{"message": cut(a.err.Error(), maxMessage)}})
	if err != nil {
		return []byte(`{"error":{"message":"the call failed"}}`)
	}
	return text
}

// Result implements wasm.Hooks: sandboxd.result.
func (r *wasmRun) Result(value []byte) error {
	if int64(len(value)) > r.req.Limits.Result {
		return limitError("result", len(value), r.req.Limits.Result)
	}
	if !validJSON(value) {
		return &Error{Kind: KindThrown, Message: "the result given to sandboxd.result is not JSON"}
	}
	r.result = bytes.Clone(value)
	return nil
}

var logLevels = []string{"debug", "info", "warn", "error"}

// Log implements wasm.Hooks: sandboxd.log.
func (r *wasmRun) Log(level int, message []byte) error {
	if level < 0 || level >= len(logLevels) {
		level = 1
	}
	return r.log(logLevels[level], string(message), "")
}

// end turns how the run ended into a Result.
func (r *wasmRun) end(status uint32, err error) *Result {
	r.usage.Wall, r.usage.CPU, r.usage.MemoryPeak = time.Since(r.started), r.cpu(), int64(r.run.Memory())
	res := &Result{Phase: r.phase, Usage: r.usage}
	e := r.failure(status, err)
	if err == nil {
		code := int(int32(status))
		res.ExitCode = &code
	}
	switch {
	case e == nil:
		res.Status, res.Phase = StatusOK, PhaseFinished
		res.Value, e = r.value()
	case e.Kind == KindLimit || e.Kind == KindCanceled:
		res.Status = StatusKilled
	default:
		res.Status, res.Phase = StatusError, PhaseFinished
	}
	if e != nil && res.Status == StatusOK {
		res.Status = StatusKilled
	}
	res.Error = e
	return res
}

// value is the result: what sandboxd.result was given, or standard output if
// that is one JSON value.
func (r *wasmRun) value() (json.RawMessage, *Error) {
	if r.result != nil {
		return r.result, nil
	}
	text := bytes.TrimSpace(r.stdout.Bytes())
	if r.long || len(text) == 0 || !validJSON(text) {
		return nil, nil
	}
	if int64(len(text)) > r.req.Limits.Result {
		return nil, nil // it is on standard output
	}
	return bytes.Clone(text), nil
}

// failure is the *Error of a run, nil if it ended well.
func (r *wasmRun) failure(status uint32, err error) *Error {
	var e *Error
	var mem *wasm.MemoryError
	var trap *wasm.TrapError
	stopped := &wasm.StoppedError{}
	errors.As(err, &stopped)
	switch {
	case err == nil && status == 0:
		return nil
	case err == nil:
		return &Error{Kind: KindThrown, Message: fmt.Sprintf("the program exited with status %d", int32(status)),
			Hint: "what it wrote to standard error may say why"}
	case errors.As(err, &e):
		e.Stack = cut(stopped.Stack, maxStackText)
	case errors.As(err, &mem):
		e = limitError("memory", mem.Want, mem.Limit)
		e.Stack = cut(stopped.Stack, maxStackText)
	case errors.As(err, &trap):
		if trap.Stack == "" {
			trap.Stack = stopped.Stack
		}
		e = &Error{Kind: KindThrown, Message: "the module trapped: " + cut(trap.Reason, maxMessage), Stack: cut(trap.Stack, maxStackText)}
		if trap.Exhausted {
			e = overStack(e, wasm.StackSize, wasm.StackSize, "bytes of stack")
		}
	default:
		e = &Error{Kind: KindInternal, Message: "the module could not be run", Stack: cut(fmt.Sprint(err), 2000)}
	}
	return e
}

// rejected is what a module that is not admitted gives.
func rejected(r *wasm.RejectedError) *Error {
	return &Error{Kind: KindRejected, Message: cut(r.Message, maxMessage), Hint: cut(r.Hint, maxMessage), Limit: r.Limit, Used: r.Used, Allowed: r.Allowed}
}

// Now implements wasm.Hooks.
func (r *wasmRun) Now() (realtime, monotonic int64, err error) {
	realtime, monotonic, err = r.guestRun.Now()
	// A clock at zero is none to some runtimes: Go's ends there.
	return realtime, monotonic + int64(time.Second), err
}
