package proxy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"sandboxd/policy"
)

// A meter holds a rule, or a tenant under all its rules, to its limits
// (step 2).
type meter struct {
	rule   string // "" for the tenant
	limits policy.EgressLimits
	rate   *rate.Limiter
	open   atomic.Int64
	day    *dayVolume
}

// newMeter goes on with what old has counted: a change of the rules is no way
// to begin a day anew.
func newMeter(ruleID string, limits policy.EgressLimits, old *meter) *meter {
	m := &meter{rule: ruleID, limits: limits, day: &dayVolume{}}
	if old != nil {
		m.day = old.day
	}
	per := rate.Inf
	if limits.Rate > 0 {
		per = rate.Limit(limits.Rate)
	}
	m.rate = rate.NewLimiter(per, max(limits.Burst, 1))
	return m
}

// A dayVolume counts bytes in windows of 24 hours; the first begins with the
// first byte.
type dayVolume struct {
	mu      sync.Mutex
	began   time.Time
	out, in int64
}

const dayWindow = 24 * time.Hour

// add counts bytes and returns what the window holds now.
func (d *dayVolume) add(out, in int64) (sumOut, sumIn int64, ends time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.began.IsZero() || now.Sub(d.began) >= dayWindow {
		d.began, d.out, d.in = now, 0, 0
	}
	d.out, d.in = d.out+out, d.in+in
	return d.out, d.in, dayWindow - now.Sub(d.began)
}

// A limitError says which limit does not allow more.
type limitError struct {
	limit   string // its key in the policy
	rule    string // "" for the tenant's
	allowed string
	retry   time.Duration // 0: trying again is of no use
}

func (e *limitError) Error() string { return e.reason() }

// reason is the fixed word of records.
func (e *limitError) reason() string { return e.limit + "_limit" }

// scope says whose limit it is, for records.
func (e *limitError) scope() string {
	if e.rule == "" {
		return "tenant"
	}
	return "rule"
}

func (m *meter) exceeded(limit, allowed string, retry time.Duration) *limitError {
	return &limitError{limit: limit, rule: m.rule, allowed: allowed, retry: retry}
}

func perSecond(r float64) string { return strconv.FormatFloat(r, 'g', -1, 64) + "/s" }

// begin counts the start of something, unless a limit does not allow it.
func (m *meter) begin() *limitError {
	if e := m.spent(); e != nil {
		return e
	}
	l := &m.limits
	if l.Connections > 0 && m.open.Load() >= int64(l.Connections) {
		return m.exceeded("connections", strconv.Itoa(l.Connections), time.Second)
	}
	if !m.rate.Allow() {
		return m.exceeded("rate", perSecond(l.Rate), max(time.Second, time.Duration(float64(time.Second)/l.Rate)))
	}
	m.open.Add(1)
	return nil
}

// volume counts bytes against the day's, also while it has no limit: one may
// come with the next change of the rules.
func (m *meter) volume(out, in int64) *limitError {
	l := &m.limits
	sumOut, sumIn, ends := m.day.add(out, in)
	switch {
	case l.DayOut > 0 && sumOut > int64(l.DayOut):
		return m.exceeded("day_out", l.DayOut.String(), ends)
	case l.DayIn > 0 && sumIn > int64(l.DayIn):
		return m.exceeded("day_in", l.DayIn.String(), ends)
	}
	return nil
}

// spent tells whether the day's bytes are used up, so that nothing may begin.
func (m *meter) spent() *limitError {
	l := &m.limits
	if l.DayOut == 0 && l.DayIn == 0 {
		return nil
	}
	sumOut, sumIn, ends := m.day.add(0, 0)
	switch {
	case l.DayOut > 0 && sumOut >= int64(l.DayOut):
		return m.exceeded("day_out", l.DayOut.String(), ends)
	case l.DayIn > 0 && sumIn >= int64(l.DayIn):
		return m.exceeded("day_in", l.DayIn.String(), ends)
	}
	return nil
}

// A ticket is one request or connection under way, counted by its tenant and
// its rule.
type ticket struct {
	tenant, rule *meter
	out, in      atomic.Int64
	failed       atomic.Pointer[limitError]
	once         sync.Once
}

// admit counts the start of a request or connection under a rule. The tenant's
// own rate was charged before its target was known.
func (t *tenant) admit(g *rule) (*ticket, *limitError) {
	all := t.meter.Load()
	if e := all.spent(); e != nil {
		return nil, e
	}
	if e := g.meter.begin(); e != nil {
		return nil, e
	}
	return &ticket{tenant: all, rule: g.meter}, nil
}

func (k *ticket) done() {
	if k != nil {
		k.once.Do(func() { k.rule.open.Add(-1) })
	}
}

// sent counts bytes that are about to leave; with an error they must not.
func (k *ticket) sent(n int) error { return k.count(int64(n), 0) }

// received counts bytes that are about to be passed to the sandbox.
func (k *ticket) received(n int) error { return k.count(0, int64(n)) }

func (k *ticket) count(out, in int64) error {
	if e := k.tryCount(out, in); e != nil {
		k.failed.CompareAndSwap(nil, e)
		return e
	}
	return nil
}

func (k *ticket) tryCount(out, in int64) *limitError {
	if e := k.over(k.out.Add(out), k.in.Add(in)); e != nil {
		return e
	}
	if e := k.rule.volume(out, in); e != nil {
		return e
	}
	return k.tenant.volume(out, in)
}

// over holds the bytes of one request against both limits.
func (k *ticket) over(out, in int64) *limitError {
	for _, m := range [2]*meter{k.rule, k.tenant} {
		l := &m.limits
		if l.BytesOut > 0 && out > int64(l.BytesOut) {
			return m.exceeded("bytes_out", l.BytesOut.String(), 0)
		}
		if l.BytesIn > 0 && in > int64(l.BytesIn) {
			return m.exceeded("bytes_in", l.BytesIn.String(), 0)
		}
	}
	return nil
}

// expect tells early that a body of a known length cannot pass.
func (k *ticket) expect(out, in int64) *limitError { return k.over(max(out, 0), max(in, 0)) }

// longest is how long something under the rule may last, and whose limit that
// is.
func (t *tenant) longest(g *rule, most time.Duration) (time.Duration, *limitError) {
	all := t.meter.Load()
	var e *limitError
	for _, m := range [2]*meter{all, g.meterOrNil()} {
		if m == nil {
			continue
		}
		if d := m.limits.Time.Std(); d > 0 && d < most {
			most, e = d, m.exceeded("time", m.limits.Time.String(), 0)
		}
	}
	if e == nil {
		e = all.exceeded("time", most.String(), 0)
	}
	return most, e
}

func (r *rule) meterOrNil() *meter {
	if r == nil {
		return nil
	}
	return r.meter
}

// refusal is the answer to what a limit does not allow.
func (e *limitError) refusal(host string) *refusal {
	whose := "this tenant"
	if e.rule != "" {
		whose = "the rule " + e.rule
	}
	r := &refusal{status: 429, code: "busy", reason: e.reason(), host: host, retry: e.retry > 0, after: e.retry,
		limit: e.limit, limitRule: e.rule, allowed: e.allowed}
	words := map[string]string{
		"rate": "requests begin faster than", "connections": "as many connections are open as",
		"day_out": "as much was sent in 24 hours as", "day_in": "as much was received in 24 hours as",
		"bytes_out": "the request is larger than", "bytes_in": "the answer is larger than", "time": "it took longer than",
	}
	r.message = fmt.Sprintf("%s %s may have (limit %s: %s)", words[e.limit], whose, e.limit, e.allowed)
	switch e.limit {
	case "bytes_out":
		r.status, r.code = 413, "too_large"
	case "bytes_in":
		r.status, r.code = 403, "denied"
	case "time":
		r.status, r.code = 504, "limit_exceeded"
	case "connections":
		r.hint = "close connections that are not needed"
	case "rate":
		r.hint = "wait before the next request"
	}
	return r
}

// limitIn finds the limit that a failure is about, if it is about one.
func limitIn(ctx context.Context, err error) *limitError {
	var e *limitError
	if errors.As(err, &e) || errors.As(context.Cause(ctx), &e) {
		return e
	}
	return nil
}

// limitOf finds the limit that ended something, if one did.
func limitOf(ctx context.Context, k *ticket) *limitError {
	if k != nil {
		if e := k.failed.Load(); e != nil {
			return e
		}
	}
	var e *limitError
	if errors.As(context.Cause(ctx), &e) {
		return e
	}
	return nil
}
