package isolate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"sandboxd/isolate/quickjs"
)

// Numbers of the operations that the prelude asks for. They are the ones in
// js/base.js.
const (
	opDone = iota + 1
	opFail
	opLog
	opCall
	opTimer
	opClearTimer
	opDecode
	opEncode
	opRandom
	opCancel
	opReady
)

// calls are the host calls of a run.
type calls struct {
	r       *run
	host    caller
	answers chan answer
	running map[int64]func() // how to say that nobody wants the answer
	queue   []queued         // wait for one of Limits.Concurrency
	last    int64            // number of the latest call
	open    int              // running, queued or not yet read from answers
	settled int              // were answered by the host
	refused []answer         // were never made
	// queuedBytes are the arguments in queue.
	queuedBytes int
}

type queued struct {
	id   int64
	call Call
}

type answer struct {
	id    int64
	value json.RawMessage
	err   error
	fetch bool
}

func (c *calls) init(r *run) {
	c.r, c.host = r, callerOf(r.ctx, r.host)
	// One place for each that may run, so that none ever blocks.
	c.answers = make(chan answer, r.req.Limits.Concurrency)
	c.running = map[int64]func(){}
}

// maxQueued bounds the arguments that wait outside the guest.
const maxQueued = 16 << 20

// Call implements quickjs.Hooks: what the prelude asks for.
func (r *run) Call(a *quickjs.Args) (quickjs.Value, error) {
	op := a.Int(0)
	if err := r.prep.allow(op); err != nil {
		return 0, err
	}
	switch op {
	case opDone:
		return 0, r.done(a.Text(1), a.Bool(2))
	case opFail:
		if r.outcome == nil {
			r.outcome = &outcome{err: r.overflow(r.code.errorOf(a.Text(1), KindThrown))}
		}
	case opLog:
		return 0, r.log(a.Text(1), a.Text(2), a.Text(3))
	case opCall:
		args := a.Text(4)
		r.worked(copyTime * int64(len(args)))
		return 0, r.calls.submit(a.Int(1), Call{Binding: a.Text(2), Method: a.Text(3), Args: json.RawMessage(args)})
	case opTimer:
		r.timers.set(a.Int(1), r.clock.elapsed()+milliseconds(a.Number(2)))
		if n := len(r.timers.queue); n > maxTimers {
			return 0, limitError("timers", n, maxTimers)
		}
	case opClearTimer:
		r.timers.clear(a.Int(1))
	case opRandom:
		b := make([]byte, min(max(a.Int(1), 0), 1<<16))
		r.random.Read(b)
		r.worked(digestTime * int64(len(b)))
		return a.VM().Bytes(b)
	case opCancel:
		r.calls.cancel(a.Int(1))
	case opReady:
		r.ready(a.Text(1))
	default:
		return r.webCall(a)
	}
	return 0, nil
}

func milliseconds(ms float64) time.Duration {
	const most = float64(maxWall / time.Millisecond)
	if !(ms >= 0) {
		return 0
	}
	return time.Duration(min(ms, most) * float64(time.Millisecond))
}

// done takes the result. bare says that the module exports nothing.
func (r *run) done(value string, bare bool) error {
	if r.outcome != nil {
		return nil
	}
	if int64(len(value)) > r.req.Limits.Result {
		return limitError("result", len(value), r.req.Limits.Result)
	}
	raw := json.RawMessage(value)
	if !validJSON(raw) {
		// The prelude's JSON always is; the code has got at it.
		return &Error{Kind: KindThrown, Message: "the result is not JSON"}
	}
	if value == "null" && r.lines == 0 && r.usage.Calls == 0 {
		if names := r.code.forgotten(); names != nil || bare {
			return r.code.noExport(&thrown{}, true, names)
		}
	}
	r.outcome = &outcome{value: raw}
	return nil
}

func (r *run) log(level, message, data string) error {
	switch level {
	case "debug", "info", "warn", "error":
	default:
		level = "info"
	}
	// Before anything is done with it that takes time.
	if over := r.usage.Output + outputOf(message, data); over > r.req.Limits.Output {
		return limitError("output", over, r.req.Limits.Output)
	}
	r.worked(logTime * int64(len(message)+len(data)))
	e := Event{Time: r.clock.wall(), Kind: "log", Level: level, Message: strings.ToValidUTF8(r.code.mapText(message), "\uFFFD")}
	if data != "" && validJSON([]byte(data)) {
		e.Data = json.RawMessage(data)
	}
	if err := countOutput(&e, &r.usage, &r.lines, r.req.Limits.Output); err != nil {
		return err
	}
	r.host.Event(e)
	return nil
}

// countOutput counts an event of a run against its limits, as the pool counts it
// that does not trust its worker.
func countOutput(e *Event, u *Usage, lines *int, limit int64) error {
	u.Output += outputOf(e.Message, string(e.Data))
	if u.Output > limit {
		return limitError("output", u.Output, limit)
	}
	if *lines++; *lines > maxLines {
		return limitError("lines", *lines, maxLines)
	}
	return nil
}

// outputOf is what an event counts against Limits.Output.
func outputOf(message, data string) int64 { return int64(len(message) + len(data) + 1) }

// maxLines is the largest number of console and log lines of a run.
const maxLines = 1 << 16

// maxTimers is the largest number of timers that a run may have pending.
const maxTimers = 1 << 16

// submit counts a call and starts or queues it.
func (c *calls) submit(id int64, call Call) error {
	r := c.r
	c.open++
	// The prelude's numbers grow. Were its function reached by the code, which
	// can do no harm otherwise, a number used twice would hide a call.
	if id <= c.last {
		return &Error{Kind: KindThrown, Message: "the code called the host with a number that was used before"}
	}
	c.last = id
	if !r.req.granted(call.Binding, call.Method) {
		return &Error{Kind: KindThrown, Message: "the code called " + cut(call.Binding+"."+call.Method, 100) + ", which it was not granted"}
	}
	if r.usage.Calls++; r.usage.Calls > r.req.Limits.Calls {
		return limitError("calls", r.usage.Calls, r.req.Limits.Calls)
	}
	if call.Binding == fetchBinding {
		if r.usage.Requests++; r.usage.Requests > r.req.Limits.Requests {
			return limitError("requests", r.usage.Requests, r.req.Limits.Requests)
		}
	}
	if len(call.Args) > MaxArgs || !validJSON(call.Args) || c.queuedBytes+len(call.Args) > maxQueued {
		c.refuse(id, fmt.Errorf("the arguments have %d bytes, at most %d are taken (%d for all calls that wait)", len(call.Args), MaxArgs, maxQueued))
		return nil
	}
	r.phase, call.Nth = PhaseEffectsPossible, r.usage.Calls
	c.queue = append(c.queue, queued{id, call})
	c.queuedBytes += len(call.Args)
	c.advance()
	return nil
}

// refuse answers a call without making it.
func (c *calls) refuse(id int64, err error) {
	c.refused = append(c.refused, answer{id: id, err: err})
}

// advance starts queued calls.
func (c *calls) advance() {
	for len(c.queue) > 0 && len(c.running) < c.r.req.Limits.Concurrency {
		q := c.queue[0]
		c.queue = c.queue[1:]
		c.queuedBytes -= len(q.call.Args)
		c.running[q.id] = c.host.call(q.call, func(v json.RawMessage, err error) {
			c.answers <- answer{q.id, v, err, q.call.Binding == fetchBinding}
		})
	}
}

// cancel ends a call whose answer nobody wants any more. It stays open until
// the host has given up.
func (c *calls) cancel(id int64) {
	if drop := c.running[id]; drop != nil {
		drop()
		return
	}
	for i, q := range c.queue {
		if q.id == id {
			c.queuedBytes -= len(q.call.Args)
			c.queue = append(c.queue[:i:i], c.queue[i+1:]...)
			c.open--
			return
		}
	}
}

// settle hands an answer to the code.
func (r *run) settle(a answer) error {
	c := &r.calls
	c.open--
	if c.running[a.id] != nil {
		defer c.host.taken(len(a.value))
		delete(c.running, a.id)
		c.settled++
	}
	c.advance()
	if len(a.value) > quickjs.LargeCopy {
		r.time.large()
	}
	text, body, err := a.content()
	ok := err == nil
	if !ok {
		b, _ := json.Marshal(map[string]string{"message": cut(err.Error(), maxMessage)})
		text = string(b)
	}
	args, err := r.settleArgs(a.id, ok, text, body)
	if err != nil {
		return err
	}
	return r.enter(entrySettle, args...)
}

func (r *run) settleArgs(id int64, ok bool, text string, body []byte) ([]quickjs.Value, error) {
	var args [4]quickjs.Value
	var err error
	if args[0], err = r.vm.Number(float64(id)); err != nil {
		return nil, err
	}
	n := 0.0
	if ok {
		n = 1
	}
	if args[1], err = r.vm.Number(n); err != nil {
		return nil, err
	}
	if args[2], err = r.vm.String(text); err != nil {
		return nil, err
	}
	if body == nil {
		args[3], err = r.vm.Undefined()
	} else {
		args[3], err = r.vm.Bytes(body)
	}
	return args[:], err
}

// content is the answer's JSON, and the body that fetch brought beside it.
func (a *answer) content() (text string, body []byte, err error) {
	if a.err != nil {
		return "", nil, a.err
	}
	if len(a.value) > MaxAnswer {
		return "", nil, fmt.Errorf("the answer has %d bytes, at most %d are taken", len(a.value), MaxAnswer)
	}
	if !a.fetch {
		if len(a.value) > 0 && !json.Valid(a.value) {
			return "", nil, errors.New("the answer is not JSON")
		}
		return string(a.value), nil, nil
	}
	var f FetchResponse
	if err := json.Unmarshal(a.value, &f); err != nil {
		return "", nil, errors.New("the answer is not a response")
	}
	body, f.Body = f.Body, nil
	if body == nil {
		body = []byte{}
	}
	b, err := json.Marshal(&f)
	return string(b), body, err
}
