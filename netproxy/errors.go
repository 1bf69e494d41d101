package netproxy

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrClosed says that the proxy was closed or has died.
	ErrClosed = errors.New("the egress proxy is not running")
	// ErrAttached says that the tenant's jail already has a link.
	ErrAttached = errors.New("the tenant already has a network link")
	// ErrNoPreview says that this daemon has no preview listener.
	ErrNoPreview = errors.New("previews are not set up: there is no preview listener")
	// ErrNotExposed says that the tenant's port is not published.
	ErrNotExposed = errors.New("the port is not published")
	// ErrTooMany says that the tenant has published as many ports as it may.
	ErrTooMany = errors.New("close one that is not needed")
	// ErrExhausted says that no address or no more room is left.
	ErrExhausted = errors.New("no room left")
)

// A DeniedError is a request of an isolate that the proxy refused.
type DeniedError struct {
	Host string
	// Reason is a fixed word such as "no_rule".
	Reason string
	// Rule is the rule that decided, or the one to ask for.
	Rule string
	// Message is for the person or model that must mend the code.
	Message string
}

func (e *DeniedError) Error() string {
	if e.Message != "" {
		return e.Message
	}
	return fmt.Sprintf("%s is not granted (%s)", e.Host, e.Reason)
}

// An UpstreamError is a request that was granted and failed on the way.
type UpstreamError struct {
	Host string
	// Reason is a fixed word such as "upstream_tls" or "timeout".
	Reason  string
	Message string
}

func (e *UpstreamError) Error() string {
	if e.Message != "" {
		return e.Message
	}
	return fmt.Sprintf("%s: the request failed (%s)", e.Host, e.Reason)
}

// A BudgetError is Config.OnDecisions's when a credential's budget does not allow
// a request. It is put on record as refused by whoever returns it.
type BudgetError struct {
	Credential string
	// Budget is its key in the policy, such as "requests_per_day".
	Budget  string
	Allowed string
	// Retry is when there is a budget again.
	Retry time.Duration
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("the credential %s has no more budget (%s: %s)", e.Credential, e.Budget, e.Allowed)
}
