package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := OpenWith(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if s.open != 0 || len(s.inUse) != 0 {
			t.Errorf("after Close %d connections are open, in use %v", s.open, s.inUse)
		}
	})
	return s
}

func exec(t testing.TB, s *Store, tenant, sql, params string) Result {
	t.Helper()
	r, err := s.Exec(context.Background(), tenant, sql, json.RawMessage(params))
	if err != nil {
		t.Fatalf("%.80s: %v", sql, err)
	}
	return r
}

func query(t testing.TB, s *Store, tenant, sql, params string) *Rows {
	t.Helper()
	r, err := s.Query(context.Background(), tenant, sql, json.RawMessage(params), QueryLimits{Time: 30 * time.Second})
	if err != nil {
		t.Fatalf("%.80s: %v", sql, err)
	}
	return r
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestQuery(t *testing.T) {
	s := open(t, Options{})
	r := exec(t, s, "alice", "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, blob BLOB); INSERT INTO t VALUES (1,'a',x'00ff'),(2,'b',NULL);", "")
	if r.Changes != 2 || r.LastInsertID != 2 || r.Returned != nil {
		t.Errorf("result %+v", r)
	}
	rows := query(t, s, "alice", "SELECT * FROM t WHERE id >= ? ORDER BY id", "[1]")
	if want := `{"columns":["id","name","blob"],"rows":[[1,"a",{"$bytes":"AP8="}],[2,"b",null]]}`; asJSON(t, rows) != want {
		t.Errorf("got  %s\nwant %s", asJSON(t, rows), want)
	}
	if o, err := rows.Objects(); err != nil || string(o) != `[{"id":1,"name":"a","blob":{"$bytes":"AP8="}},{"id":2,"name":"b","blob":null}]` {
		t.Errorf("objects %s, %v", o, err)
	}
	rows = query(t, s, "alice", "SELECT 1 AS a, 2 AS b, 3 AS a WHERE 0; -- nothing", "")
	if o, _ := rows.Objects(); asJSON(t, rows) != `{"columns":["a","b","a"],"rows":[]}` || string(o) != "[]" {
		t.Errorf("no rows: %s, %s", asJSON(t, rows), o)
	}
	rows = query(t, s, "alice", "SELECT 1 AS a, 2 AS b, 3 AS a", "")
	if o, err := rows.Objects(); err != nil || string(o) != `[{"b":2,"a":3}]` {
		t.Errorf("two columns of a name: %s, %v", o, err)
	}
	// A tenant that has no data yet has an empty database, and never another's.
	var e *Error
	if _, err := s.Query(context.Background(), "bob", "SELECT * FROM t", nil, QueryLimits{}); !errors.As(err, &e) || e.Kind != KindSQL || !strings.Contains(e.Message, "no such table") {
		t.Errorf("another tenant: %v", err)
	}
}

func TestValues(t *testing.T) {
	s := open(t, Options{})
	for _, tc := range []struct{ param, sql, typ, out string }{
		{`null`, "?", "null", `null`},
		{`true`, "?", "integer", `1`},
		{`false`, "?", "integer", `0`},
		{`-5`, "?", "integer", `-5`},
		{`9007199254740991`, "?", "integer", `9007199254740991`},
		{`9007199254740992`, "?", "integer", `"9007199254740992"`},
		{`-9007199254740992`, "?", "integer", `"-9007199254740992"`},
		{`9223372036854775807`, "?", "integer", `"9223372036854775807"`},
		{`{"$int":"-9223372036854775808"}`, "?", "integer", `"-9223372036854775808"`},
		{`9223372036854775808`, "?", "real", `9223372036854776000`},
		{`1.5`, "?", "real", `1.5`},
		{`1.0`, "?", "real", `1`},
		{`1e300`, "?", "real", `1e+300`},
		{`"x\u0000y\n\"é🙂"`, "?", "text", `"x\u0000y\n\"é🙂"`},
		{`""`, "?", "text", `""`},
		{`{"$bytes":""}`, "?", "blob", `{"$bytes":""}`},
		{`{"$bytes":"AAEC/w=="}`, "?", "blob", `{"$bytes":"AAEC/w=="}`},
		{`1`, "9e999 * ?", "real", `"Infinity"`},
		{`-1`, "9e999 * ?", "real", `"-Infinity"`},
		{`1`, "9e999 - 9e999 * ?", "null", `null`},
		{`1`, "CAST(x'ff41' AS TEXT) || substr('', ?)", "text", "\"\\ufffdA\""},
	} {
		rows := query(t, s, "a", "SELECT typeof(v), v FROM (SELECT "+tc.sql+" AS v)", "["+tc.param+"]")
		if want := fmt.Sprintf(`{"columns":["typeof(v)","v"],"rows":[["%s",%s]]}`, tc.typ, tc.out); asJSON(t, rows) != want {
			t.Errorf("%s: got %s, want %s", tc.param, asJSON(t, rows), want)
		}
	}
	// A large integer comes as text and finds its row again.
	exec(t, s, "a", "CREATE TABLE big (id INTEGER PRIMARY KEY); INSERT INTO big VALUES (9007199254740993)", "")
	if rows := query(t, s, "a", "SELECT id FROM big WHERE id = ?", `["9007199254740993"]`); len(rows.Rows) != 1 {
		t.Errorf("not found by its text: %s", asJSON(t, rows))
	}
}

func TestParams(t *testing.T) {
	s := open(t, Options{})
	for _, tc := range []struct{ sql, params, want string }{
		{"SELECT :a, @b, $c, :a", `{"a":1,"b":2,"c":3}`, `[[1,2,3,1]]`},
		{"SELECT ?2, ?1", `[1,2]`, `[[2,1]]`},
		{"SELECT 1", ``, `[[1]]`},
		{"SELECT 1", ` null `, `[[1]]`},
		{"SELECT 1", `[]`, `[[1]]`},
		{"SELECT 1", `{}`, `[[1]]`},
	} {
		if rows := query(t, s, "a", tc.sql, tc.params); asJSON(t, rows.Rows) != tc.want {
			t.Errorf("%s with %s: %s", tc.sql, tc.params, asJSON(t, rows.Rows))
		}
	}
	for _, tc := range []struct{ sql, params, say string }{
		{"SELECT ?", ``, "1 parameters, and 0 values"},
		{"SELECT ?", `[1,2]`, "1 parameters, and 2 values"},
		{"SELECT ?", `{"a":1}`, "send params as an array"},
		{"SELECT ?1", `{"1":1}`, "send params as an array"},
		{"SELECT :a", `{"b":1}`, "no value for :a"},
		{"SELECT :a", `{"a":1,"b":1}`, "no parameter :b"},
		{"SELECT ?", `[[1]]`, "params[0]: want"},
		{"SELECT ?", `[{"a":1}]`, "params[0]: want"},
		{"SELECT ?", `[{"$bytes":"!"}]`, "not base64"},
		{"SELECT ?", `[{"$bytes":1}]`, "params[0]: want"},
		{"SELECT ?", `[{"$int":"1.5"}]`, "not an integer"},
		{"SELECT ?", `[1e999]`, "does not fit"},
		{"SELECT :x", `{"x":[]}`, "params.x: want"},
		{"SELECT 1", `1`, "want an array or an object"},
		{"SELECT 1", `[1`, "not JSON"},
		{"SELECT 1", `[] []`, "more than one"},
	} {
		var e *Error
		_, err := s.Query(context.Background(), "a", tc.sql, json.RawMessage(tc.params), QueryLimits{})
		if !errors.As(err, &e) || e.Kind != KindParams || !strings.Contains(e.Message, tc.say) {
			t.Errorf("%s with %s: %v, want %q", tc.sql, tc.params, err, tc.say)
		}
	}
}

func TestExec(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	exec(t, s, "a", "CREATE TABLE t (id INTEGER PRIMARY KEY, n INT CHECK (n > 0)); CREATE INDEX i ON t(n); CREATE VIEW v AS SELECT n FROM t;"+
		"CREATE TABLE log (n); CREATE TRIGGER tr AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.n); END;", "")
	r := exec(t, s, "a", "INSERT INTO t (n) VALUES (?),(?) RETURNING id, n", "[7,8]")
	if asJSON(t, r) != `{"changes":4,"last_insert_id":2,"returned":{"columns":["id","n"],"rows":[[1,7],[2,8]]}}` {
		t.Errorf("insert: %s", asJSON(t, r))
	}
	// All or nothing.
	var e *Error
	if _, err := s.Exec(ctx, "a", "INSERT INTO t (n) VALUES (9); INSERT INTO t (n) VALUES (-1)", nil); !errors.As(err, &e) || e.Kind != KindSQL || !strings.Contains(e.Message, "CHECK constraint") {
		t.Errorf("broken constraint: %v", err)
	}
	if rows := query(t, s, "a", "SELECT count(*), (SELECT count(*) FROM log) FROM v", ""); asJSON(t, rows.Rows) != "[[2,2]]" {
		t.Errorf("half of an Exec stayed: %s", asJSON(t, rows.Rows))
	}
	// What changes a schema works.
	for _, sql := range []string{
		"ALTER TABLE t ADD COLUMN x", "ALTER TABLE t RENAME COLUMN x TO y", "ALTER TABLE t DROP COLUMN y",
		"ALTER TABLE log RENAME TO log2", "ANALYZE", "REINDEX i", "DROP TRIGGER tr", "DROP VIEW v", "DROP INDEX i",
		"UPDATE t SET n = n + 1", "DELETE FROM t WHERE id = 1", "DROP TABLE log2", "SELECT changes(), last_insert_rowid()",
	} {
		exec(t, s, "a", sql, "")
	}
	for _, tc := range []struct{ sql, params, kind, say string }{
		{"INSERT INTO t (n) VALUES (?); DELETE FROM t", "[1]", KindSQL, "more than one statement"},
		{"", "", KindSQL, "no statement"},
		{" -- nothing\n", "", KindSQL, "no statement"},
		{"SELEC 1", "", KindSQL, "syntax error"},
		{"SELECT 1\x00; DROP TABLE t", "", KindSQL, "NUL"},
		{"SELECT '\xff'", "", KindSQL, "UTF-8"},
		{"BEGIN", "", KindDenied, "BEGIN, COMMIT or ROLLBACK"},
		{"COMMIT", "", KindDenied, "BEGIN, COMMIT or ROLLBACK"},
		{"INSERT INTO t(n) VALUES (3); ROLLBACK", "", KindDenied, "BEGIN, COMMIT or ROLLBACK"},
		{"SAVEPOINT x", "", KindDenied, "SAVEPOINT"},
		{"ATTACH '/etc/x.db' AS x", "", KindDenied, "ATTACH"},
		{"VACUUM INTO '/tmp/sandboxd-test-x.db'", "", "", ""},
		{"PRAGMA writable_schema = 1", "", KindDenied, "PRAGMA writable_schema"},
		{"PRAGMA journal_mode = DELETE", "", KindDenied, "PRAGMA journal_mode"},
		{"PRAGMA max_page_count = 1000000", "", KindDenied, "PRAGMA max_page_count"},
		{"UPDATE sqlite_schema SET sql = 'x'", "", KindSQL, "may not be modified"},
		{"CREATE VIRTUAL TABLE f USING fts5(x)", "", KindDenied, "CREATE VIRTUAL TABLE"},
		{"CREATE TEMP TABLE x (a)", "", KindDenied, "temporary object"},
		{"CREATE TABLE temp.x (a)", "", KindDenied, "temporary object"},
		{"CREATE TRIGGER temp.x AFTER INSERT ON t BEGIN SELECT 1; END", "", KindDenied, ""},
		{"CREATE VIEW temp.x AS SELECT 1", "", KindDenied, ""},
		{"CREATE TEMP VIEW t AS SELECT 1", "", KindDenied, ""},
		{"CREATE TABLE x AS SELECT sqlite_compileoption_get(1)", "", KindDenied, "function"},
	} {
		_, err := s.Exec(ctx, "a", tc.sql, json.RawMessage(tc.params))
		if !errors.As(err, &e) || tc.kind != "" && e.Kind != tc.kind || !strings.Contains(e.Message, tc.say) {
			t.Errorf("%q: %v, want %s with %q", tc.sql, err, tc.kind, tc.say)
		}
	}
	if _, err := os.Lstat("/tmp/sandboxd-test-x.db"); !os.IsNotExist(err) {
		t.Errorf("VACUUM INTO wrote a file: %v", err)
	}
	exec(t, s, "a", "INSERT INTO t (n) VALUES (1)", "") // still in order
}

func TestOffset(t *testing.T) {
	s := open(t, Options{})
	var e *Error
	_, err := s.Query(context.Background(), "a", "SELECT nope FROM (SELECT 1)", nil, QueryLimits{})
	if !errors.As(err, &e) || e.Offset != 7 {
		t.Errorf("offset in a query: %+v", err)
	}
	_, err = s.Exec(context.Background(), "a", "CREATE TABLE x (a); INSERT INTO x SELECT nope", nil)
	if !errors.As(err, &e) || e.Offset != 41 {
		t.Errorf("offset in an exec: %+v", err)
	}
}

func TestTenantNames(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	for _, name := range []string{"", ".", "..", "../x", "a/b", "A", "a\x00", "-", strings.Repeat("a", 64)} {
		_, qerr := s.Query(ctx, name, "SELECT 1", nil, QueryLimits{})
		_, eerr := s.Exec(ctx, name, "SELECT 1", nil)
		kerr := s.KV(name).Put(ctx, "k", json.RawMessage("1"))
		rerr := s.RemoveTenant(ctx, name)
		for _, err := range []error{qerr, eerr, kerr, rerr} {
			var e *Error
			if !errors.As(err, &e) || e.Kind != KindParams {
				t.Errorf("tenant %q: %v", name, err)
			}
		}
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("files were made: %v, %v", left, err)
	}
}

func TestRowAndByteLimits(t *testing.T) {
	s := open(t, Options{})
	const count = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x LIMIT ?) SELECT n, 'abcdefgh' FROM x"
	for _, tc := range []struct {
		rows, limit int
		bytes       int64
		over        string
	}{
		{10, 10, 1000, ""}, {11, 10, 1000, "rows"}, {100, 1000, 1000, "bytes"}, {0, 1, 1000, ""}, {1, 1, 3, "bytes"},
	} {
		rows, err := s.Query(context.Background(), "a", count, json.RawMessage(fmt.Sprintf("[%d]", tc.rows)),
			QueryLimits{Rows: tc.limit, Bytes: tc.bytes, Time: 30 * time.Second})
		var e *Error
		switch {
		case tc.over == "" && (err != nil || len(rows.Rows) != tc.rows):
			t.Errorf("%+v: %v", tc, err)
		case tc.over != "" && (!errors.As(err, &e) || e.Limit != tc.over || e.Allowed == ""):
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestDiskLimit(t *testing.T) {
	s := open(t, Options{Disk: 1 << 20})
	exec(t, s, "a", "CREATE TABLE t (b)", "")
	var e *Error
	var err error
	for range 100 {
		if _, err = s.Exec(context.Background(), "a", "INSERT INTO t VALUES (zeroblob(100000))", nil); err != nil {
			break
		}
	}
	if !errors.As(err, &e) || e.Kind != KindLimit || e.Limit != "disk" || e.Allowed != "1048576" {
		t.Errorf("a full database: %v", err)
	}
	exec(t, s, "a", "DELETE FROM t", "")
	exec(t, s, "a", "INSERT INTO t VALUES (1)", "")
	for i := range 100 {
		if err = s.KV("a").Put(context.Background(), fmt.Sprint(i), json.RawMessage(`"`+strings.Repeat("x", 100000)+`"`)); err != nil {
			break
		}
	}
	if !errors.As(err, &e) || e.Kind != KindLimit || e.Limit != "disk" {
		t.Errorf("a full key-value store: %v", err)
	}
}

func TestExecInterrupted(t *testing.T) {
	s := open(t, Options{})
	exec(t, s, "a", "CREATE TABLE t (n)", "")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Exec(ctx, "a", "INSERT INTO t VALUES (1); INSERT INTO t WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x) SELECT count(*) FROM x", nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
	if rows := query(t, s, "a", "SELECT count(*) FROM t", ""); asJSON(t, rows.Rows) != "[[0]]" {
		t.Errorf("half of an interrupted Exec stayed: %s", asJSON(t, rows.Rows))
	}
	exec(t, s, "a", "INSERT INTO t VALUES (1)", "")
}

func TestRemoveTenant(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	exec(t, s, "a", "CREATE TABLE t (n)", "")
	exec(t, s, "b", "CREATE TABLE t (n)", "")
	query(t, s, "a", "SELECT * FROM t", "")
	if err := s.KV("a").Put(ctx, "k", json.RawMessage("1")); err != nil {
		t.Fatal(err)
	}
	// It waits for what is under way, and keeps new use out meanwhile.
	c, err := s.acquire(ctx, key{"a", reader})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if err := s.RemoveTenant(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a query under way: %v", err)
	}
	done := make(chan error)
	go func() { done <- s.RemoveTenant(ctx, "a") }()
	for {
		s.mu.Lock()
		removing := s.removing["a"]
		s.mu.Unlock()
		if removing {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Query(ctx, "a", "SELECT 1", nil, QueryLimits{}); !errors.Is(err, ErrRemoving) {
		t.Errorf("during removal: %v", err)
	}
	if err := s.RemoveTenant(ctx, "a"); !errors.Is(err, ErrRemoving) {
		t.Errorf("twice: %v", err)
	}
	s.release(c)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "a")); !os.IsNotExist(err) {
		t.Errorf("files are left: %v", err)
	}
	if _, err := s.KV("a").Get(ctx, "k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a key is left: %v", err)
	}
	query(t, s, "b", "SELECT * FROM t", "")
	if err := s.RemoveTenant(ctx, "nobody"); err != nil {
		t.Error(err)
	}
}

// Many tenants share few connections.
func TestPool(t *testing.T) {
	s := open(t, Options{MaxOpen: 3})
	var wg sync.WaitGroup
	for g := range 12 {
		tenant := fmt.Sprint("t", g%6)
		wg.Go(func() {
			ctx := context.Background()
			for i := range 10 {
				if err := s.KV(tenant).Put(ctx, fmt.Sprint(g, "-", i), json.RawMessage(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
				if _, err := s.Exec(ctx, tenant, "CREATE TABLE IF NOT EXISTS t (g, i); INSERT INTO t VALUES ("+fmt.Sprintf("%d,%d", g, i)+")", nil); err != nil {
					t.Error(err)
				}
				if _, err := s.Query(ctx, tenant, "SELECT count(*) FROM t", nil, QueryLimits{Time: 30 * time.Second}); err != nil {
					t.Error(err)
				}
				s.mu.Lock()
				if s.open > 3 {
					t.Errorf("%d connections are open", s.open)
				}
				s.mu.Unlock()
			}
		})
	}
	wg.Wait()
	for g := range 6 {
		rows := query(t, s, fmt.Sprint("t", g), "SELECT count(*), count(DISTINCT g) FROM t", "")
		if asJSON(t, rows.Rows) != "[[20,2]]" {
			t.Errorf("tenant %d has %s", g, asJSON(t, rows.Rows))
		}
	}
}

// One tenant's queries cannot take all connections.
func TestTenantShare(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	var held []*conn
	for range maxReaders {
		c, err := s.acquire(ctx, key{"a", reader})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	var e *Error
	if _, err := s.Query(ctx, "a", "SELECT 1", nil, QueryLimits{Time: 10 * time.Millisecond}); !errors.As(err, &e) || e.Kind != KindBusy {
		t.Errorf("a fifth query: %v", err)
	}
	query(t, s, "b", "SELECT 1", "")
	exec(t, s, "a", "CREATE TABLE t (n)", "")
	for _, c := range held {
		s.release(c)
	}
	query(t, s, "a", "SELECT 1", "")
}

func TestClosed(t *testing.T) {
	s := open(t, Options{})
	c, err := s.acquire(context.Background(), key{"a", keys})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.release(c)
	if _, err := s.Query(context.Background(), "a", "SELECT 1", nil, QueryLimits{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := s.RemoveTenant(context.Background(), "a"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestKV(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	kv := s.KV("a")
	if _, err := kv.Get(ctx, "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a key that is not there: %v", err)
	}
	want := map[string]string{"x": `{"a": [1, "é"]}`, "x/1": `1`, "x/2": `null`, "y": `"s"`, "日本": `true`, "%": "1", "_": "1"}
	for k, v := range want {
		if err := kv.Put(ctx, k, json.RawMessage(v)); err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
	for k, v := range want {
		if got, err := kv.Get(ctx, k); err != nil || string(got) != v {
			t.Errorf("%s is %s, %v, want %s", k, got, err, v)
		}
	}
	if err := kv.Put(ctx, "x", json.RawMessage(`2`)); err != nil {
		t.Error(err)
	}
	if got, err := kv.Get(ctx, "x"); err != nil || string(got) != "2" {
		t.Errorf("overwritten: %s, %v", got, err)
	}
	for _, tc := range []struct {
		prefix, after string
		limit         int
		want          []string
	}{
		{"", "", 0, []string{"%", "_", "x", "x/1", "x/2", "y", "日本"}},
		{"x", "", 0, []string{"x", "x/1", "x/2"}},
		{"x/", "", 0, []string{"x/1", "x/2"}},
		{"x", "x", 1, []string{"x/1"}},
		{"x", "x/2", 0, []string{}},
		{"", "x/1", 2, []string{"x/2", "y"}},
		{"%", "", 0, []string{"%"}},
		{"z", "", 0, []string{}},
	} {
		if got, err := kv.List(ctx, tc.prefix, tc.after, tc.limit); err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("List(%q, %q, %d) = %q, %v, want %q", tc.prefix, tc.after, tc.limit, got, err, tc.want)
		}
	}
	if found, err := kv.Delete(ctx, "x"); err != nil || !found {
		t.Errorf("Delete: %v, %v", found, err)
	}
	if found, err := kv.Delete(ctx, "x"); err != nil || found {
		t.Errorf("Delete again: %v, %v", found, err)
	}
	if keys, err := s.KV("b").List(ctx, "", "", 0); err != nil || len(keys) > 0 {
		t.Errorf("another tenant has %q, %v", keys, err)
	}
	// Queries do not see it.
	var e *Error
	if _, err := s.Query(ctx, "a", "SELECT * FROM kv", nil, QueryLimits{}); !errors.As(err, &e) {
		t.Errorf("the key-value store is in the database: %v", err)
	}
}

func TestKVBadInput(t *testing.T) {
	s := open(t, Options{})
	ctx := context.Background()
	kv := s.KV("a")
	one := json.RawMessage("1")
	get := func(k string) error { _, err := kv.Get(ctx, k); return err }
	del := func(k string) error { _, err := kv.Delete(ctx, k); return err }
	list := func(p, a string, n int) error { _, err := kv.List(ctx, p, a, n); return err }
	long := strings.Repeat("k", MaxKey+1)
	for name, err := range map[string]error{
		"empty key": kv.Put(ctx, "", one), "long key": kv.Put(ctx, long, one), "NUL key": kv.Put(ctx, "a\x00b", one),
		"key not UTF-8": kv.Put(ctx, "\xff", one), "get": get(""), "delete": del(long),
		"not JSON": kv.Put(ctx, "k", json.RawMessage("{")), "no value": kv.Put(ctx, "k", nil),
		"not UTF-8": kv.Put(ctx, "k", json.RawMessage("\"\xff\"")),
		"large":     kv.Put(ctx, "k", json.RawMessage(`"`+strings.Repeat("x", maxJSON)+`"`)),
		"limit":     list("", "", -1), "large limit": list("", "", MaxKeys+1), "long prefix": list(long, "", 1), "long after": list("", long, 1),
	} {
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindParams && e.Kind != KindLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := kv.Put(ctx, strings.Repeat("k", MaxKey), json.RawMessage(`"`+strings.Repeat("x", maxJSON-2)+`"`)); err != nil {
		t.Errorf("the largest: %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := kv.Put(cancelled, "k", one); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func BenchmarkQueryOneRow(b *testing.B) {
	s := open(b, Options{})
	exec(b, s, "a", "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, email TEXT, age INT);"+
		"WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x LIMIT 10000) INSERT INTO t SELECT n, 'name '||n, n||'@example.com', n % 90 FROM x", "")
	for b.Loop() {
		r, err := s.Query(context.Background(), "a", "SELECT id, name, email, age FROM t WHERE id = ?", json.RawMessage("[4711]"), QueryLimits{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.Objects(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkQueryThousandRows(b *testing.B) {
	s := open(b, Options{})
	exec(b, s, "a", "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT);"+
		"WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x LIMIT 1000) INSERT INTO t SELECT n, 'name '||n FROM x", "")
	for b.Loop() {
		r, err := s.Query(context.Background(), "a", "SELECT * FROM t", nil, QueryLimits{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := r.Objects(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkQueryCold(b *testing.B) {
	s := open(b, Options{MaxOpen: 1})
	for _, tenant := range []string{"a", "b"} {
		exec(b, s, tenant, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "")
	}
	for i := 0; b.Loop(); i++ {
		if _, err := s.Query(context.Background(), []string{"a", "b"}[i%2], "SELECT * FROM t", nil, QueryLimits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKVGet(b *testing.B) {
	s := open(b, Options{})
	kv := s.KV("a")
	if err := kv.Put(context.Background(), "k", json.RawMessage(`{"a":1}`)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := kv.Get(context.Background(), "k"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKVPut(b *testing.B) {
	s := open(b, Options{})
	kv := s.KV("a")
	for b.Loop() {
		if err := kv.Put(context.Background(), "k", json.RawMessage(`{"a":1}`)); err != nil {
			b.Fatal(err)
		}
	}
}
