package data

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"
)

// A Blob is binary data. In JSON it is {"$bytes": "base64"}.
type Blob []byte

// MarshalJSON implements json.Marshaler.
func (b Blob) MarshalJSON() ([]byte, error) { return appendBlob(nil, b), nil }

func appendBlob(dst, b []byte) []byte {
	dst = append(dst, `{"`+bytesKey+`":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}`...)
}

// Rows is the answer of a query. A value is nil, int64, float64, string or
// Blob. In JSON they are
//
//   - null;
//   - a number, for an integer that JavaScript can hold (within ±(2^53-1));
//   - a string of decimal digits, for a larger integer: exact, and good as a
//     parameter again, where SQLite's comparisons with integer columns take it
//     as the number;
//   - a number, for a float; "Infinity" or "-Infinity" for what JSON cannot
//     write (SQLite has no NaN);
//   - a string, for text; what is not UTF-8 in it becomes U+FFFD;
//   - {"$bytes": "base64"}, for a blob.
type Rows struct {
	Columns []string `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// maxSafe is the largest integer that JavaScript's numbers hold exactly.
const maxSafe = 1<<53 - 1

// MarshalJSON writes {"columns": [...], "rows": [[...], ...]}.
func (r *Rows) MarshalJSON() ([]byte, error) {
	columns, err := json.Marshal(nonNil(r.Columns))
	if err != nil {
		return nil, err
	}
	b := append([]byte(`{"columns":`), columns...)
	b = append(b, `,"rows":[`...)
	for i, row := range r.Rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for j, v := range row {
			if j > 0 {
				b = append(b, ',')
			}
			if b, err = appendValue(b, v); err != nil {
				return nil, err
			}
		}
		b = append(b, ']')
	}
	return append(b, "]}"...), nil
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// Objects writes the rows as JSON objects by column, as code likes to have
// them: [{"id": 1, "name": "x"}, ...]. Of columns with the same name the last
// one counts.
func (r *Rows) Objects() (json.RawMessage, error) {
	// Later columns of a name win already here, so that no name stands twice.
	last := make(map[string]int)
	for i, name := range r.Columns {
		last[name] = i
	}
	names := make([][]byte, len(r.Columns))
	for i, name := range r.Columns {
		if last[name] != i {
			continue
		}
		b, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		names[i] = append(b, ':')
	}
	b := []byte{'['}
	for i, row := range r.Rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		first := true
		for j, v := range row {
			if names[j] == nil {
				continue
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			var err error
			if b, err = appendValue(append(b, names[j]...), v); err != nil {
				return nil, err
			}
		}
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

func appendValue(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case int64:
		if v > maxSafe || v < -maxSafe {
			dst = append(dst, '"')
			dst = strconv.AppendInt(dst, v, 10)
			return append(dst, '"'), nil
		}
		return strconv.AppendInt(dst, v, 10), nil
	case float64:
		switch {
		case math.IsInf(v, 1):
			return append(dst, `"Infinity"`...), nil
		case math.IsInf(v, -1):
			return append(dst, `"-Infinity"`...), nil
		}
	case Blob:
		return appendBlob(dst, v), nil
	}
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

// collect steps through a statement's rows within the limits.
func collect(st *sqlite3.Stmt, lim QueryLimits) (*Rows, error) {
	r := &Rows{Rows: [][]any{}}
	size := int64(0)
	// What an answer weighs counts while it grows: columns and rows alike.
	grow := func(n int) error {
		if size += int64(n); size > lim.Bytes {
			return overLimit("bytes", fmt.Sprint(lim.Bytes), "the answer is too large; select less, or part of it (LIMIT)")
		}
		return nil
	}
	for i := range st.ColumnCount() {
		name := st.ColumnName(i)
		if err := grow(len(name) + 3); err != nil {
			return nil, err
		}
		r.Columns = append(r.Columns, strings.ToValidUTF8(name, string(utf8.RuneError)))
	}
	for st.Step() {
		if len(r.Rows) == lim.Rows {
			return nil, overLimit("rows", fmt.Sprint(lim.Rows), "the answer has too many rows; select fewer (LIMIT)")
		}
		row := make([]any, st.ColumnCount())
		for i := range row {
			var n int
			row[i], n = column(st, i)
			if err := grow(n + 1); err != nil {
				return nil, err
			}
		}
		r.Rows = append(r.Rows, row)
	}
	return r, st.Err()
}

// column reads a value and says how large it is as JSON, about.
func column(st *sqlite3.Stmt, i int) (any, int) {
	switch st.ColumnType(i) {
	case sqlite3.INTEGER:
		return st.ColumnInt64(i), 8
	case sqlite3.FLOAT:
		return st.ColumnFloat(i), 8
	case sqlite3.TEXT:
		s := st.ColumnText(i)
		return s, len(s) + 2
	case sqlite3.BLOB:
		b := st.ColumnBlob(i, Blob{})
		return Blob(b), base64.StdEncoding.EncodedLen(len(b)) + 13
	default:
		return nil, 4
	}
}
