package pgquery

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// What a value becomes in JSON:
//
//	boolean, integers, floats        the same; "NaN", "Infinity", "-Infinity"
//	bigint beyond ±(2^53-1)          a string of digits
//	numeric                          a number of up to 15 digits, else a string
//	timestamptz                      "2026-01-02T15:04:05.5Z" (RFC 3339, UTC)
//	timestamp, date                  "2026-01-02T15:04:05", "2026-01-02"
//	bytea                            {"$bytes": "base64"}
//	json, jsonb                      itself
//	arrays                           arrays
//	everything else, uuid too        PostgreSQL's own text

// maxSafe is the largest integer that JavaScript's numbers hold exactly.
const maxSafe = 1<<53 - 1

// binaryTypes are taken in binary form; the others come as text.
var binaryTypes = map[uint32]bool{
	pgtype.BoolOID: true, pgtype.Int2OID: true, pgtype.Int4OID: true, pgtype.Int8OID: true, pgtype.Float4OID: true, pgtype.Float8OID: true,
	pgtype.ByteaOID: true, pgtype.DateOID: true, pgtype.TimestampOID: true, pgtype.TimestamptzOID: true,
}

// formats says for each column in which form it shall come.
func formats(types *pgtype.Map, fields []pgconn.FieldDescription) []int16 {
	out := make([]int16, len(fields))
	for i, f := range fields {
		if binaryTypes[f.DataTypeOID] || isArray(types, f.DataTypeOID) {
			out[i] = pgx.BinaryFormatCode
		}
	}
	return out
}

func isArray(types *pgtype.Map, oid uint32) bool {
	t, ok := types.TypeForOID(oid)
	if !ok {
		return false
	}
	_, array := t.Codec.(*pgtype.ArrayCodec)
	return array
}

// collect reads the rows within the bounds.
func collect(types *pgtype.Map, rows pgx.Rows, most int) (json.RawMessage, error) {
	fields := rows.FieldDescriptions()
	names := make([][]byte, len(fields))
	for i, f := range fields {
		b, err := json.Marshal(f.Name)
		if err != nil {
			return nil, err
		}
		names[i] = append(b, ':')
	}
	out := []byte{'['}
	for n := 0; rows.Next(); n++ {
		if n == most {
			return nil, fault("the answer has more than %d rows; ask for fewer", most)
		}
		if n > 0 {
			out = append(out, ',')
		}
		var values []any // made when a binary column needs it
		out = append(out, '{')
		for i, raw := range rows.RawValues() {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, names[i]...)
			var err error
			switch {
			case raw == nil:
				out = append(out, "null"...)
			case fields[i].Format == pgx.TextFormatCode:
				out, err = appendText(out, fields[i].DataTypeOID, raw)
			default:
				if values == nil {
					values, err = rows.Values()
				}
				if err == nil {
					out, err = appendColumn(out, types, fields[i].DataTypeOID, raw, values[i])
				}
			}
			if err != nil {
				return nil, err
			}
			if len(out) > MaxAnswer {
				return nil, fault("the answer is larger than %d bytes; ask for less", MaxAnswer)
			}
		}
		out = append(out, '}')
	}
	return append(out, ']'), nil
}

// appendText writes a value that came as text.
func appendText(dst []byte, oid uint32, raw []byte) ([]byte, error) {
	switch oid {
	case pgtype.JSONOID, pgtype.JSONBOID:
		return appendJSON(dst, raw)
	case pgtype.NumericOID:
		return appendNumeric(dst, string(raw))
	}
	return appendString(dst, string(raw))
}

func appendString(dst []byte, s string) ([]byte, error) {
	b, err := json.Marshal(s)
	return append(dst, b...), err
}

// appendNumeric writes a decimal number that a float holds exactly enough as a
// number, others as a string.
func appendNumeric(dst []byte, s string) ([]byte, error) {
	digits := strings.TrimLeft(strings.NewReplacer("-", "", ".", "").Replace(s), "0")
	if len(digits) <= 15 && json.Valid([]byte(s)) {
		return append(dst, s...), nil
	}
	return appendString(dst, s)
}

// appendJSON writes a JSON value. What looks as if it were bytes in it is marked
// as what it is.
func appendJSON(dst, raw []byte) ([]byte, error) {
	if !bytes.Contains(raw, []byte("$bytes")) && !bytes.Contains(raw, []byte("$object")) && !bytes.Contains(raw, []byte(`\u0024`)) {
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return nil, err
		}
		return append(dst, b.Bytes()...), nil
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	b, err := json.Marshal(marked(v))
	return append(dst, b...), err
}

func marked(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = marked(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = marked(v[k])
		}
		if len(v) == 1 && (v["$bytes"] != nil || v["$object"] != nil) {
			return map[string]any{"$object": v}
		}
	}
	return v
}

// appendColumn writes a column that came in binary form.
func appendColumn(dst []byte, types *pgtype.Map, oid uint32, raw []byte, v any) ([]byte, error) {
	list, ok := v.([]any)
	if !ok {
		return appendValue(dst, oid, v)
	}
	if t, ok := types.TypeForOID(oid); ok {
		if c, ok := t.Codec.(*pgtype.ArrayCodec); ok {
			oid = c.ElementType.OID
		}
	}
	return appendArray(dst, oid, list, dimensions(raw))
}

// dimensions are the lengths in the head of an array's binary form.
func dimensions(raw []byte) []int {
	const head, each = 12, 8
	if len(raw) < head {
		return nil
	}
	n := int(binary.BigEndian.Uint32(raw))
	var dims []int
	for i := 0; i < n && len(raw) >= head+each*(i+1); i++ {
		dims = append(dims, int(binary.BigEndian.Uint32(raw[head+each*i:])))
	}
	return dims
}

// appendArray writes elements, which are in one list, in the array's shape.
func appendArray(dst []byte, oid uint32, list []any, dims []int) ([]byte, error) {
	dst = append(dst, '[')
	var err error
	if len(dims) > 1 && dims[0] > 0 && len(list)%dims[0] == 0 {
		size := len(list) / dims[0]
		for i := range dims[0] {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendArray(dst, oid, list[i*size:(i+1)*size], dims[1:]); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	}
	for i, e := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendValue(dst, oid, e); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

// appendValue writes a value of a type that has a binary form.
func appendValue(dst []byte, oid uint32, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int16:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int32:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int64:
		if v > maxSafe || v < -maxSafe {
			return appendString(dst, strconv.FormatInt(v, 10))
		}
		return strconv.AppendInt(dst, v, 10), nil
	case float32:
		return appendFloat(dst, float64(v), 32)
	case float64:
		return appendFloat(dst, v, 64)
	case []byte:
		dst = append(dst, `{"$bytes":"`...)
		return append(base64.StdEncoding.AppendEncode(dst, v), `"}`...), nil
	case pgtype.InfinityModifier:
		return appendString(dst, v.String())
	case pgtype.Numeric:
		text, err := v.Value()
		if s, ok := text.(string); ok && err == nil {
			return appendNumeric(dst, s)
		}
		return append(dst, "null"...), err
	case [16]byte:
		h := hex.EncodeToString(v[:])
		return appendString(dst, h[:8]+"-"+h[8:12]+"-"+h[12:16]+"-"+h[16:20]+"-"+h[20:])
	case string:
		return appendString(dst, v)
	case time.Time:
		return appendString(dst, moment(v, oid))
	}
	return appendOther(dst, v)
}

func appendFloat(dst []byte, v float64, bits int) ([]byte, error) {
	switch {
	case math.IsNaN(v):
		return append(dst, `"NaN"`...), nil
	case math.IsInf(v, 1):
		return append(dst, `"Infinity"`...), nil
	case math.IsInf(v, -1):
		return append(dst, `"-Infinity"`...), nil
	}
	return strconv.AppendFloat(dst, v, 'g', -1, bits), nil
}

// appendOther writes what stands in arrays and has no form of its own.
func appendOther(dst []byte, v any) ([]byte, error) {
	if t, ok := v.(fmt.Stringer); ok {
		return appendString(dst, t.String())
	}
	b, err := json.Marshal(marked(v))
	return append(dst, b...), err
}

// moment writes a time of one of the types date, timestamp and timestamptz.
func moment(t time.Time, oid uint32) string {
	switch oid {
	case pgtype.DateOID:
		return t.Format(time.DateOnly)
	case pgtype.TimestampOID:
		return t.Format("2006-01-02T15:04:05.999999999")
	}
	return t.UTC().Format(time.RFC3339Nano)
}
