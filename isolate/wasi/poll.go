package wasi

import (
	"encoding/binary"
	"math"
)

// Offsets and sizes of WASI's subscriptions and events.
const (
	subscriptionSize = 48
	subscriptionTag  = 8
	subscribedFD     = 16
	clockID          = 16
	clockTimeout     = 24
	clockFlags       = 40
	clockAbsolute    = 1

	eventSize  = 32
	eventErrno = 8
	eventType  = 10
	eventBytes = 16

	tagClock   = 0
	tagFDRead  = 1
	tagFDWrite = 2

	maxSubscriptions = 4096
)

// An event is one that poll_oneoff answers with.
type event struct {
	user  [8]byte
	tag   byte
	errno Errno
	bytes uint64
	wait  int64 // of a clock: nanoseconds from now
}

// pollOneoff waits for the first of several clocks. Descriptors never block: if
// any is asked for, there is an answer at once.
func (s *System) pollOneoff(a []uint64) Errno {
	in, out, n, done := a[0], a[1], a[2], a[3]
	if n == 0 || n > maxSubscriptions {
		return Inval
	}
	list, ok := s.Memory.Read(uint32(in), uint32(n*subscriptionSize))
	if !ok {
		return Fault
	}
	s.Host.Charge(int64(50 * n))
	events := make([]event, 0, n)
	first := int64(math.MaxInt64)
	for ; len(list) > 0; list = list[subscriptionSize:] {
		e, errno := s.subscribe(list[:subscriptionSize])
		if errno != Success {
			return errno
		}
		first = min(first, e.wait)
		events = append(events, e)
	}
	if first > 0 {
		if err := s.Host.Sleep(first); err != nil {
			s.Host.Abort(err)
		}
	}
	count := uint32(0)
	for i := range events {
		if e := &events[i]; e.wait <= max(first, 0) {
			if errno := s.put(out+uint64(count)*eventSize, e.encode()); errno != Success {
				return errno
			}
			count++
		}
	}
	return s.put32(done, count)
}

// subscribe reads a subscription as the event that it will be.
func (s *System) subscribe(b []byte) (event, Errno) {
	e := event{tag: b[subscriptionTag]}
	copy(e.user[:], b)
	switch e.tag {
	case tagClock:
		e.clock(s, b)
	case tagFDRead, tagFDWrite:
		e.descriptor(s, uint64(binary.LittleEndian.Uint32(b[subscribedFD:])))
	default:
		return e, Inval
	}
	return e, Success
}

func (e *event) clock(s *System, b []byte) {
	id := binary.LittleEndian.Uint32(b[clockID:])
	timeout := binary.LittleEndian.Uint64(b[clockTimeout:])
	e.wait = int64(min(timeout, math.MaxInt64))
	switch {
	case id > clockLast:
		e.errno, e.wait = Inval, 0
	case binary.LittleEndian.Uint16(b[clockFlags:])&clockAbsolute != 0:
		real, now := s.now()
		if id == clockRealtime {
			now = real
		}
		if e.wait < now {
			e.wait = 0
		} else if now > 0 {
			e.wait -= now
		}
	}
}

func (e *event) descriptor(s *System, fd uint64) {
	switch {
	case s.stream(fd) && e.tag == tagFDRead && fd == 0:
		e.bytes = uint64(len(s.Stdin))
	case s.stream(fd) && e.tag == tagFDWrite && fd != 0:
		e.bytes = chunk
	case s.open(fd) == nil:
		e.errno = Badf
	case e.tag == tagFDRead:
		f := s.open(fd)
		e.bytes = uint64(max(int64(len(f.node.content))-f.offset, 0))
	default:
		e.bytes = chunk
	}
}

func (e *event) encode() []byte {
	b := make([]byte, eventSize)
	copy(b, e.user[:])
	binary.LittleEndian.PutUint16(b[eventErrno:], uint16(e.errno))
	b[eventType] = e.tag
	binary.LittleEndian.PutUint64(b[eventBytes:], e.bytes)
	return b
}
