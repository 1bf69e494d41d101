package proxy

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A pipe carries bytes between two connections until both directions are done
// or nothing has moved for a while in either.
type pipe struct {
	idle time.Duration
	// out and in count what a sends and b sends; an error ends both.
	out, in func(n int) error
	moved   atomic.Int64 // unix nanoseconds
}

// smallBuffer is what a direction holds while little moves: thousands of idle
// tunnels must fit. Full reads get a large buffer from the pool.
const smallBuffer = 2 << 10

var largeBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// run carries both directions and returns the bytes of each.
func (p *pipe) run(a, b net.Conn) (aToB, bToA int64) {
	p.moved.Store(time.Now().UnixNano())
	back := make(chan int64, 1)
	go func() {
		back <- p.copy(a, b, p.in)
	}()
	aToB = p.copy(b, a, p.out)
	return aToB, <-back
}

// copy carries one direction. At its end the other side is told; after a
// failure both connections are closed, so that the other direction ends too.
func (p *pipe) copy(dst, src net.Conn, count func(int) error) (n int64) {
	small := make([]byte, smallBuffer)
	buf := small
	var large *[]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		_ = src.SetReadDeadline(time.Now().Add(p.idle))
		k, err := src.Read(buf)
		if k > 0 {
			p.moved.Store(time.Now().UnixNano())
			_ = dst.SetWriteDeadline(time.Now().Add(p.idle))
			werr := count(k)
			if werr == nil {
				_, werr = dst.Write(buf[:k])
			}
			if werr != nil {
				src.Close()
				dst.Close()
				return n
			}
			n += int64(k)
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			if time.Since(time.Unix(0, p.moved.Load())) >= p.idle {
				src.Close()
				dst.Close()
				return n
			}
			continue
		default:
			closeWrite(dst)
			return n
		}
		switch {
		case k == len(buf) && large == nil:
			if l, ok := largeBuffers.Get().(*[]byte); ok {
				large, buf = l, *l
			}
		case large != nil && k < smallBuffer:
			largeBuffers.Put(large)
			large, buf = nil, small
		}
	}
}
