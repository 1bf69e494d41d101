package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandboxd/policy"
	"sandboxd/secrets"
)

var tokenTimeNow = time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)

func TestParseToken(t *testing.T) {
	const keys = "{\n\t\"Version\": 1,\n \"AccessKeyId\": \"A\", \"SecretAccessKey\": \"secret-0123\",\n\"Expiration\": \"2031-01-02T05:00:00Z\"}\n"
	for _, tc := range []struct {
		said string
		aws  bool
		want string
		life time.Duration
	}{
		{`{"token":"token-0123"}`, false, "token-0123", tokenLife},
		{`{"token":"token-0123","expires":"2031-01-02T03:05:05Z","other":[1]}`, false, "token-0123", time.Minute},
		{`{"token":"token-0123"}`, true, "token-0123", tokenLife},
		{keys, true, strings.TrimSpace(strings.NewReplacer("\n", " ", "\t", "").Replace(keys)), time.Hour + 55*time.Minute + 55*time.Second},
		{keys, false, "", 0}, {``, false, "", 0}, {`{}`, false, "", 0}, {`[]`, true, "", 0}, {`token-0123`, false, "", 0},
		{`{"token":"short"}`, false, "", 0}, {`{"token":"line\nbreak-123"}`, false, "", 0}, {`{"token":"token-0123","expires":"soon"}`, false, "", 0},
		{`{"token":"token-0123"} {"token":"token-4567"}`, false, "", 0},
	} {
		v, expires, err := parseToken([]byte(tc.said), tc.aws, tokenTimeNow)
		if tc.want == "" {
			if !errors.Is(err, errToken) || strings.Contains(err.Error(), "0123") {
				t.Errorf("%q: %v", tc.said, err)
			}
			continue
		}
		if err != nil || secrets.Reveal(v) != tc.want || expires.Sub(tokenTimeNow) != tc.life {
			t.Errorf("%q: %q, %v, %v", tc.said, secrets.Reveal(v), expires.Sub(tokenTimeNow), err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add([]byte(`{"token":"token-0123","expires":"2031-01-02T03:05:05Z"}`), false)
	f.Add([]byte(`{"Version":1}`), true)
	f.Fuzz(func(t *testing.T, said []byte, aws bool) {
		v, expires, err := parseToken(said, aws, tokenTimeNow)
		if err != nil {
			return
		}
		if text := secrets.Reveal(v); strings.ContainsAny(text, "\r\n\x00") || !json.Valid(said) || expires.IsZero() {
			t.Errorf("%q gives %q, %v", said, text, expires)
		}
	})
}

// TestTokensAreMadeOnce: whoever asks while one is made waits for it; one that
// runs out soon is made anew while it is still used; after a failure there is a
// pause.
func TestTokensAreMadeOnce(t *testing.T) {
	var k tokens
	in := &policy.Injection{Name: "t", Source: policy.FromCommand}
	var made atomic.Int64
	var life atomic.Int64
	life.Store(int64(time.Hour))
	gate := make(chan struct{})
	produce := func(context.Context) (secrets.Value, time.Time, error) {
		<-gate
		n := made.Add(1)
		if life.Load() == 0 {
			return secrets.Value{}, time.Time{}, errToken
		}
		v, err := secrets.NewValue([]byte("token-number-" + string(rune('0'+n))))
		return v, time.Now().Add(time.Duration(life.Load())), err
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if v, err := k.get(t.Context(), in, 1, produce); err != nil || secrets.Reveal(v) != "token-number-1" {
				t.Errorf("got %q, %v", secrets.Reveal(v), err)
			}
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.get(gone, in, 1, produce); !errors.Is(err, context.Canceled) {
		t.Errorf("who goes away: %v", err)
	}
	close(gate)
	wg.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("%d were made", n)
	}
	// Made of another secret it is another one.
	life.Store(int64(10 * time.Second))
	if v, err := k.get(t.Context(), in, 2, produce); err != nil || secrets.Reveal(v) != "token-number-2" {
		t.Errorf("after a change: %q, %v", secrets.Reveal(v), err)
	}
	// Failures are not repeated with every request.
	life.Store(0)
	began := time.Now()
	for range 5 {
		if _, err := k.get(t.Context(), in, 3, produce); !errors.Is(err, errToken) {
			t.Errorf("after a failure: %v", err)
		}
	}
	if n, most := made.Load(), 3+int64(time.Since(began)/tokenPause); n < 3 || n > most {
		t.Errorf("%d attempts, want 3 to %d", n, most)
	}
}
