package schema

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// MaxValues is how many values (numbers, strings, arrays, objects …) something
// that is checked may consist of.
const MaxValues = 100_000

// A Violation says how a value breaks a schema.
type Violation struct {
	// Path leads to what is wrong, such as "[0].limit"; "" is the value itself.
	Path string
	// Want is what the schema wants there.
	Want string
	// Got is what came, shortened; "" where that says nothing.
	Got string
}

func (v *Violation) Error() string {
	s := v.Want
	if v.Got != "" {
		s = "is " + v.Got + "; " + v.Want
	}
	if v.Path == "" {
		return s
	}
	return v.Path + " " + s
}

// checking bounds what checks hold in memory together.
var checking = make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))

// Check holds a JSON value against the schema. The error is a *Violation, or
// that of ctx, for which a check waits that has no room yet.
func (s *Schema) Check(ctx context.Context, value json.RawMessage) error {
	keys, err := scan(value, MaxValues)
	if err != nil {
		return &Violation{Want: err.Error()}
	}
	select {
	case checking <- struct{}{}:
		defer func() { <-checking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return &Violation{Want: "must be JSON"}
	}
	if keysOf(v) != keys {
		// Whoever reads it next may take the one that was not checked.
		return &Violation{Want: "has a key twice in one object"}
	}
	in, ok := s.instances.Get().(*instance)
	if !ok {
		if in, err = s.compile(); err != nil {
			return err
		}
	}
	defer s.instances.Put(in)
	return in.check(v)
}

func (in *instance) check(v any) error {
	var err error
	if !in.fuel.enough(func() { err = in.schema.Validate(v) }) {
		return &Violation{Want: "is too much work to check against its schema; make it smaller"}
	}
	invalid, ok := err.(*jsonschema.ValidationError)
	if !ok {
		return err
	}
	leaf := worst(invalid)
	return &Violation{Path: pathText(v, leaf.InstanceLocation), Want: want(leaf), Got: got(at(v, leaf.InstanceLocation), leaf.ErrorKind)}
}

var english = message.NewPrinter(language.English)

// worst finds the fault to tell of: of alternatives the one that came furthest,
// else the first by its place.
func worst(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		if best := furthest(e.Causes); best != nil && len(best.InstanceLocation) > len(e.InstanceLocation) {
			return best
		}
		return e
	}
	if len(e.Causes) == 0 {
		return e
	}
	best := worst(e.Causes[0])
	for _, c := range e.Causes[1:] {
		if w := worst(c); before(w, best) {
			best = w
		}
	}
	return best
}

// furthest is the deepest fault of the alternatives.
func furthest(causes []*jsonschema.ValidationError) *jsonschema.ValidationError {
	var best *jsonschema.ValidationError
	for _, c := range causes {
		if w := worst(c); best == nil || len(w.InstanceLocation) > len(best.InstanceLocation) {
			best = w
		}
	}
	return best
}

// before orders faults: objects are walked in no order.
func before(a, b *jsonschema.ValidationError) bool {
	if c := strings.Compare(strings.Join(a.InstanceLocation, "\x00"), strings.Join(b.InstanceLocation, "\x00")); c != 0 {
		return c < 0
	}
	return strings.Join(a.ErrorKind.KeywordPath(), "/") < strings.Join(b.ErrorKind.KeywordPath(), "/")
}

// at finds a value by its path.
func at(v any, path []string) any {
	for _, p := range path {
		switch in := v.(type) {
		case map[string]any:
			v = in[p]
		case []any:
			i, err := strconv.Atoi(p)
			if err != nil || i < 0 || i >= len(in) {
				return nil
			}
			v = in[i]
		}
	}
	return v
}

// pathText writes a path as code does.
func pathText(v any, path []string) string {
	var b strings.Builder
	for i, p := range path {
		switch _, array := at(v, path[:i]).([]any); {
		case array:
			b.WriteString("[" + p + "]")
		case plain(p):
			b.WriteString("." + p)
		default:
			b.WriteString("[" + short(p) + "]")
		}
	}
	return b.String()
}

func plain(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && c != '$' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// want says what the schema wants.
func want(e *jsonschema.ValidationError) string {
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		return "must be " + words(k.Want)
	case *kind.Required:
		return "lacks " + quoted(k.Missing)
	case *kind.AdditionalProperties:
		return "has " + quoted(k.Properties) + ", which the schema does not know"
	case *kind.FalseSchema:
		return "must not be there"
	case *kind.AnyOf:
		return alternatives(e.Causes)
	case *kind.OneOf:
		if len(e.Causes) == 0 {
			return "must match one of the schema's alternatives only"
		}
		return alternatives(e.Causes)
	case *kind.Not:
		return "must not be like that"
	case *kind.Pattern:
		return "must match " + short(k.Want)
	case *kind.Format:
		if k.Want == regexFormat || k.Want == "regex" {
			return fmt.Sprintf("must be a pattern: %v", k.Err)
		}
		return "must be a " + k.Want
	}
	return e.ErrorKind.LocalizedString(english)
}

// alternatives joins what each of them wants.
func alternatives(causes []*jsonschema.ValidationError) string {
	const most = 4
	var list []string
	for _, c := range causes {
		if w := want(worst(c)); !slices.Contains(list, w) && len(list) < most {
			list = append(list, w)
		}
	}
	return strings.Join(list, ", or ")
}

func words(types []string) string {
	types = slices.Sorted(slices.Values(types))
	named := make([]string, len(types))
	for i, t := range types {
		switch t {
		case "null":
			named[i] = t
		case "object", "array", "integer":
			named[i] = "an " + t
		default:
			named[i] = "a " + t
		}
	}
	return strings.Join(named, " or ")
}

func quoted(names []string) string {
	const most = 5
	list := make([]string, 0, most)
	for i, n := range names {
		if i == most {
			list = append(list, "…")
			break
		}
		list = append(list, short(n))
	}
	return strings.Join(list, ", ")
}

// got shows what came, where the fault is in the value itself.
func got(v any, k jsonschema.ErrorKind) string {
	switch k.(type) {
	case *kind.Required, *kind.AdditionalProperties, *kind.MinProperties, *kind.MaxProperties, *kind.MinItems, *kind.MaxItems, *kind.UniqueItems:
		return ""
	}
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "the string " + short(v)
	case json.Number:
		return "the number " + v.String()
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return fmt.Sprintf("an array of %d", len(v))
	case map[string]any:
		return "an object"
	}
	return ""
}
