package data

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"
)

// The keys of values that JSON has no form for.
const (
	bytesKey = "$bytes" // base64
	intKey   = "$int"   // decimal digits
)

// Args are the parameters of a statement, by position or by name.
type Args struct {
	list  []any
	names map[string]any
}

// Params reads parameters: a JSON array for ? and ?1, an object for :name,
// @name and $name, or nothing. A value is null, true and false (1 and 0), a
// number (an integer when it is written as one and fits 64 bits), a string,
// {"$bytes": "base64"} or, for an integer beyond JavaScript's, {"$int": "9007199254740993"}.
func Params(raw json.RawMessage) (*Args, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return &Args{}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, failure(KindParams, "params: are not JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, failure(KindParams, "params: more than one JSON value")
	}
	a := &Args{}
	switch v := v.(type) {
	case nil:
	case []any:
		for i, e := range v {
			x, err := param(fmt.Sprintf("params[%d]", i), e)
			if err != nil {
				return nil, err
			}
			a.list = append(a.list, x)
		}
	case map[string]any:
		a.names = make(map[string]any, len(v))
		for name, e := range v {
			x, err := param("params."+quote(name), e)
			if err != nil {
				return nil, err
			}
			a.names[name] = x
		}
	default:
		return nil, failure(KindParams, "params: want an array or an object")
	}
	return a, nil
}

// param reads one value to nil, int64, float64, string or Blob.
func param(field string, v any) (any, error) {
	switch v := v.(type) {
	case nil, string:
		return v, nil
	case bool:
		if v {
			return int64(1), nil
		}
		return int64(0), nil
	case json.Number:
		if !strings.ContainsAny(v.String(), ".eE") {
			if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
				return n, nil
			}
		}
		f, err := v.Float64()
		if err != nil {
			return nil, failure(KindParams, "%s: the number does not fit", field)
		}
		return f, nil
	case map[string]any:
		if len(v) == 1 {
			if s, ok := v[bytesKey].(string); ok {
				b, err := base64.StdEncoding.DecodeString(s)
				if err != nil {
					return nil, failure(KindParams, "%s: %s is not base64", field, bytesKey)
				}
				return Blob(b), nil
			}
			if s, ok := v[intKey].(string); ok {
				n, err := strconv.ParseInt(s, 10, 64)
				if err != nil {
					return nil, failure(KindParams, "%s: %s is not an integer of 64 bits", field, intKey)
				}
				return n, nil
			}
		}
	}
	return nil, failure(KindParams, `%s: want null, true, false, a number, a string, {"$bytes": "base64"} or {"$int": "digits"}; put other values through JSON.stringify`, field)
}

func (a *Args) len() int { return len(a.list) + len(a.names) }

// bind binds all parameters of the statement; each must have one value, and
// each value must have its parameter.
func (a *Args) bind(st *sqlite3.Stmt) error {
	n := st.BindCount()
	if a.names != nil {
		return a.bindNames(st, n)
	}
	if n != len(a.list) {
		return failure(KindParams, "the statement has %d parameters, and %d values came", n, len(a.list))
	}
	for i, v := range a.list {
		if err := bindValue(st, i+1, v); err != nil {
			return err
		}
	}
	return nil
}

func (a *Args) bindNames(st *sqlite3.Stmt, n int) error {
	used := make(map[string]bool)
	for i := 1; i <= n; i++ {
		full := st.BindName(i)
		if full == "" || full[0] == '?' {
			return failure(KindParams, "the statement has parameters without a name (?); send params as an array")
		}
		v, ok := a.names[full[1:]]
		if !ok {
			return failure(KindParams, "params: no value for %s", quote(full))
		}
		used[full[1:]] = true
		if err := bindValue(st, i, v); err != nil {
			return err
		}
	}
	for name := range a.names {
		if !used[name] {
			return failure(KindParams, "params: the statement has no parameter :%s", quote(name))
		}
	}
	return nil
}

func bindValue(st *sqlite3.Stmt, i int, v any) error {
	switch v := v.(type) {
	case int64:
		return st.BindInt64(i, v)
	case float64:
		return st.BindFloat(i, v)
	case string:
		return st.BindText(i, v)
	case Blob:
		return st.BindBlob(i, v)
	default:
		return st.BindNull(i)
	}
}

// checkSQL refuses text that SQLite would read only in part.
func checkSQL(sql string) error {
	if i := strings.IndexByte(sql, 0); i >= 0 {
		return &Error{Kind: KindSQL, Message: "the statement holds a NUL character", Offset: i}
	}
	if !utf8.ValidString(sql) {
		return failure(KindSQL, "the statement is not UTF-8")
	}
	return nil
}
