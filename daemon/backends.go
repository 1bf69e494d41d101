package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"sandboxd/daemon/pgquery"
	"sandboxd/daemon/service"
	"sandboxd/isolate"
	"sandboxd/policy"
)

// backends are the services and databases that bindings of the policy are
// answered by, made when they are first asked.
type backends struct {
	mu        sync.Mutex
	services  map[*policy.Service]*service.Client
	databases map[*policy.SQL]*pgquery.DB
	retired   []retired
}

// retired are the databases of a policy that is not in force any more: runs that
// began under it still use them.
type retired struct {
	at        time.Time
	databases map[*policy.SQL]*pgquery.DB
}

// retiredFor is how long they are kept, longer than a run may last.
const retiredFor = 2 * time.Hour

// retire makes a new policy begin with connections of its own.
func (b *backends) retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = slices.DeleteFunc(b.retired, func(r retired) bool {
		if time.Since(r.at) < retiredFor {
			return false
		}
		r.close()
		return true
	})
	if len(b.databases) > 0 {
		b.retired = append(b.retired, retired{time.Now(), b.databases})
		b.databases = map[*policy.SQL]*pgquery.DB{}
	}
	clear(b.services)
}

func (r *retired) close() {
	for _, db := range r.databases {
		db.Close()
	}
}

func newBackends() *backends {
	return &backends{services: map[*policy.Service]*service.Client{}, databases: map[*policy.SQL]*pgquery.DB{}}
}

func (b *backends) service(s *policy.Service) *service.Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.services[s]
	if c == nil {
		c = service.New(s)
		b.services[s] = c
	}
	return c
}

func (b *backends) database(s *policy.SQL) (*pgquery.DB, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if db := b.databases[s]; db != nil {
		return db, nil
	}
	db, err := pgquery.Open(s)
	if err == nil {
		b.databases[s] = db
	}
	return db, err
}

// close ends the connections; no run may be under way.
func (b *backends) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, db := range b.databases {
		db.Close()
	}
	clear(b.databases)
	for _, r := range b.retired {
		r.close()
	}
	b.retired = nil
}

// named makes a named query of the policy.
func (h *host) named(ctx context.Context, g *grant, c isolate.Call) (json.RawMessage, error) {
	db, err := h.d.backends.database(g.sql)
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, h.run.tenant, c.Method, c.Args)
	var e *pgquery.Error
	switch {
	case err == nil:
		return rows, nil
	case ctx.Err() != nil:
		return nil, context.Canceled
	case !errors.As(err, &e):
		return nil, err
	case e.Fault:
		return nil, &callError{"invalid_args", g.name + "." + c.Method + ": " + clip(e.Message, maxToolError)}
	}
	h.d.log.Warn("a named query gave no rows", "run", h.run.id, "tenant", h.run.tenant, "binding", g.name, "method", c.Method, "error", err)
	return nil, badCall("%s.%s: %s", g.name, c.Method, e.Message)
}
