package policy

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sandboxd/policy/schema"
)

// Types of a Binding.
const (
	BindingKV    = "kv"
	BindingDB    = "db"
	BindingLog   = "log"
	BindingTools = "tools"
	BindingSQL   = "sql"
)

// A Binding is a capability an isolate may hold as env.<NAME>.
type Binding struct {
	// Type is one of the Binding… constants.
	Type string `json:"type"`
	// Methods that a tools or sql binding offers, in the file's order.
	Methods []string `json:"methods,omitempty"`
	// Schemas of methods of tools, by the method's name; a method without one
	// takes and gives any JSON.
	Schemas map[string]Method `json:"schemas,omitempty"`
	// Service answers the tools; without one, the caller of the run does.
	Service *Service `json:"service,omitempty"`
	// SQL is the database of named queries.
	SQL *SQL `json:"sql,omitempty"`
	// Timeout bounds one call; 0 means that only the run's time does.
	Timeout Duration `json:"timeout,omitempty"`
}

// A Method describes a tool.
type Method struct {
	Description string `json:"description,omitempty"`
	// Args is what the arguments must be: all of them as an array if the schema
	// describes an array, else the single one. Result is what the answer must
	// be. nil means any JSON.
	Args   *schema.Schema `json:"-"`
	Result *schema.Schema `json:"-"`
	// ArgsSchema and ResultSchema are those as JSON, for who writes the calls.
	ArgsSchema   json.RawMessage `json:"args,omitempty"`
	ResultSchema json.RawMessage `json:"result,omitempty"`
}

// A Service is a process that answers calls on a Unix socket of its own.
type Service struct {
	// Socket is the absolute path of the socket; of a database, of the folder
	// that holds it.
	Socket string `json:"socket"`
	// UID is the user that may have opened the socket, besides root and the
	// daemon's own; nil means none.
	UID *uint32 `json:"uid,omitempty"`
	// Concurrency is how many calls may be under way at once, of all runs.
	Concurrency int `json:"concurrency"`
}

// DefaultConcurrency is Service.Concurrency where the file does not say.
const DefaultConcurrency = 16

const maxServiceConcurrency = 1024

// bindingKeys are the keys of each type, besides "type".
var bindingKeys = map[string][]string{
	BindingTools: {"methods", "socket", "user", "uid", "timeout", "concurrency"},
	BindingSQL:   {"queries", "socket", "port", "database", "role", "user", "uid", "timeout", "connections"},
}

var bindingTypes = []string{BindingKV, BindingDB, BindingLog, BindingTools, BindingSQL}

func (r *reader) binding(k, v *yaml.Node, field string, all map[string]Binding) {
	if err := checkBindingName(k.Value, all); err != nil {
		r.fail(k, field, "%v", err)
	}
	var b Binding
	service, sql := &Service{Concurrency: DefaultConcurrency}, &SQL{Port: defaultPort}
	known := map[string]keyFunc{
		"type":        r.word(&b.Type, "a binding's type", func(s string) error { return checkOneOf(s, bindingTypes) }),
		"methods":     func(n *yaml.Node, path string) { r.methods(n, path, &b) },
		"timeout":     r.timeout(&b.Timeout),
		"socket":      r.word(&service.Socket, "an absolute path", checkSocket),
		"user":        r.user(&service.UID),
		"uid":         r.id(&service.UID),
		"concurrency": r.count(&service.Concurrency, 1, maxServiceConcurrency),
		"queries":     func(n *yaml.Node, path string) { r.queries(n, path, &b, sql) },
		"port":        r.count(&sql.Port, 1, 65535),
		"database":    r.word(&sql.Database, "a database's name", checkSQLName),
		"role":        r.word(&sql.Role, "a role's name", checkSQLName),
		"connections": r.count(&service.Concurrency, 1, maxConnections),
	}
	for _, key := range []string{"dsn", "dsn_credential", "password", "credential", "service"} {
		known[key] = func(n *yaml.Node, path string) { r.fail(n, path, "%s", noPassword) }
	}
	r.keys(v, field, known)
	if v.Kind != yaml.MappingNode {
		return
	}
	switch {
	case !hasKey(v, "type"):
		r.fail(k, field, "has no type; possible: %s", strings.Join(bindingTypes, ", "))
	case b.Type == BindingTools:
		r.tools(k, v, field, &b, service)
	case b.Type == BindingSQL:
		r.sql(k, v, field, &b, service, sql)
	}
	if b.Type != "" {
		r.onlyKeys(v, field, b.Type)
	}
	all[k.Value] = b
}

// onlyKeys refuses keys that a type of binding does not take.
func (r *reader) onlyKeys(v *yaml.Node, field, kind string) {
	for i := 0; i+1 < len(v.Content); i += 2 {
		k := v.Content[i]
		var takers []string
		mine := k.Value == "type"
		for _, t := range bindingTypes {
			for _, key := range bindingKeys[t] {
				if key == k.Value {
					takers = append(takers, t)
					mine = mine || t == kind
				}
			}
		}
		if !mine && takers != nil {
			r.fail(k, field, "has %s, which only the type %s takes", k.Value, strings.Join(takers, " and "))
		}
	}
}

func (r *reader) tools(k, v *yaml.Node, field string, b *Binding, s *Service) {
	if !hasKey(v, "methods") {
		r.fail(k, field, "is of type tools and has no methods; write methods: [NAME]")
	}
	if hasKey(v, "socket") {
		b.Service = s
		return
	}
	for _, key := range []string{"user", "uid", "concurrency"} {
		if hasKey(v, key) {
			r.fail(k, field, "has %s, which belongs to a socket; write socket: /run/NAME.sock, or remove it", key)
		}
	}
}

// methods reads a list of names, or names with their schemas.
func (r *reader) methods(n *yaml.Node, field string, b *Binding) {
	if n.Kind != yaml.MappingNode {
		r.words(&b.Methods, "a method's name", checkMethodName)(n, field)
		return
	}
	b.Schemas = make(map[string]Method)
	r.entries(n, field, func(k, v *yaml.Node, path string) {
		if err := checkMethodName(k.Value); err != nil {
			r.fail(k, path, "%v", err)
			return
		}
		var m Method
		if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!null" {
			r.keys(v, path, map[string]keyFunc{
				"description": r.word(&m.Description, "text", checkDescription),
				"args":        r.schema(&m.Args),
				"result":      r.schema(&m.Result),
			})
		}
		if m.Args != nil {
			m.ArgsSchema = m.Args.JSON()
		}
		if m.Result != nil {
			m.ResultSchema = m.Result.JSON()
		}
		b.Methods = append(b.Methods, k.Value)
		b.Schemas[k.Value] = m
	})
	if len(n.Content) == 0 {
		r.fail(n, field, "is empty; name a method")
	}
}

func checkDescription(s string) error {
	if len(s) > 4096 {
		return fmt.Errorf("has %d bytes, at most 4096 are taken", len(s))
	}
	return nil
}

// checkSocket accepts an absolute path in its one form.
func checkSocket(s string) error {
	// sun_path has 108 bytes with its zero byte.
	if !path.IsAbs(s) || path.Clean(s) != s || s == "/" || len(s) > 90 {
		return fmt.Errorf("%s is not a socket's place: an absolute path without . and .., of at most 90 bytes", quote(s))
	}
	return nil
}

// user reads a user's name and looks it up.
func (r *reader) user(dst **uint32) keyFunc {
	return func(n *yaml.Node, field string) {
		s, ok := r.text(n, field, "a user's name")
		if !ok {
			return
		}
		id, err := r.accounts.uid(s)
		if err != nil {
			r.fail(n, field, "%v", err)
			return
		}
		*dst = &id
	}
}

// maxTimeout is the longest timeout of a call.
const maxTimeout = "10m"

// timeout reads how long a call may take.
func (r *reader) timeout(dst *Duration) keyFunc {
	return func(n *yaml.Node, field string) {
		s, ok := r.text(n, field, "a duration such as 5s")
		if !ok {
			return
		}
		most, _ := ParseDuration(maxTimeout)
		d, err := ParseDuration(s)
		switch {
		case err != nil:
			r.fail(n, field, "%v", err)
		case d == 0 || d > most:
			r.fail(n, field, "is %s; want more than 0 and at most %s", quote(s), maxTimeout)
		default:
			*dst = d
		}
	}
}

// count reads a whole number from low to high.
func (r *reader) count(dst *int, low, high int) keyFunc {
	return func(n *yaml.Node, field string) {
		words := fmt.Sprintf("a whole number from %d to %d", low, high)
		s, ok := r.text(n, field, words)
		if !ok {
			return
		}
		v, err := strconv.Atoi(s)
		if err != nil || v < low || v > high || !digits(s) {
			r.fail(n, field, "is %s; want %s", quote(s), words)
			return
		}
		*dst = v
	}
}

// schema reads a JSON Schema that is written in YAML, or true or false.
func (r *reader) schema(dst **schema.Schema) keyFunc {
	return func(n *yaml.Node, field string) {
		v, ok := r.plainValue(n, field, 0)
		if !ok {
			return
		}
		text, err := json.Marshal(v)
		if err != nil {
			r.fail(n, field, "cannot be written as JSON")
			return
		}
		s, err := schema.Compile(text)
		if err != nil {
			at, path, message := n, field, err.Error()
			if e, ok := err.(*schema.Error); ok {
				at, path, message = nodeAt(n, e.Path), field, e.Message
				for _, p := range e.Path {
					path = join(path, p)
				}
			}
			r.fail(at, path, "%s", message)
			return
		}
		r.note(field, string(text), n.Line)
		*dst = s
	}
}

// nodeAt is the node that a path of keys and indexes leads to, or the last one
// on the way.
func nodeAt(n *yaml.Node, path []string) *yaml.Node {
	for _, p := range path {
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == p {
					next = n.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(p); err == nil && i >= 0 && i < len(n.Content) {
				next = n.Content[i]
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return n
}

// plainValue makes of YAML what JSON has.
func (r *reader) plainValue(n *yaml.Node, field string, depth int) (any, bool) {
	const maxDepth = 64
	if depth > maxDepth {
		r.fail(n, field, "is nested deeper than %d levels", maxDepth)
		return nil, false
	}
	ok := true
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any)
		r.entries(n, field, func(k, v *yaml.Node, path string) {
			value, good := r.plainValue(v, path, depth+1)
			out[k.Value], ok = value, ok && good
		})
		return out, ok
	case yaml.SequenceNode:
		out := []any{}
		for i, v := range n.Content {
			value, good := r.plainValue(v, field+"["+strconv.Itoa(i)+"]", depth+1)
			out, ok = append(out, value), ok && good
		}
		return out, ok
	case yaml.ScalarNode:
		if n.Anchor == "" {
			return r.plainScalar(n, field)
		}
	}
	return nil, r.kind(n, field, yaml.ScalarNode, "JSON")
}

func (r *reader) plainScalar(n *yaml.Node, field string) (any, bool) {
	switch n.ShortTag() {
	case "!!null":
		return nil, true
	case "!!str":
		return n.Value, true
	case "!!bool":
		return n.Value == "true", n.Value == "true" || n.Value == "false" || r.notJSON(n, field)
	case "!!int", "!!float":
		return json.Number(n.Value), json.Valid([]byte(n.Value)) || r.notJSON(n, field)
	}
	return nil, r.notJSON(n, field)
}

func (r *reader) notJSON(n *yaml.Node, field string) bool {
	r.fail(n, field, "is %s, which JSON cannot write; put text in quotes", quote(n.Value))
	return false
}
