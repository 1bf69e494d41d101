package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// A request is one call of the API, with what is known about it.
type request struct {
	http   *http.Request
	w      http.ResponseWriter
	peer   *peer
	route  api.Route
	tenant string
	bodies *budget
	body   *countedBody // once it is read into memory
}

func (q *request) ctx() context.Context     { return q.http.Context() }
func (q *request) caller() policy.Caller    { return q.peer.caller }
func (q *request) path(name string) string  { return q.http.PathValue(name) }
func (q *request) query(name string) string { return q.http.URL.Query().Get(name) }

// flag reads a boolean parameter; its name alone says true.
func (q *request) flag(name string) bool {
	values, ok := q.http.URL.Query()[name]
	return ok && len(values) == 1 && values[0] != "false"
}

// decode reads the JSON body strictly. A body must come within a minute; after
// it the connection may be silent for as long as the request takes.
func (q *request) decode(v any) error {
	if err := q.readDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	q.keepBody()
	if err := api.DecodeRequest(q.http, v); err != nil {
		return err
	}
	return q.readDeadline(time.Time{})
}

func (q *request) readDeadline(t time.Time) error {
	err := http.NewResponseController(q.w).SetReadDeadline(t)
	if errors.Is(err, http.ErrNotSupported) {
		return nil // a test's recorder
	}
	return err
}

func (q *request) writeDeadline(t time.Time) error {
	err := http.NewResponseController(q.w).SetWriteDeadline(t)
	if errors.Is(err, http.ErrNotSupported) {
		return nil // a test's recorder
	}
	return err
}

// integer reads a query parameter that checkQuery has seen.
func (q *request) integer(name string, fallback, most int) (int, error) {
	text := q.query(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		e := api.Invalid(name, fmt.Sprintf("%.40q is not an integer in range", text))
		e.Allowed = fmt.Sprintf("0 to %d", most)
		return 0, e
	}
	return n, nil
}

// wantsStream reports whether the answer is to be a stream of events.
func (q *request) wantsStream() bool {
	return q.flag("stream") || strings.Contains(q.http.Header.Get("Accept"), "application/x-ndjson")
}

// reply answers with JSON.
func (q *request) reply(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(status)
	// A caller that went away is no error of ours.
	_, _ = q.w.Write(append(body, '\n'))
	return nil
}

func (q *request) noContent() error {
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

type handler func(*request) error

// routes builds the handler of one socket.
func (d *Daemon) routes() http.Handler {
	mux := http.NewServeMux()
	for name, h := range d.handlers() {
		route, ok := api.RouteByName(name)
		if !ok {
			panic("daemon: handler without a route: " + name)
		}
		mux.HandleFunc(route.Method+" "+route.Pattern, func(w http.ResponseWriter, r *http.Request) { d.serve(w, r, route, h) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { d.writeError(w, r, "", noRoute(mux, r, w)) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkPath(r.URL.EscapedPath()); err != nil {
			d.writeError(w, r, "", err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// checkPath refuses what the mux would redirect from: a client that follows
// would do at one place, or for one tenant, what was meant for another.
func checkPath(p string) error {
	if clean := path.Clean("/" + p); p == clean || p == clean+"/" {
		return nil
	}
	e := api.Invalid("path", "holds an empty, \".\" or \"..\" segment")
	e.Hint = "write a slash or a dot that belongs to a name as %2F or %2E"
	return e
}

// noRoute tells a wrong method from a wrong path.
func noRoute(mux *http.ServeMux, r *http.Request, w http.ResponseWriter) error {
	var allowed []string
	for _, m := range []string{"GET", "POST", "PUT", "DELETE"} {
		probe := r.Clone(r.Context())
		probe.Method = m
		if _, pattern := mux.Handler(probe); pattern != "/" && pattern != "" {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return &api.Error{Code: api.CodeInvalidRequest, HTTPStatus: http.StatusMethodNotAllowed, Field: "method",
			Message: fmt.Sprintf("%.20q is not possible here", r.Method), Allowed: strings.Join(allowed, ", ")}
	}
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no operation at %.200q", r.URL.Path), Hint: "GET /v1/openapi.json lists all"}
}

// serve is the way of every request: identity, rights, checks, handler, errors.
func (d *Daemon) serve(w http.ResponseWriter, r *http.Request, route api.Route, h handler) {
	defer func() {
		v := recover()
		if v == http.ErrAbortHandler {
			panic(v) // net/http cuts the answer off, so that it does not look complete
		}
		if v != nil {
			d.log.Error("bug: a handler panicked", "route", route.Name, "panic", v, "stack", string(debug.Stack()))
			d.writeError(w, r, route.Name, errors.New("panic"))
		}
	}()
	q := &request{http: r, w: w, peer: peerOf(r.Context()), route: route, bodies: d.bodies}
	defer q.releaseBody()
	if q.peer != nil {
		defer q.peer.handed.drop(false)
	}
	if err := d.admit(q); err != nil {
		d.writeError(w, r, route.Name, err)
		return
	}
	if err := h(q); err != nil {
		d.writeError(w, r, route.Name, err)
	}
}

// admit decides whether the caller may make the request at all.
func (d *Daemon) admit(q *request) error {
	if q.peer == nil {
		return &api.Error{Code: api.CodeDenied, Message: "the kernel does not say who is calling"}
	}
	if d.stopping.Load() && q.route.Name != "health" && q.route.Name != "status" {
		return errStopping
	}
	if q.route.Name != "health" && !d.policy.MayConnect(q.caller()) {
		return &api.Error{Code: api.CodeDenied, Message: fmt.Sprintf("the policy does not know uid %d", q.caller().UID), Hint: "callers: in the policy file says who may act for whom"}
	}
	if err := checkQuery(q); err != nil {
		return err
	}
	if q.route.Admin && !d.policy.MayAdmin(q.caller()) {
		return &api.Error{Code: api.CodeDenied, Message: "this is for administrators", Hint: "use the admin socket, or set admin: true for this caller in the policy file"}
	}
	if !q.route.Tenant {
		return nil
	}
	q.tenant = q.path("tenant")
	if err := policy.ValidTenant(q.tenant); err != nil {
		e := api.Invalid("tenant", err.Error())
		e.Allowed = api.TenantPattern
		return e
	}
	return d.mayAct(q.caller(), q.tenant)
}

// mayAct refuses callers that policy does not let act for the tenant.
func (d *Daemon) mayAct(c policy.Caller, tenant string) error {
	if d.policy.MayAct(c, tenant) {
		return nil
	}
	return &api.Error{Code: api.CodeDenied, Field: "tenant", Message: fmt.Sprintf("uid %d may not act for tenant %s", c.UID, tenant),
		Hint: "callers: in the policy file says who may act for whom"}
}

// checkQuery refuses query parameters that are unknown, given twice or of the
// wrong type.
func checkQuery(q *request) error {
	for name, values := range q.http.URL.Query() {
		var known *api.Query
		var names []string
		for i := range q.route.Query {
			names = append(names, q.route.Query[i].Name)
			if q.route.Query[i].Name == name {
				known = &q.route.Query[i]
			}
		}
		if known == nil {
			e := api.Invalid(name, "unknown query parameter")
			e.Allowed = strings.Join(names, ", ")
			return e
		}
		if len(values) > 1 {
			return api.Invalid(name, "the query parameter occurs twice")
		}
		if err := checkQueryType(*known, values[0]); err != nil {
			return err
		}
	}
	return nil
}

func checkQueryType(q api.Query, value string) error {
	var err error
	want := ""
	switch q.Type {
	case "integer":
		_, err = strconv.ParseUint(value, 10, 63)
		want = "an integer that is not negative"
	case "boolean":
		if value != "true" && value != "false" && value != "" {
			err = strconv.ErrSyntax
		}
		want = "true or false"
	case "time":
		_, err = time.Parse(time.RFC3339, value)
		want = "a time such as 2026-01-02T15:04:05Z"
	}
	if err != nil {
		return api.Invalid(q.Name, fmt.Sprintf("%.60q is not %s", value, want))
	}
	return nil
}

// writeError answers with an error.
func (d *Daemon) writeError(w http.ResponseWriter, r *http.Request, route string, err error) {
	e := toAPI(err)
	d.metrics.failed(e.Code)
	if e.Code == api.CodeInternal {
		d.log.Error("a request failed", "route", route, "error", err)
	} else {
		d.log.Debug("a request was refused", "route", route, "code", e.Code, "field", e.Field, "error", err)
	}
	if e.Code == api.CodeBusy || e.Status() == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	q := &request{http: r, w: w}
	if err := q.reply(e.Status(), api.ErrorBody{Error: e}); err != nil {
		d.log.Error("an error could not be answered", "error", err)
	}
}

// Serve answers requests on the sockets until Close.
func (d *Daemon) Serve() error {
	if d.stopping.Load() {
		return nil
	}
	handler := d.routes()
	failed := make(chan error, len(d.cfg.Sockets))
	for _, s := range d.cfg.Sockets {
		srv := &http.Server{
			Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
			ConnContext: d.connContext, ConnState: d.connState, ErrorLog: d.httpLog(),
			BaseContext: func(net.Listener) context.Context { return d.base },
		}
		d.mu.Lock()
		d.servers = append(d.servers, srv)
		d.mu.Unlock()
		go func() { failed <- srv.Serve(limit(s, maxConnections, s.Admin, d.share, d.log)) }()
	}
	err := <-failed
	if errors.Is(err, http.ErrServerClosed) || d.stopping.Load() {
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

func (d *Daemon) connState(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	if p, ok := d.peers.LoadAndDelete(c); ok {
		p.(*peer).connectionClosed()
	}
}
