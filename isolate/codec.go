package isolate

import (
	"bytes"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// Jobs, events and results travel as CBOR: JSON inside them stays the bytes
// that it is, where JSON around it would be read and written once more on each
// side, and a job took a quarter of a call's time to be read. What is sent once
// in a process's life stays JSON (encodeJSON).

var (
	encoding = must(cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.UserBufferEncMode())
	// decoding is for what a worker sends as well, which is hostile: nothing
	// that a sound one would not send, and nothing that costs more than its
	// bytes. Text may be anything, as code makes it; it is mended where it
	// comes in.
	decoding = must(cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		UTF8:              cbor.UTF8DecodeInvalid,
		MaxNestedLevels:   8,
	}.DecMode())
)

// must is for options that are constants: they are right or no test passes.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// encodeWith is f.encode with v as its data.
func (f *frame) encodeWith(v any) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(1024)
	b.Write(f.encode(b.AvailableBuffer()))
	if err := encoding.MarshalToBuffer(v, &b); err != nil {
		return nil, fmt.Errorf("isolate: encode: %w", err)
	}
	return b.Bytes(), nil
}

// decode reads exactly one message. The error wraps errFrame.
func decode[T any](b []byte) (*T, error) {
	v := new(T)
	if err := decoding.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	return v, nil
}
