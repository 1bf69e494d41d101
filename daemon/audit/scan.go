package audit

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxRead bounds a line while reading: the largest that encode can make, with
// every byte of it escaped, and some room.
const maxRead = 8 * MaxLine

// A line is one line of a file. Bytes is valid until the next one.
type line struct {
	bytes  []byte
	number int
	offset int64 // of its first byte
	ended  bool  // by a newline
}

func (l line) end() int64 {
	n := l.offset + int64(len(l.bytes))
	if l.ended {
		n++
	}
	return n
}

// A lineReader yields the lines of a file. A line longer than maxRead comes in
// pieces, none of which is a valid record.
type lineReader struct {
	r      *bufio.Reader
	number int
	offset int64
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, maxRead)}
}

// next returns io.EOF after the last line.
func (r *lineReader) next() (line, error) {
	b, err := r.r.ReadSlice('\n')
	switch {
	case err == nil:
	case errors.Is(err, io.EOF) && len(b) > 0, errors.Is(err, bufio.ErrBufferFull):
	default:
		return line{}, err
	}
	r.number++
	l := line{bytes: b, number: r.number, offset: r.offset}
	if n := len(b); n > 0 && b[n-1] == '\n' {
		l.bytes, l.ended = b[:n-1], true
	}
	r.offset += int64(len(b))
	return l, nil
}

// recovery is what the fields of a KindRecovery record hold.
type recovery struct {
	// Cause is "torn" (found at the start) or "write_failed".
	Cause string `json:"cause"`
	Error string `json:"error,omitempty"`
	// Refused counts the records that callers could not write meanwhile.
	Refused uint64 `json:"refused,omitempty"`
	// TornBytes and TornHash describe what stands between the record before
	// and this one, without the newline that ends it. It stays in the file.
	TornBytes int64  `json:"torn_bytes,omitempty"`
	TornHash  string `json:"torn_sha256,omitempty"`
}

// covers reports whether e is the recovery record for the torn region that
// begins at start and ends with the newline before offset.
func covers(e Entry, file io.ReaderAt, start, offset int64) bool {
	var rec recovery
	if e.Kind != KindRecovery || json.Unmarshal(e.Fields, &rec) != nil {
		return false
	}
	n := offset - 1 - start
	if n < 0 || rec.TornBytes != n {
		return false
	}
	sum, err := hashRegion(file, start, n)
	return err == nil && sum == rec.TornHash
}

func hashRegion(file io.ReaderAt, start, n int64) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(file, start, n)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// A chain is the state of reading: the last record that was whole.
type chain struct {
	seq  uint64
	hash string
}

// A tail is what follows the last whole record of a file.
type tail struct {
	offset int64 // where it begins; the file's size when there is nothing
	bytes  int64
	line   int
	ended  bool // its last line ends with a newline
}

// scan reads a file whose records continue c and calls each for every whole
// one. It returns what stands after the last. Anything that is not the chain's
// continuation, and that no recovery record accounts for, is a *CorruptError.
func scan(f *os.File, name string, c *chain, each func(Entry, line) error) (tail, error) {
	r := newLineReader(f)
	var t tail
	torn := false
	for {
		l, err := r.next()
		if errors.Is(err, io.EOF) {
			t.bytes = r.offset - t.offset
			return t, nil
		}
		if err != nil {
			return t, fmt.Errorf("audit: %s: %w", name, err)
		}
		e, err := decode(l.bytes)
		if err != nil {
			if !torn {
				t.line = l.number
			}
			torn, t.ended = true, l.ended
			continue
		}
		switch {
		case torn && !covers(e, f, t.offset, l.offset):
			return t, &CorruptError{File: name, Line: t.line, Kind: Changed, Detail: "the line is not a record as it was written"}
		case e.Seq != c.seq+1:
			return t, outOfOrder(r, name, l, e, c.seq+1)
		case e.Prev != c.hash:
			return t, &CorruptError{File: name, Line: l.number, Kind: Changed,
				Detail: fmt.Sprintf("record %d does not continue the record before it", e.Seq)}
		}
		if err := each(e, l); err != nil {
			return t, err
		}
		*c = chain{e.Seq, e.Hash}
		torn, t = false, tail{offset: l.end(), ended: l.ended}
		if !l.ended { // whole but for its newline
			t.line = l.number
		}
	}
}

// outOfOrder tells a missing record from one that stands elsewhere.
func outOfOrder(r *lineReader, name string, at line, e Entry, want uint64) error {
	err := &CorruptError{File: name, Line: at.number, Kind: Reordered,
		Detail: fmt.Sprintf("record %d stands where record %d belongs", e.Seq, want)}
	if e.Seq < want {
		return err
	}
	for {
		l, rerr := r.next()
		if rerr != nil {
			break
		}
		if later, derr := decode(l.bytes); derr == nil && later.Seq == want {
			return err
		}
	}
	err.Kind = Missing
	err.Detail = fmt.Sprintf("record %d follows record %d", e.Seq, want-1)
	return err
}
