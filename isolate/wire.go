package isolate

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"sandboxd/isolate/cpython"
)

// Kinds of frames between the pool and a worker. A frame is its kind, the
// number of the run, and what the kind says.
const (
	frameHello  = 'h' // to the worker: start, with the guest and the cache
	frameReady  = 'R' // from the worker: confined and ready, or why not
	frameRun    = 'r' // to: a request
	frameAnswer = 'a' // to: the answer of a host call
	frameCancel = 'c' // to: end a run
	frameEvent  = 'e' // from: output of a run
	frameCall   = 'k' // from: a host call
	frameDrop   = 'x' // from: nobody wants a call's answer any more
	frameResult = 'd' // from: how a run ended
	// from: the run took so many answers, which is its call, and waits
	frameWaiting = 'w'
	// from: the run's module is compiled, and others may run beside it
	frameLoaded = 'm'

	frameNeed = 'n' // from: the worker does not keep the run's function
	frameCode = 'f' // to: its code

	frameForget = 'g' // to: keep some functions no longer

	frameCompile  = 't' // to a compiler: a TypeScript module
	frameCompiled = 'T' // from a compiler: what it made of it
)

// maxFrame bounds a frame: an answer is the largest thing in one.
const maxFrame = MaxAnswer + 1<<20

// errFrame says that a frame is not one.
var errFrame = errors.New("isolate: malformed frame")

// A frame is a decoded frame. Which fields count depends on the kind.
type frame struct {
	kind byte
	run  uint64
	call uint64
	ok   bool
	// binding and method of a call; binding is the error text of an answer.
	binding, method string
	// data is JSON.
	data []byte
}

// encode appends the frame to b.
func (f *frame) encode(b []byte) []byte {
	b = append(b, f.kind)
	b = binary.LittleEndian.AppendUint64(b, f.run)
	switch f.kind {
	case frameCall, frameAnswer, frameDrop, frameWaiting:
		b = binary.LittleEndian.AppendUint64(b, f.call)
	}
	switch f.kind {
	case frameCall:
		b = appendText(b, f.binding)
		b = appendText(b, f.method)
	case frameAnswer:
		if f.ok {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
		b = appendText(b, f.binding)
	}
	return append(b, f.data...)
}

func appendText(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// decodeFrame reads a frame of one of the kinds. Its data is part of b.
func decodeFrame(b []byte, kinds string) (*frame, error) {
	r := reader{b: b}
	f := &frame{kind: r.byte()}
	known := false
	for i := range len(kinds) {
		known = known || kinds[i] == f.kind
	}
	if !known {
		return nil, fmt.Errorf("%w: kind %#x", errFrame, f.kind)
	}
	f.run = r.uint64()
	switch f.kind {
	case frameCall, frameAnswer, frameDrop, frameWaiting:
		f.call = r.uint64()
	}
	switch f.kind {
	case frameCall:
		f.binding, f.method = r.text(), r.text()
	case frameAnswer:
		f.ok, f.binding = r.byte() == 1, r.text()
	}
	if r.short {
		return nil, fmt.Errorf("%w: too short", errFrame)
	}
	f.data = r.b
	return f, nil
}

// A reader takes fields off the front of b. Once b was too short it gives
// zeros.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.short, r.b = true, nil
		return make([]byte, min(n, 8))
	}
	t := r.b[:n]
	r.b = r.b[n:]
	return t
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

func (r *reader) text() string {
	n := binary.LittleEndian.Uint32(r.take(4))
	if uint64(n) > uint64(len(r.b)) {
		r.short, r.b = true, nil
		return ""
	}
	return string(r.take(int(n)))
}

// A readyMessage is what a worker says of itself when it is ready or gives up.
// The numbers are the kernel's, read back after the confinement.
type readyMessage struct {
	Error       string
	Filters     int
	LandlockABI int
	// Probe is what a test build tried after the confinement.
	Probe map[string]string `json:",omitempty"`
}

// A helloMessage goes to a new worker, with four descriptors: the JavaScript
// guest's binary in a sealed memfd, the cache directory, and the module and the
// image of the Python snapshot.
type helloMessage struct {
	// Python is the rest of the snapshot; nil if there is no Python.
	Python *cpython.State
	// Compiler: it shall compile TypeScript and run nothing.
	Compiler bool
	// Streams is the polyfill of the streams; of a worker that runs JavaScript.
	Streams string `json:",omitempty"`
	// Kind is what it shall run: one of kind….
	Kind string `json:",omitempty"`
}

// A jobMessage is a request with what was made of its TypeScript.
type jobMessage struct {
	Request *Request
	Units   map[string]*compiled `json:",omitempty"`
	Wasm    *wasmJob             `json:",omitempty"`
	// Linger: nothing else runs, and the next one may come soon.
	Linger bool `json:",omitempty"`
	// Spent is the wall time that is over already.
	Spent time.Duration
	// Function stands for the code, which is sent when the worker asks for it.
	Function functionKey `json:",omitempty"`
	// Anew: the call is to evaluate the function's module itself.
	Anew bool `json:",omitempty"`

	kept *kept // of Function, in the process that runs it
}

// encodeJSON is json.Marshal, but leaves raw JSON as long as it is: the limits
// count its bytes on both sides.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// validJSON tells of JSON that is UTF-8 as well: the library takes any bytes for
// the text of a string, and whoever reads the answer may not.
func validJSON(b []byte) bool { return utf8.Valid(b) && json.Valid(b) }

func decodeJSON[T any](b []byte) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	return v, nil
}
