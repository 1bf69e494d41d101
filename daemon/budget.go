package daemon

import (
	"io"
	"sync"

	"sandboxd/daemon/api"
)

const (
	// maxBodies is what all request bodies in memory may take together.
	maxBodies = 256 << 20
	// maxBodiesOfUser is that for one user, so that one does not keep the
	// others from sending any.
	maxBodiesOfUser = 128 << 20
)

// A budget bounds the memory of request bodies.
type budget struct {
	mu    sync.Mutex
	total int64            // guarded by mu
	users map[uint32]int64 // guarded by mu
}

func newBudget() *budget { return &budget{users: map[uint32]int64{}} }

func (b *budget) take(uid uint32, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total+n > maxBodies || b.users[uid]+n > maxBodiesOfUser {
		return false
	}
	b.total += n
	b.users[uid] += n
	return true
}

func (b *budget) give(uid uint32, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total -= n
	if b.users[uid] -= n; b.users[uid] == 0 {
		delete(b.users, uid)
	}
}

// A countedBody takes from the budget what is read of it, until release.
type countedBody struct {
	io.ReadCloser
	budget *budget
	uid    uint32
	taken  int64
}

var errBodies = &api.Error{Code: api.CodeBusy, Message: "the bodies of requests under way take as much memory as they may", Retryable: true}

func (c *countedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if n > 0 {
		if !c.budget.take(c.uid, int64(n)) {
			return 0, errBodies
		}
		c.taken += int64(n)
	}
	return n, err
}

func (c *countedBody) release() { c.budget.give(c.uid, c.taken) }

// keepBody counts the body, which is about to be read into memory, until the
// request has been answered.
func (q *request) keepBody() {
	if q.bodies == nil || q.body != nil || q.peer == nil {
		return
	}
	q.body = &countedBody{ReadCloser: q.http.Body, budget: q.bodies, uid: q.caller().UID}
	q.http.Body = q.body
}

func (q *request) releaseBody() {
	if q.body != nil {
		q.body.release()
	}
}
