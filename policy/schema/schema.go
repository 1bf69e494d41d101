package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of a schema.
const (
	// MaxBytes is the largest schema, as JSON.
	MaxBytes = 64 << 10
	// maxNodes is how many values a schema may consist of.
	maxNodes = 4000
	// maxDepth is how deep schemas and checked values may nest.
	maxDepth = 64
	// maxCompiled is how many schemas are kept compiled.
	maxCompiled = 512
)

// A Schema is a compiled schema. It may be used by many goroutines.
type Schema struct {
	raw json.RawMessage
	// array: it describes an array, so the whole list of arguments.
	array bool
	// instances have fuel of their own, so that checks do not wait for each
	// other.
	instances sync.Pool
}

// An Error says what is wrong with a schema and where.
type Error struct {
	// Path leads from the schema's root to the fault: keys and indexes.
	Path []string
	// Message says what is wrong.
	Message string
}

func (e *Error) Error() string {
	if len(e.Path) == 0 {
		return e.Message
	}
	return strings.Join(e.Path, ".") + ": " + e.Message
}

// compiled are the schemas in use, by content: a service sends the same ones
// with each request.
var compiled struct {
	sync.Mutex
	by map[[sha256.Size]byte]*Schema
}

// Compile reads a schema. Errors are *Error.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) > MaxBytes {
		return nil, &Error{Message: fmt.Sprintf("the schema has %d bytes, at most %d are taken", len(raw), MaxBytes)}
	}
	key := sha256.Sum256(raw)
	compiled.Lock()
	s := compiled.by[key]
	compiled.Unlock()
	if s != nil {
		return s, nil
	}
	s = &Schema{raw: bytes.Clone(raw)}
	first, err := s.compile()
	if err != nil {
		return nil, err
	}
	s.instances.Put(first)
	compiled.Lock()
	defer compiled.Unlock()
	if compiled.by == nil {
		compiled.by = map[[sha256.Size]byte]*Schema{}
	}
	for old := range compiled.by {
		if len(compiled.by) < maxCompiled {
			break
		}
		delete(compiled.by, old)
	}
	compiled.by[key] = s
	return s, nil
}

// JSON is the schema as it was given.
func (s *Schema) JSON() json.RawMessage { return s.raw }

// Array tells whether the schema describes an array.
func (s *Schema) Array() bool { return s.array }

// An instance is a compiled schema with the fuel of its checks.
type instance struct {
	schema *jsonschema.Schema
	fuel   *fuel
}

const rootURL = "schema:"

// compile compiles the schema once more.
func (s *Schema) compile() (*instance, error) {
	if _, err := scan(s.raw, maxNodes); err != nil {
		return nil, &Error{Message: err.Error()}
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(s.raw))
	if err != nil {
		return nil, &Error{Message: "the schema is not JSON"}
	}
	switch doc := doc.(type) {
	case bool:
	case map[string]any:
		_, items := doc["items"]
		_, prefix := doc["prefixItems"]
		s.array = doc["type"] == "array" || doc["type"] == nil && (items || prefix)
	default:
		return nil, &Error{Message: "a schema is a group of keys, or true or false"}
	}
	f := &fuel{}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(f.regexp)
	c.AssertFormat()
	if err := c.AddResource(bytesURL, bytesSchema); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	if err := c.AddResource(rootURL, doc); err != nil {
		return nil, &Error{Message: err.Error()}
	}
	var sch *jsonschema.Schema
	if !f.enough(func() { sch, err = c.Compile(rootURL) }) {
		return nil, &Error{Message: "the schema is too much work to read; make it smaller"}
	}
	if err != nil {
		return nil, explain(err)
	}
	if err := f.meter(sch); err != nil {
		return nil, &Error{Message: err.Error()}
	}
	return &instance{sch, f}, nil
}

// bytesURL may be referred to for binary data, which is the object {"$bytes":
// "base64"} in JSON.
const bytesURL = "sandboxd:bytes"

var bytesSchema = map[string]any{
	"type": "object", "required": []any{"$bytes"}, "additionalProperties": false,
	"properties": map[string]any{"$bytes": map[string]any{"type": "string"}},
}

// noLoader loads nothing.
type noLoader struct{}

var errNoLoad = errors.New("a $ref stays inside its schema (#/$defs/…) or names " + bytesURL + "; nothing is loaded")

func (noLoader) Load(string) (any, error) { return nil, errNoLoad }

// explain finds the place of a fault.
func explain(err error) *Error {
	var invalid *jsonschema.SchemaValidationError
	var regex *jsonschema.InvalidRegexError
	var load *jsonschema.LoadURLError
	var anchor *jsonschema.AnchorNotFoundError
	var pointer *jsonschema.JSONPointerNotFoundError
	switch {
	case errors.As(err, &invalid):
		var v *jsonschema.ValidationError
		if errors.As(invalid.Err, &v) {
			leaf := worst(v)
			return &Error{Path: leaf.InstanceLocation, Message: want(leaf)}
		}
	case errors.As(err, &regex):
		return &Error{Path: pathOf(regex.URL), Message: fmt.Sprintf("the pattern %s is not one: %v", short(regex.Regex), regex.Err)}
	case errors.As(err, &load):
		return &Error{Message: fmt.Sprintf("$ref %s: %v", short(load.URL), errNoLoad)}
	case errors.As(err, &anchor):
		return &Error{Path: pathOf(anchor.URL), Message: "$ref " + short(strings.TrimPrefix(anchor.Reference, rootURL)) + " is not in the schema"}
	case errors.As(err, &pointer):
		return &Error{Message: "$ref " + short(strings.TrimPrefix(pointer.URL, rootURL)) + " is not in the schema"}
	}
	return &Error{Message: strings.ReplaceAll(err.Error(), rootURL, "")}
}

// pathOf splits the JSON pointer at the end of a URL.
func pathOf(u string) []string {
	_, fragment, _ := strings.Cut(u, "#")
	if plain, err := url.PathUnescape(fragment); err == nil {
		fragment = plain
	}
	var path []string
	for _, p := range strings.Split(fragment, "/")[1:] {
		path = append(path, strings.NewReplacer("~1", "/", "~0", "~").Replace(p))
	}
	return path
}

func short(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
