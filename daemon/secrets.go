package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/netproxy"
	"sandboxd/policy"
	"sandboxd/secrets"
)

// A secretStore is the daemon's side of the credentials: names and encrypted
// values. Neither a value nor the key ever comes into this process.
type secretStore struct {
	file *secrets.File
	// given are the credentials that came as files, with the time of each.
	given map[string]time.Time

	mu sync.Mutex // held while the store and the proxy are changed
}

// openSecrets opens the store in dir and, unless the configuration brings one,
// the key's file beside it.
func openSecrets(dir string, cfg *Config) (*secretStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &secretStore{given: map[string]time.Time{}}
	for name, f := range cfg.Credentials {
		st, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("credential %s: %w", name, err)
		}
		s.given[name] = st.ModTime().UTC()
	}
	var err error
	if s.file, err = secrets.OpenFile(filepath.Join(dir, "store.json")); err != nil {
		return nil, err
	}
	if cfg.StoreKey != nil {
		return s, nil
	}
	var fresh bool
	if cfg.StoreKey, fresh, err = secrets.OpenKeyFile(filepath.Join(dir, "key")); err != nil {
		return nil, err
	}
	if fresh && len(s.file.All()) > 0 {
		return nil, fmt.Errorf("the key %s is gone, and the stored credentials cannot be opened without it; put it back, or delete store.json beside it", filepath.Join(dir, "key"))
	}
	return s, nil
}

// handleSecrets lists the credentials that the policy or the store knows.
func (d *Daemon) handleSecrets(q *request) error {
	all := map[string]*api.Secret{}
	get := func(name string) *api.Secret {
		if all[name] == nil {
			all[name] = &api.Secret{Name: name, Source: "none", Uses: []api.SecretUse{}}
		}
		return all[name]
	}
	for _, e := range d.secrets.file.All() {
		s := get(e.Name)
		s.Source, s.Changed = "store", &e.Changed
	}
	for name, changed := range d.secrets.given {
		s := get(name)
		s.Source, s.Changed = "file", &changed
	}
	for name, uses := range d.policy.CredentialUses() {
		s := get(name)
		for _, u := range uses {
			s.Uses = append(s.Uses, api.SecretUse{Profile: u.Profile, Rule: u.Rule, As: u.Injection.As})
		}
		switch c := d.policy.Credential(name); {
		case c == nil:
		case len(c.Command) > 0:
			s.Source, s.Changed = policy.FromCommand, nil
		case c.Socket != "":
			s.Source, s.Changed = policy.FromSocket, nil
		case c.OAuth2 != nil && s.Source != "none":
			s.Source = policy.FromOAuth2
		}
	}
	list := api.SecretList{Secrets: []api.Secret{}}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list.Secrets = append(list.Secrets, *all[name])
	}
	return q.reply(http.StatusOK, list)
}

// secretName is the name in the path, of a credential that the store may hold.
func (d *Daemon) secretName(q *request) (string, error) {
	name := q.path("secret")
	if err := secrets.CheckName(name); err != nil {
		return "", api.Invalid("secret", strings.TrimPrefix(err.Error(), "secrets: "))
	}
	if _, ok := d.secrets.given[name]; ok {
		return "", &api.Error{Code: api.CodeConflict, Field: "secret", Message: fmt.Sprintf("the credential %s came as a file when the daemon started", name),
			Hint: "change it there (LoadCredentialEncrypted=, --credentials) and restart, or take it out there first"}
	}
	return name, d.need(partEgress)
}

// secretTime bounds how long a caller may take to send a value.
const secretTime = time.Minute

// handleSecretSet takes a value. It goes from the caller to the proxy process
// through the caller's own connection, which the daemon hands on and does not
// read from.
func (d *Daemon) handleSecretSet(q *request) error {
	name, err := d.secretName(q)
	if err != nil {
		return err
	}
	if !strings.EqualFold(q.http.Header.Get("Upgrade"), api.SecretProtocol) || q.http.ContentLength != 0 {
		return &api.Error{Code: api.CodeInvalidRequest, Field: "Upgrade", Message: "a value is not sent in a request's body, where the daemon would read it",
			Hint: "use sandboxctl secret set, or Connection: Upgrade with Upgrade: " + api.SecretProtocol + ", and send the value after 101"}
	}
	if _, err := d.record(q.ctx(), audit.Record{Kind: audit.KindAdmin, Caller: q.caller(), Fields: map[string]any{"event": "secret_set", "secret": name}}); err != nil {
		return err
	}
	if !d.begin() {
		return errStopping
	}
	defer d.work.Done()
	conn, rw, err := http.NewResponseController(q.w).Hijack()
	if err != nil {
		return fmt.Errorf("secret: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(d.base, secretTime)
	defer cancel()
	if err := conn.SetDeadline(time.Now().Add(secretTime + 5*time.Second)); err != nil {
		return nil // the caller is gone
	}
	var answer any
	changed, err := d.takeSecret(ctx, name, conn, rw)
	if err != nil {
		d.log.Warn("a credential was not set", "credential", name, "error", err)
		answer = api.ErrorBody{Error: toAPI(secretError(err))}
	} else {
		answer = api.Secret{Name: name, Source: "store", Changed: &changed, Uses: []api.SecretUse{}}
	}
	_ = json.NewEncoder(conn).Encode(answer) // a caller that went away is no error of ours
	return nil
}

// takeSecret upgrades the connection and has the proxy read the value from it.
func (d *Daemon) takeSecret(ctx context.Context, name string, conn net.Conn, rw *bufio.ReadWriter) (time.Time, error) {
	if rw.Reader.Buffered() > 0 {
		return time.Time{}, api.Invalid("Upgrade", "send the value after the answer 101, not before")
	}
	if _, err := fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", api.SecretProtocol); err != nil {
		return time.Time{}, err
	}
	if err := rw.Flush(); err != nil {
		return time.Time{}, err
	}
	slot, ok := conn.(*slotConn)
	if !ok {
		return time.Time{}, fmt.Errorf("%T has no descriptor", conn)
	}
	f, err := slot.unix.File()
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	data, err := d.net.SealSecret(ctx, name, f)
	if err != nil {
		return time.Time{}, err
	}
	sealed := secrets.Sealed{Name: name, Changed: time.Now().UTC().Truncate(time.Millisecond), Data: data}
	d.secrets.mu.Lock()
	defer d.secrets.mu.Unlock()
	if err := d.secrets.file.Put(sealed); err != nil {
		return time.Time{}, err
	}
	return sealed.Changed, d.net.UseSecret(ctx, sealed)
}

// secretError says what a caller can mend.
func secretError(err error) error {
	var value *netproxy.ValueError
	switch {
	case errors.As(err, &value):
		return api.Invalid("value", strings.TrimPrefix(value.Message, "secrets: "))
	case errors.Is(err, secrets.ErrFull):
		return &api.Error{Code: api.CodeConflict, Message: strings.TrimPrefix(err.Error(), "secrets: "), Hint: "delete what no rule names: sandboxctl secret list"}
	}
	return err
}

// handleSecretDelete takes a value out of the store first: a new proxy
// process is given what is there.
func (d *Daemon) handleSecretDelete(q *request) error {
	name, err := d.secretName(q)
	if err != nil {
		return err
	}
	if _, err := d.record(q.ctx(), audit.Record{Kind: audit.KindAdmin, Caller: q.caller(), Fields: map[string]any{"event": "secret_rm", "secret": name}}); err != nil {
		return err
	}
	d.secrets.mu.Lock()
	defer d.secrets.mu.Unlock()
	if _, err := d.secrets.file.Remove(name); err != nil {
		return err
	}
	if err := d.net.ForgetSecret(q.ctx(), name); err != nil {
		return err
	}
	return q.noContent()
}
