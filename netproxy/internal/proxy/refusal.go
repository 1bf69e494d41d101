package proxy

import (
	"encoding/json"
	"fmt"
	"time"

	"sandboxd/netproxy/internal/control"
	"sandboxd/netproxy/internal/names"
)

// RefusedHeader tells an isolate's transport that an answer is the proxy's
// own. It is taken out of every upstream answer.
const RefusedHeader = "Sandboxd-Refused"

// A refusal is an answer of the proxy's own (step 21): fixed words, the host,
// the rule to ask for, and nothing of what went on behind.
type refusal struct {
	status  int
	code    string
	reason  string
	message string
	hint    string
	host    string
	rule    string
	retry   bool
	// after is when trying again makes sense; limit, limitRule and allowed name
	// the limit that was reached, limitRule being "" for a tenant's.
	after                     time.Duration
	limit, limitRule, allowed string
	// closing says that what follows on the connection cannot be trusted.
	closing bool
}

// Body is the refusal as the API writes errors; reason, host and rule are
// added for machines.
type Body struct {
	Error BodyError `json:"error"`
}

// BodyError is the object in a Body.
type BodyError struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Reason    string `json:"reason"`
	Host      string `json:"host,omitempty"`
	Rule      string `json:"rule,omitempty"`
	Limit     string `json:"limit,omitempty"`
	LimitRule string `json:"limit_rule,omitempty"`
	Allowed   string `json:"allowed,omitempty"`
	Hint      string `json:"hint,omitempty"`
	Retryable bool   `json:"retryable"`
}

func (r *refusal) body() []byte {
	b, err := json.Marshal(Body{BodyError{
		Code: r.code, Message: r.message, Reason: r.reason, Host: r.host, Rule: r.rule, Hint: r.hint, Retryable: r.retry,
		Limit: r.limit, LimitRule: r.limitRule, Allowed: r.allowed,
	}})
	if err != nil {
		return []byte(`{"error":{"code":"internal"}}`)
	}
	return append(b, '\n')
}

// denied is a refusal by the tenant's rules.
func denied(why, scheme string, h names.Host, port uint16, method, path string) *refusal {
	r := &refusal{status: 403, code: "denied", reason: why, host: h.Name, rule: wanted(scheme, h, port)}
	at := fmt.Sprintf("%s port %d", h.Name, port)
	switch why {
	case "scheme_denied":
		r.message = fmt.Sprintf("%s is granted, but not over %s", h.Name, scheme)
	case "port_denied":
		r.message = fmt.Sprintf("%s is granted, but not on port %d", h.Name, port)
	case "method_denied":
		r.message = fmt.Sprintf("%s is granted, but not the method %s", at, method)
	case "path_denied":
		r.message = fmt.Sprintf("%s is granted, but not %s on the path %s", at, method, path)
	case "upgrade_denied":
		r.message, r.rule = fmt.Sprintf("%s is granted, but not to change the protocol (Upgrade)", at), ""
		r.hint = "use plain requests; the operator can grant WebSockets with websocket: true in a rule for a host that no credential goes to"
		return r
	case "cleartext":
		r.message, r.rule = fmt.Sprintf("%s is granted with a credential, which never crosses the network in clear text", at), ""
		r.hint = "use https"
		return r
	default:
		r.message = fmt.Sprintf("%s is not granted to this tenant", at)
	}
	r.hint = "the operator can grant it with an egress rule such as " + r.rule
	return r
}

func addressDenied(h names.Host) *refusal {
	return &refusal{status: 403, code: "denied", reason: "ip_denied", host: h.Name,
		message: h.Name + " has an address that is not public",
		hint:    "if this host is meant, the operator's rule for it can name the range: addresses: [CIDR]"}
}

func malformed(reason, message string) *refusal {
	return &refusal{status: 400, code: "invalid_request", reason: reason, message: message, closing: true}
}

// misdirected is for requests inside a tunnel that name another target (step 9).
func misdirected(h names.Host, message string) *refusal {
	return &refusal{status: 421, code: "denied", reason: "misdirected", host: h.Name, message: message, closing: true}
}

// A budgetError says that a credential's budget is used up.
type budgetError struct{ control.Verdict }

func (e *budgetError) Error() string { return "budget_" + e.Budget }

// undecided is the answer to a request whose decision is not on record as
// granted.
func (r *record) undecided() *refusal {
	if r.over == nil {
		return unrecorded()
	}
	e := r.over
	return &refusal{status: 429, code: "busy", reason: e.Error(), host: r.d.Host, rule: r.d.Rule, retry: true, after: e.Retry,
		limit: e.Budget, allowed: e.Allowed,
		message: fmt.Sprintf("the credential %s is used up for this tenant (budget %s: %s)", r.d.Credential, e.Budget, e.Allowed),
		hint:    "wait, or ask the operator for a larger budget of the credential"}
}

func unrecorded() *refusal {
	return &refusal{status: 503, code: "denied", reason: "audit_unavailable", retry: true,
		message: "the request could not be put on record, so it was not made"}
}

// upstream failures that are told apart; everything else is "upstream_failed".
func failed(reason string, h names.Host) *refusal {
	r := &refusal{status: 502, code: "internal", reason: reason, host: h.Name, retry: true}
	switch reason {
	case "dns_failed":
		r.message = h.Name + ": the name could not be resolved"
	case "upstream_unreachable":
		r.message = h.Name + ": no connection"
	case "upstream_tls":
		r.message, r.retry = h.Name+": its TLS certificate or version is not acceptable", false
	case "upstream_timeout":
		r.status, r.message = 504, h.Name+": no answer in time"
	case "partial_answer":
		r.message, r.retry = h.Name+": it answered with a part that nobody asked for, which cannot be searched for the credential", false
	case "encoded_answer":
		r.message, r.retry = h.Name+": it answered in an encoding that cannot be searched for the credential", false
	case "revoked":
		r.status, r.code, r.message, r.retry = 403, "denied", h.Name+": the grant was withdrawn", false
		r.closing = true
	default:
		r.message = h.Name + ": the request failed"
	}
	return r
}
