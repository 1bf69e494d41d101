package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/policy/schema"
)

// A grant is one binding that a run holds.
type grant struct {
	name    string // in the policy
	kind    string // one of policy.Binding…
	methods []string
	// checks are what arguments and results of a method must be: the policy's
	// and the request's.
	checks  map[string][]policy.Method
	timeout time.Duration // of one call; 0 means none of its own
	service *policy.Service
	sql     *policy.SQL
}

// methodsOf are the methods of the bindings that the daemon answers itself.
var methodsOf = map[string][]string{
	policy.BindingKV:  {"get", "put", "delete", "list"},
	policy.BindingDB:  {"query"},
	policy.BindingLog: {"debug", "info", "warn", "error"},
}

// grants is what the request asks for of what policy grants: everything when it
// names nothing.
func grants(granted map[string]policy.Binding, asked map[string]api.BindingRequest) (map[string]grant, error) {
	out := map[string]grant{}
	if asked == nil {
		for name, b := range granted {
			out[codeName(name, &b)] = newGrant(name, &b)
		}
		return out, nil
	}
	size := 0
	for name, want := range asked {
		field := fmt.Sprintf("bindings.%.64s", name)
		real, b, ok := findBinding(granted, name)
		if !ok {
			return nil, &api.Error{Code: api.CodeDenied, Field: field, Message: "the policy does not grant this binding",
				Allowed: strings.Join(slices.Sorted(maps.Keys(granted)), ", "), Hint: "an operator can add it to isolate.bindings of the profile"}
		}
		g := newGrant(real, &b)
		if want.Methods != nil {
			if err := g.narrow(field+".methods", want.Methods, &size); err != nil {
				return nil, err
			}
		}
		out[codeName(real, &b)] = g
	}
	return out, nil
}

func newGrant(name string, b *policy.Binding) grant {
	g := grant{name: name, kind: b.Type, methods: bindingMethods(b), timeout: b.Timeout.Std(), service: b.Service, sql: b.SQL}
	for m, s := range b.Schemas {
		g.addCheck(m, s)
	}
	return g
}

func (g *grant) addCheck(method string, m policy.Method) {
	if m.Args == nil && m.Result == nil {
		return
	}
	if g.checks == nil {
		g.checks = map[string][]policy.Method{}
	}
	g.checks[method] = append(g.checks[method], m)
}

// maxSchemas is what the schemas of one request may have together, in bytes.
const maxSchemas = 256 << 10

// narrow takes away the methods that were not asked for, and adds the request's
// schemas to those of the policy.
func (g *grant) narrow(field string, want *api.Methods, size *int) error {
	for i, m := range want.Names {
		if slices.Contains(g.methods, m) {
			continue
		}
		at := fmt.Sprintf("%s[%d]", field, i)
		if want.Schemas != nil {
			at = fmt.Sprintf("%s.%.64s", field, m)
		}
		return &api.Error{Code: api.CodeDenied, Field: at,
			Message: fmt.Sprintf("the policy does not grant the method %.64q", m), Allowed: strings.Join(g.methods, ", ")}
	}
	g.methods = want.Names
	for m, r := range want.Schemas {
		if r.Args == nil && r.Result == nil {
			continue
		}
		at := field + "." + m
		if g.kind != policy.BindingTools {
			return api.Invalid(at, "only bindings of the type tools take schemas")
		}
		if *size += len(r.Args) + len(r.Result); *size > maxSchemas {
			return api.Invalid(at, fmt.Sprintf("the schemas of a request may have %d bytes together", maxSchemas))
		}
		var check policy.Method
		var err error
		if check.Args, err = requestSchema(at+".args", r.Args); err == nil {
			check.Result, err = requestSchema(at+".result", r.Result)
		}
		if err != nil {
			return err
		}
		g.addCheck(m, check)
	}
	return nil
}

// requestSchema compiles a schema of a request; nil stays nil.
func requestSchema(field string, raw []byte) (*schema.Schema, error) {
	if raw == nil {
		return nil, nil
	}
	s, err := schema.Compile(raw)
	var e *schema.Error
	if errors.As(err, &e) {
		for _, p := range e.Path {
			field += "." + clip(p, 64)
		}
		return nil, api.Invalid(clip(field, 500), "this JSON Schema cannot be used: "+e.Message)
	}
	return s, err
}

// findBinding finds a binding by its name; names differ in more than case.
func findBinding(granted map[string]policy.Binding, name string) (string, policy.Binding, bool) {
	for real, b := range granted {
		if strings.EqualFold(real, name) {
			return real, b, true
		}
	}
	return "", policy.Binding{}, false
}

// codeName is what the code sees: env.DB for the daemon's own bindings, the
// policy's own name for tools and databases.
func codeName(name string, b *policy.Binding) string {
	if b.Type == policy.BindingTools || b.Type == policy.BindingSQL {
		return name
	}
	return strings.ToUpper(name)
}

func bindingMethods(b *policy.Binding) []string {
	if m, ok := methodsOf[b.Type]; ok {
		return m
	}
	return b.Methods
}
