package wasi

import (
	"encoding/binary"
	"math"

	"github.com/tetratelabs/wazero/api"
)

// A Host is the engine of the guest that calls. Its methods are called on the
// goroutine that runs the guest.
type Host interface {
	// Now gives the wall clock and a monotonic clock in nanoseconds.
	Now() (realtime, monotonic int64, err error)
	// Sleep returns after so many nanoseconds.
	Sleep(ns int64) error
	// Random fills b.
	Random(b []byte)
	// Write is output on descriptor 1 or 2. b is good until Write returns.
	Write(fd int, b []byte) error
	// Exit ends the guest with a status. It does not return.
	Exit(code uint32)
	// Abort ends the guest with an error. It does not return.
	Abort(err error)
	// Charge takes units of about one simple instruction from what the guest
	// may do. It does not return if that was too much.
	Charge(units int64)
	// Large is told before LargeCopy bytes or more are moved in one go.
	Large()
	// Room is how many bytes files may hold together, Held tells how many they
	// do now.
	Room() int64
	Held(bytes int64)
}

// LargeCopy is how many bytes are moved in less time than somebody who waits
// would notice: some 100 µs.
const LargeCopy = 256 << 10

// A System is what one run sees of an operating system. It is not safe for
// concurrent use.
type System struct {
	Host   Host
	Memory api.Memory
	// Args are the program's name and its arguments, Env is NAME=VALUE. None
	// may hold a zero byte.
	Args, Env []string
	// Stdin is what is left to read from descriptor 0.
	Stdin []byte
	// Given are the files that are there at the beginning, by their paths
	// without a slash in front.
	Given map[string]string
	// Message, if not nil, gets what is written to descriptor 0, which an
	// interpreter may use to speak with its host; the descriptors of streams
	// cannot be closed then.
	Message func(b []byte)

	files  *tree   // nil until it is used
	closed [3]bool // streams
}

// Bytes is what the files hold, in bytes.
func (s *System) Bytes() uint64 {
	if s.files == nil {
		return 0
	}
	return uint64(max(s.files.bytes, 0))
}

// Clean tells whether the run has left nothing in s.
func (s *System) Clean() bool {
	return s.files == nil && s.Stdin == nil && s.Given == nil && s.Args == nil && s.Env == nil && s.closed == [3]bool{}
}

// Used tells whether the run has looked at files or closed a stream.
func (s *System) Used() bool { return s.files != nil || s.closed != [3]bool{} }

// Reset forgets what the run had and did.
func (s *System) Reset() {
	s.files, s.Stdin, s.Given, s.Args, s.Env, s.closed = nil, nil, nil, nil, nil, [3]bool{}
}

// tree gives the run's files, which many runs do not use.
func (s *System) tree() *tree {
	if s.files == nil {
		s.files = newTree(s.Given, s.Host.Room(), s.realtime)
		s.Host.Held(s.files.bytes)
	}
	return s.files
}

// stepUnits is what a step of work in the tree is charged.
const stepUnits = 50

// did tells the host what a call in the tree has done: what files hold now, and
// the work.
func (s *System) did(errno Errno) Errno {
	work := s.files.work
	s.files.work = 0
	s.Host.Held(s.files.bytes)
	s.Host.Charge(stepUnits * work)
	return errno
}

func (s *System) now() (realtime, monotonic int64) {
	realtime, monotonic, err := s.Host.Now()
	if err != nil {
		s.Host.Abort(err)
	}
	return realtime, monotonic
}

func (s *System) realtime() uint64 {
	real, _ := s.now()
	return uint64(real)
}

// put writes b at p and answers how that went.
func (s *System) put(p uint64, b []byte) Errno {
	if p > math.MaxUint32 || !s.Memory.Write(uint32(p), b) {
		return Fault
	}
	return Success
}

func (s *System) put32(p uint64, v uint32) Errno {
	return s.put(p, binary.LittleEndian.AppendUint32(nil, v))
}

func (s *System) put64(p uint64, v uint64) Errno {
	return s.put(p, binary.LittleEndian.AppendUint64(nil, v))
}

// path reads a path out of the guest's memory.
func (s *System) path(at, n uint64) (string, Errno) {
	if n > maxPath {
		return "", Nametoolong
	}
	b, ok := s.Memory.Read(uint32(at), uint32(n))
	if !ok {
		return "", Fault
	}
	s.Host.Charge(int64(8 * n))
	return string(b), Success
}

// maxVectors bounds the parts of one read or write.
const maxVectors = 1024

// vectors gives the parts of the guest's memory that an array of n pairs of
// address and length names.
func (s *System) vectors(at, n uint64) ([][]byte, Errno) {
	if n > maxVectors {
		return nil, Inval
	}
	list, ok := s.Memory.Read(uint32(at), uint32(8*n))
	if !ok {
		return nil, Fault
	}
	s.Host.Charge(int64(20 * n))
	out := make([][]byte, 0, n)
	for ; len(list) > 0; list = list[8:] {
		b, ok := s.Memory.Read(binary.LittleEndian.Uint32(list), binary.LittleEndian.Uint32(list[4:]))
		if !ok {
			return nil, Fault
		}
		out = append(out, b)
	}
	return out, Success
}

// listSizes answers args_sizes_get and environ_sizes_get.
func (s *System) listSizes(list []string, count, size uint64) Errno {
	n := 0
	for _, a := range list {
		n += len(a) + 1
	}
	if errno := s.put32(count, uint32(len(list))); errno != Success {
		return errno
	}
	return s.put32(size, uint32(n))
}

// list answers args_get and environ_get.
func (s *System) list(list []string, at, text uint64) Errno {
	for _, a := range list {
		s.Host.Charge(int64(20 + len(a)))
		if errno := s.put32(at, uint32(text)); errno != Success {
			return errno
		}
		if errno := s.put(text, append([]byte(a), 0)); errno != Success {
			return errno
		}
		at, text = at+4, text+uint64(len(a))+1
	}
	return Success
}

// Clock numbers. Processor time would tell about the machine: its clocks are
// the monotonic one.
const (
	clockRealtime = 0
	clockLast     = 3
	// clockResolution is what code is told, in nanoseconds.
	clockResolution = 1000
)

func (s *System) clockRes(id, out uint64) Errno {
	if id > clockLast {
		return Inval
	}
	return s.put64(out, clockResolution)
}

func (s *System) clockTime(id, out uint64) Errno {
	if id > clockLast {
		return Inval
	}
	real, mono := s.now()
	if id == clockRealtime {
		return s.put64(out, uint64(real))
	}
	return s.put64(out, uint64(mono))
}

// chunk is what is copied or drawn between two looks at the clock.
const chunk = 64 << 10

func (s *System) random(at, n uint64) Errno {
	b, ok := s.Memory.Read(uint32(at), uint32(n))
	if !ok {
		return Fault
	}
	for len(b) > 0 {
		part := b[:min(len(b), chunk)]
		b = b[len(part):]
		s.Host.Charge(int64(8 * len(part)))
		s.Host.Random(part)
	}
	return Success
}
