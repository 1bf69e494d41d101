package isolate

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"hash"
	"unicode/utf8"

	"sandboxd/isolate/quickjs"
	"sandboxd/isolate/web"
)

// The web interfaces that are done on this side of the border: what Go has in a
// well-kept library would be slow and large in the image.

// Numbers of their operations, as in js/base.js.
const (
	opURL = iota + 32
	opSetURL
	opEncoding
	opDigest
	opHMAC
	opIncomplete
)

// webCall answers what is a function of its arguments alone.
func (r *run) webCall(a *quickjs.Args) (quickjs.Value, error) {
	switch a.Int(0) {
	case opDecode:
		return r.decode(a)
	case opEncode:
		return a.VM().Bytes(r.encode(a.Text(1)))
	case opEncoding:
		return a.VM().String(web.EncodingName(a.Text(1)))
	case opIncomplete:
		name := a.Text(2)
		n := web.Incomplete(a.Peek(1), name, func(read int) { r.worked(legacyTime * int64(read)) })
		return a.VM().Number(float64(n))
	case opURL:
		return r.url(a)
	case opSetURL:
		return r.setURL(a)
	case opDigest:
		h := newHash(a.Text(1))
		if h == nil {
			return 0, nil
		}
		return r.sum(a, h(), a.Peek(2))
	case opHMAC:
		h := newHash(a.Text(1))
		if h == nil {
			return 0, nil
		}
		return r.hmac(a, h)
	}
	return 0, nil
}

// Times that the host takes for a byte, in nanoseconds.
const (
	copyTime   = 2
	legacyTime = 30
	digestTime = 5
	logTime    = 12
)

// worked charges the run with what the host did for it in about ns nanoseconds.
// The limits are looked at every 100 µs of that.
func (r *run) worked(ns int64) { r.vm.Charge(ns * fuelPerMicrosecond / 1000) }

func (r *run) encode(text string) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		n := min(len(text), web.Piece)
		for n < len(text) && n > web.Piece-utf8.UTFMax && !utf8.RuneStart(text[n]) {
			n--
		}
		out = append(out, web.ScalarValues(text[:n])...)
		r.worked(copyTime * int64(n))
		text = text[n:]
	}
	return out
}

func (r *run) decode(a *quickjs.Args) (quickjs.Value, error) {
	name, strict := a.Text(2), a.Bool(3)
	time := int64(copyTime)
	if name != "utf-8" {
		time = legacyTime
	}
	text, ok := web.Decode(a.Peek(1), name, strict, func(read, text int) {
		r.worked(time * int64(read))
		// It has to fit into the guest's memory; so much is not gathered first.
		if int64(text) > r.req.Limits.Memory {
			a.Abort(limitError("memory", text, r.req.Limits.Memory))
		}
	})
	if !ok {
		return 0, nil
	}
	return a.VM().String(text)
}

func (r *run) url(a *quickjs.Args) (quickjs.Value, error) {
	input := web.ScalarValues(a.Text(1))
	var base *string
	cost := web.Cost(input)
	if a.N > 2 {
		s := web.ScalarValues(a.Text(2))
		base = &s
		cost += web.Cost(s)
	}
	u, err := web.ParseURL(input, base)
	r.worked(cost)
	if err != nil {
		return 0, nil
	}
	return a.VM().String(u)
}

func (r *run) setURL(a *quickjs.Args) (quickjs.Value, error) {
	href, value := a.Text(1), web.ScalarValues(a.Text(3))
	u, err := web.SetURL(href, a.Text(2), value)
	r.worked(web.Cost(href) + web.Cost(value))
	if err != nil {
		return 0, nil
	}
	return a.VM().String(u)
}

func newHash(name string) func() hash.Hash {
	switch name {
	case "SHA-1":
		return sha1.New
	case "SHA-256":
		return sha256.New
	case "SHA-384":
		return sha512.New384
	case "SHA-512":
		return sha512.New
	}
	return nil
}

// workPiece is how much is digested between two looks at the limits.
const workPiece = 1 << 18

// workLeast is what the digest of nothing takes, as so many bytes.
const workLeast = 64

func (r *run) sum(a *quickjs.Args, h hash.Hash, b []byte) (quickjs.Value, error) {
	r.write(h, b)
	return a.VM().Bytes(h.Sum(nil))
}

func (r *run) hmac(a *quickjs.Args, h func() hash.Hash) (quickjs.Value, error) {
	// A key that is longer than a block is its sum, which would be made in one
	// go.
	key := a.Peek(2)
	if k := h(); len(key) > k.BlockSize() {
		r.write(k, key)
		key = k.Sum(nil)
	}
	m := hmac.New(h, key)
	return r.sum(a, m, a.Peek(3))
}

// write digests b in pieces.
func (r *run) write(h hash.Hash, b []byte) {
	for len(b) > 0 {
		piece := b[:min(len(b), workPiece)]
		h.Write(piece)
		r.worked(digestTime * int64(len(piece)))
		b = b[len(piece):]
	}
	r.worked(digestTime * workLeast)
}
