package pgquery

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"sandboxd/policy"
	"sandboxd/policy/schema"
)

func fault(format string, args ...any) error {
	return &Error{Fault: true, Message: fmt.Sprintf(format, args...)}
}

// arguments are the values of the query's parameters in their order.
func arguments(ctx context.Context, q *policy.Query, raw json.RawMessage) ([]json.RawMessage, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fault("the arguments are not a JSON array")
	}
	values, err := inOrder(q, list)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		p := &q.Params[i]
		if p.Schema == nil {
			continue
		}
		err := p.Schema.Check(ctx, v)
		var broken *schema.Violation
		if errors.As(err, &broken) {
			return nil, fault("parameter %s%s %s", p.Name, broken.Path, strings.TrimPrefix(broken.Error(), broken.Path+" "))
		} else if err != nil {
			return nil, err
		}
	}
	return values, nil
}

func inOrder(q *policy.Query, list []json.RawMessage) ([]json.RawMessage, error) {
	var named map[string]json.RawMessage
	if len(list) == 1 && json.Unmarshal(list[0], &named) == nil && named != nil && (len(named) != 1 || named["$bytes"] == nil) {
		values := make([]json.RawMessage, len(q.Params))
		for i, p := range q.Params {
			v, ok := named[p.Name]
			if !ok && p.Schema == nil {
				return nil, fault("parameter %s is missing; the query takes %s", p.Name, names(q))
			}
			if !ok {
				v = json.RawMessage("null") // which its schema allows or not
			}
			values[i] = v
			delete(named, p.Name)
		}
		for name := range named {
			return nil, fault("the query has no parameter %.64q; it takes %s", name, names(q))
		}
		return values, nil
	}
	if len(list) != len(q.Params) {
		return nil, fault("the query takes %s, and %d arguments came", names(q), len(list))
	}
	return list, nil
}

func names(q *policy.Query) string {
	if len(q.Params) == 0 {
		return "no parameters"
	}
	list := make([]string, len(q.Params))
	for i, p := range q.Params {
		list[i] = p.Name
	}
	return strings.Join(list, ", ")
}

// param is a value as the library sends it: bytes, or text that the server
// reads as the parameter's type.
func param(types *pgtype.Map, name string, oid uint32, raw json.RawMessage) (any, error) {
	raw = bytes.TrimSpace(raw)
	if string(raw) == "null" {
		return nil, nil
	}
	if oid == pgtype.JSONOID || oid == pgtype.JSONBOID {
		return string(raw), nil
	}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil || strings.ContainsRune(s, 0) {
			return nil, fault("parameter %s is a string that PostgreSQL cannot hold (a zero character)", name)
		}
		return s, nil
	case '{':
		var b struct {
			Bytes *string `json:"$bytes"`
		}
		if err := json.Unmarshal(raw, &b); err == nil && b.Bytes != nil {
			data, err := base64.StdEncoding.DecodeString(*b.Bytes)
			if err != nil {
				return nil, fault("parameter %s has bytes that are not base64", name)
			}
			return data, nil
		}
	case '[':
		if t, ok := types.TypeForOID(oid); ok {
			if _, array := t.Codec.(*pgtype.ArrayCodec); array {
				return arrayText(name, raw)
			}
		}
	default:
		return string(raw), nil // a number, true or false
	}
	return nil, fault("parameter %s is an object or array, which the query does not take", name)
}

// arrayText writes an array as PostgreSQL reads it.
func arrayText(name string, raw json.RawMessage) (string, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", fault("parameter %s is not JSON", name)
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		var v any
		d := json.NewDecoder(bytes.NewReader(e))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			return "", fault("parameter %s is not JSON", name)
		}
		switch v := v.(type) {
		case nil:
			b.WriteString("NULL")
		case string:
			if strings.ContainsRune(v, 0) {
				return "", fault("parameter %s[%d] holds a zero character", name, i)
			}
			b.WriteString(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`)
		case bool, json.Number:
			b.Write(bytes.TrimSpace(e))
		default:
			return "", fault("parameter %s[%d] must be a string, a number, true, false or null", name, i)
		}
	}
	b.WriteByte('}')
	return b.String(), nil
}
