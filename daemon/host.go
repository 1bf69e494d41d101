package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/data"
	"sandboxd/isolate"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// A host answers the calls of one run. What a worker asks is hostile: it is
// checked again here against what the run holds.
type host struct {
	d        *Daemon
	run      *run
	plan     *plan
	client   *http.Client
	release  func()
	requests atomic.Int64
	checked  atomic.Int64 // bytes of arguments
	bytesOut atomic.Int64
	bytesIn  atomic.Int64
	ended    atomic.Bool
	ctx      context.Context // of the run
	begun    bool            // begin was called, with that error; of the run's goroutine
	failed   error
}

var _ isolate.StartHost = (*host)(nil)

// Started implements isolate.StartHost: the worker computes while the run is put
// on record.
func (h *host) Started() error {
	if !h.begun {
		h.begun, h.failed = true, h.begin()
	}
	return h.failed
}

// begin puts the run on record and prepares what it may reach.
func (h *host) begin() error {
	d, r, p := h.d, h.run, h.plan
	if err := d.recordStart(h.ctx, r, p); err != nil {
		return err
	}
	if err := d.keepCode(h.ctx, p); err != nil || !p.fetch {
		return err
	}
	release, err := d.egress.use(h.ctx, r.tenant)
	if err != nil {
		return err
	}
	h.release = release
	h.client = &http.Client{Transport: d.net.Fetch(r.tenant, r.id), CheckRedirect: h.redirect}
	return nil
}

func (h *host) close() {
	if h.client != nil {
		h.client.CloseIdleConnections()
	}
	h.release()
}

// settle ends the record of calls and output: what comes later belongs to
// nobody.
func (h *host) settle() { h.ended.Store(true) }

// Event implements isolate.Host.
func (h *host) Event(e isolate.Event) {
	if !h.ended.Load() {
		h.run.logged(e)
	}
}

// callError is an error whose text the code may see.
type callError struct {
	status  string // one of those of api.CallRecord
	message string
}

func (e *callError) Error() string { return e.message }

// maxCallError is how much of a call's error is put on record.
const maxCallError = 300

func badCall(format string, args ...any) error {
	return &callError{"error", fmt.Sprintf(format, args...)}
}

var errCanceledCall = &callError{"canceled", "the call was canceled"}

// Call implements isolate.Host. Every call is put on record.
func (h *host) Call(ctx context.Context, c isolate.Call) (json.RawMessage, error) {
	began := time.Now()
	answer, err := h.dispatch(ctx, c)
	status := "ok"
	switch {
	case err == nil:
	case ctx.Err() != nil:
		// The code or its end gave the call up: that is no failure of the call.
		status, err = "canceled", errCanceledCall
	default:
		status, err = h.explain(c, err)
	}
	rec := api.CallRecord{Binding: clip(c.Binding, 64), Method: clip(c.Method, 64), Status: status, Bytes: int64(len(answer)), Duration: policy.Duration(time.Since(began))}
	if err != nil {
		rec.Error = clip(strings.ToValidUTF8(err.Error(), "\uFFFD"), maxCallError)
	}
	if c.Binding == "fetch" && err == nil {
		rec.Status = fetchStatus(answer)
	}
	if !h.ended.Load() {
		h.run.called(rec)
	}
	return answer, err
}

// explain turns an error into what the code may see: never an internal text.
func (h *host) explain(c isolate.Call, err error) (string, error) {
	var call *callError
	if errors.As(err, &call) {
		return call.status, call
	}
	var denied *netproxy.DeniedError
	if errors.As(err, &denied) {
		return "denied", errors.New(denied.Error())
	}
	if e := toAPI(err); e.Code != api.CodeInternal {
		return "error", errors.New(e.Message)
	}
	h.d.log.Warn("a host call failed", "run", h.run.id, "tenant", h.run.tenant, "binding", c.Binding, "method", c.Method, "error", err)
	return "error", errors.New("the call failed inside the daemon")
}

func (h *host) dispatch(ctx context.Context, c isolate.Call) (json.RawMessage, error) {
	if c.Binding == "fetch" && c.Method == "fetch" && h.client != nil {
		return h.fetch(ctx, c.Args)
	}
	g, ok := h.plan.bindings[c.Binding]
	if !ok || !slices.Contains(g.methods, c.Method) {
		h.run.denied(api.Denial{Kind: "binding", What: clip(c.Binding, 64) + "." + clip(c.Method, 64), Rule: "not_granted", Scope: "run"})
		return nil, &callError{"denied", "the run does not hold " + clip(c.Binding, 64) + "." + clip(c.Method, 64)}
	}
	if g.kind == policy.BindingTools {
		return h.tool(ctx, &g, c)
	}
	if g.kind == policy.BindingSQL {
		return h.named(ctx, &g, c)
	}
	var args []json.RawMessage
	if err := json.Unmarshal(c.Args, &args); err != nil {
		return nil, badCall("the arguments are not a JSON array")
	}
	switch g.kind {
	case "kv":
		return h.kv(ctx, c.Method, args)
	case "db":
		return h.query(ctx, args)
	case "log":
		return h.log(c.Method, args)
	}
	return nil, badCall("there is no binding of type %s", g.kind)
}

// argument reads args[i] into v.
func argument[T any](args []json.RawMessage, i int, what string) (v T, err error) {
	if i >= len(args) {
		return v, badCall("%s is missing", what)
	}
	if err := json.Unmarshal(args[i], &v); err != nil {
		return v, badCall("%s has the wrong type", what)
	}
	return v, nil
}

func answerJSON(v any) (json.RawMessage, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return b, nil
}

func (h *host) kv(ctx context.Context, method string, args []json.RawMessage) (json.RawMessage, error) {
	store := h.d.data.KV(h.run.tenant)
	if method == "list" {
		return h.kvList(ctx, store, args)
	}
	key, err := argument[string](args, 0, "the key")
	if err != nil {
		return nil, err
	}
	switch method {
	case "get":
		value, err := store.Get(ctx, key)
		if errors.Is(err, data.ErrNotFound) {
			return json.RawMessage("null"), nil
		}
		return value, err
	case "put":
		if len(args) < 2 {
			return nil, badCall("the value is missing")
		}
		return json.RawMessage("null"), store.Put(ctx, key, args[1])
	default:
		gone, err := store.Delete(ctx, key)
		if err != nil {
			return nil, err
		}
		return answerJSON(gone)
	}
}

// kvList takes a prefix, or {prefix, after, limit}.
func (h *host) kvList(ctx context.Context, store *data.KV, args []json.RawMessage) (json.RawMessage, error) {
	var o struct {
		Prefix string `json:"prefix"`
		After  string `json:"after"`
		Limit  int    `json:"limit"`
	}
	if len(args) > 0 && json.Unmarshal(args[0], &o.Prefix) != nil {
		if err := json.Unmarshal(args[0], &o); err != nil {
			return nil, badCall("list takes a prefix, or {prefix, after, limit}")
		}
	}
	if o.Limit <= 0 || o.Limit > maxKeys {
		o.Limit = maxKeys
	}
	keys, err := store.List(ctx, o.Prefix, o.After, o.Limit)
	if err != nil {
		return nil, err
	}
	return answerJSON(append([]string{}, keys...))
}

// query takes (sql, params…) or (sql, [params]) or (sql, {params}) and answers
// an array of row objects.
func (h *host) query(ctx context.Context, args []json.RawMessage) (json.RawMessage, error) {
	sql, err := argument[string](args, 0, "the SQL text")
	if err != nil {
		return nil, err
	}
	var params json.RawMessage
	switch {
	case len(args) == 2 && (args[1][0] == '[' || args[1][0] == '{' && !markedValue(args[1])):
		params = args[1]
	case len(args) > 1:
		if params, err = answerJSON(args[1:]); err != nil {
			return nil, err
		}
	}
	rows, err := h.d.data.Query(ctx, h.run.tenant, sql, params, data.QueryLimits{})
	if err != nil {
		return nil, sqlError(err)
	}
	return rowObjects(rows)
}

// markedValue tells whether an object stands for one value: {"$bytes": …} or
// {"$int": …}.
func markedValue(object json.RawMessage) bool {
	var o map[string]json.RawMessage
	if json.Unmarshal(object, &o) != nil || len(o) != 1 {
		return false
	}
	return o["$bytes"] != nil || o["$int"] != nil
}

// sqlError shows the code what is wrong with its SQL.
func sqlError(err error) error {
	if e := toAPI(err); e.Code == api.CodeInternal {
		return err
	}
	return badCall("%s", toAPI(err).Message)
}

// rowObjects writes rows as objects, which is what code wants.
func rowObjects(rows *data.Rows) (json.RawMessage, error) {
	text, err := json.Marshal(rows)
	if err != nil {
		return nil, fmt.Errorf("encode rows: %w", err)
	}
	var plain struct {
		Columns []string            `json:"columns"`
		Rows    [][]json.RawMessage `json:"rows"`
	}
	if err := json.Unmarshal(text, &plain); err != nil {
		return nil, fmt.Errorf("encode rows: %w", err)
	}
	out := make([]map[string]json.RawMessage, len(plain.Rows))
	for i, row := range plain.Rows {
		out[i] = make(map[string]json.RawMessage, len(row))
		for j, v := range row {
			out[i][plain.Columns[j]] = v
		}
	}
	return answerJSON(out)
}

// log takes (message, data).
func (h *host) log(level string, args []json.RawMessage) (json.RawMessage, error) {
	if len(args) == 0 {
		return nil, badCall("the message is missing")
	}
	var message string
	if json.Unmarshal(args[0], &message) != nil {
		message = string(args[0])
	}
	e := isolate.Event{Time: time.Now().UTC(), Kind: "log", Level: level, Message: message}
	if len(args) > 1 {
		e.Data = args[1]
	}
	h.Event(e)
	return json.RawMessage("null"), nil
}
