package isolate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"sandboxd/isolate/cpython"
)

// What the guest's messages begin with. They are the ones in cpython/py.
const (
	messageStarted = 'S' // the main module was compiled
	messageDone    = 'D' // the result
	messageFailed  = 'F' // what the code did not catch
	messageLog     = 'L' // level, data, text
	messageCall    = 'C' // binding, method, arguments
)

// Kinds of Event.
const (
	eventLog    = "log"
	eventStdout = "stdout"
	eventStderr = "stderr"
)

// A pythonRun is one Request in one VM. All of it happens on one goroutine,
// except the host calls, for which it waits.
type pythonRun struct {
	req  *Request
	host Host
	vm   *cpython.VM

	ctx     context.Context // ends with the wall limit or the caller
	started time.Time
	usage   Usage
	lines   int
	phase   string
	random  randomness
	clock   clock
	streams [2]stream // stdout and stderr
	outcome *outcome
}

// executePython runs a job in a clean VM. It always returns a Result.
func executePython(ctx context.Context, vm *cpython.VM, job *jobMessage, host Host) *Result {
	req := job.Request
	r := &pythonRun{req: req, host: host, vm: vm, started: time.Now().Add(-job.Spent), phase: PhaseNotStarted}
	r.streams[0].kind, r.streams[1].kind = eventStdout, eventStderr
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithDeadlineCause(ctx, r.started.Add(req.Limits.Wall), errWall)
	defer cancel()
	r.random, r.clock = newRandomness(req.Seed), newClock(req.Clock, r.started)
	b, err := json.Marshal(pythonJob(req))
	if err == nil {
		err = vm.Run(r, cpython.Job{Message: b, Files: req.Modules, Memory: uint64(req.Limits.Memory)})
	}
	if ferr := r.flush(true); err == nil {
		err = ferr
	}
	return r.result(err)
}

// pythonJob is what the guest is told of a request.
func pythonJob(req *Request) any {
	type binding struct {
		Name    string   `json:"name"`
		Methods []string `json:"methods"`
	}
	j := struct {
		Main     string            `json:"main"`
		Modules  map[string]string `json:"modules"`
		Input    json.RawMessage   `json:"input"`
		Env      map[string]string `json:"env"`
		Bindings []binding         `json:"bindings"`
		Fetch    bool              `json:"fetch"`
	}{req.Main, req.Modules, req.Input, req.Env, []binding{}, req.Fetch}
	if len(j.Input) == 0 {
		j.Input = json.RawMessage("null")
	}
	if j.Env == nil {
		j.Env = map[string]string{}
	}
	for _, b := range req.Bindings {
		j.Bindings = append(j.Bindings, binding{b.Name, append([]string{}, b.Methods...)})
	}
	return j
}

// Message implements cpython.Hooks.
func (r *pythonRun) Message(b []byte) ([]byte, error) {
	op, body := b[0], string(b[1:])
	switch op {
	case messageStarted:
		if r.phase == PhaseNotStarted {
			r.phase = PhaseStarted
		}
		return nil, nil
	case messageDone:
		return nil, r.done(body)
	case messageFailed:
		if r.outcome == nil {
			r.outcome = &outcome{err: r.failed(body)}
		}
		return nil, nil
	case messageLog:
		if f := strings.SplitN(body, "\x00", 3); len(f) == 3 {
			return nil, r.log(f[0], f[2], f[1])
		}
	case messageCall:
		if f := strings.SplitN(body, "\x00", 3); len(f) == 3 {
			return r.call(Call{Binding: f[0], Method: f[1], Args: json.RawMessage(f[2])})
		}
	}
	// Only code that writes to the descriptor by itself does that.
	return nil, &Error{Kind: KindThrown, Message: "the code wrote to descriptor 0, which is the interpreter's own"}
}

func (r *pythonRun) done(value string) error {
	if r.outcome != nil {
		return nil
	}
	if int64(len(value)) > r.req.Limits.Result {
		return limitError("result", len(value), r.req.Limits.Result)
	}
	raw := json.RawMessage(value)
	if !json.Valid(raw) {
		return &Error{Kind: KindThrown, Message: "the result is not JSON"}
	}
	r.outcome = &outcome{value: raw}
	return nil
}

func (r *pythonRun) log(level, message, data string) error {
	switch level {
	case "debug", "info", "warn", "error":
	default:
		level = "info"
	}
	e := Event{Kind: eventLog, Level: level, Message: message}
	if data != "" && json.Valid([]byte(data)) {
		e.Data = json.RawMessage(data)
	}
	if err := r.flush(true); err != nil {
		return err
	}
	return r.emit(e)
}

// emit counts an event and passes it on.
func (r *pythonRun) emit(e Event) error {
	e.Time, e.Message = r.clock.wall(), strings.ToValidUTF8(e.Message, "\uFFFD")
	// As the pool counts it that does not trust its worker.
	r.usage.Output += outputOf(e.Message, string(e.Data))
	if r.usage.Output > r.req.Limits.Output {
		return limitError("output", r.usage.Output, r.req.Limits.Output)
	}
	if r.lines++; r.lines > maxLines {
		return limitError("lines", r.lines, maxLines)
	}
	r.host.Event(e)
	return nil
}

const (
	// streamChunk is how much of a stream makes an event.
	streamChunk = 8 << 10
	// streamDelay is how long a line may wait for others.
	streamDelay = 20 * time.Millisecond
)

// A stream gathers output, so that a line is not an event.
type stream struct {
	kind  string
	buf   []byte
	since time.Time
}

// Write implements cpython.Hooks.
func (r *pythonRun) Write(fd int, b []byte) error {
	if over := r.usage.Output + int64(len(b)); over > r.req.Limits.Output {
		return limitError("output", over, r.req.Limits.Output)
	}
	// What is on the other stream comes first.
	if other := &r.streams[2-fd]; len(other.buf) > 0 {
		if err := r.send(other, true); err != nil {
			return err
		}
	}
	s := &r.streams[fd-1]
	if len(s.buf) == 0 {
		s.since = time.Now()
	}
	s.buf = append(s.buf, b...)
	if len(s.buf) >= streamChunk {
		return r.send(s, false)
	}
	return nil
}

// send makes an event of what a stream holds; unless all is asked for, without
// a character that is not there to its end.
func (r *pythonRun) send(s *stream, all bool) error {
	n := len(s.buf)
	if !all {
		for i := 1; i <= utf8.UTFMax && i <= n; i++ {
			if c := s.buf[n-i]; utf8.RuneStart(c) {
				if !utf8.FullRune(s.buf[n-i:]) {
					n -= i
				}
				break
			}
		}
	}
	if n == 0 {
		return nil
	}
	e := Event{Kind: s.kind, Level: "info", Message: string(s.buf[:n])}
	if s.kind == eventStderr {
		e.Level = "warn"
	}
	s.buf = append(s.buf[:0], s.buf[n:]...)
	s.since = time.Now()
	return r.emit(e)
}

// flush sends what the streams hold: all, or what has waited long enough.
func (r *pythonRun) flush(all bool) error {
	for i := range r.streams {
		s := &r.streams[i]
		if len(s.buf) > 0 && (all || time.Since(s.since) >= streamDelay) {
			if err := r.send(s, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// call answers a host call; the guest waits.
func (r *pythonRun) call(c Call) ([]byte, error) {
	if !r.req.granted(c.Binding, c.Method) {
		return nil, &Error{Kind: KindThrown, Message: "the code called " + cut(c.Binding+"."+c.Method, 100) + ", which it was not granted"}
	}
	if r.usage.Calls++; r.usage.Calls > r.req.Limits.Calls {
		return nil, limitError("calls", r.usage.Calls, r.req.Limits.Calls)
	}
	if c.Binding == fetchBinding {
		if r.usage.Requests++; r.usage.Requests > r.req.Limits.Requests {
			return nil, limitError("requests", r.usage.Requests, r.req.Limits.Requests)
		}
	}
	if len(c.Args) > MaxArgs || !json.Valid(c.Args) {
		return refused(fmt.Errorf("the arguments have %d bytes, at most %d are taken", len(c.Args), MaxArgs)), nil
	}
	if err := r.flush(true); err != nil {
		return nil, err
	}
	r.phase = PhaseEffectsPossible
	type reply struct {
		value json.RawMessage
		err   error
	}
	// A host that does not heed the context must not hold the run.
	answered := make(chan reply, 1)
	go func() {
		v, err := r.host.Call(r.ctx, c)
		answered <- reply{v, err}
	}()
	select {
	case a := <-answered:
		switch {
		case r.ctx.Err() != nil:
			return nil, r.ended()
		case a.err != nil:
			return refused(a.err), nil
		case len(a.value) > MaxAnswer:
			return refused(fmt.Errorf("the answer has %d bytes, at most %d are taken", len(a.value), MaxAnswer)), nil
		}
		if len(a.value) == 0 {
			a.value = json.RawMessage("null")
		}
		return append([]byte{'o'}, a.value...), nil
	case <-r.ctx.Done():
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-answered:
		case <-t.C:
		}
		return nil, r.ended()
	}
}

func refused(err error) []byte { return append([]byte{'e'}, cut(err.Error(), maxMessage)...) }

// ended says why ctx is done.
func (r *pythonRun) ended() error {
	if errors.Is(context.Cause(r.ctx), errWall) {
		return limitError("wall", time.Since(r.started).Round(time.Millisecond), r.req.Limits.Wall)
	}
	return &Error{Kind: KindCanceled, Message: "the caller has ended the run"}
}

// Tick implements cpython.Hooks.
func (r *pythonRun) Tick() error {
	if cpu := r.cpu(); cpu >= r.req.Limits.CPU {
		return limitError("cpu", cpu.Round(time.Millisecond), r.req.Limits.CPU)
	}
	if r.ctx.Err() != nil {
		return r.ended()
	}
	if time.Since(r.started) >= r.req.Limits.Wall {
		return limitError("wall", time.Since(r.started).Round(time.Millisecond), r.req.Limits.Wall)
	}
	return r.flush(false)
}

// pythonFuelPerMicrosecond is what CPython was seen to use. It turns fuel to
// time where a run must end at the same instruction each time.
const pythonFuelPerMicrosecond = 6_000

func (r *pythonRun) cpu() time.Duration {
	if r.req.Seed != nil || r.req.Clock != nil {
		return time.Duration(r.vm.Fuel()) * time.Microsecond / pythonFuelPerMicrosecond
	}
	return r.vm.CPU()
}

// Now implements cpython.Hooks.
func (r *pythonRun) Now() (realtime, monotonic int64, err error) {
	realtime, monotonic = r.clock.now()
	return realtime, monotonic, nil
}

// Sleep implements cpython.Hooks.
func (r *pythonRun) Sleep(ns int64) error {
	d := time.Duration(ns)
	if r.clock.virtual() {
		r.clock.advance(r.clock.elapsed() + min(d, maxWall))
		return nil
	}
	if err := r.flush(true); err != nil {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.ctx.Done():
		return r.ended()
	}
}

// Random implements cpython.Hooks.
func (r *pythonRun) Random(b []byte) { r.random.Read(b) }

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

// pythonWarm is what warmRequest is to JavaScript.
var pythonWarm = &Request{
	Language: "python",
	Main:     "main.py",
	Modules: map[string]string{"main.py": `import json
def main(input, env):
    rows = env.DB.query('select 1', [])['rows']
    print('warm', input)
    return {'rows': [dict(r, n=i) for i, r in enumerate(rows)], 'text': json.dumps(input).encode().decode()}
`},
	Input: warmRequest.Input, Bindings: warmRequest.Bindings, Limits: warmRequest.Limits,
}

func warmPython(ctx context.Context, vm *cpython.VM) error {
	if r := executePython(ctx, vm, &jobMessage{Request: pythonWarm}, warmHost{}); r.Status != StatusOK {
		return fmt.Errorf("isolate: warm up: %w", errors.Join(r.Error, vm.Err()))
	}
	return nil
}
