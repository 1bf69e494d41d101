package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"sandboxd/internal/ipc"
)

// ErrClosed says that the other side is gone.
var ErrClosed = errors.New("control: the connection is closed")

// MaxFrame bounds a message: the largest is the host's root certificates.
const MaxFrame = 8 << 20

// A RemoteError is a failure that the other side reported. Code is a fixed
// word.
type RemoteError struct{ Code, Message string }

func (e *RemoteError) Error() string {
	if e.Message == "" {
		return e.Code
	}
	return e.Code + ": " + e.Message
}

// A Handler answers requests. It owns the files and returns files that are
// closed when they are sent.
type Handler func(ctx context.Context, method string, body json.RawMessage, files []*os.File) (any, []*os.File, error)

// envelope frames both requests (Method is set) and answers. A request with
// ID 0 is a notice, which has no answer.
type envelope struct {
	ID     uint64          `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Body   json.RawMessage `json:"body,omitempty"`
	Code   string          `json:"code,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// outgoing is an envelope that is written in one go.
type outgoing struct {
	ID     uint64 `json:"id,omitempty"`
	Method string `json:"method,omitempty"`
	Body   any    `json:"body,omitempty"`
}

type answer struct {
	envelope
	files []*os.File
}

// A Peer is one end of the conversation.
type Peer struct {
	conn    *ipc.Conn
	handle  Handler
	busy    chan struct{} // bounds requests in work
	notices chan answer

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan answer
	err     error
	done    chan struct{}
}

// maxBusy bounds what one side lets the other have in work at a time.
const maxBusy = 1024

// NewPeer takes the connection over. Run must be called for it to work.
func NewPeer(conn *ipc.Conn, h Handler) *Peer {
	return &Peer{
		conn: conn, handle: h, busy: make(chan struct{}, maxBusy), notices: make(chan answer, maxBusy),
		waiting: map[uint64]chan answer{}, done: make(chan struct{}),
	}
}

// Done is closed when the conversation has ended.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Close ends the conversation.
func (p *Peer) Close() { _ = p.conn.Close() }

// Run reads until the conversation ends. Requests are answered concurrently,
// notices one after another.
func (p *Peer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for n := range p.notices {
			_, _, _ = p.handle(ctx, n.Method, n.Body, n.files)
		}
	}()
	err := p.read(ctx)
	close(p.notices)
	_ = p.conn.Close()
	p.mu.Lock()
	p.err = fmt.Errorf("%w: %w", ErrClosed, err)
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	close(p.done)
	for _, c := range waiting {
		close(c)
	}
	return err
}

func (p *Peer) read(ctx context.Context) error {
	for {
		payload, files, err := p.conn.Recv()
		if err != nil {
			return err
		}
		a := answer{files: files}
		if err := json.Unmarshal(payload, &a.envelope); err != nil {
			closeAll(files)
			return fmt.Errorf("control: message: %w", err)
		}
		switch {
		case a.Method == "":
			p.deliver(a)
		case a.ID == 0:
			p.notices <- a
		default:
			p.busy <- struct{}{}
			go p.serve(ctx, a)
		}
	}
}

func (p *Peer) deliver(a answer) {
	p.mu.Lock()
	c := p.waiting[a.ID]
	delete(p.waiting, a.ID)
	p.mu.Unlock()
	if c == nil {
		closeAll(a.files) // nobody waits any longer
		return
	}
	c <- a
}

func (p *Peer) serve(ctx context.Context, a answer) {
	defer func() { <-p.busy }()
	out, files, err := p.handle(ctx, a.Method, a.Body, a.files)
	reply := envelope{ID: a.ID}
	if err == nil {
		reply.Body, err = json.Marshal(out)
	}
	if err != nil {
		var remote *RemoteError
		if !errors.As(err, &remote) {
			remote = &RemoteError{Code: "failed", Message: err.Error()}
		}
		reply = envelope{ID: a.ID, Code: remote.Code, Error: remote.Message}
	}
	if b, err := json.Marshal(reply); err == nil {
		_ = p.conn.Send(b, files...)
	}
	closeAll(files)
}

// Call sends a request and waits for its answer, which is decoded to out if
// that is not nil. The files stay the caller's; those that come back are too.
func (p *Peer) Call(ctx context.Context, method string, in, out any, files ...*os.File) ([]*os.File, error) {
	c := make(chan answer, 1)
	p.mu.Lock()
	if p.waiting == nil {
		p.mu.Unlock()
		return nil, p.err
	}
	p.next++
	id := p.next
	p.waiting[id] = c
	p.mu.Unlock()
	b, err := json.Marshal(outgoing{ID: id, Method: method, Body: in})
	if err == nil {
		err = p.conn.Send(b, files...)
	}
	if err != nil {
		p.forget(id, c)
		return nil, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	select {
	case a, ok := <-c:
		return a.finish(ok, out)
	case <-ctx.Done():
		p.forget(id, c)
		return nil, ctx.Err()
	}
}

func (a *answer) finish(ok bool, out any) ([]*os.File, error) {
	if !ok {
		return nil, ErrClosed
	}
	if a.Code != "" {
		closeAll(a.files)
		return nil, &RemoteError{Code: a.Code, Message: a.Error}
	}
	if out != nil {
		if err := json.Unmarshal(a.Body, out); err != nil {
			closeAll(a.files)
			return nil, fmt.Errorf("control: answer: %w", err)
		}
	}
	return a.files, nil
}

// forget gives up waiting; what arrives late is closed.
func (p *Peer) forget(id uint64, c chan answer) {
	p.mu.Lock()
	delete(p.waiting, id)
	p.mu.Unlock()
	select {
	case a := <-c:
		closeAll(a.files)
	default:
	}
}

// Notify sends a request that has no answer.
func (p *Peer) Notify(method string, in any) error {
	b, err := json.Marshal(outgoing{Method: method, Body: in})
	if err != nil {
		return err
	}
	return p.conn.Send(b)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// CloseAll closes files that a handler will not use.
func CloseAll(files []*os.File) { closeAll(files) }
