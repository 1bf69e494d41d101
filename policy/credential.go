package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
)

// Ways in which a credential is put into a request.
const (
	AsBearer = "bearer"
	AsBasic  = "basic"
	AsHeader = "header"
	AsQuery  = "query"
	AsSigV4  = "aws-sigv4"
)

// Where a credential's value comes from, besides the store.
const (
	FromCommand = "command"
	FromSocket  = "socket"
	FromOAuth2  = "oauth2"
)

// An Injection says which secret the proxy adds and how. The value is known to
// the proxy process alone.
type Injection struct {
	// Name of the credential.
	Name string `json:"name"`
	// As is one of the constants.
	As string `json:"as"`
	// Username is for "basic" (git over https: any name the server takes).
	Username string `json:"username,omitempty"`
	// Field is the header's name for "header", the parameter's for "query".
	Field string `json:"field,omitempty"`
	// Region, Service and AccessKeyID are for "aws-sigv4". The access key's id
	// is no secret; it is empty where the value holds it (JSON as an AWS
	// credential_process prints it).
	Region      string `json:"region,omitempty"`
	Service     string `json:"service,omitempty"`
	AccessKeyID string `json:"access_key_id,omitempty"`
	// Payload is "signed" or "unsigned" for "aws-sigv4"; empty: unsigned for
	// s3, which allows it over TLS, signed for all others.
	Payload string `json:"payload,omitempty"`
	// Placeholder names a variable of the sandbox's environment whose value is
	// worthless and stands for the credential, after PlaceholderPrefix.
	Placeholder       string `json:"placeholder,omitempty"`
	PlaceholderPrefix string `json:"placeholder_prefix,omitempty"`

	// Source is one of the From constants, "" for the store. It and OAuth2 are
	// the credential's, copied to each use.
	Source string  `json:"source,omitempty"`
	OAuth2 *OAuth2 `json:"oauth2,omitempty"`
	// SourceID is another one for another command or socket, so that what was
	// made by one is not taken for the other's.
	SourceID string `json:"source_id,omitempty"`
}

// A Credential is one entry of "credentials": where a value comes from and how
// much it may be used. What has no entry comes from the store, without budget.
type Credential struct {
	Name string
	// Command prints a token as JSON: {"token": …, "expires": RFC 3339}. It is
	// started by the daemon with an empty environment; what it prints goes to
	// the proxy alone.
	Command []string
	// Timeout of Command or Socket.
	Timeout Duration
	// Socket is a Unix socket that says the same to whoever connects.
	Socket string
	// OAuth2 gets tokens with a client's id and secret; the secret is the value
	// of this name in the store.
	OAuth2 *OAuth2
	Budget *Budget
}

// An OAuth2 is a client of the client credentials grant (RFC 6749, 4.4).
type OAuth2 struct {
	TokenURL string   `json:"token_url"`
	ClientID string   `json:"client_id"`
	Scopes   []string `json:"scopes,omitempty"`
	Audience string   `json:"audience,omitempty"`
	// Auth is where the client's secret stands: "header" (basic, the default)
	// or "body".
	Auth string `json:"auth,omitempty"`
	// Addresses and Resolve are for the token host what they are in a Rule.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Resolve   []netip.Addr   `json:"resolve,omitempty"`
}

// A Budget bounds what each tenant may do with a credential. 0 means unbounded.
// Days begin at midnight UTC.
type Budget struct {
	RequestsPerMinute int
	RequestsPerDay    int
	// BytesPerDay counts both ways. A request that is under way when it is used
	// up ends normally; the next is refused.
	BytesPerDay Size
}

// Credential returns the entry of that name; nil when there is none.
func (p *Policy) Credential(name string) *Credential {
	if p == nil {
		return nil
	}
	return p.credentials[name]
}

// A CredentialUse is one rule that sends a credential.
type CredentialUse struct {
	Profile, Rule string
	Injection     *Injection
}

// CredentialUses lists the rules of all profiles by the credential they send,
// with credentials that have an entry and no use.
func (p *Policy) CredentialUses() map[string][]CredentialUse {
	uses := map[string][]CredentialUse{}
	if p == nil {
		return uses
	}
	for name := range p.credentials {
		uses[name] = nil
	}
	for name, profile := range p.profiles {
		for _, r := range profile.Egress {
			if r.Credential != nil {
				uses[r.Credential.Name] = append(uses[r.Credential.Name], CredentialUse{name, r.ID, r.Credential})
			}
		}
	}
	for _, list := range uses {
		slices.SortFunc(list, func(a, b CredentialUse) int {
			return strings.Compare(a.Profile+"\x00"+a.Rule, b.Profile+"\x00"+b.Rule)
		})
	}
	return uses
}

// sourceID is a name for the command or socket that does not tell what it is.
func (c *Credential) sourceID() string {
	if c == nil || len(c.Command) == 0 && c.Socket == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(c.Command, "\x00") + "\x00\x00" + c.Socket))
	return hex.EncodeToString(sum[:8])
}

// source is the word for where the value comes from.
func (c *Credential) source() string {
	switch {
	case c == nil:
		return ""
	case len(c.Command) > 0:
		return FromCommand
	case c.Socket != "":
		return FromSocket
	case c.OAuth2 != nil:
		return FromOAuth2
	}
	return ""
}
