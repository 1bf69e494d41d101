package audit

import (
	"context"
	"time"
)

// AppendAll is Append for several records, in their order, with one write to the
// file. It returns how many are in the log; the error is about the next.
func (l *Log) AppendAll(ctx context.Context, records []Record) (int, error) {
	for done := 0; done < len(records); {
		n, err := l.appendSome(records[done:])
		done += n
		if err != nil {
			return done, err
		}
		if n == 0 { // what Append can do and appendSome cannot: recover, rotate
			if _, err := l.Append(ctx, records[done]); err != nil {
				return done, err
			}
			done++
		}
	}
	return len(records), nil
}

// maxBatch bounds one write.
const maxBatch = 256 << 10

// appendSome writes as many records as go into the file as it is; none while
// the log has something to recover from.
func (l *Log) appendSome(records []Record) (int, error) {
	bodies := make([][]byte, 0, len(records))
	size := 0
	for i := range records {
		r := &records[i]
		if r.Time.IsZero() {
			r.Time = time.Now()
		}
		r.Time = r.Time.UTC()
		body := encodeBody(*r)
		if size += len(body) + 2*hashLen + 64; size > maxBatch {
			break
		}
		bodies = append(bodies, body)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, ErrClosed
	}
	if l.owed != nil || l.size > 0 && l.size+int64(size) > l.opts.MaxFile {
		return 0, nil
	}
	l.buf = l.buf[:0]
	links, ends := make([]chain, len(bodies)), make([]int, len(bodies))
	last := l.chain
	for i, body := range bodies {
		seq := last.seq + 1
		var hash string
		l.buf, hash = seal(l.buf, body, seq, last.hash)
		l.buf = append(l.buf, '\n')
		last = chain{seq, hash}
		links[i], ends[i] = last, len(l.buf)
	}
	n, err := l.file.Write(l.buf)
	// Lines that came to the file whole are in the log, whatever the rest did.
	whole, start := 0, 0
	for whole < len(ends) && ends[whole] <= n {
		if l.opts.Mirror != nil {
			l.opts.Mirror.Record(records[whole], links[whole].seq, l.buf[start:ends[whole]-1])
		}
		start = ends[whole]
		whole++
	}
	if whole > 0 {
		l.chain = links[whole-1]
		l.size += int64(ends[whole-1])
	}
	if cap(l.buf) > maxBatch+MaxLine {
		l.buf = nil
	}
	if err != nil {
		err = l.fail(err)
		l.refused()
		return whole, err
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return whole, nil
}
