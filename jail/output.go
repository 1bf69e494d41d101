package jail

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// outputChunk is the largest piece of output in one event.
const outputChunk = 16 << 10

// copyOutput moves one stream of a command into its history. When the leader
// has ended, finish sets a deadline in the past; then what is in the pipe still
// counts, and what comes later is read and dropped, so that a process which was
// left behind is not stopped by a full pipe.
func (p *Process) copyOutput(kind string, f *os.File) {
	buf := make([]byte, outputChunk)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			p.output(kind, buf[:n])
		}
		if err == nil {
			continue
		}
		if p.term != nil {
			// Nobody may have it any more and the leader live on; were the master
			// closed now, the hangup would be the leader's end.
			<-p.leaderGone
			err = os.ErrDeadlineExceeded
		}
		rest := errors.Is(err, os.ErrDeadlineExceeded) && p.drain(kind, f, buf)
		p.drained.Done()
		// A terminal goes with its leader: who was left behind is hung up.
		if rest && p.term == nil {
			f.SetReadDeadline(time.Time{})
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
		}
		f.Close()
		return
	}
}

// drain takes what a pipe or a terminal can hold at most and reports whether somebody still
// has its other end.
func (p *Process) drain(kind string, f *os.File, buf []byte) bool {
	open := false
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		left, err := terminalBuffer, error(nil)
		if p.term == nil {
			left, err = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
		}
		if err != nil {
			return
		}
		for left > 0 {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			open = errors.Is(err, unix.EAGAIN)
			if err != nil || n <= 0 {
				return
			}
			left -= n
			p.output(kind, buf[:n])
		}
		open = true
	})
	return open
}

// output keeps what the command's limit allows.
func (p *Process) output(kind string, data []byte) {
	p.mu.Lock()
	if limit := p.spec.Output; limit > 0 && p.kept+int64(len(data)) > limit {
		data = data[:max(limit-p.kept, 0)]
		p.truncated = true
	}
	p.kept += int64(len(data))
	p.mu.Unlock()
	if len(data) == 0 {
		return
	}
	if !p.hist.append(kind, data, nil) {
		p.mu.Lock()
		p.truncated = true
		p.mu.Unlock()
	}
}
