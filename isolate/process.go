package isolate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/confine"
	"sandboxd/internal/ipc"
)

// A process is a worker as the pool sees it. What it sends is hostile.
type process struct {
	pool  *workerPool
	index int
	cmd   *exec.Cmd
	conn  *ipc.Conn
	// Of the pool, under its lock: its runs, and those of each tenant.
	load    int
	tenants map[string]int
	idle    chan struct{} // closed when its last run has ended; nil: nobody waits
	ready   readyMessage
	python  bool // it can run that

	// reading holds a token while no run reads what the worker says; patience
	// belongs to who has it.
	reading  chan struct{}
	patience patience

	mu     sync.Mutex
	runs   map[uint64]*remote
	reason string // why it is dead
	cause  error
	dead   chan struct{} // closed with reason
	ended  chan struct{} // closed when the process was reaped
}

// namespaces of a worker: it has a network without any interface, and sees no
// host name, queue or cgroup of ours. The mount namespace is a copy; what it
// could name in it is Landlock's matter. It has no PID namespace: confine reads
// this process's threads in /proc, which would have to be mounted anew by a
// privileged process inside; that it can signal nobody is the filter's matter.
const namespaces = unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP

// start starts worker i for a kind of runs.
func (p *workerPool) start(ctx context.Context, i int, kind string) (*process, error) {
	hello := helloMessage{Kind: kind}
	if kind == kindShared || kind == kindJS {
		hello.Streams = p.streams
	}
	if s := p.python.get(); s != nil && (kind == kindShared || kind == kindPython) {
		hello.Python = &s.State
	}
	w, err := p.spawn(ctx, i, hello)
	if err != nil {
		return nil, err
	}
	go w.watchMemory()
	go w.watchEnd()
	return w, nil
}

// spawn starts process i and waits until it is confined and ready.
func (p *workerPool) spawn(ctx context.Context, i int, hello helloMessage) (*process, error) {
	ours, theirs, err := ipc.Pair()
	if err != nil {
		return nil, err
	}
	w := &process{pool: p, index: i, conn: ipc.NewConn(ours, maxFrame), runs: map[uint64]*remote{}, tenants: map[string]int{}, reading: make(chan struct{}, 1), dead: make(chan struct{}), ended: make(chan struct{})}
	w.reading <- struct{}{}
	w.python = hello.Python != nil
	w.cmd = exec.Command(p.cfg.Exe, p.cfg.Args...)
	w.cmd.ExtraFiles = []*os.File{theirs}
	w.cmd.Stderr = &lines{log: p.log, worker: i}
	w.cmd.Dir = "/"
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	uid := p.cfg.UIDBase + uint32(i)
	err = confine.Start(w.cmd, uid, uid)
	// Our copy would keep the socket open when the worker has gone.
	theirs.Close()
	if err != nil {
		w.conn.Close()
		return nil, &WorkerError{Worker: i, Reason: "cannot be started", Err: err}
	}
	go func() {
		// Its exit shows as the end of the socket as well; what it says on the
		// way is in the log.
		_ = w.cmd.Wait()
		close(w.ended)
	}()
	if err := w.handshake(ctx, hello); err != nil {
		w.kill("did not become ready", err)
		w.wait()
		return nil, &WorkerError{Worker: i, Reason: "did not become ready", Err: err}
	}
	return w, nil
}

func (w *process) handshake(ctx context.Context, hello helloMessage) error {
	b, err := encodeJSON(hello)
	if err != nil {
		return err
	}
	f := frame{kind: frameHello, data: b}
	var files []*os.File
	if hello.Kind != kindWasm {
		files = append(files, w.pool.guest, w.pool.cache)
	}
	if python := w.pool.python.get(); hello.Python != nil {
		files = append(files, python.Module, python.Image)
	}
	if err := w.conn.Send(f.encode(nil), files...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { w.conn.Close() })
	defer stop()
	payload, sent, err := w.conn.Recv()
	closeAll(sent)
	if err != nil {
		return errors.Join(err, ctx.Err())
	}
	r, err := decodeFrame(payload, string(rune(frameReady)))
	if err != nil {
		return err
	}
	ready, err := decodeJSON[readyMessage](r.data)
	if err != nil {
		return err
	}
	if ready.Error != "" {
		return errors.New(cut(ready.Error, 500))
	}
	w.ready = *ready
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// kill ends the process. All its runs fail with reason.
func (w *process) kill(reason string, cause error) {
	w.mu.Lock()
	if w.reason != "" {
		w.mu.Unlock()
		return
	}
	w.reason, w.cause = reason, cause
	close(w.dead)
	w.mu.Unlock()
	// By handle, not by number: it may have been reaped.
	if err := w.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		w.pool.log.Error("an isolate worker cannot be killed", "worker", w.index, "error", err)
	}
	w.conn.Close()
}

func (w *process) failed() bool {
	select {
	case <-w.dead:
		return true
	default:
		return false
	}
}

// wait returns when the process was reaped.
func (w *process) wait() { <-w.ended }

// awaits is how long an answer is looked for before its goroutine goes to sleep:
// longer than most small calls take.
const awaits = 250 * time.Microsecond

// await looks for a frame for a while, where nobody else has need of the
// processor: the run is the pool's only one, and lately that was worth it.
// Else, receive sleeps until there is one.
func (w *process) await() {
	if w.pool.only() && w.patience.any() {
		w.patience.learn(w.conn.Await(awaits))
	}
}

// A patience says whether to look for an answer. Each time that it was in vain
// it does so half as often, down to once in 128 times.
type patience struct{ skip, vain int }

func (p *patience) any() bool {
	if p.skip > 0 {
		p.skip--
		return false
	}
	return true
}

func (p *patience) learn(worth bool) {
	if worth {
		p.vain /= 2
		return
	}
	p.vain = min(2*p.vain+1, 127)
	p.skip = p.vain
}

// receive takes frames until enough says so or the worker is dead. The caller
// holds reading's token.
func (w *process) receive(enough <-chan struct{}) {
	for {
		payload, files, err := w.conn.Recv()
		closeAll(files)
		if err != nil {
			w.fail("it ended", err)
			return
		}
		if len(files) > 0 {
			w.fail("it broke the protocol", fmt.Errorf("%w: descriptors", errFrame))
			return
		}
		if err := w.dispatch(payload); err != nil {
			w.fail("it broke the protocol", err)
			return
		}
		select {
		case <-enough:
			return
		default:
		}
	}
}

// watchEnd notices the end of a worker in which nothing runs. What it said at
// last is read before.
func (w *process) watchEnd() {
	<-w.ended
	select {
	case <-w.reading:
		w.receive(nil)
	case <-w.dead:
	}
}

// fail is kill with a line in the log, unless the worker is dead already.
func (w *process) fail(reason string, err error) {
	if !w.failed() {
		w.pool.log.Error("an isolate worker failed", "worker", w.index, "reason", reason, "error", err)
	}
	w.kill(reason, err)
}

func (w *process) dispatch(payload []byte) error {
	f, err := decodeFrame(payload, string([]rune{frameEvent, frameCall, frameDrop, frameWaiting, frameLoaded, frameNeed, frameResult}))
	if err != nil {
		return err
	}
	w.mu.Lock()
	r := w.runs[f.run]
	w.mu.Unlock()
	if r == nil {
		// Calls and events may come behind a result that was not waited for,
		// but only of runs that were ours.
		if f.run == 0 || f.run > w.pool.lastRun.Load() {
			return fmt.Errorf("%w: unknown run", errFrame)
		}
		return nil
	}
	return r.take(f)
}

// workerMemory is what a worker needs for itself: the runtime, compiled code,
// what is on its way. Tests under the race detector allow more.
var workerMemory int64 = 512 << 20

const (
	memoryCheck = 100 * time.Millisecond
)

// memoryMemory is how many checks long a run's allowance outlives it: what it
// left behind is collected and given back meanwhile.
const memoryMemory = 30

// watchMemory kills the worker when it holds more than its runs may.
func (w *process) watchMemory() {
	t := time.NewTicker(memoryCheck)
	defer t.Stop()
	var lately [memoryMemory]int64
	for i := 0; ; i++ {
		select {
		case <-w.dead:
			return
		case <-t.C:
		}
		used, err := residentMemory(w.cmd.Process.Pid)
		if err != nil {
			continue // it is ending, which receive notices
		}
		lately[i%memoryMemory] = w.allowedMemory()
		if allowed := slices.Max(lately[:]); used > allowed {
			w.fail(fmt.Sprintf("it holds %d bytes of memory, its runs may %d", used, allowed), nil)
		}
	}
}

func (w *process) allowedMemory() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := workerMemory
	for _, r := range w.runs {
		// Its memory, and as much of answers on their way; see workerRun.most.
		n += 2*r.req.Limits.Memory + 2*MaxAnswer
	}
	return n
}

// processorTime reads what the kernel counts of a process: of all threads, in
// user and kernel mode. As for residentMemory, the pid is a child's.
func processorTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name may hold anything, and ends with the last bracket.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const user, system, tick = 11, 12, time.Second / 100
	if len(f) <= system {
		return 0, fmt.Errorf("isolate: /proc/%d/stat is %q", pid, b)
	}
	u, err := strconv.ParseInt(f[user], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("isolate: processor time: %w", err)
	}
	s, err := strconv.ParseInt(f[system], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("isolate: processor time: %w", err)
	}
	return time.Duration(u+s) * tick, nil
}

// residentMemory reads what the kernel counts of a process. The pid is that of
// a child that was not reaped, or the file is not there.
func residentMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0, err
	}
	return resident * int64(os.Getpagesize()), nil
}
