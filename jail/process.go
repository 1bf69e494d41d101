package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/jail/wire"
)

// ErrExited says that a command ended before what was waited for.
var ErrExited = errors.New("jail: the command ended first")

// Process is one command of a jail.
type Process struct {
	j     *Jail
	num   uint64
	spec  ExecSpec
	who   account
	group group
	hist  *history
	pipes [3]*os.File // our ends: stdin, stdout, stderr
	term  *Terminal   // nil without one; its master is pipes[1]

	quiet   func()      // lets spare jails be made again
	settles *time.Timer // calls it at the latest

	started chan error    // sandbox-init's word, one
	ready   chan struct{} // closed when begin or fail has run
	readers sync.WaitGroup
	drained sync.WaitGroup
	done    chan struct{} // closed after the exit event

	leaderGone chan struct{} // closed when the leader has ended

	mu        sync.Mutex
	begun     time.Time
	pid       int
	kept      int64
	truncated bool
	timedOut  bool
	ending    bool // somebody makes the exit event
	timer     *time.Timer
	refused   []RefusedCall

	pidsBefore int64 // forks that were refused to the jail before it started
}

func newProcess(j *Jail, num uint64, spec ExecSpec) *Process {
	return &Process{
		j: j, num: num, spec: spec, group: j.cgroup.child(fmt.Sprintf("exec-%d", num)),
		hist: newHistory(j.runDir(), spec.Keep), started: make(chan error, 1), ready: make(chan struct{}), done: make(chan struct{}), leaderGone: make(chan struct{}), begun: time.Now(),
	}
}

// handle takes sandbox-init's word. It must not block.
func (p *Process) handle(m any) error {
	switch m := m.(type) {
	case *wire.Started:
		p.mu.Lock()
		p.pid = int(m.Pid)
		p.mu.Unlock()
		return p.settle(nil)
	case *wire.Failed:
		return p.settle(&StartError{Step: m.Step, Errno: unix.Errno(m.Errno)})
	case *wire.Exited:
		if m.Code < -1 || m.Code > 255 || m.Signal > 64 || (m.Code == -1) != (m.Signal != 0) {
			return fmt.Errorf("jail: impossible exit: code %d, signal %d", m.Code, m.Signal)
		}
		exit := &Exit{Code: int(m.Code)}
		if m.Signal != 0 {
			exit.Signal = unix.SignalName(unix.Signal(m.Signal))
			if exit.Signal == "" {
				exit.Signal = fmt.Sprintf("SIG%d", m.Signal)
			}
		}
		p.j.goroutines.Go(func() { p.conclude(exit) })
	}
	return nil
}

func (p *Process) settle(err error) error {
	select {
	case p.started <- err:
		return nil
	default:
		return errors.New("jail: second start of a command")
	}
}

// begin follows a successful start.
func (p *Process) begin() {
	p.pidsBefore = p.j.pidsRefused()
	p.hist.append(EventStarted, nil, nil)
	for i, kind := range []string{1: EventStdout, 2: EventStderr} {
		if i > 0 && p.pipes[i] != nil {
			p.drained.Add(1)
			p.readers.Go(func() { p.copyOutput(kind, p.pipes[i]) })
		}
	}
	if p.spec.Timeout > 0 {
		p.mu.Lock()
		p.timer = time.AfterFunc(p.spec.Timeout, p.expire)
		p.mu.Unlock()
	}
	close(p.ready)
}

// expire kills the whole tree of the command, also what its leader has left
// behind.
func (p *Process) expire() {
	p.mu.Lock()
	if !p.ending {
		p.timedOut = true
	}
	p.mu.Unlock()
	p.group.kill()
}

// fail closes what a command that never ran has. It has no exit event.
func (p *Process) fail() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	closeAll(p.pipes[:])
	p.hist.close()
	p.unsettle()
	close(p.ready)
	close(p.done)
}

// conclude makes the exit event of a leader that has ended by itself.
func (p *Process) conclude(exit *Exit) {
	<-p.ready // the started event comes first
	p.mu.Lock()
	if p.ending {
		p.mu.Unlock()
		return
	}
	p.ending = true
	exit.TimedOut = p.timedOut
	p.mu.Unlock()
	p.finish(exit)
}

// jailEnded makes the exit event of a command that its jail took along.
func (p *Process) jailEnded(cause string) {
	p.conclude(&Exit{Code: -1, Signal: "SIGKILL", Cause: "jail_" + cause, OOMKilled: cause == CauseOOM})
	<-p.done
	closeAll(p.pipes[:])
	p.readers.Wait()
	p.stopTimer()
}

func (p *Process) finish(exit *Exit) {
	close(p.leaderGone)
	// What the leader wrote before its end is in the pipes; whoever else holds
	// them may go on writing, to nobody.
	for _, f := range p.pipes[1:] {
		if f != nil {
			f.SetReadDeadline(time.Unix(1, 0))
		}
	}
	p.drained.Wait()
	if p.pipes[0] != nil {
		p.pipes[0].Close()
	}
	exit.Usage = p.group.usage()
	exit.OOMKilled = exit.OOMKilled || p.group.oomKills() > 0
	exit.PidsRefused = p.j.pidsRefused() - p.pidsBefore
	p.mu.Lock()
	exit.Wall, exit.Truncated = time.Since(p.begun), p.truncated
	exit.Refused = slices.Clone(p.refused)
	p.mu.Unlock()
	if p.removeGroup() {
		p.stopTimer()
	} else {
		p.j.lingers(p)
	}
	p.hist.append(EventExit, nil, exit)
	close(p.done)
	p.unsettle()
	p.j.ended(p)
}

func (p *Process) unsettle() {
	p.settles.Stop()
	p.quiet()
}

func (p *Process) stopTimer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
}

// removeGroup reports whether the command's group is gone.
func (p *Process) removeGroup() bool {
	err := unix.Rmdir(string(p.group))
	return err == nil || errors.Is(err, unix.ENOENT)
}

// lingers remembers a command whose leader has ended and left others behind.
func (j *Jail) lingers(p *Process) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.linger[p.num] = p
}

// collectLingering removes the groups of those that have ended since.
func (j *Jail) collectLingering() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for num, p := range j.linger {
		if p.removeGroup() {
			p.stopTimer()
			delete(j.linger, num)
		}
	}
}

// over reports whether the exit event was made.
func (p *Process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Info describes the command now.
func (p *Process) Info() ProcessInfo {
	p.hist.mu.Lock()
	exit, events := p.hist.exit, p.hist.last
	p.hist.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return ProcessInfo{
		ID: p.spec.ID, Argv: p.spec.Argv, Started: p.begun, Background: p.spec.Background, Pid: p.pid, Exit: exit,
		Events: events, Refused: slices.Clone(p.refused),
	}
}

// Events yields the events after a number, in order and without gaps. With
// follow it goes on until the exit event; without, until there are no more. An
// error ends it: ErrGone for history that is no longer kept, or ctx's.
func (p *Process) Events(ctx context.Context, after uint64, follow bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		p.hist.events(ctx, after, follow, yield)
	}
}

// FirstEvent is the number of the oldest event that is still kept.
func (p *Process) FirstEvent() uint64 {
	p.hist.mu.Lock()
	defer p.hist.mu.Unlock()
	return p.hist.firstKept()
}

// Wait returns how the command ended.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return Exit{}, ctx.Err()
	}
	p.hist.mu.Lock()
	defer p.hist.mu.Unlock()
	if p.hist.exit == nil {
		return Exit{}, fmt.Errorf("%w: it could not be started", ErrGone)
	}
	return *p.hist.exit, nil
}

// Signal sends a signal to the process group that the command leads; SIGKILL
// goes to all that it has started, whatever group they made.
func (p *Process) Signal(ctx context.Context, sig unix.Signal) error {
	if sig < 1 || sig > 64 {
		return &SpecError{Field: "signal", Message: fmt.Sprintf("%d is not a signal", int(sig))}
	}
	if sig == unix.SIGKILL {
		return p.Kill(ctx)
	}
	if p.over() {
		return nil
	}
	release, err := p.j.awake(ctx)
	if err != nil {
		return err
	}
	defer release()
	m := wire.Signal{ID: p.num, Signal: uint64(sig)}
	if err := p.j.conn.Send(m.Marshal()); err != nil {
		return fmt.Errorf("jail: signal: %w", err)
	}
	return nil
}

// Kill ends everything that the command has started.
func (p *Process) Kill(context.Context) error { return p.group.kill() }

// Terminal is the command's terminal; nil unless ExecSpec.Terminal was set.
func (p *Process) Terminal() *Terminal {
	<-p.ready
	return p.term
}

// Stdin is the command's standard input; nil unless ExecSpec.Stdin was set, and
// for a command with a terminal.
func (p *Process) Stdin() io.WriteCloser {
	<-p.ready
	if p.pipes[0] == nil {
		return nil
	}
	return p.pipes[0]
}

// WaitLog returns when a line of the output matches, also one that is not ended
// yet.
func (p *Process) WaitLog(ctx context.Context, re *regexp.Regexp) error {
	lines := map[string]*lineBuffer{EventStdout: {}, EventStderr: {}}
	after := p.FirstEvent() - 1
	for {
		err := p.watchLog(ctx, &after, lines, re)
		if !errors.Is(err, ErrGone) || p.FirstEvent()-1 <= after {
			return err
		}
		// The command writes faster than this reads: what was lost in between is
		// not looked at.
		after = p.FirstEvent() - 1
	}
}

func (p *Process) watchLog(ctx context.Context, after *uint64, lines map[string]*lineBuffer, re *regexp.Regexp) error {
	for ev, err := range p.Events(ctx, *after, true) {
		if err != nil {
			return err
		}
		*after = ev.Seq
		if b := lines[ev.Kind]; b != nil && b.feed(ev.Data, re) {
			return nil
		}
	}
	return ErrExited
}

// lineBuffer looks at output line by line; of a line without end it keeps the
// last lineBytes.
type lineBuffer struct{ b []byte }

const lineBytes = 64 << 10

func (l *lineBuffer) feed(data []byte, re *regexp.Regexp) bool {
	l.b = append(l.b, data...)
	for {
		i := indexNewline(l.b)
		line := l.b
		if i >= 0 {
			line = l.b[:i]
		}
		if re.Match(line) {
			return true
		}
		if i < 0 {
			break
		}
		l.b = l.b[i+1:]
	}
	if len(l.b) > lineBytes {
		l.b = append([]byte(nil), l.b[len(l.b)-lineBytes:]...)
	}
	return false
}

func indexNewline(b []byte) int {
	for i, c := range b {
		if c == '\n' {
			return i
		}
	}
	return -1
}
