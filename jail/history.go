package jail

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// history keeps the events of one exec, in order. The first inlineBytes stay in
// memory, so that a short command costs no file; more goes to unlinked files in
// the jail's run folder, segment by segment. When there are more than
// maxSegments the oldest goes, and who asks for it gets ErrGone.
//
// Readers follow by themselves: an append closes changed, which they wait on.

const (
	inlineBytes = 16 << 10
	maxSegments = 4
	// segmentBytes is the size of a segment, minSegment that of one of a command
	// whose history is to be short.
	segmentBytes = 4 << 20
	minSegment   = 64 << 10

	recordHeader = 1 + 8 + 4 // kind, time, length
)

// segment is a run of events with consecutive numbers.
type segment struct {
	first uint64 // number of its first event
	next  uint64 // number after its last
	size  int64
	mem   []byte   // while inline
	file  *os.File // once on disk
	refs  int      // readers; the last one closes a dropped segment
	gone  bool
}

type history struct {
	dir     string // where segments are made
	segment int64  // bytes of one

	mu       sync.Mutex
	segments []*segment
	last     uint64 // number of the newest event
	ended    bool   // the last event was an exit
	exit     *Exit
	changed  chan struct{}
	err      error // the disk is full: later events of output are lost
}

// newHistory makes one that keeps about so many bytes, the newest; 0 and what is
// more than maxSegments can hold mean those.
func newHistory(dir string, keep int64) *history {
	h := &history{dir: dir, segment: segmentBytes, changed: make(chan struct{})}
	if keep > 0 {
		h.segment = min(max(keep/maxSegments, minSegment), segmentBytes)
	}
	return h
}

// Kinds as they are written.
var kinds = []string{EventStarted, EventStdout, EventStderr, EventExit}

func kindNumber(kind string) byte {
	for i, k := range kinds {
		if k == kind {
			return byte(i)
		}
	}
	return 0xff
}

// append adds an event and returns whether it was kept. After an exit nothing
// is.
func (h *history) append(kind string, data []byte, exit *Exit) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	var head [recordHeader]byte
	head[0] = kindNumber(kind)
	binary.LittleEndian.PutUint64(head[1:], uint64(time.Now().UnixNano()))
	binary.LittleEndian.PutUint32(head[9:], uint32(len(data)))
	if exit != nil {
		h.exit, h.ended = exit, true
	}
	kept := h.write(head[:], data)
	close(h.changed)
	h.changed = make(chan struct{})
	return kept
}

// write appends a record; h.mu is held.
func (h *history) write(head, data []byte) bool {
	s := h.current(int64(len(head) + len(data)))
	if s.file == nil {
		s.mem = append(append(s.mem, head...), data...)
	} else {
		record := append(head, data...)
		if _, err := s.file.WriteAt(record, s.size); err != nil {
			h.err = err
			if !h.ended {
				return false
			}
			// The exit must be known whatever the disk says: it goes to memory.
			s = h.newSegment(nil)
			s.mem = append(s.mem, record...)
		}
	}
	s.size += int64(len(head) + len(data))
	h.last++
	s.next = h.last + 1
	return true
}

// current returns the segment that takes n more bytes; h.mu is held.
func (h *history) current(n int64) *segment {
	if len(h.segments) == 0 {
		return h.newSegment(nil)
	}
	s := h.segments[len(h.segments)-1]
	limit := h.segment
	if s.file == nil {
		limit = inlineBytes
	}
	if s.size+n <= limit {
		return s
	}
	file, err := unlinkedFile(h.dir)
	if err != nil {
		// A short piece in memory instead; the number of segments is bounded.
		h.err = err
		return h.newSegment(nil)
	}
	return h.newSegment(file)
}

func (h *history) newSegment(file *os.File) *segment {
	s := &segment{first: h.last + 1, next: h.last + 1, file: file}
	h.segments = append(h.segments, s)
	if len(h.segments) > maxSegments+1 {
		h.drop(h.segments[0])
		h.segments = h.segments[1:]
	}
	return s
}

// drop forgets a segment; h.mu is held.
func (h *history) drop(s *segment) {
	s.gone = true
	if s.refs == 0 && s.file != nil {
		s.file.Close()
	}
}

// close frees the files. Readers that are in one finish it.
func (h *history) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.segments {
		h.drop(s)
	}
	h.segments = nil
}

// unlinkedFile makes a file that vanishes with its descriptor.
func unlinkedFile(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) {
		f, err := os.CreateTemp(dir, "events")
		if err != nil {
			return nil, err
		}
		return f, os.Remove(f.Name())
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "events"), nil
}

// cursor reads a history from one number on.
type cursor struct {
	h    *history
	next uint64
	seg  *segment
	off  int64
	at   uint64 // number of the event at off
}

// read returns the next event, or a channel to wait on, or an error: io.EOF
// after the exit, ErrGone for what is not kept.
func (c *cursor) read() (Event, <-chan struct{}, error) {
	h := c.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if c.seg == nil || c.at >= c.seg.next {
			wait, err := c.advance()
			if wait != nil || err != nil {
				return Event{}, wait, err
			}
		}
		ev, size, err := c.seg.decode(c.off)
		if err != nil {
			return Event{}, nil, err
		}
		ev.Seq = c.at
		c.off += size
		c.at++
		if ev.Seq < c.next {
			continue
		}
		c.next = ev.Seq + 1
		if ev.Kind == EventExit {
			ev.Exit = h.exit
		}
		return ev, nil, nil
	}
}

// advance finds the segment of c.next; h.mu is held.
func (c *cursor) advance() (<-chan struct{}, error) {
	h := c.h
	if c.next > h.last {
		c.leave()
		if h.ended {
			return nil, io.EOF
		}
		return h.changed, nil
	}
	for _, s := range h.segments {
		if s.first <= c.next && c.next < s.next {
			if s != c.seg {
				c.leave()
				s.refs++
				c.seg, c.off, c.at = s, 0, s.first
			}
			return nil, nil
		}
	}
	c.leave()
	return nil, fmt.Errorf("%w: events before %d are no longer kept", ErrGone, h.firstKept())
}

func (h *history) firstKept() uint64 {
	if len(h.segments) == 0 {
		return h.last + 1
	}
	return h.segments[0].first
}

// leave lets go of the segment; h.mu is held.
func (c *cursor) leave() {
	if c.seg == nil {
		return
	}
	c.seg.refs--
	if c.seg.gone && c.seg.refs == 0 && c.seg.file != nil {
		c.seg.file.Close()
	}
	c.seg = nil
}

func (c *cursor) close() {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	c.leave()
}

// decode reads the record at off.
func (s *segment) decode(off int64) (Event, int64, error) {
	var head [recordHeader]byte
	if err := s.readAt(head[:], off); err != nil {
		return Event{}, 0, err
	}
	n := binary.LittleEndian.Uint32(head[9:])
	data := make([]byte, n)
	if err := s.readAt(data, off+recordHeader); err != nil {
		return Event{}, 0, err
	}
	ev := Event{
		Time: time.Unix(0, int64(binary.LittleEndian.Uint64(head[1:]))),
		Kind: kinds[head[0]%byte(len(kinds))],
		Data: data,
	}
	return ev, recordHeader + int64(n), nil
}

func (s *segment) readAt(b []byte, off int64) error {
	if s.file == nil {
		if off+int64(len(b)) > int64(len(s.mem)) {
			return io.ErrUnexpectedEOF
		}
		copy(b, s.mem[off:])
		return nil
	}
	if _, err := s.file.ReadAt(b, off); err != nil {
		return fmt.Errorf("jail: event history: %w", err)
	}
	return nil
}

// events yields the events after a number, until the exit (or, not following,
// until there are no more).
func (h *history) events(ctx context.Context, after uint64, follow bool, yield func(Event, error) bool) {
	c := &cursor{h: h, next: after + 1}
	defer c.close()
	for {
		ev, wait, err := c.read()
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			yield(Event{}, err)
			return
		case wait == nil:
			if !yield(ev, nil) {
				return
			}
		case !follow:
			return
		default:
			select {
			case <-wait:
			case <-ctx.Done():
				yield(Event{}, ctx.Err())
				return
			}
		}
	}
}
