package isolate

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"hash"

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
		text := a.Text(1)
		r.worked(copyTime * int64(len(text)))
		return a.VM().Bytes([]byte(web.ScalarValues(text)))
	case opEncoding:
		return a.VM().String(web.EncodingName(a.Text(1)))
	case opIncomplete:
		b := a.Bytes(1)
		r.worked(legacyTime * int64(len(b)))
		return a.VM().Number(float64(web.Incomplete(b, a.Text(2))))
	case opURL:
		return r.url(a)
	case opSetURL:
		return r.setURL(a)
	case opDigest:
		h := newHash(a.Text(1))
		if h == nil {
			return 0, nil
		}
		return r.sum(a, h(), a.Bytes(2))
	case opHMAC:
		h := newHash(a.Text(1))
		if h == nil {
			return 0, nil
		}
		return r.sum(a, hmac.New(h, a.Bytes(2)), a.Bytes(3))
	}
	return 0, nil
}

// Times that the host takes for a byte, in nanoseconds.
const (
	copyTime   = 2
	legacyTime = 30
	digestTime = 5
)

// worked charges the run with what the host did for it in about ns nanoseconds.
// The limits are looked at every 100 µs of that.
func (r *run) worked(ns int64) { r.vm.Charge(ns * fuelPerMicrosecond / 1000) }

func (r *run) decode(a *quickjs.Args) (quickjs.Value, error) {
	b, name := a.Bytes(1), a.Text(2)
	text, ok := web.Decode(b, name, a.Bool(3))
	time := int64(copyTime)
	if name != "utf-8" {
		time = legacyTime
	}
	r.worked(time * int64(len(b)))
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
const workPiece = 1 << 20

func (r *run) sum(a *quickjs.Args, h hash.Hash, b []byte) (quickjs.Value, error) {
	for {
		piece := b[:min(len(b), workPiece)]
		h.Write(piece)
		r.worked(digestTime * int64(len(piece)))
		if b = b[len(piece):]; len(b) == 0 {
			return a.VM().Bytes(h.Sum(nil))
		}
	}
}
