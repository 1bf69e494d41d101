package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
)

// A Summary is what Verify found to be whole.
type Summary struct {
	Files   int    `json:"files"`
	Records uint64 `json:"records"`
	// Last is the hash of the last record.
	Last string `json:"last"`
	// Codes is the number of pieces of code that the records name, each of
	// which is there and has its hash.
	Codes int `json:"codes"`
	// Recoveries counts the records of torn lines and of failed writes.
	Recoveries int `json:"recoveries"`
	// TornTail is the size of an unfinished line at the very end, as a crash
	// leaves it until the log is opened again.
	TornTail int64 `json:"torn_tail,omitempty"`
}

// Verify checks the whole log in dir: every line against its hash, its number
// and the line before, the end against the head file, and the code that the
// records name. The error is a *CorruptError when something is not as it was
// written. It may run beside an open Log, and needs no lock.
//
// The chain has no key: it shows what was changed by somebody who could not
// also rewrite all that follows and the head. Against one who could (root),
// keep receipts or the journal's mirror elsewhere.
func Verify(dir string) (Summary, error) {
	v := verifier{dir: dir, codes: make(map[string]bool)}
	// The head first: the log may grow meanwhile, and must never be behind.
	h, err := readHead(dir)
	if err != nil {
		return Summary{}, err
	}
	files, err := listFiles(dir)
	if err != nil {
		return Summary{}, err
	}
	v.head, v.chain = h, chain{0, genesis}
	for i, f := range files {
		if err := v.file(f, i == len(files)-1); err != nil {
			return v.sum, err
		}
	}
	v.sum.Last, v.sum.Codes = v.chain.hash, len(v.codes)
	return v.sum, v.end(files)
}

type verifier struct {
	dir   string
	head  head
	chain chain
	codes map[string]bool
	sum   Summary
	tail  tail // of the last file
}

func (v *verifier) file(lf logFile, last bool) error {
	if want := v.chain.seq + 1; lf.first != want {
		kind := Missing
		if lf.first < want {
			kind = Reordered
		}
		return &CorruptError{File: lf.name, Kind: kind,
			Detail: fmt.Sprintf("the file begins with record %d, but record %d belongs here", lf.first, want)}
	}
	f, err := os.Open(filepath.Join(v.dir, lf.name))
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	defer f.Close()
	v.tail, err = scan(f, lf.name, &v.chain, v.record)
	if err != nil {
		return err
	}
	v.sum.Files++
	if !last && (v.tail.bytes > 0 || !v.tail.ended) {
		return v.badTail(lf.name)
	}
	return nil
}

func (v *verifier) record(e Entry, l line) error {
	v.sum.Records++
	if e.Kind == KindRecovery {
		v.sum.Recoveries++
	}
	if err := v.againstHead(e, l); err != nil {
		return err
	}
	if e.Code == "" || v.codes[e.Code] {
		return nil
	}
	v.codes[e.Code] = true
	return checkCode(v.dir, e.Code)
}

func (v *verifier) againstHead(e Entry, _ line) error {
	if e.Seq == v.head.Seq && e.Hash != v.head.Hash {
		return &CorruptError{File: headName, Kind: Changed,
			Detail: fmt.Sprintf("the head file has another hash for record %d than the log", e.Seq)}
	}
	return nil
}

// end compares the end of the log with the head. What stands after the head's
// record may have been torn by a crash; nothing before it can have been.
func (v *verifier) end(files []logFile) error {
	if v.chain.seq >= v.head.Seq {
		v.sum.TornTail = v.tail.bytes
		return nil
	}
	name := fileName(1)
	if len(files) > 0 {
		name = files[len(files)-1].name
	}
	if v.tail.bytes > 0 {
		return v.badTail(name)
	}
	return &CorruptError{File: name, Kind: Truncated,
		Detail: fmt.Sprintf("the log ends with record %d, but record %d was written", v.chain.seq, v.head.Seq)}
}

func (v *verifier) badTail(name string) error {
	if v.tail.ended && v.tail.bytes > 0 {
		return &CorruptError{File: name, Line: v.tail.line, Kind: Changed, Detail: "the line is not a record as it was written"}
	}
	return &CorruptError{File: name, Line: v.tail.line, Kind: Truncated, Detail: "the line is cut off"}
}

var hashForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

func checkCode(dir, sum string) error {
	name := filepath.Join(codeDir, sum)
	if !hashForm.MatchString(sum) {
		return &CorruptError{File: codeDir, Kind: Missing, Detail: "a record names code by what is no hash"}
	}
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return &CorruptError{File: name, Kind: Missing, Detail: "the code that a record names is not there"}
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if hex.EncodeToString(h.Sum(nil)) != sum {
		return &CorruptError{File: name, Kind: Changed, Detail: "the code is not what ran"}
	}
	return nil
}

// Read yields the records after the given number, as far as each is whole in
// itself; it is Verify that checks how they hang together. It ends at the end
// of the log.
func Read(ctx context.Context, dir string, after uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		files, err := listFiles(dir)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		for i, f := range files {
			if i+1 < len(files) && files[i+1].first <= after+1 {
				continue
			}
			if !readFile(ctx, filepath.Join(dir, f.name), after, yield) {
				return
			}
		}
	}
}

func readFile(ctx context.Context, path string, after uint64, yield func(Entry, error) bool) bool {
	f, err := os.Open(path)
	if err != nil {
		return yield(Entry{}, fmt.Errorf("audit: %w", err))
	}
	defer f.Close()
	r := newLineReader(f)
	for {
		if err := ctx.Err(); err != nil {
			yield(Entry{}, err)
			return false
		}
		l, err := r.next()
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			return yield(Entry{}, fmt.Errorf("audit: %w", err))
		}
		e, err := decode(l.bytes)
		if err != nil || e.Seq <= after {
			continue
		}
		if !yield(e, nil) {
			return false
		}
	}
}
