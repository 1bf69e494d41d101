package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/names"
)

// A record is one decision on its way into the audit log (step 22).
type record struct {
	s     *Server
	d     control.Decision
	start time.Time
	over  *budgetError // why it was not decided, if it was for that
}

func (r *record) target(scheme string, h names.Host, port uint16) {
	r.d.Scheme, r.d.Host, r.d.Port = scheme, h.Name, port
}

func (r *record) granted(g *rule, addrs []netip.Addr) {
	r.d.Allowed, r.d.Rule = true, g.ID
	if len(addrs) > 0 {
		r.d.Address = addrs[0]
	}
}

// decided waits until the decision is on record. false means that it is not,
// and that nothing may be done, least of all with a secret.
func (r *record) decided(ctx context.Context) bool {
	r.d.Phase, r.d.Time = "decided", time.Now()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := r.s.recorder.decide(ctx, &r.d)
	errors.As(err, &r.over)
	return err == nil
}

// refused puts a refusal on record. It is refused whether that works or not.
func (r *record) refused(why string) {
	r.d.Allowed, r.d.Reason = false, why
	_ = r.decided(context.Background())
}

// limited puts a refusal by a limit on record.
func (r *record) limited(e *limitError) {
	r.d.Limit = e.scope()
	r.refused(e.reason())
}

// cutBy notes whose limit ended what was allowed, if one did.
func (r *record) cutBy(e *limitError) {
	if e != nil {
		r.d.Limit = e.scope()
	}
}

// finished reports how it went; nobody waits for it.
func (r *record) finished(why string, status int, out, in int64) {
	d := r.d
	d.Phase, d.Time, d.Duration = "finished", time.Now(), time.Since(r.start)
	d.Reason, d.Status, d.BytesOut, d.BytesIn = why, status, out, in
	if why == "ip_denied" || why == "sni_mismatch" {
		d.Allowed = false
	}
	r.s.recorder.finish(&d)
}

func statusText(code int) string {
	if t := http.StatusText(code); t != "" {
		return t
	}
	return "Status"
}
