package daemon

import (
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sandboxd/daemon/api"
	"sandboxd/netproxy"
)

var pid = os.Getpid()

// metrics are few and carry no tenant's name: their number does not grow with
// the tenants, and whoever may read them learns of nobody.
type metrics struct {
	handler       http.Handler
	runs          *prometheus.CounterVec
	runSeconds    *prometheus.HistogramVec
	execs         prometheus.Counter
	jailsCreated  prometheus.Counter
	errors        *prometheus.CounterVec
	decisions     *prometheus.CounterVec
	auditFailures prometheus.Counter

	execTotal atomic.Uint64

	mu     sync.Mutex
	counts map[string]int // guarded by mu: error answers by code
}

func newMetrics(d *Daemon) *metrics {
	reg := prometheus.NewRegistry()
	m := &metrics{counts: map[string]int{},
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandboxd_runs_total", Help: "Runs that ended."}, []string{"environment", "status"}),
		runSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "sandboxd_run_seconds", Help: "Wall time of runs.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .05, .1, .5, 1, 5, 30, 120, 600}}, []string{"environment"}),
		jailsCreated:  prometheus.NewCounter(prometheus.CounterOpts{Name: "sandboxd_jails_created_total", Help: "Jails made."}),
		errors:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandboxd_errors_total", Help: "Error answers by code."}, []string{"code"}),
		decisions:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandboxd_egress_decisions_total", Help: "Decisions of the egress proxy."}, []string{"origin", "kind", "allowed"}),
		auditFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "sandboxd_audit_failures_total", Help: "Records that could not be written."}),
	}
	execs := &execCounter{m: m}
	execs.Counter = prometheus.NewCounter(prometheus.CounterOpts{Name: "sandboxd_execs_total", Help: "Commands started in jails."})
	m.execs = execs
	reg.MustRegister(m.runs, m.runSeconds, execs.Counter, m.jailsCreated, m.errors, m.decisions, m.auditFailures,
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "sandboxd_egress_restarts_total", Help: "Egress proxies that took the place of one that died."}, func() float64 {
			if s := d.egressState(); s != nil {
				return float64(s.Restarts)
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandboxd_egress_up", Help: "1 while an egress proxy serves."}, func() float64 {
			if s := d.egressState(); s != nil && s.Running {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandboxd_jails", Help: "Jails now."}, func() float64 { return float64(len(d.tenants.all())) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sandboxd_runs_active", Help: "Runs now."}, func() float64 { n, _ := d.runs.counts(); return float64(n) }))
	reg.MustRegister(spareMetrics(d)...)
	m.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	return m
}

// execCounter also counts for status, which does not read metrics back.
type execCounter struct {
	prometheus.Counter
	m *metrics
}

func (c *execCounter) Inc() {
	c.Counter.Inc()
	c.m.execTotal.Add(1)
}

func (m *metrics) execCount() uint64 { return m.execTotal.Load() }

func (m *metrics) ran(r *api.Run) {
	m.runs.WithLabelValues(r.Environment, r.Status).Inc()
	if r.Usage.Wall.Used != nil {
		m.runSeconds.WithLabelValues(r.Environment).Observe(r.Usage.Wall.Used.Std().Seconds())
	}
}

func (m *metrics) failed(code string) {
	m.errors.WithLabelValues(code).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[code]++
}

func (m *metrics) errorCounts() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]int, len(m.counts))
	for k, v := range m.counts {
		out[k] = v
	}
	return out
}

func (m *metrics) decided(d *netproxy.Decision) {
	if d.Phase == "finished" {
		return
	}
	allowed := "false"
	if d.Allowed {
		allowed = "true"
	}
	m.decisions.WithLabelValues(d.Origin, d.Kind, allowed).Inc()
}
