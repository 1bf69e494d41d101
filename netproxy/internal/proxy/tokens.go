package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"sandboxd/policy"
	"sandboxd/secrets"
)

// tokens are short-lived values that are made when they are needed: with
// OAuth2, or by a command or socket of the operator's. One is made at a time
// for each credential, for all tenants that use it.
type tokens struct {
	set secrets.Set // by credential's name, with those before

	mu    sync.Mutex
	known map[string]*madeToken // guarded by mu; by tokenKey
}

type madeToken struct {
	value   secrets.Value
	from    uint64    // version of what it was made from
	expires time.Time // not used after
	refresh time.Time // made anew from then on, in the background
	retry   time.Time // not tried before, after a failure
	busy    chan struct{}
}

const (
	// tokenTime is how long making one may take.
	tokenTime = 75 * time.Second
	// tokenLife is that of a token which does not say how long it is valid.
	tokenLife = 5 * time.Minute
	// tokenPause follows a failure, so that requests do not become attempts.
	tokenPause = 2 * time.Second
	// maxToken bounds what a command or socket says.
	maxToken = 64 << 10
	// maxTokens bounds what is kept; a changed policy leaves old ones behind.
	maxTokens = 4096
)

var errToken = errors.New("no token")

// value returns what is to be sent for a rule's credential.
func (s *Server) value(ctx context.Context, c *session, in *policy.Injection) (secrets.Value, error) {
	switch in.Source {
	case "":
		return s.secrets.Get(in.Name)
	case policy.FromOAuth2:
		held := s.secrets.Held(in.Name)
		if held.Value.IsZero() || in.OAuth2 == nil {
			return secrets.Value{}, secrets.ErrUnknown
		}
		return s.tokens.get(ctx, in, held.Version, func(ctx context.Context) (secrets.Value, time.Time, error) {
			return s.oauthToken(ctx, c, in, held.Value)
		})
	case policy.FromCommand, policy.FromSocket:
		return s.tokens.get(ctx, in, 0, func(ctx context.Context) (secrets.Value, time.Time, error) {
			return s.operatorToken(ctx, in)
		})
	}
	return secrets.Value{}, secrets.ErrUnknown
}

func tokenKey(in *policy.Injection) string {
	settings, err := json.Marshal(in.OAuth2)
	if err != nil {
		return in.Name
	}
	return in.Name + "\x00" + in.Source + "\x00" + in.SourceID + "\x00" + string(settings)
}

type makeToken func(context.Context) (secrets.Value, time.Time, error)

// get returns a valid token: the one there is, or a new one.
func (t *tokens) get(ctx context.Context, in *policy.Injection, from uint64, produce makeToken) (secrets.Value, error) {
	for {
		t.mu.Lock()
		k := t.entry(tokenKey(in), from)
		now := time.Now()
		valid := !k.value.IsZero() && now.Before(k.expires)
		if (!valid || now.After(k.refresh)) && k.busy == nil && !now.Before(k.retry) {
			k.busy = make(chan struct{})
			go t.renew(k, in.Name, produce)
		}
		value, busy := k.value, k.busy
		t.mu.Unlock()
		switch {
		case valid:
			return value, nil
		case busy == nil:
			return secrets.Value{}, errToken
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return secrets.Value{}, ctx.Err()
		}
	}
}

// entry finds a token that was made from the same secret; t.mu is held.
func (t *tokens) entry(key string, from uint64) *madeToken {
	k := t.known[key]
	if k != nil && k.from == from {
		return k
	}
	if t.known == nil || len(t.known) >= maxTokens {
		t.known = map[string]*madeToken{}
	}
	k = &madeToken{from: from}
	t.known[key] = k
	return k
}

// renew makes a token. It does not depend on the request that asked first.
func (t *tokens) renew(k *madeToken, name string, produce makeToken) {
	ctx, cancel := context.WithTimeout(context.Background(), tokenTime)
	defer cancel()
	v, expires, err := produce(ctx)
	now := time.Now()
	if err == nil && !expires.After(now) {
		err = errToken
	}
	if err == nil {
		err = t.set.Put(name, v) // looked for in answers before it is ever sent
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		k.retry = now.Add(tokenPause)
	} else {
		life := expires.Sub(now)
		k.value, k.expires, k.retry = v, expires.Add(-min(life/10, 5*time.Second)), time.Time{}
		k.refresh = expires.Add(-min(life/3, time.Minute))
	}
	close(k.busy)
	k.busy = nil
}

// operatorToken reads a token from the operator's command or socket, which the
// daemon opens and does not read.
func (s *Server) operatorToken(ctx context.Context, in *policy.Injection) (secrets.Value, time.Time, error) {
	conn, err := s.backend.OpenToken(ctx, in.Name)
	if err != nil {
		return secrets.Value{}, time.Time{}, errToken
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetReadDeadline(deadline); err != nil {
			return secrets.Value{}, time.Time{}, errToken
		}
	}
	said, err := io.ReadAll(io.LimitReader(conn, maxToken+1))
	defer clear(said)
	if err != nil || len(said) > maxToken {
		return secrets.Value{}, time.Time{}, errToken
	}
	return parseToken(said, in.As == policy.AsSigV4, time.Now())
}

// parseToken reads what a command or socket says: {"token", "expires"}, or for
// AWS what a credential_process prints.
func parseToken(said []byte, keys bool, now time.Time) (secrets.Value, time.Time, error) {
	var in struct {
		Token      string    `json:"token"`
		Expires    time.Time `json:"expires"`
		Expiration time.Time
	}
	if err := json.Unmarshal(said, &in); err != nil {
		return secrets.Value{}, time.Time{}, errToken
	}
	text, expires := in.Token, in.Expires
	if keys && text == "" {
		one := strings.Join(strings.FieldsFunc(string(said), func(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }), " ")
		text, expires = strings.TrimSpace(one), in.Expiration
	}
	if expires.IsZero() {
		expires = now.Add(tokenLife)
	}
	v, err := secrets.NewValue([]byte(text))
	if err != nil {
		return secrets.Value{}, time.Time{}, fmt.Errorf("%w: unusable", errToken)
	}
	return v, expires, nil
}
