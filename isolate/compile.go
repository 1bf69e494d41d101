package isolate

import (
	"container/list"
	"context"
	"crypto/sha256"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"sandboxd/internal/ipc"
)

// TypeScript is read by a parser of ours, outside the guest: it knows no fuel,
// it recurses as deep as the source is nested, and some sources of 200 kB take
// it minutes. So it has processes of its own, confined as workers are, with one
// source in each at a time: who takes too long is killed alone.

const (
	// compilers is the number of such processes. One tenant never has them all.
	compilers = 2
	// compileTime is what one module may take.
	compileTime = time.Second
	// compileStack bounds the parser's recursion; the process ends beyond it.
	compileStack = 256 << 20
	// compileCache bounds the results that are kept.
	compileCache = 32 << 20
)

// A compiled is a module as it travels to a worker.
type compiled struct {
	Text     string
	Mappings string `json:",omitempty"`
	Shift    int    `json:",omitempty"`
	Error    *Error `json:",omitempty"`
}

func (c *compiled) unit() (*unit, *Error) {
	if c.Error != nil {
		return nil, c.Error
	}
	return &unit{text: c.Text, smap: &sourceMap{mappings: c.Mappings}, shift: c.Shift}, nil
}

// compileTS makes a compiled of one TypeScript module.
func compileTS(name, text string, shift int) *compiled {
	u := &unit{text: text, shift: shift}
	if err := transform(name, u); err != nil {
		return &compiled{Error: err}
	}
	return &compiled{Text: u.text, Mappings: u.smap.mappings, Shift: shift}
}

// A compileJob is what a compiler process is asked.
type compileJob struct {
	Name, Text string
	Shift      int
}

// serveCompiler is what a compiler process does after its confinement.
func serveCompiler(conn *ipc.Conn) error {
	debug.SetMaxStack(compileStack)
	for {
		payload, files, err := conn.Recv()
		closeAll(files)
		if err != nil {
			return endOf(err)
		}
		f, err := decodeFrame(payload, string(rune(frameCompile)))
		if err != nil {
			return err
		}
		job, err := decodeJSON[compileJob](f.data)
		if err != nil {
			return err
		}
		b, err := encodeJSON(compileTS(job.Name, job.Text, job.Shift))
		if err != nil {
			return err
		}
		answer := frame{kind: frameCompiled, run: f.run, data: b}
		if err := conn.Send(answer.encode(nil)); err != nil {
			return err
		}
	}
}

// A compiler hands modules to compiler processes.
type compiler struct {
	pool  *workerPool
	cache compileResults
	group sync.WaitGroup

	mu      sync.Mutex
	idle    []*process
	busy    map[string]int // by tenant
	last    uint64
	changed chan struct{} // closed when idle or busy changes
}

func newCompiler(p *workerPool) *compiler {
	return &compiler{pool: p, busy: map[string]int{}, changed: make(chan struct{})}
}

// start starts compiler i.
func (c *compiler) start(ctx context.Context, i int) error {
	w, err := c.pool.spawn(ctx, maxWorkers+i, helloMessage{Compiler: true})
	if err != nil {
		return err
	}
	go w.watchMemory()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, w)
	c.signal()
	return nil
}

// signal wakes all who wait; the lock is held.
func (c *compiler) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// prepare compiles the TypeScript modules of a request.
func (c *compiler) prepare(ctx context.Context, req *Request) (map[string]*compiled, error) {
	units := map[string]*compiled{}
	if req.Language == languagePython {
		return units, nil // what is not Python in it is data
	}
	source := newCode(req, nil)
	for name, src := range req.Modules {
		if source.kind(name) != "ts" {
			continue
		}
		shift := 0
		if name == req.Main {
			src, shift = entry(src)
		}
		u, err := c.compile(ctx, req.Tenant, compileJob{name, src, shift})
		if err != nil {
			return nil, err
		}
		units[name] = u
	}
	return units, nil
}

func (c *compiler) compile(ctx context.Context, tenant string, job compileJob) (*compiled, error) {
	// A tenant must not learn by the time that it takes what another one runs.
	key := compileKey{tenant, job.Name, job.Shift, sha256.Sum256([]byte(job.Text))}
	if u := c.cache.get(key); u != nil {
		return u, nil
	}
	var u *compiled
	// Twice, because the first process may have died of something else; who
	// takes too long is not given a second chance.
	for range 2 {
		w, err := c.take(ctx, tenant)
		if err != nil {
			return nil, err
		}
		late := false
		u, late, err = c.ask(ctx, w, &job)
		c.give(tenant, w, err == nil && !late)
		if err == nil {
			c.cache.put(key, u)
			return u, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c.pool.log.Warn("a TypeScript source ended its compiler", "tenant", tenant, "late", late, "error", err)
		if late {
			break
		}
	}
	return &compiled{Error: &Error{Kind: KindRejected, File: job.Name,
		Message: fmt.Sprintf("the TypeScript source of %s is too complex to be read in %v", job.Name, compileTime),
		Hint:    "it is nested too deeply or has too long an expression; JavaScript is not read by this compiler"}}, nil
}

// take waits for an idle compiler.
func (c *compiler) take(ctx context.Context, tenant string) (*process, error) {
	for {
		c.mu.Lock()
		if n := len(c.idle); n > 0 && c.busy[tenant] < compilers-1 {
			w := c.idle[n-1]
			c.idle = c.idle[:n-1]
			c.busy[tenant]++
			c.mu.Unlock()
			return w, nil
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.pool.ctx.Done():
			return nil, ErrClosed
		}
	}
}

// give takes a compiler back, or replaces it in the background.
func (c *compiler) give(tenant string, w *process, good bool) {
	c.mu.Lock()
	if c.busy[tenant]--; c.busy[tenant] == 0 {
		delete(c.busy, tenant)
	}
	if good {
		c.idle = append(c.idle, w)
	}
	c.signal()
	c.mu.Unlock()
	if good {
		return
	}
	w.kill("it did not compile a source", nil)
	c.group.Go(func() {
		w.wait()
		c.pool.restart(w.index, func() error { return c.start(c.pool.ctx, w.index-maxWorkers) })
	})
}

// ask has w compile one module. After an error, or when it was late, w is of no
// use any more.
func (c *compiler) ask(ctx context.Context, w *process, job *compileJob) (u *compiled, late bool, err error) {
	b, err := encodeJSON(job)
	if err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	c.last++
	id := c.last
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, compileTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { w.kill("it took too long", ctx.Err()) })
	u, err = exchange(w.conn, &frame{kind: frameCompile, run: id, data: b})
	return u, !stop(), err
}

// exchange sends a module and takes what became of it. The compiler may have
// been taken over by what it read.
func exchange(conn *ipc.Conn, f *frame) (*compiled, error) {
	if err := conn.Send(f.encode(nil)); err != nil {
		return nil, err
	}
	payload, files, err := conn.Recv()
	closeAll(files)
	if err != nil {
		return nil, err
	}
	answer, err := decodeFrame(payload, string(rune(frameCompiled)))
	if err != nil {
		return nil, err
	}
	u, err := decodeJSON[compiled](answer.data)
	if err != nil {
		return nil, err
	}
	if answer.run != f.run || len(u.Text)+len(u.Mappings) > maxCompiled || u.Error != nil && u.Error.Kind != KindRejected {
		return nil, errFrame
	}
	return u, nil
}

// maxCompiled bounds what comes back for one module.
const maxCompiled = 16 << 20

// close ends all compilers.
func (c *compiler) close() {
	c.group.Wait()
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	for _, w := range idle {
		w.kill(closedReason, nil)
		w.wait()
	}
}

// A compileKey is what a result depends on, and the tenant.
type compileKey struct {
	tenant, name string
	shift        int
	text         [sha256.Size]byte
}

// compileResults are the results that were used last.
type compileResults struct {
	mu    sync.Mutex
	size  int
	order list.List // of compileEntry, the last used first
	byKey map[compileKey]*list.Element
}

type compileEntry struct {
	key  compileKey
	unit *compiled
}

func (e *compileEntry) size() int { return len(e.unit.Text) + len(e.unit.Mappings) + 512 }

func (r *compileResults) get(key compileKey) *compiled {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byKey[key]
	if e == nil {
		return nil
	}
	r.order.MoveToFront(e)
	return e.Value.(*compileEntry).unit
}

func (r *compileResults) put(key compileKey, u *compiled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey == nil {
		r.byKey = map[compileKey]*list.Element{}
	}
	if r.byKey[key] != nil {
		return
	}
	e := &compileEntry{key, u}
	r.byKey[key] = r.order.PushFront(e)
	r.size += e.size()
	for r.size > compileCache {
		last := r.order.Remove(r.order.Back()).(*compileEntry)
		delete(r.byKey, last.key)
		r.size -= last.size()
	}
}
