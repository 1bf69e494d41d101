package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kinds of Record.
const (
	KindStart  = "start"  // the daemon started
	KindStop   = "stop"   // the daemon stopped
	KindRun    = "run"    // code ran, or was refused
	KindReplay = "replay" // a recorded run was run again, without any effect
	KindExec   = "exec"   // a command ran in a jail
	KindEgress = "egress" // a decision about a request that leaves
	KindJail   = "jail"   // a jail was made, changed or ended
	KindData   = "data"   // a service wrote to a tenant's data
	KindAdmin  = "admin"  // policy reload, secrets, previews
	// KindRecovery is written by this package alone, after a torn line or
	// after a time when nothing could be written.
	KindRecovery = "recovery"
)

// A Record is one line of the log.
type Record struct {
	// Time is set by Append when zero.
	Time time.Time `json:"time"`
	// Kind is one of the constants.
	Kind   string `json:"kind"`
	Tenant string `json:"tenant,omitempty"`
	RunID  string `json:"run_id,omitempty"`
	// Caller is who asked, usually a policy.Caller; any JSON value.
	Caller any `json:"caller,omitempty"`
	// Code is what PutCode returned; Verify then wants that code to be there.
	Code string `json:"code_sha256,omitempty"`
	// Fields hold what happened, a struct or a map; any JSON value. Strings in
	// it may be hostile: the encoding keeps them inside their line and harmless
	// to a terminal.
	Fields any `json:"fields,omitempty"`
}

// A Receipt identifies a record in the log.
type Receipt struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"` // hex SHA-256
}

// An Entry is a record as it was read from the log.
type Entry struct {
	Seq    uint64          `json:"seq"`
	Prev   string          `json:"prev"`
	Time   time.Time       `json:"time"`
	Kind   string          `json:"kind"`
	Tenant string          `json:"tenant,omitempty"`
	RunID  string          `json:"run_id,omitempty"`
	Caller json.RawMessage `json:"caller,omitempty"`
	Code   string          `json:"code_sha256,omitempty"`
	Fields json.RawMessage `json:"fields,omitempty"`
	Hash   string          `json:"hash"`
}

// MaxLine bounds a line. A record that is larger is not refused, since what
// happened must be on record: its fields are replaced by their size and hash.
const MaxLine = 256 << 10

const (
	hashLen = sha256.Size * 2
	// hashKey begins the end of every line; the hash covers what stands before.
	hashKey = `,"hash":"`
	tailLen = len(hashKey) + hashLen + len(`"}`)
)

// genesis is the Prev of the first record.
var genesis = hex.EncodeToString(make([]byte, sha256.Size))

// encodeBody makes the record's own part of a line, as the inside of a JSON
// object. It needs no lock.
func encodeBody(r Record) []byte {
	body, err := json.Marshal(r)
	if err != nil {
		body = replaceFields(r, map[string]any{"unencodable": err.Error()})
	} else if len(body) > MaxLine {
		sum := sha256.Sum256(body)
		body = replaceFields(r, map[string]any{"too_large": len(body), "sha256": hex.EncodeToString(sum[:])})
	}
	return appendPlain(make([]byte, 0, len(body)+32), body[1:len(body)-1])
}

// seal appends the whole line, without its end, to dst and returns its hash.
func seal(dst, body []byte, seq uint64, prev string) (line []byte, hash string) {
	start := len(dst)
	dst = append(dst, `{"seq":`...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"prev":"`...)
	dst = append(dst, prev...)
	dst = append(dst, `",`...)
	dst = append(dst, body...)
	sum := sha256.Sum256(dst[start:])
	hash = hex.EncodeToString(sum[:])
	dst = append(dst, hashKey...)
	dst = append(dst, hash...)
	return append(dst, `"}`...), hash
}

// replaceFields encodes r without the parts that the caller filled freely.
func replaceFields(r Record, fields map[string]any) []byte {
	short := func(s string) string { return s[:min(len(s), 256)] }
	body, err := json.Marshal(Record{
		Time: r.Time.UTC().Truncate(0), Kind: short(r.Kind), Tenant: short(r.Tenant), RunID: short(r.RunID),
		Code: short(r.Code), Fields: fields,
	})
	if err != nil { // the time's year has five digits
		body = []byte(`{"kind":"` + KindRecovery + `","fields":{"unencodable":"time"}}`)
	}
	return body
}

// appendPlain appends JSON with every character escaped that a terminal could
// act on. encoding/json escapes neither DEL, the C1 controls nor the characters
// that turn the direction of text, and it takes over a json.RawMessage as it
// is, invalid UTF-8 included.
func appendPlain(dst, src []byte) []byte {
	for len(src) > 0 {
		if c := src[0]; c < utf8.RuneSelf && c != 0x7f {
			n := 1
			for n < len(src) && src[n] < 0x7f {
				n++
			}
			dst, src = append(dst, src[:n]...), src[n:]
			continue
		}
		r, n := utf8.DecodeRune(src)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, `\ufffd`...)
		case unicode.IsPrint(r):
			dst = append(dst, src[:n]...)
		case r > 0xffff:
			r -= 0x10000
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
		src = src[n:]
	}
	return dst
}

// decode reads a line and checks it against its own hash.
func decode(line []byte) (Entry, error) {
	var e Entry
	if len(line) < tailLen || !bytes.HasPrefix(line[len(line)-tailLen:], []byte(hashKey)) {
		return e, fmt.Errorf("is not a whole record")
	}
	sum := sha256.Sum256(line[:len(line)-tailLen])
	if want := hex.EncodeToString(sum[:]); string(line[len(line)-2-hashLen:len(line)-2]) != want {
		return e, fmt.Errorf("does not match its own hash")
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return e, fmt.Errorf("is not JSON: %w", err)
	}
	return e, nil
}
