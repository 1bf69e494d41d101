package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"sandboxd/policy/schema"
)

// A SQL is a PostgreSQL database and the queries that code may make there, by
// name. The daemon connects over the server's Unix socket and proves who it is
// by its user (peer authentication): it holds no password.
type SQL struct {
	Service
	// Port is part of the socket's name.
	Port     int    `json:"port"`
	Database string `json:"database"`
	Role     string `json:"role"`
	// Queries by the method's name.
	Queries map[string]Query `json:"queries"`
}

// A Query is one statement. Its first parameter, $1, is always the tenant.
type Query struct {
	Description string `json:"description,omitempty"`
	Text        string `json:"sql"`
	// Params are $2, $3 …
	Params []Param `json:"params,omitempty"`
	// MaxRows is how many rows an answer may have.
	MaxRows int `json:"max_rows"`
	// Timeout bounds the statement.
	Timeout Duration `json:"timeout"`
}

// A Param is a parameter that the code gives.
type Param struct {
	Name string `json:"name"`
	// Schema is what it must be; nil means a string, number, boolean or null.
	Schema *schema.Schema `json:"-"`
}

const (
	defaultPort     = 5432
	maxConnections  = 64
	maxQueryText    = 64 << 10
	maxQueryRows    = 100_000
	defaultRows     = 1000
	defaultSQLSlots = 4
)

const noPassword = "cannot be used: the daemon must never hold a password. Connect over the server's Unix socket (socket: /run/postgresql) " +
	"with peer authentication, and let pg_ident.conf map the daemon's user to the role"

var (
	defaultQueryTime, _ = ParseDuration("5s")
	sqlNameForm         = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_$-]{0,62}$`)
	tenantParam         = regexp.MustCompile(`\$1(\D|$)`)
)

func checkSQLName(s string) error {
	if !sqlNameForm.MatchString(s) {
		return fmt.Errorf("%s is not a name here: 1 to 63 letters, digits, _, $ and -, not starting with a digit", quote(s))
	}
	return nil
}

// sql completes a binding of type sql.
func (r *reader) sql(k, v *yaml.Node, field string, b *Binding, s *Service, sql *SQL) {
	for _, key := range []string{"queries", "socket", "database", "role"} {
		if !hasKey(v, key) {
			r.fail(k, field, "is of type sql and has no %s", key)
		}
	}
	if !hasKey(v, "connections") {
		s.Concurrency = defaultSQLSlots
	}
	sql.Service = *s
	b.SQL = sql
	// A binding's timeout is that of all its queries that have none.
	for name, q := range sql.Queries {
		if q.Timeout == 0 {
			q.Timeout = b.Timeout
		}
		if q.Timeout == 0 {
			q.Timeout = defaultQueryTime
		}
		sql.Queries[name] = q
	}
}

func (r *reader) queries(n *yaml.Node, field string, b *Binding, sql *SQL) {
	sql.Queries = make(map[string]Query)
	r.entries(n, field, func(k, v *yaml.Node, path string) {
		if err := checkMethodName(k.Value); err != nil {
			r.fail(k, path, "%v", err)
			return
		}
		q := Query{MaxRows: defaultRows}
		r.keys(v, path, map[string]keyFunc{
			"description": r.word(&q.Description, "text", checkDescription),
			"sql":         r.word(&q.Text, "a statement", checkQuery),
			"params":      func(n *yaml.Node, path string) { r.params(n, path, &q) },
			"max_rows":    r.count(&q.MaxRows, 1, maxQueryRows),
			"timeout":     r.timeout(&q.Timeout),
		})
		if v.Kind == yaml.MappingNode && !hasKey(v, "sql") {
			r.fail(k, path, "has no sql")
		}
		b.Methods = append(b.Methods, k.Value)
		sql.Queries[k.Value] = q
	})
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		r.fail(n, field, "is empty; name a query")
	}
}

// checkQuery holds the one rule that keeps tenants apart: the tenant is a
// parameter of every query.
func checkQuery(s string) error {
	switch {
	case len(s) > maxQueryText:
		return fmt.Errorf("has %d bytes, at most %d are taken", len(s), maxQueryText)
	case !tenantParam.MatchString(s):
		return errors.New("does not use $1, which is always the tenant; write … where tenant = $1; parameters of the code begin at $2")
	}
	return nil
}

// params reads [{name: SCHEMA}, …], or names alone.
func (r *reader) params(n *yaml.Node, field string, q *Query) {
	r.list(n, field, func(v *yaml.Node, path string) {
		k, s := v, (*yaml.Node)(nil)
		if v.Kind == yaml.MappingNode && len(v.Content) == 2 {
			k, s = v.Content[0], v.Content[1]
		}
		var p Param
		if r.word(&p.Name, "a parameter's name, or {name: schema}", checkMethodName)(k, path); p.Name == "" {
			return
		}
		for _, other := range q.Params {
			if strings.EqualFold(other.Name, p.Name) {
				r.fail(k, path, "names %s a second time", quote(p.Name))
			}
		}
		if s != nil {
			r.schema(&p.Schema)(s, join(path, p.Name))
		}
		q.Params = append(q.Params, p)
	})
}
