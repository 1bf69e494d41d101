package daemon

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
)

// deadlines records what is set on a connection.
type deadlines struct {
	*httptest.ResponseRecorder
	read, write []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error  { d.read = append(d.read, t); return nil }
func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = append(d.write, t); return nil }

// TestDeadlinesAreTakenBack: a deadline that stayed would end a run that is
// silent for longer than a body may take.
func TestDeadlinesAreTakenBack(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest("POST", "/", strings.NewReader(`{"language":"js","code":"1"}`))
	r.Header.Set("Content-Type", "application/json")
	q := &request{http: r, w: w}
	if err := q.decode(new(api.RunRequest)); err != nil {
		t.Fatal(err)
	}
	if len(w.read) != 2 || !w.read[0].After(time.Now()) || !w.read[1].IsZero() {
		t.Errorf("read deadlines are %v", w.read)
	}
	var l eventLog
	l.append(api.Event{Type: api.EventResult})
	if err := (&Daemon{}).stream(q, l.all(r.Context(), 0, true)); err != nil {
		t.Fatal(err)
	}
	if len(w.write) != 2 || !w.write[0].After(time.Now()) || !w.write[1].IsZero() {
		t.Errorf("write deadlines are %v", w.write)
	}
	if got := w.Header().Get("Content-Type"); got != "application/x-ndjson" || !strings.HasSuffix(w.Body.String(), "\n") {
		t.Errorf("the stream is %q %q", got, w.Body.String())
	}
}

// TestCloseBesideServe: a daemon may be told to stop before it has begun to
// serve.
func TestCloseBesideServe(t *testing.T) {
	dir := t.TempDir()
	s, err := ListenUnix(filepath.Join(dir, "s"), true)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(context.Background(), Config{StateDir: dir, RunDir: filepath.Join(dir, "run"), GuestDir: dir, InProcess: true, Sockets: []*Socket{s}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve() }()
	if err := d.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := d.Close(context.Background()); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

// TestNoPathLeadsToAnother: what follows a tenant's name may come from that
// tenant's user; it must not make the request one for somebody else.
func TestNoPathLeadsToAnother(t *testing.T) {
	d := &Daemon{log: slog.New(slog.DiscardHandler)}
	d.tenants, d.runs = newTenantTable(d), newRegistry()
	d.metrics = newMetrics(d)
	h := d.routes()
	for path, want := range map[string]int{
		"/v1/tenants/a/jail/files/../../../b/jail": 400,
		"/v1/tenants/a/jail/files//etc":            400,
		"/v1/tenants/a/jail/files/./etc":           400,
		"/v1/tenants/a/..":                         400,
		"//v1/jails":                               400,
		"/v1/tenants/a/jail/files/%2e%2e/x":        403, // the handler's own matter
		"/v1/tenants/a/jail/files/":                403,
		"/v1/tenants/a/kv/x%2F%2Fy":                403,
		"/":                                        404,
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "http://sandboxd/", nil)
		var err error
		if r.URL, err = url.Parse("http://sandboxd" + path); err != nil {
			t.Fatal(err)
		}
		h.ServeHTTP(w, r)
		if w.Code != want || w.Header().Get("Location") != "" || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%s: %d %q %s, want %d", path, w.Code, w.Header().Get("Location"), w.Body, want)
		}
	}
}
