package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// load finds the end of the log, or begins one.
func (l *Log) load() error {
	if err := removeTemps(l.dir); err != nil {
		return err
	}
	files, err := listFiles(l.dir)
	if err != nil {
		return err
	}
	h, err := readHead(l.dir)
	var corrupt *CorruptError
	switch {
	case errors.As(err, &corrupt) && corrupt.Kind == Missing && len(files) == 0:
		h = head{0, genesis}
		// The head comes first: files without one are a fault.
		if err := errors.Join(writeHead(l.dir, h), syncDir(l.dir)); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	case err != nil:
		return err
	}
	l.written = h
	if len(files) == 0 {
		if h.Seq > 0 {
			return &CorruptError{File: fileName(1), Kind: Truncated,
				Detail: fmt.Sprintf("there is no file, but record %d was written", h.Seq)}
		}
		if l.file, err = l.create(1); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		return nil
	}
	return l.loadLast(files, h)
}

// loadLast scans the last file, and the one before when the last does not say
// what it continues, and puts an unfinished line on record.
func (l *Log) loadLast(files []logFile, h head) error {
	v := verifier{dir: l.dir, head: h}
	at := len(files) - 1
	for known := false; ; at-- {
		var err error
		v.chain, known, err = before(filepath.Join(l.dir, files[at].name), files[at])
		if err != nil {
			return err
		}
		if known {
			break
		}
		if at == 0 {
			return &CorruptError{File: files[0].name, Kind: Missing,
				Detail: fmt.Sprintf("the file before the one of record %d is not there", files[0].first)}
		}
	}
	for ; at < len(files); at++ {
		if err := l.loadFile(files[at], &v); err != nil {
			return err
		}
	}
	if err := v.end(files); err != nil {
		return err
	}
	l.chain, l.size = v.chain, v.tail.offset
	l.protect(l.file)
	if v.tail.bytes == 0 && (v.tail.ended || l.size == 0) {
		return nil
	}
	l.owed = &recovery{Cause: "torn"}
	if err := l.recover(); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	l.log.Warn("audit log ended in an unfinished line, as after a crash; it is on record", "bytes", v.tail.bytes)
	return nil
}

// loadFile scans a file and keeps it open in place of the one before.
func (l *Log) loadFile(lf logFile, v *verifier) error {
	f, err := os.OpenFile(filepath.Join(l.dir, lf.name), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	v.tail, err = scan(f, lf.name, &v.chain, v.againstHead)
	return err
}

// before returns the chain's state before a file's first record, as its name
// and that record tell it; Verify checks it against the file before. It is not
// known when the file begins with an unfinished line.
func before(path string, lf logFile) (c chain, known bool, err error) {
	if lf.first == 1 {
		return chain{0, genesis}, true, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return c, false, fmt.Errorf("audit: %w", err)
	}
	defer f.Close()
	first, err := newLineReader(f).next()
	if errors.Is(err, io.EOF) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("audit: %w", err)
	}
	e, err := decode(first.bytes)
	return chain{lf.first - 1, e.Prev}, err == nil, nil
}

// recover writes the recovery record that is owed: it ends what a failed write
// or a crash left unfinished, says so, and makes it durable. The unfinished
// bytes stay where they are. The caller holds mu, or is load.
func (l *Log) recover() error {
	st, err := l.file.Stat()
	if err != nil {
		return err
	}
	rec, before := *l.owed, ""
	if n := st.Size() - l.size; n > 0 {
		adopted, err := l.adopt(n)
		if err != nil {
			return err
		}
		if !adopted {
			before, rec.TornBytes = "\n", n
			if rec.TornHash, err = hashRegion(l.file, l.size, n); err != nil {
				return err
			}
		}
	} else if l.size > 0 && !l.endsLine() {
		before = "\n"
	}
	// A disk that cannot sync or take a new head shall not get one recovery
	// record after another.
	if err := errors.Join(l.file.Sync(), writeHead(l.dir, l.written)); err != nil {
		return err
	}
	r := Record{Time: time.Now().UTC(), Kind: KindRecovery, Fields: rec}
	end := l.size
	l.size += rec.TornBytes
	if err := l.write(r, encodeBody(r), before); err != nil {
		// A longer unfinished region is found next time, unless the file is new.
		if l.size > 0 {
			l.size = end
		}
		return err
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	l.owed = nil
	if l.unhealthy.Swap(nil) != nil {
		l.log.Info("audit log can be written again", "refused", rec.Refused)
	}
	return nil
}

// adopt takes the end of the unfinished region over as the next record of the
// chain, if it is that but for its newline, and ends it. The record counts even
// if its writer was told otherwise.
func (l *Log) adopt(n int64) (bool, error) {
	if n > maxRead {
		return false, nil
	}
	b := make([]byte, n)
	if _, err := l.file.ReadAt(b, l.size); err != nil {
		return false, err
	}
	start := bytes.LastIndexByte(b, '\n') + 1
	e, err := decode(b[start:])
	if err != nil || e.Seq != l.chain.seq+1 || e.Prev != l.chain.hash {
		return false, nil
	}
	if start > 0 && !covers(e, l.file, l.size, l.size+int64(start)) {
		return false, nil
	}
	if _, err := l.file.Write([]byte{'\n'}); err != nil {
		return false, err
	}
	l.size, l.chain = l.size+n+1, chain{e.Seq, e.Hash}
	return true, nil
}

// endsLine reports whether the last whole record has its newline.
func (l *Log) endsLine() bool {
	var b [1]byte
	_, err := l.file.ReadAt(b[:], l.size-1)
	return err == nil && b[0] == '\n'
}

// keep makes records durable in groups, and tries again while the log cannot
// be written.
func (l *Log) keep() {
	defer l.stopped.Done()
	retry := time.NewTicker(l.opts.Retry)
	defer retry.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
			select {
			case <-l.stop:
				return
			case <-time.After(l.opts.Sync):
			}
		case <-retry.C:
			if l.Healthy() == nil {
				continue
			}
		}
		_ = l.sync() // noted by fail
	}
}

// Sync makes everything durable that was appended before.
func (l *Log) Sync(ctx context.Context) error { return l.sync() }

// sync writes what is owed, makes code and records durable, then the head. Its
// error is an *UnavailableError.
func (l *Log) sync() error {
	l.headMu.Lock()
	defer l.headMu.Unlock()
	l.mu.Lock()
	if l.owed != nil {
		if err := l.recover(); err != nil {
			defer l.mu.Unlock()
			return l.fail(err)
		}
	}
	codes, file, now := l.codes, l.file, head{l.chain.seq, l.chain.hash}
	l.codes = nil
	l.mu.Unlock()

	if err := l.syncTo(codes, file, now); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.fail(err)
	}
	return nil
}

// syncTo makes the given state durable. The caller holds headMu.
func (l *Log) syncTo(codes []*os.File, file *os.File, now head) error {
	if err := syncFiles(codes); err != nil {
		return err
	}
	if len(codes) > 0 {
		if err := syncDir(filepath.Join(l.dir, codeDir)); err != nil {
			return err
		}
	}
	if now == l.written {
		return nil
	}
	// A rotation may have closed the file; it was made durable before.
	if err := file.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	if err := writeHead(l.dir, now); err != nil {
		return err
	}
	l.written = now
	return nil
}
