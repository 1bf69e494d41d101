package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/audit"
	"sandboxd/daemon/data"
	"sandboxd/isolate"
	"sandboxd/policy"
)

// instantPool is a pool without isolates.
type instantPool struct{ isolate.Pool }

func (instantPool) Run(context.Context, *isolate.Request, isolate.Host) (*isolate.Result, error) {
	return &isolate.Result{Status: isolate.StatusOK, Phase: isolate.PhaseFinished, Value: json.RawMessage("2")}, nil
}

// BenchmarkRunRequest is what the daemon itself does for a run in an isolate:
// all but the run, and but the connection.
func BenchmarkRunRequest(b *testing.B) {
	p, err := policy.Parse("bench", []byte(testPolicy))
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	d := &Daemon{cfg: Config{StateDir: dir}, log: slog.New(slog.DiscardHandler), missing: map[string]error{}, runs: newRegistry(), bodies: newBudget(), pool: instantPool{}}
	d.policy.Store(p)
	d.base, d.cancel = context.WithCancelCause(b.Context())
	d.metrics = newMetrics(d)
	d.tenants = newTenantTable(d)
	d.egress = newEgressUse(d)
	if d.audit, err = audit.Open(filepath.Join(dir, "audit"), d.log); err != nil {
		b.Fatal(err)
	}
	defer d.audit.Close()
	if d.data, err = data.Open(filepath.Join(dir, "data")); err != nil {
		b.Fatal(err)
	}
	defer d.data.Close()
	handler := d.routes()
	ctx := context.WithValue(b.Context(), peerKey{}, &peer{caller: policy.Caller{Admin: true}})
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(ctx)
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/tenants/t-a/run", strings.NewReader(`{"language":"js","code":"export default (input) => input + 1","input":1}`))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		cancel()
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"result":2`) {
			b.Fatalf("%d %s", w.Code, w.Body)
		}
	}
}
