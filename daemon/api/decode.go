package api

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a request body.
const (
	// MaxBody is the largest JSON body in bytes.
	MaxBody = 16 << 20
	// MaxDepth is how deep objects and arrays may nest.
	MaxDepth = 64
)

// DecodeRequest reads the JSON body of r into v, a pointer to a request type.
// An empty body is the empty object if v has no required fields. Errors are
// *Error.
func DecodeRequest(r *http.Request, v any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if err != nil {
		return &Error{Code: CodeInvalidRequest, Message: "the body could not be read: " + err.Error(), Retryable: true}
	}
	if len(body) > MaxBody {
		return TooLarge("the body", MaxBody)
	}
	if len(body) == 0 {
		body = []byte("{}")
	} else if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	return Decode(body, v)
}

// TooLarge is the error for something above max bytes.
func TooLarge(what string, max int64) *Error {
	return &Error{Code: CodeTooLarge, Message: fmt.Sprintf("%s is larger than %d bytes", what, max), Allowed: strconv.FormatInt(max, 10)}
}

func checkContentType(value string) error {
	media, params, err := mime.ParseMediaType(value)
	if err == nil && media == "application/json" {
		if cs, ok := params["charset"]; !ok || strings.EqualFold(cs, "utf-8") {
			return nil
		}
	}
	return &Error{Code: CodeInvalidRequest, HTTPStatus: http.StatusUnsupportedMediaType, Field: "Content-Type",
		Message: fmt.Sprintf("the body is %s; send application/json in UTF-8", show(value)), Allowed: "application/json"}
}

// Decode reads one JSON value into v, a non-nil pointer. It refuses what
// encoding/json lets pass: unknown fields, keys that occur twice or differ in
// case, nulls where there is no null, trailing data, text that is not UTF-8,
// and values outside the bounds in the struct tags. Errors are *Error and name
// the field. After an error v is in an undefined state.
func Decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return Invalid("", "the body is not valid UTF-8")
	}
	d := &decoder{data: data, json: json.NewDecoder(bytes.NewReader(data))}
	d.json.UseNumber()
	if err := d.value(reflect.ValueOf(v).Elem(), "", 0, bounds{}); err != nil {
		return err
	}
	if _, err := d.json.Token(); !errors.Is(err, io.EOF) {
		return Invalid("", "there is data after the end of the JSON value; send exactly one")
	}
	return nil
}

type decoder struct {
	data []byte
	json *json.Decoder
}

var (
	rawType  = reflect.TypeFor[json.RawMessage]()
	timeType = reflect.TypeFor[time.Time]()
	jsonUn   = reflect.TypeFor[json.Unmarshaler]()
	textUn   = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// token reads the next token. InputOffset before the call is where its
// separators start.
func (d *decoder) token(path string) (json.Token, error) {
	t, err := d.json.Token()
	if err == nil {
		return t, nil
	}
	return nil, d.syntax(path, err)
}

func position(data []byte, offset int64) (line, col int) {
	before := data[:min(int(offset), len(data))]
	return bytes.Count(before, []byte{'\n'}) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// object calls field for each member of an object whose '{' has been read.
func (d *decoder) object(path string, depth int, field func(key, sub string) error) error {
	if depth >= MaxDepth {
		return Invalid(path, fmt.Sprintf("nested deeper than %d levels", MaxDepth))
	}
	seen := map[string]bool{}
	for d.json.More() {
		t, err := d.token(path)
		if err != nil {
			return err
		}
		key := t.(string)
		sub := join(path, key)
		if seen[key] {
			return Invalid(sub, "the key occurs twice")
		}
		seen[key] = true
		if err := field(key, sub); err != nil {
			return err
		}
	}
	_, err := d.token(path)
	return err
}

// array calls element for each element of an array whose '[' has been read.
func (d *decoder) array(path string, depth int, element func(i int, sub string) error) (int, error) {
	if depth >= MaxDepth {
		return 0, Invalid(path, fmt.Sprintf("nested deeper than %d levels", MaxDepth))
	}
	n := 0
	for ; d.json.More(); n++ {
		if err := element(n, path+"["+strconv.Itoa(n)+"]"); err != nil {
			return n, err
		}
	}
	_, err := d.token(path)
	return n, err
}

// join appends a key to a path, quoted when it is not a plain name.
func join(path, key string) string {
	if !plain(key) {
		return path + "[" + show(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func plain(key string) bool {
	if key == "" || len(key) > 64 {
		return false
	}
	for _, c := range []byte(key) {
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}

// show quotes hostile text for a message, and shortens it.
func show(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
