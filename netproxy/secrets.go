package netproxy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"sandboxd/netproxy/internal/control"
	"sandboxd/policy"
	"sandboxd/secrets"
)

// ErrNoStore says that the proxy has no key, and so no store.
var ErrNoStore = errors.New("there is no store for credentials: it has no key")

// A ValueError says what is wrong with a credential's value, never what it is.
type ValueError struct{ Message string }

func (e *ValueError) Error() string { return e.Message }

// storedAtOnce keeps a message far below the largest frame.
const storedAtOnce = 64

// sendStoreKey gives a new proxy process the store's key.
func (p *Proxy) sendStoreKey(ctx context.Context) error {
	if p.cfg.StoreKey == nil {
		return nil
	}
	if _, err := p.peer.Call(ctx, control.MethodStoreKey, nil, nil, p.cfg.StoreKey); err != nil {
		return fmt.Errorf("netproxy: the store's key: %w", err)
	}
	return nil
}

// sendStored gives a new process what its key opens. p.gate is held.
func (p *Proxy) sendStored(ctx context.Context, peer *control.Peer) error {
	if p.cfg.StoreKey == nil || p.cfg.Stored == nil {
		return nil
	}
	for all := p.cfg.Stored(); len(all) > 0; {
		n := min(len(all), storedAtOnce)
		var out control.Unopened
		if _, err := peer.Call(ctx, control.MethodStored, control.Stored{Secrets: all[:n]}, &out); err != nil {
			return asked(control.MethodStored, err)
		}
		for _, name := range out.Names {
			p.cfg.Log.Error("a stored credential cannot be opened with the store's key; rules that use it refuse", "credential", name)
		}
		all = all[n:]
	}
	return nil
}

// SealSecret lets the proxy read a value from a connection (secrets.ReadFrame)
// and returns it encrypted for the store. It is not in use before UseSecret. A
// value that cannot be used is a *ValueError.
func (p *Proxy) SealSecret(ctx context.Context, name string, conn *os.File) ([]byte, error) {
	var out control.Sealed
	err := p.call(ctx, control.MethodSeal, control.Seal{Name: name}, &out, conn)
	var remote *control.RemoteError
	switch {
	case errors.As(err, &remote) && remote.Code == control.CodeValue:
		return nil, &ValueError{remote.Message}
	case errors.As(err, &remote) && remote.Code == control.CodeNoStore:
		return nil, ErrNoStore
	}
	return out.Data, err
}

// UseSecret makes a stored value, which Config.Stored returns already, the one
// that the next requests get; those under way keep theirs.
func (p *Proxy) UseSecret(ctx context.Context, s secrets.Sealed) error {
	return p.tell(ctx, control.MethodStored, control.Stored{Secrets: []secrets.Sealed{s}}, func() {})
}

// ForgetSecret takes a value, which Config.Stored returns no longer, out of use:
// rules that name it refuse.
func (p *Proxy) ForgetSecret(ctx context.Context, name string) error {
	return p.tell(ctx, control.MethodForget, control.Forget{Name: name}, func() {})
}

// Placeholders are the variables that stand for credentials in the tenant's
// sandboxes. Their values are worth nothing outside of them.
func (p *Proxy) Placeholders(tenant string, rules []policy.Rule) map[string]string {
	env := map[string]string{}
	for _, r := range rules {
		if in := r.Credential; in != nil && in.Placeholder != "" {
			env[in.Placeholder] = control.Placeholder(p.placeholders, tenant, in)
		}
	}
	return env
}
