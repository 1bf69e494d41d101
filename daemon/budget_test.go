package daemon

import (
	"bytes"
	"errors"
	"io"
	"net/http/httptest"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// TestBodiesAreBoundedTogether: many slow clients that each send most of a large
// body must not add up to the daemon's end.
func TestBodiesAreBoundedTogether(t *testing.T) {
	b := newBudget()
	piece := bytes.Repeat([]byte("x"), api.MaxBody)
	send := func(uid uint32) (*request, error) {
		r := httptest.NewRequest("POST", "/", bytes.NewReader(piece))
		r.Header.Set("Content-Type", "application/json")
		q := &request{http: r, w: httptest.NewRecorder(), peer: &peer{caller: policy.Caller{UID: uid}}, bodies: b}
		err := q.decode(new(api.RunRequest))
		if _, rest := io.Copy(io.Discard, r.Body); rest != nil {
			return q, rest
		}
		return q, err
	}
	busy := func(err error) bool {
		var e *api.Error
		return errors.As(err, &e) && e.Code == api.CodeBusy && e.Retryable
	}
	var held []*request
	for range maxBodiesOfUser / api.MaxBody {
		q, err := send(1)
		if busy(err) {
			t.Fatalf("after %d bodies: %v", len(held), err)
		}
		held = append(held, q)
	}
	q, err := send(1)
	if !busy(err) {
		t.Errorf("one more of the same user: %v", err)
	}
	q.releaseBody()
	q, err = send(2)
	if busy(err) {
		t.Errorf("another user: %v", err)
	}
	held = append(held, q)
	for _, q := range held {
		q.releaseBody()
	}
	if b.total != 0 || len(b.users) != 0 {
		t.Errorf("%d bytes stay taken, by %v", b.total, b.users)
	}
}
