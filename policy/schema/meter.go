package schema

import (
	"encoding/json"
	"errors"
	"math/big"
	"reflect"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// The library calls an extension last, and not at all where a value has failed
// before. So each schema gets a format, which is looked at before it goes into
// anything else, and an extension for what its faults hold in memory. Both burn
// fuel.

// regexFormat is the format regex: the library does it by itself if it has that
// name.
const regexFormat = "sandboxd:regex"

var errDynamic = errors.New("$dynamicRef and $recursiveRef are not taken; use $ref")

// meter has all schemas that s leads to burn f's fuel.
func (f *fuel) meter(s *jsonschema.Schema) error {
	return f.meterAll(reflect.ValueOf(s), map[*jsonschema.Schema]bool{})
}

var schemaType = reflect.TypeFor[*jsonschema.Schema]()

// meterAll finds the schemas in v.
func (f *fuel) meterAll(v reflect.Value, seen map[*jsonschema.Schema]bool) error {
	switch v.Kind() {
	case reflect.Interface:
		return f.meterAll(v.Elem(), seen)
	case reflect.Slice:
		for i := range v.Len() {
			if err := f.meterAll(v.Index(i), seen); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if err := f.meterAll(v.MapIndex(key), seen); err != nil {
				return err
			}
		}
	case reflect.Pointer:
		if v.Type() != schemaType || v.IsNil() {
			return nil
		}
		s := v.Interface().(*jsonschema.Schema)
		if seen[s] {
			return nil
		}
		seen[s] = true
		for i := range v.Elem().NumField() {
			// What the schema is compared with and shown holds no schema.
			switch field := v.Elem().Type().Field(i); {
			case !field.IsExported(), field.Name == "Const", field.Name == "Default", field.Name == "Examples", field.Name == "Extensions":
				continue
			}
			if err := f.meterAll(v.Elem().Field(i), seen); err != nil {
				return err
			}
		}
		return f.meterOne(s)
	}
	return nil
}

func (f *fuel) meterOne(s *jsonschema.Schema) error {
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return errDynamic
	}
	// How many faults it may find in one value, beside those of its members.
	weight := 1 + len(s.AllOf) + len(s.AnyOf) + len(s.OneOf) + len(s.PatternProperties) + len(s.DependentSchemas) + len(s.Required)/4
	old := s.Format
	s.Format = &jsonschema.Format{Validate: func(v any) error {
		f.burn(weight + members(v)/8)
		if old == nil {
			return nil
		}
		if old.Name != "regex" {
			return old.Validate(v)
		}
		text, ok := v.(string)
		if !ok {
			return nil
		}
		_, err := f.regexp(text)
		return err
	}}
	if old != nil {
		s.Format.Name = old.Name
		if old.Name == "regex" {
			s.Format.Name = regexFormat
		}
	}
	s.Extensions = append(s.Extensions, post{f, weight})
	if s.Enum != nil {
		s.Extensions = append(s.Extensions, newChoices(f, s.Enum.Values))
		s.Enum = nil
	}
	return nil
}

// members are how many values an array or object holds directly.
func members(v any) int {
	switch v := v.(type) {
	case map[string]any:
		return len(v)
	case []any:
		return len(v)
	}
	return 0
}

// A post burns what the faults of a value may take: each has its path.
type post struct {
	fuel   *fuel
	weight int
}

// Validate implements jsonschema.SchemaExt.
func (p post) Validate(ctx *jsonschema.ValidatorContext, v any) {
	p.fuel.burn((p.weight + members(v)) * (1 + len(ctx.ValueLocation())/8))
}

// choices are the values of an enum. The library goes through all of them for
// each value, and makes fractions of numbers each time.
type choices struct {
	fuel   *fuel
	all    []any
	simple map[any]bool // null, texts, truth values, and numbers as fractions
	others []any        // arrays and objects
}

func newChoices(f *fuel, values []any) *choices {
	c := &choices{fuel: f, all: values, simple: map[any]bool{}}
	for _, v := range values {
		if key, ok := simple(v); ok {
			c.simple[key] = true
		} else {
			c.others = append(c.others, v)
		}
	}
	return c
}

// A fraction is a number's key.
type fraction string

// simple is the key of what is neither an array nor an object.
func simple(v any) (key any, ok bool) {
	switch v := v.(type) {
	case nil, bool, string:
		return v, true
	case json.Number:
		if r, ok := new(big.Rat).SetString(v.String()); ok {
			return fraction(r.RatString()), true
		}
	}
	return nil, false
}

// Validate implements jsonschema.SchemaExt.
func (c *choices) Validate(ctx *jsonschema.ValidatorContext, v any) {
	if key, ok := simple(v); ok {
		if !c.simple[key] {
			ctx.AddError(&kind.Enum{Got: v, Want: c.all})
		}
		return
	}
	for _, other := range c.others {
		c.fuel.burn(1 + members(v)*min(1, members(other)))
		if same, err := ctx.Equals(v, other); err != nil || same {
			return
		}
	}
	ctx.AddError(&kind.Enum{Got: v, Want: c.all})
}
