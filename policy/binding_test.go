package policy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

const bound = `version: 1
profiles:
  p:
    isolate:
      languages: [js]
      bindings:
        search:
          type: tools
          timeout: 2s
          socket: /run/search.sock
          user: svc
          concurrency: 8
          methods:
            find:
              description: Finds documents.
              args: {type: object, required: [q], properties: {q: {type: string}, limit: {type: integer}}}
              result: {type: array, items: {type: string}}
            ping:
        plain: {type: tools, methods: [b, a]}
        ORDERS:
          type: sql
          socket: /run/postgresql
          database: shop
          role: sandbox
          user: svc
          queries:
            by_id:
              sql: select * from orders where tenant = $1 and id = $2
              params: [{id: {type: integer}}, other]
              max_rows: 10
              timeout: 1s
            all: {sql: "select id from orders where tenant=$1"}
tenants:
  a: {profile: p}
`

func TestBindings(t *testing.T) {
	p, err := mustParse(t, bound).For("a")
	if err != nil {
		t.Fatal(err)
	}
	search := p.Isolate.Bindings["search"]
	if s := search.Service; s == nil || s.Socket != "/run/search.sock" || s.UID == nil || *s.UID != 990 || s.Concurrency != 8 || search.Timeout.Std() != 2*time.Second {
		t.Errorf("service read as %+v of %+v", search.Service, search)
	}
	if text, err := json.Marshal(search); err != nil || !strings.Contains(string(text), `"description":"Finds documents."`) || !strings.Contains(string(text), `"args":{`) {
		t.Errorf("who writes calls does not see what they are: %s, %v", text, err)
	}
	if find := search.Schemas["find"]; !slices.Equal(search.Methods, []string{"find", "ping"}) || find.Description != "Finds documents." || find.Args.Array() || !find.Result.Array() {
		t.Errorf("methods read as %+v", search)
	}
	ctx := context.Background()
	if err := search.Schemas["find"].Args.Check(ctx, json.RawMessage(`{"q":"x","limit":1.5}`)); err == nil || !strings.Contains(err.Error(), ".limit") {
		t.Errorf("checked: %v", err)
	}
	if plain := p.Isolate.Bindings["plain"]; plain.Service != nil || plain.Schemas != nil || !slices.Equal(plain.Methods, []string{"b", "a"}) {
		t.Errorf("plain read as %+v", plain)
	}
	orders := p.Isolate.Bindings["ORDERS"]
	sql := orders.SQL
	if sql == nil || !slices.Equal(orders.Methods, []string{"by_id", "all"}) || sql.Socket != "/run/postgresql" || sql.Port != 5432 || sql.Database != "shop" || sql.Role != "sandbox" || *sql.UID != 990 || sql.Concurrency != defaultSQLSlots {
		t.Fatalf("orders read as %+v %+v", orders, sql)
	}
	q := sql.Queries["by_id"]
	if q.MaxRows != 10 || q.Timeout.Std() != time.Second || len(q.Params) != 2 || q.Params[0].Name != "id" || q.Params[0].Schema == nil || q.Params[1].Schema != nil {
		t.Errorf("by_id read as %+v", q)
	}
	if q := sql.Queries["all"]; q.MaxRows != defaultRows || q.Timeout != defaultQueryTime || q.Params != nil {
		t.Errorf("all read as %+v", q)
	}
}

// inBindings puts text under bindings, from line 6.
func inBindings(s string) string {
	return inProfile("isolate:\n  languages: [js]\n  bindings:\n" + indent(s, 4))
}

func TestBindingFaults(t *testing.T) {
	const sql = "Q:\n  type: sql\n  socket: /run/postgresql\n  database: d\n  role: r\n  queries:\n"
	for _, tc := range []struct {
		text       string
		line       int
		field, say string
	}{
		{"T: {type: tools, socket: run/x.sock, methods: [m]}", 7, "T.socket", "absolute path"},
		{"T: {type: tools, socket: /run/../x.sock, methods: [m]}", 7, "T.socket", "absolute path"},
		{"T: {type: tools, socket: /run/x.sock, user: zoe, methods: [m]}", 7, "T.user", "no user"},
		{"T: {type: tools, uid: 7, methods: [m]}", 7, "T", "belongs to a socket"},
		{"T: {type: tools, timeout: 0s, methods: [m]}", 7, "T.timeout", "more than 0"},
		{"T: {type: tools, timeout: 2h, methods: [m]}", 7, "T.timeout", "at most 10m"},
		{"T: {type: tools, socket: /run/x, concurrency: 0, methods: [m]}", 7, "T.concurrency", "from 1 to 1024"},
		{"T: {type: tools, queries: {a: {sql: '$1'}}, methods: [m]}", 7, "T", "only the type sql"},
		{"T: {type: tools, methods: {}}", 7, "T.methods", "is empty"},
		{"T: {type: tools, methods: {then: {}}}", 7, "T.methods.then", "not a method's name"},
		{"T: {type: tools, methods: {m: {arguments: {}}}}", 7, "T.methods.m.arguments", "possible: args, description, result"},
		{"T:\n  type: tools\n  methods:\n    m:\n      args:\n        type: object\n        properties:\n          a: {type: strin}", 14, "T.methods.m.args.properties.a.type", "value must be one of"},
		{"T:\n  type: tools\n  methods:\n    m:\n      result: {pattern: '(?<a>x)\\1'}", 11, "T.methods.m.result.pattern", "must be a pattern"},
		{"T: {type: tools, methods: {m: {args: {$ref: 'https://e.com/x'}}}}", 7, "T.methods.m.args", "nothing is loaded"},
		{"T: {type: tools, methods: {m: {args: [1]}}}", 7, "T.methods.m.args", "group of keys"},
		{"T: {type: tools, methods: {m: {args: {minimum: 0x10}}}}", 7, "T.methods.m.args.minimum", "JSON cannot write"},
		{"T: {type: tools, methods: {m: {args: {maximum: .inf}}}}", 7, "T.methods.m.args.maximum", "JSON cannot write"},
		{"K: {type: kv, socket: /run/x}", 7, "K", "only the type tools and sql takes"},
		{sql + "    q: {sql: 'select 1'}", 13, "Q.queries.q.sql", "$1, which is always the tenant"},
		{sql + "    q: {sql: 'select $10'}", 13, "Q.queries.q.sql", "$1, which is always the tenant"},
		{sql + "    q: {max_rows: 3}", 13, "Q.queries.q", "has no sql"},
		{sql + "    q: {sql: 'select $1', max_rows: 1000000}", 13, "Q.queries.q.max_rows", "from 1 to 100000"},
		{sql + "    q: {sql: 'select $1', params: [a, A]}", 13, "Q.queries.q.params[1]", "second time"},
		{sql + "    q: {sql: 'select $1', params: [{a: {type: no}}]}", 13, "Q.queries.q.params[0].a.type", "value must be one of"},
		{sql + "    {}", 13, "Q.queries", "is empty"},
		{"Q: {type: sql, queries: {q: {sql: 'select $1'}}}", 7, "Q", "has no socket"},
		{"Q: {type: sql, dsn_credential: db, queries: {q: {sql: 'select $1'}}}", 7, "Q.dsn_credential", "never hold a password"},
		{"Q: {type: sql, password: db, queries: {q: {sql: 'select $1'}}}", 7, "Q.password", "peer authentication"},
	} {
		_, err := parse("policy.yaml", []byte(inBindings(tc.text)), testAccounts{})
		var all ParseErrors
		if !errors.As(err, &all) {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		found := slices.ContainsFunc(all, func(e *ParseError) bool {
			return e.Line == tc.line && e.Field == "profiles.p.isolate.bindings."+tc.field && strings.Contains(e.Message, tc.say)
		})
		if !found {
			t.Errorf("%q: got\n%v\nwant line %d, %s: %s", tc.text, err, tc.line, tc.field, tc.say)
		}
	}
}
