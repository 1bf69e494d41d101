package pgquery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/pgquery/pgtest"
	"sandboxd/policy"
	"sandboxd/policy/schema"
)

const setup = `
create table orders (tenant text not null, id bigint not null, total numeric(20, 2), note text, primary key (tenant, id));
insert into orders values ('alice', 1, 12.50, 'lamp'), ('alice', 2, 99999999999999999.25, null), ('bob', 1, 7, 'chair; drop table orders');
create table secrets (v text);
create table busy (v int);
grant select on orders, busy to sandbox;
grant insert on orders to sandbox;
`

var server *pgtest.Server

func TestMain(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var err error
	if server, err = pgtest.Start(ctx, setup); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// open opens the test's database with queries.
func open(t *testing.T, queries map[string]policy.Query, change func(*policy.SQL)) *DB {
	t.Helper()
	for name, q := range queries {
		if q.MaxRows == 0 {
			q.MaxRows = 100
		}
		if q.Timeout == 0 {
			q.Timeout = policy.Duration(5 * time.Second)
		}
		queries[name] = q
	}
	sql := &policy.SQL{Service: policy.Service{Socket: server.Socket, UID: &server.UID, Concurrency: 3}, Port: pgtest.Port,
		Database: pgtest.Database, Role: pgtest.Role, Queries: queries}
	if change != nil {
		change(sql)
	}
	db, err := Open(sql)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func mustSchema(t *testing.T, text string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile(json.RawMessage(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheTenantIsBound(t *testing.T) {
	integer := mustSchema(t, `{"type":"integer"}`)
	db := open(t, map[string]policy.Query{
		"by_id": {Text: "select id, total, note from orders where tenant = $1 and id = $2", Params: []policy.Param{{Name: "id", Schema: integer}}},
		"all":   {Text: "select id, note from orders where tenant = $1 order by id"},
		"note":  {Text: "select id from orders where tenant = $1 and note = $2", Params: []policy.Param{{Name: "note"}}},
		"who":   {Text: "select $1::text as tenant, current_user as role, current_setting('transaction_read_only') as ro"},
	}, nil)
	for _, tt := range []struct{ tenant, query, args, want string }{
		{"alice", "by_id", `[{"id":1}]`, `[{"id":1,"total":12.50,"note":"lamp"}]`},
		{"alice", "by_id", `[2]`, `[{"id":2,"total":"99999999999999999.25","note":null}]`},
		{"bob", "by_id", `[2]`, `[]`},
		{"bob", "all", `[]`, `[{"id":1,"note":"chair; drop table orders"}]`},
		{"alice", "all", `[{}]`, `[{"id":1,"note":"lamp"},{"id":2,"note":null}]`},
		{"alice", "note", `["x' or tenant = 'bob"]`, `[]`},
		{"x' or '1'='1", "all", `[]`, `[]`},
		{"carol", "who", `[]`, `[{"tenant":"carol","role":"sandbox","ro":"on"}]`},
	} {
		got, err := db.Query(within(t), tt.tenant, tt.query, json.RawMessage(tt.args))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s %s %s: got %s, %v, want %s", tt.tenant, tt.query, tt.args, got, err, tt.want)
		}
	}
	for _, tt := range []struct{ query, args, want string }{
		{"by_id", `[]`, "the query takes id, and 0 arguments came"},
		{"by_id", `["1"]`, `parameter id is the string "1"; must be an integer`},
		{"by_id", `[{}]`, "parameter id is null; must be an integer"},
		{"by_id", `[{"id":1,"tenant":"bob"}]`, `no parameter "tenant"`},
		{"by_id", `[99999999999999999999]`, "cannot use the arguments"},
		{"note", `[{}]`, "parameter note is missing"},
		{"note", `[{"note":[1]}]`, "parameter note is an object or array"},
		{"note", `[{"note":"a\u0000"}]`, "zero character"},
		{"none", `[]`, "no such query"},
		{"all", `{}`, "not a JSON array"},
	} {
		_, err := db.Query(within(t), "alice", tt.query, json.RawMessage(tt.args))
		var e *Error
		if !errors.As(err, &e) || !e.Fault || !strings.Contains(e.Message, tt.want) {
			t.Errorf("%s %s: got %v, want %q", tt.query, tt.args, err, tt.want)
		}
	}
}

func TestTypes(t *testing.T) {
	types := map[string]policy.Query{}
	for name, text := range map[string]string{
		"numbers": "select 1::int2 a, -5::int4 b, 9007199254740991::int8 c, 9007199254740992::int8 d, 1.5::float4 e, 1e300::float8 f, 'NaN'::float8 g, '-Infinity'::float8 h",
		"numeric": "select 0.1::numeric a, 'NaN'::numeric b, 123456789012345678.5::numeric c, 1e3::numeric d",
		"times":   "select '2026-01-02 15:04:05.25+02'::timestamptz a, '2026-01-02 15:04:05'::timestamp b, '2026-01-02'::date c, 'infinity'::timestamptz d, '15:04'::time e, '1 day'::interval f",
		"bytes":   `select '\x00ff'::bytea a, 'ä😀'::text b, true c, null d, 'x'::char(3) e`,
		"json":    `select '{"a": [1, 2.50]}'::jsonb a, '{"$bytes": "x", "b": {"$bytes": "y"}}'::json b, '{"$bytes":"x"}'::jsonb c, 'null'::json d`,
		"others":  "select 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid a, '10.0.0.0/8'::cidr b, '(1,2)'::point c, '[1,5)'::int4range d",
		"arrays":  `select '{1,null,3}'::int4[] a, '{"x y","NULL",null}'::text[] b, '{{1,2},{3,4}}'::int8[] c, '{}'::int4[] d, '{0.1,99999999999999999.5}'::numeric[] e, array['a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid] f, array['2026-01-02'::date] g, array['\x00'::bytea] h`,
	} {
		types[name] = policy.Query{Text: text + " where $1 <> ''"}
	}
	param := []policy.Param{{Name: "v"}}
	for typ := range map[string]bool{"int8": true, "float8": true, "numeric": true, "text": true, "bool": true, "timestamptz": true, "bytea": true, "jsonb": true, "int4[]": true, "text[]": true, "uuid": true} {
		types["back "+typ] = policy.Query{Text: "select $2::" + typ + " v where $1 <> ''", Params: param}
	}
	db := open(t, types, nil)
	for _, tt := range []struct{ query, args, want string }{
		{"numbers", `[]`, `[{"a":1,"b":-5,"c":9007199254740991,"d":"9007199254740992","e":1.5,"f":1e+300,"g":"NaN","h":"-Infinity"}]`},
		{"numeric", `[]`, `[{"a":0.1,"b":"NaN","c":"123456789012345678.5","d":1000}]`},
		{"times", `[]`, `[{"a":"2026-01-02T13:04:05.25Z","b":"2026-01-02T15:04:05","c":"2026-01-02","d":"infinity","e":"15:04:00","f":"1 day"}]`},
		{"bytes", `[]`, `[{"a":{"$bytes":"AP8="},"b":"ä😀","c":true,"d":null,"e":"x  "}]`},
		{"json", `[]`, `[{"a":{"a":[1,2.50]},"b":{"$bytes":"x","b":{"$object":{"$bytes":"y"}}},"c":{"$object":{"$bytes":"x"}},"d":null}]`},
		{"others", `[]`, `[{"a":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","b":"10.0.0.0/8","c":"(1,2)","d":"[1,5)"}]`},
		{"arrays", `[]`, `[{"a":[1,null,3],"b":["x y","NULL",null],"c":[[1,2],[3,4]],"d":[],"e":[0.1,"99999999999999999.5"],"f":["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],"g":["2026-01-02"],"h":[{"$bytes":"AA=="}]}]`},
		{"back int8", `["9007199254740993"]`, `[{"v":"9007199254740993"}]`},
		{"back float8", `[1.5]`, `[{"v":1.5}]`},
		{"back numeric", `["0.30"]`, `[{"v":0.30}]`},
		{"back text", `["a'\"ä"]`, `[{"v":"a'\"ä"}]`},
		{"back text", `[7]`, `[{"v":"7"}]`},
		{"back text", `[null]`, `[{"v":null}]`},
		{"back bool", `[false]`, `[{"v":false}]`},
		{"back timestamptz", `["2026-01-02T15:04:05Z"]`, `[{"v":"2026-01-02T15:04:05Z"}]`},
		{"back bytea", `[{"$bytes":"AP8="}]`, `[{"v":{"$bytes":"AP8="}}]`},
		{"back jsonb", `[{"v":{"a":[null]}}]`, `[{"v":{"a":[null]}}]`},
		{"back jsonb", `["x"]`, `[{"v":"x"}]`},
		{"back int4[]", `[[1,null,"3"]]`, `[{"v":[1,null,3]}]`},
		{"back text[]", `[["a,b","\"{}\\",null,"NULL"]]`, `[{"v":["a,b","\"{}\\",null,"NULL"]}]`},
		{"back uuid", `["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]`, `[{"v":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}]`},
	} {
		got, err := db.Query(within(t), "alice", tt.query, json.RawMessage(tt.args))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s %s:\ngot  %s, %v\nwant %s", tt.query, tt.args, got, err, tt.want)
		}
	}
}

func TestBounds(t *testing.T) {
	db := open(t, map[string]policy.Query{
		"rows":   {Text: "select g from generate_series(1, 11) g where $1 <> ''", MaxRows: 10},
		"large":  {Text: "select repeat('x', 1000000) from generate_series(1, 20) where $1 <> ''"},
		"huge":   {Text: "select repeat('x', 100000000) where $1 <> ''"},
		"slow":   {Text: "select pg_sleep(60) where $1 <> ''", Timeout: policy.Duration(100 * time.Millisecond)},
		"write":  {Text: "insert into orders values ($1, 9) returning id"},
		"secret": {Text: "select v from secrets where $1 <> ''"},
		"wrong":  {Text: "select nothing from nowhere where tenant = $1"},
		"count":  {Text: "select 1 where $1 <> $2"},
		"good":   {Text: "select 1 as n where $1 <> ''"},
	}, nil)
	for _, tt := range []struct{ query, want string }{
		{"rows", "more than 10 rows"},
		{"large", "larger than"},
		{"huge", "did not answer as it should"},
		{"slow", "took longer than its 100ms"},
		{"write", "only reading is possible"},
		{"secret", "SQLSTATE 42501"},
		{"wrong", "SQLSTATE 42P01"},
		{"count", "did not answer as it should"},
	} {
		_, err := db.Query(within(t), "alice", tt.query, json.RawMessage("[]"))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Message, tt.want) {
			t.Errorf("%s: got %v, want %q", tt.query, err, tt.want)
		} else if strings.Contains(e.Message, "secrets") || strings.Contains(e.Message, "nowhere") {
			t.Errorf("%s: the code sees %q", tt.query, e.Message)
		}
		if got, err := db.Query(within(t), "alice", "good", json.RawMessage("[]")); err != nil || string(got) != `[{"n":1}]` {
			t.Fatalf("after %s: %s, %v", tt.query, got, err)
		}
	}
	if n := db.pool.Stat().TotalConns(); n > 3 {
		t.Errorf("%d connections, at most 3 are allowed", n)
	}
}

// TestCancelAndShare: a cancelled query ends on the server, and one tenant does
// not keep the others out.
func TestCancelAndShare(t *testing.T) {
	db := open(t, map[string]policy.Query{
		"sleep":  {Text: "select pg_sleep(600) where $1 <> ''", Timeout: policy.Duration(time.Hour)},
		"active": {Text: "select count(*)::int as n from pg_stat_activity where query like '%pg_sleep%' and state = 'active' and pid <> pg_backend_pid() and $1 <> ''"},
	}, nil)
	ctx, cancel := context.WithCancel(within(t))
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := db.Query(ctx, "alice", "sleep", json.RawMessage("[]")); err == nil {
				t.Error("a query of ten minutes has ended")
			}
		})
	}
	active := func(n int) {
		t.Helper()
		want := fmt.Sprintf(`[{"n":%d}]`, n)
		for {
			got, err := db.Query(within(t), "bob", "active", json.RawMessage("[]"))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) == want {
				return
			}
		}
	}
	active(2) // of 3 connections
	cancel()
	wg.Wait()
	active(0)
}

// TestTablesChange: a statement that was prepared for a table as it was is
// prepared anew.
func TestTablesChange(t *testing.T) {
	db := open(t, map[string]policy.Query{"all": {Text: "select * from busy where $1 <> ''"}}, nil)
	if got, err := db.Query(within(t), "alice", "all", json.RawMessage("[]")); err != nil || string(got) != "[]" {
		t.Fatalf("%s, %v", got, err)
	}
	if err := server.Exec(within(t), "alter table busy add column w text; insert into busy values (1, 'x')"); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := db.Query(within(t), "alice", "all", json.RawMessage("[]")); !errors.As(err, &e) || !strings.Contains(e.Message, "try again") {
		t.Errorf("got %v", err)
	}
	if got, err := db.Query(within(t), "alice", "all", json.RawMessage("[]")); err != nil || string(got) != `[{"v":1,"w":"x"}]` {
		t.Errorf("afterwards %s, %v", got, err)
	}
}

func TestWhoIsLetIn(t *testing.T) {
	good := map[string]policy.Query{"q": {Text: "select 1 where $1 <> ''"}}
	for name, tt := range map[string]struct {
		change func(*policy.SQL)
		want   string
	}{
		"no server":       {func(s *policy.SQL) { s.Port = 1 }, "it is not running"},
		"another's":       {func(s *policy.SQL) { s.UID = nil }, "another user"},
		"unmapped role":   {func(s *policy.SQL) { s.Role = "postgres" }, "pg_ident.conf"},
		"a password":      {func(s *policy.SQL) { s.Role = pgtest.PasswordRole }, "did not answer as it should"},
		"no such databas": {func(s *policy.SQL) { s.Database = "none" }, "SQLSTATE 3D000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PGPASSWORD", "hunter2")
			t.Setenv("PGOPTIONS", "-c default_transaction_read_only=off")
			_, err := open(t, good, tt.change).Query(within(t), "alice", "q", json.RawMessage("[]"))
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(e.Message, tt.want) || strings.Contains(e.Message, server.Socket) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("the error holds a password")
			}
		})
	}
}
