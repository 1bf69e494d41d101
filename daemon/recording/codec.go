package recording

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// Recordings are CBOR, in which JSON stays the bytes that it is: an answer with
// a space less costs the code less fuel.

var (
	encoding = must(cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode())
	decoding = must(cbor.DecOptions{
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		UTF8:             cbor.UTF8DecodeInvalid,
		MaxArrayElements: 1 << 21,
		MaxNestedLevels:  8,
	}.DecMode())
)

// must is for options that are constants: they are right or no test passes.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ErrDamaged says that a file is not what was written, as a power failure leaves
// it.
var ErrDamaged = errors.New("recording: it is damaged")

// encode is a file: the hash of what follows, and the recording.
func encode(r *Recording) ([]byte, error) {
	body, err := encoding.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("recording: encode: %w", err)
	}
	sum := sha256.Sum256(body)
	return append(sum[:], body...), nil
}

func decode(file []byte) (*Recording, error) {
	if len(file) < sha256.Size {
		return nil, ErrDamaged
	}
	body := file[sha256.Size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], file[:sha256.Size]) {
		return nil, ErrDamaged
	}
	r := new(Recording)
	if err := decoding.Unmarshal(body, r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if r.Format != format {
		return nil, fmt.Errorf("%w: its format is %d, not %d", ErrDamaged, r.Format, format)
	}
	return r, nil
}
