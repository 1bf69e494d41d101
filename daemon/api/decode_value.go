package api

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// bounds are the checks of one field, from its struct tags.
type bounds struct {
	enum     []string
	min, max *int64
	required bool
}

type structField struct {
	index  int
	bounds bounds
}

type structInfo struct {
	fields map[string]structField
	names  []string
}

var structs sync.Map // reflect.Type → *structInfo

func infoOf(t reflect.Type) *structInfo {
	if v, ok := structs.Load(t); ok {
		return v.(*structInfo)
	}
	info := &structInfo{fields: map[string]structField{}}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		info.fields[name] = structField{index: i, bounds: boundsOf(f.Tag)}
		info.names = append(info.names, name)
	}
	structs.Store(t, info)
	return info
}

func boundsOf(tag reflect.StructTag) bounds {
	b := bounds{required: tag.Get("required") == "true"}
	if e := tag.Get("enum"); e != "" {
		b.enum = strings.Split(e, ",")
	}
	number := func(key string) *int64 {
		text, ok := tag.Lookup(key)
		if !ok {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			panic("api: bad " + key + " tag " + text) // a fault in this package's own types
		}
		return &n
	}
	b.min, b.max = number("min"), number("max")
	return b
}

// value decodes the next JSON value into v.
func (d *decoder) value(v reflect.Value, path string, depth int, b bounds) error {
	t := v.Type()
	if t == rawType {
		raw, err := d.raw(path, depth)
		if err != nil {
			return err
		}
		v.SetBytes(raw)
		return nil
	}
	if t.Kind() != reflect.Pointer && (reflect.PointerTo(t).Implements(jsonUn) || reflect.PointerTo(t).Implements(textUn)) {
		return d.custom(v, path, depth)
	}
	tok, err := d.token(path)
	if err != nil {
		return err
	}
	return d.typed(v, tok, path, depth, b)
}

// typed decodes the value that starts with tok into v.
func (d *decoder) typed(v reflect.Value, tok json.Token, path string, depth int, b bounds) error {
	switch v.Kind() {
	case reflect.Struct:
		if tok != json.Delim('{') {
			return mismatch(path, "an object", tok)
		}
		return d.structure(v, path, depth)
	case reflect.Map:
		if tok != json.Delim('{') {
			return mismatch(path, "an object", tok)
		}
		return d.dictionary(v, path, depth, b)
	case reflect.Slice:
		if tok != json.Delim('[') {
			return mismatch(path, "an array", tok)
		}
		return d.list(v, path, depth, b)
	case reflect.String:
		s, ok := tok.(string)
		if !ok {
			return mismatch(path, "a string", tok)
		}
		v.SetString(s)
		return checkString(s, path, b)
	case reflect.Bool:
		x, ok := tok.(bool)
		if !ok {
			return mismatch(path, "true or false", tok)
		}
		v.SetBool(x)
		return nil
	default:
		return number(v, tok, path, b)
	}
}

// custom decodes a value whose type reads its own JSON: durations, sizes, times.
func (d *decoder) custom(v reflect.Value, path string, depth int) error {
	raw, err := d.raw(path, depth)
	if err != nil {
		return err
	}
	if string(raw) == "null" {
		return Invalid(path, "must not be null; leave it out")
	}
	if v.Type() == timeType {
		if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
			return Invalid(path, fmt.Sprintf("%s is not a time; write RFC 3339 such as \"2026-01-02T15:04:05Z\"", show(string(raw))))
		}
		return nil
	}
	switch u := v.Addr().Interface().(type) {
	case json.Unmarshaler:
		err = u.UnmarshalJSON(raw)
	case encoding.TextUnmarshaler:
		var s string
		if err = json.Unmarshal(raw, &s); err == nil {
			err = u.UnmarshalText([]byte(s))
		}
	}
	var inside *Error
	if errors.As(err, &inside) {
		if inside.Field != "" && inside.Field[0] != '[' {
			path += "."
		}
		inside.Field = path + inside.Field
		return inside
	}
	if err != nil {
		return Invalid(path, err.Error())
	}
	return nil
}

func (d *decoder) structure(v reflect.Value, path string, depth int) error {
	info := infoOf(v.Type())
	present := map[string]bool{}
	err := d.object(path, depth, func(key, sub string) error {
		f, ok := info.fields[key]
		if !ok {
			e := Invalid(sub, fmt.Sprintf("unknown field %s", show(key)))
			e.Allowed = strings.Join(info.names, ", ")
			return e
		}
		present[key] = true
		return d.field(v.Field(f.index), sub, depth+1, f.bounds)
	})
	if err != nil {
		return err
	}
	for _, name := range info.names {
		if info.fields[name].bounds.required && !present[name] {
			e := Invalid(join(path, name), "is missing")
			e.Allowed = strings.Join(info.fields[name].bounds.enum, ", ")
			return e
		}
	}
	return nil
}

// field decodes into a struct's field; null is allowed for pointers only.
func (d *decoder) field(v reflect.Value, path string, depth int, b bounds) error {
	if v.Kind() != reflect.Pointer {
		return d.value(v, path, depth, b)
	}
	if d.null() {
		_, err := d.token(path)
		return err
	}
	v.Set(reflect.New(v.Type().Elem()))
	return d.value(v.Elem(), path, depth, b)
}

// null reports whether the next value is null, without reading it.
func (d *decoder) null() bool {
	rest := d.data[d.json.InputOffset():]
	for len(rest) > 0 && strings.IndexByte(" \t\r\n:,", rest[0]) >= 0 {
		rest = rest[1:]
	}
	return len(rest) > 0 && rest[0] == 'n'
}

func (d *decoder) dictionary(v reflect.Value, path string, depth int, b bounds) error {
	m := reflect.MakeMap(v.Type())
	err := d.object(path, depth, func(key, sub string) error {
		if b.max != nil && int64(m.Len()) >= *b.max {
			return Invalid(path, fmt.Sprintf("has more than %d entries", *b.max))
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(e, sub, depth+1, bounds{}); err != nil {
			return err
		}
		m.SetMapIndex(reflect.ValueOf(key), e)
		return nil
	})
	v.Set(m)
	return err
}

func (d *decoder) list(v reflect.Value, path string, depth int, b bounds) error {
	out := reflect.MakeSlice(v.Type(), 0, 0)
	n, err := d.array(path, depth, func(i int, sub string) error {
		if b.max != nil && int64(i) >= *b.max {
			return Invalid(path, fmt.Sprintf("has more than %d elements", *b.max))
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(e, sub, depth+1, bounds{enum: b.enum}); err != nil {
			return err
		}
		out = reflect.Append(out, e)
		return nil
	})
	if err != nil {
		return err
	}
	if b.min != nil && int64(n) < *b.min {
		return Invalid(path, fmt.Sprintf("has %d elements; at least %d are needed", n, *b.min))
	}
	v.Set(out)
	return nil
}

func checkString(s, path string, b bounds) error {
	if b.enum != nil {
		for _, e := range b.enum {
			if s == e {
				return nil
			}
		}
		e := Invalid(path, fmt.Sprintf("%s is not one of %s", show(s), strings.Join(b.enum, ", ")))
		e.Allowed = strings.Join(b.enum, ", ")
		return e
	}
	if b.min != nil && int64(len(s)) < *b.min {
		return Invalid(path, fmt.Sprintf("has %d bytes; at least %d are needed", len(s), *b.min))
	}
	if b.max != nil && int64(len(s)) > *b.max {
		e := Invalid(path, fmt.Sprintf("has %d bytes; at most %d are allowed", len(s), *b.max))
		e.Allowed = strconv.FormatInt(*b.max, 10)
		return e
	}
	return nil
}

func number(v reflect.Value, tok json.Token, path string, b bounds) error {
	n, ok := tok.(json.Number)
	if !ok {
		return mismatch(path, "a number", tok)
	}
	var err error
	switch v.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		var i int64
		if i, err = strconv.ParseInt(n.String(), 10, v.Type().Bits()); err == nil {
			v.SetInt(i)
			return checkRange(i, path, b)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		var u uint64
		if u, err = strconv.ParseUint(n.String(), 10, v.Type().Bits()); err == nil {
			v.SetUint(u)
			return nil
		}
	case reflect.Float64:
		var f float64
		if f, err = strconv.ParseFloat(n.String(), 64); err == nil {
			v.SetFloat(f)
			return nil
		}
	default:
		return fmt.Errorf("api: bug: type %s cannot be decoded", v.Type())
	}
	want := "an integer"
	if v.Kind() == reflect.Float64 {
		want = "a number"
	} else if v.CanUint() {
		want = "an integer that is not negative"
	}
	return Invalid(path, fmt.Sprintf("%s is not %s that fits", show(n.String()), want))
}

func checkRange(i int64, path string, b bounds) error {
	if (b.min == nil || i >= *b.min) && (b.max == nil || i <= *b.max) {
		return nil
	}
	var allowed string
	switch {
	case b.min != nil && b.max != nil:
		allowed = fmt.Sprintf("%d to %d", *b.min, *b.max)
	case b.min != nil:
		allowed = fmt.Sprintf("%d or more", *b.min)
	default:
		allowed = fmt.Sprintf("at most %d", *b.max)
	}
	e := Invalid(path, fmt.Sprintf("%d is out of range", i))
	e.Allowed = allowed
	return e
}

func mismatch(path, want string, got json.Token) error {
	if path == "" {
		return Invalid("", fmt.Sprintf("the body must be %s, not %s", want, kindOf(got)))
	}
	return Invalid(path, fmt.Sprintf("must be %s, not %s", want, kindOf(got)))
}

func kindOf(t json.Token) string {
	switch x := t.(type) {
	case nil:
		return "null"
	case json.Delim:
		if x == '{' {
			return "an object"
		}
		return "an array"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "a boolean"
	default:
		return "something else"
	}
}
