package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// raw consumes one value of any kind and returns its text. The value may be the
// whole body, of millions of elements: it is looked at byte by byte, and a path
// is made only for a fault.
func (d *decoder) raw(path string, depth int) ([]byte, error) {
	start := d.json.InputOffset()
	var text json.RawMessage
	if err := d.json.Decode(&text); err != nil {
		return nil, d.rawFault(path, start, err)
	}
	s := scanner{text: text, path: path, depth: depth}
	return text, s.scan()
}

// rawFault finds where in the value that starts at start the fault is: the
// decoder that also reads tokens counts from elsewhere.
func (d *decoder) rawFault(path string, start int64, err error) error {
	rest := d.data[start:]
	value := bytes.TrimLeft(rest, " \t\r\n:,")
	var fault *json.SyntaxError
	if again := json.NewDecoder(bytes.NewReader(value)).Decode(new(json.RawMessage)); !errors.As(again, &fault) {
		return d.syntax(path, err)
	}
	if strings.Contains(fault.Error(), "max depth") {
		return Invalid(path, tooDeep)
	}
	return d.invalid(path, fault, start+int64(len(rest)-len(value))+fault.Offset-1)
}

var tooDeep = fmt.Sprintf("nested deeper than %d levels", MaxDepth)

// syntax is the error for JSON that cannot be read.
func (d *decoder) syntax(path string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Invalid(path, "the JSON ends too early")
	}
	return d.invalid(path, err, d.json.InputOffset())
}

func (d *decoder) invalid(path string, err error, at int64) error {
	e := Invalid(path, "not valid JSON: "+err.Error())
	line, col := position(d.data, at)
	e.Position = &Position{Line: line, Column: col}
	return e
}

// A scanner walks over valid JSON and finds what is valid and still refused:
// keys that occur twice, and what nests too deep.
type scanner struct {
	text  []byte
	path  string // of the value
	depth int    // of the value
	at    int
	open  []level
}

// A level is an object or array that the scanner is inside of.
type level struct {
	object bool
	key    bool // the next string is a key
	last   string
	n      int // of the array: commas seen
	keys   map[string]struct{}
}

func (s *scanner) scan() error {
	for ; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '{', '[':
			if s.depth+len(s.open) >= MaxDepth {
				return Invalid(s.where(), tooDeep)
			}
			object := s.text[s.at] == '{'
			s.open = append(s.open, level{object: object, key: object})
		case '}', ']':
			s.open = s.open[:len(s.open)-1]
		case ',':
			in := &s.open[len(s.open)-1]
			in.n++
			in.key = in.object
		case '"':
			if err := s.stringAt(); err != nil {
				return err
			}
		}
	}
	return nil
}

// stringAt passes over a string and, if it is a key, holds it against the others.
func (s *scanner) stringAt() error {
	start := s.at
	escaped := false
	for s.at++; s.text[s.at] != '"'; s.at++ {
		if s.text[s.at] == '\\' {
			escaped = true
			s.at++
		}
	}
	if len(s.open) == 0 || !s.open[len(s.open)-1].key {
		return nil
	}
	in := &s.open[len(s.open)-1]
	in.key = false
	key := s.text[start+1 : s.at]
	if escaped {
		var plain string
		if err := json.Unmarshal(s.text[start:s.at+1], &plain); err != nil {
			return Invalid(s.where(), "not valid JSON: "+err.Error())
		}
		key = []byte(plain)
	}
	if in.n > 0 && in.keys == nil {
		in.keys = map[string]struct{}{in.last: {}}
	}
	_, twice := in.keys[string(key)]
	in.last = string(key)
	if in.keys != nil {
		in.keys[in.last] = struct{}{}
	}
	if twice {
		return Invalid(s.where(), "the key occurs twice")
	}
	return nil
}

// where is the path of what is being looked at.
func (s *scanner) where() string {
	path := s.path
	for _, in := range s.open {
		if in.object {
			path = join(path, in.last)
		} else {
			path += "[" + strconv.Itoa(in.n) + "]"
		}
	}
	return path
}
