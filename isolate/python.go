package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

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
	time    cpuTime
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
	r.time.start()
	defer r.time.stop()
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
	r.time.yield()
	return r.flush(false)
}

func (r *pythonRun) cpu() time.Duration {
	if r.req.Seed != nil || r.req.Clock != nil {
		return time.Duration(r.vm.Fuel()) * time.Microsecond / fuelPerMicrosecond
	}
	return r.time.now()
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
	r.time.stop()
	defer r.time.start()
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
