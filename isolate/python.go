package isolate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"sandboxd/isolate/cpython"
)

// What the guest's messages begin with. They are the ones in cpython/py.
const (
	messageStarted = 'S' // the main module was compiled
	messageDone    = 'D' // the result
	messageFailed  = 'F' // what the code did not catch
	messageLog     = 'L' // level, data, text
	messageCall    = 'C' // binding, method, arguments
	messageImpure  = 'I' // why a module cannot be evaluated for no call
	messageRaised  = 'X' // a module that is evaluated for no call has raised something
)

// Kinds of Event.
const (
	eventLog    = "log"
	eventStdout = "stdout"
	eventStderr = "stderr"
)

// A pythonRun is one Request in one VM.
type pythonRun struct {
	guestRun
	vm *cpython.VM
}

// executePython runs a job in a clean VM. It always returns a Result.
func executePython(ctx context.Context, vm *cpython.VM, job *jobMessage, host Host) *Result {
	return executePythonBy(ctx, vm, job, host, (*pythonRun).main)
}

func executePythonBy(ctx context.Context, vm *cpython.VM, job *jobMessage, host Host, main func(*pythonRun) error) *Result {
	r := &pythonRun{vm: vm}
	defer r.begin(ctx, job, host, vm.Fuel)()
	err := main(r)
	if ferr := r.flush(true); err == nil {
		err = ferr
	}
	return r.result(err)
}

// main evaluates the main module and calls its function.
func (r *pythonRun) main() error { return r.do("") }

// What dispatch does with a job; nothing said is all of it.
const (
	opPrepare = "prepare" // evaluate the module of a function
	opCallIt  = "call"    // call the function of that
)

// do has dispatch do op with the job.
func (r *pythonRun) do(op string) error {
	b, err := json.Marshal(pythonJob(r.req, op))
	if err != nil {
		return err
	}
	return r.vm.Run(r, cpython.Job{Message: b, Files: r.req.Modules, Memory: uint64(r.req.Limits.Memory)})
}

// pythonJob is what the guest is told of a request.
func pythonJob(req *Request, op string) any {
	type binding struct {
		Name    string   `json:"name"`
		Methods []string `json:"methods"`
	}
	j := struct {
		Op       string            `json:"op"`
		Main     string            `json:"main"`
		Modules  map[string]string `json:"modules"`
		Input    json.RawMessage   `json:"input"`
		Env      map[string]string `json:"env"`
		Bindings []binding         `json:"bindings"`
		Fetch    bool              `json:"fetch"`
	}{op, req.Main, req.Modules, req.Input, req.Env, []binding{}, req.Fetch}
	if op == opCallIt {
		j.Modules = nil // it has them
	}
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
	// Not copied before it is known to be small: that would be work which nobody
	// is charged for.
	op, body := b[0], b[1:]
	switch op {
	case messageStarted:
		if r.phase == PhaseNotStarted {
			r.phase = PhaseStarted
			if r.prep != nil {
				r.prep.idle = false
			}
		}
		return nil, nil
	case messageImpure:
		if r.prep != nil {
			return nil, r.prep.refuse(cut(string(body), 200))
		}
	case messageRaised:
		if r.prep != nil {
			r.prep.idle, r.prep.failed = true, true
			return nil, nil
		}
	case messageDone:
		if over := int64(len(body)); over > r.req.Limits.Result && r.outcome == nil {
			return nil, limitError("result", over, r.req.Limits.Result)
		}
		return nil, r.done(string(body))
	case messageFailed:
		if r.outcome == nil {
			r.outcome = &outcome{err: r.failed(string(body[:min(len(body), maxFailure)]))}
		}
		return nil, nil
	case messageLog:
		if f := bytes.SplitN(body, []byte{0}, 3); len(f) == 3 {
			if over := r.usage.Output + int64(len(f[1])+len(f[2])+1); over > r.req.Limits.Output {
				return nil, limitError("output", over, r.req.Limits.Output)
			}
			return nil, r.log(string(f[0]), string(f[2]), string(f[1]))
		}
	case messageCall:
		if f := bytes.SplitN(body, []byte{0}, 3); len(f) == 3 && len(f[0])+len(f[1]) < maxMessage {
			args := f[2]
			if len(args) <= MaxArgs {
				args = bytes.Clone(args)
			}
			return r.call(Call{Binding: string(f[0]), Method: string(f[1]), Args: args})
		}
	}
	// Only code that writes to the descriptor by itself does that.
	return nil, &Error{Kind: KindThrown, Message: "the code wrote to descriptor 0, which is the interpreter's own"}
}

// maxFailure is the longest description of an exception that is read, in bytes:
// ours are far shorter.
const maxFailure = 1 << 20

// call answers a host call; the guest waits.
func (r *pythonRun) call(c Call) ([]byte, error) {
	a, err := r.ask(c)
	switch {
	case err != nil:
		return nil, err
	case a.err != nil:
		return append([]byte{'e'}, cut(a.err.Error(), maxMessage)...), nil
	}
	return append([]byte{'o'}, a.value...), nil
}

// pythonWarm and pythonPlain are what warmRequest and plainRequest are to
// JavaScript.
var (
	pythonWarm = &Request{
		Language: "python",
		Main:     "main.py",
		Modules: map[string]string{"main.py": `import json
def main(input, env):
    rows = env.DB.query('select 1', [])['rows']
    print('warm', input)
    return {'rows': [dict(r, n=i) for i, r in enumerate(rows)], 'text': json.dumps(input).encode().decode()}
`},
		Input: warmRequest.Input, Bindings: warmRequest.Bindings, Limits: warmLimits,
	}
	pythonPlain = &Request{
		Language: "python",
		Main:     "main.py",
		Modules:  map[string]string{"main.py": "def main(input, env):\n    return input\n"},
		Limits:   warmLimits,
	}
)

func warmPython(r *Request) func(context.Context, *cpython.VM) error {
	return func(ctx context.Context, vm *cpython.VM) error {
		if r := executePython(ctx, vm, &jobMessage{Request: r}, warmHost{}); r.Status != StatusOK {
			return fmt.Errorf("isolate: warm up: %w", errors.Join(r.Error, vm.Err()))
		}
		return nil
	}
}
