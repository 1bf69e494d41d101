package control

import (
	"time"

	"sandboxd/secrets"
)

// Codes of a RemoteError.
const (
	CodeValue   = "value"    // the value cannot be used; the message says why
	CodeNoStore = "no_store" // the proxy has no key
)

// Stored are values of the store as they lie on the disk; the proxy opens them
// and uses them from then on.
type Stored struct {
	Secrets []secrets.Sealed `json:"secrets"`
}

// Unopened are the names of stored values that the key does not open.
type Unopened struct {
	Names []string `json:"names"`
}

// Seal asks for a new value to be read from the connection that comes along and
// to be sealed. It is not used before it comes back as Stored.
type Seal struct {
	Name string `json:"name"`
}

// Sealed is the encrypted value.
type Sealed struct {
	Data []byte `json:"data"`
}

// Forget takes a value out of use.
type Forget struct {
	Name string `json:"name"`
}

// Token asks for what a credential's command prints or its socket says.
type Token struct {
	Credential string `json:"credential"`
}

// A Verdict acknowledges a decision. With Budget set the credential may not be
// used: that budget, which is Allowed, is used up for the time of Retry.
type Verdict struct {
	Budget  string        `json:"budget,omitempty"`
	Allowed string        `json:"allowed,omitempty"`
	Retry   time.Duration `json:"retry,omitempty"`
}
