package data

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"golang.org/x/sys/unix"
)

// forbidden is hostile SQL and how it is answered.
var forbidden = []struct{ sql, kind, say string }{
	// Other files.
	{"ATTACH '/etc/passwd' AS p", KindDenied, "ATTACH"},
	{"ATTACH ':memory:' AS p", KindDenied, "ATTACH"},
	{"DETACH main", KindDenied, "DETACH"},
	{"VACUUM", "", ""},
	{"VACUUM INTO '/tmp/sandboxd-test-y.db'", "", ""},
	{"SELECT load_extension('/lib/x.so')", KindSQL, "no such function"},
	{"SELECT readfile('/etc/passwd')", KindSQL, "no such function"},
	{"SELECT writefile('/tmp/sandboxd-test-y.db', 'x')", KindSQL, "no such function"},
	{"SELECT * FROM fsdir('/')", KindSQL, "no such table"},
	{"SELECT * FROM sqlite_dbpage", KindSQL, "no such table"},
	{"SELECT * FROM dbstat", KindSQL, "no such table"},
	{"SELECT fts3_tokenizer('x')", KindSQL, "no such function"},
	// The connection.
	{"PRAGMA writable_schema=1", KindDenied, "PRAGMA writable_schema"},
	{"PRAGMA main.writable_schema=1", KindDenied, "PRAGMA writable_schema"},
	{"PRAGMA query_only=0", KindDenied, "PRAGMA query_only"},
	{"PRAGMA database_list", KindDenied, "PRAGMA database_list"},
	{"SELECT file FROM pragma_database_list", KindDenied, "PRAGMA database_list"},
	{"SELECT * FROM pragma_compile_options", KindDenied, "PRAGMA compile_options"},
	{"PRAGMA temp_store_directory='/tmp'", KindDenied, "PRAGMA temp_store_directory"},
	{"PRAGMA hard_heap_limit=0", KindDenied, "PRAGMA hard_heap_limit"},
	{"PRAGMA integrity_check", KindDenied, "PRAGMA integrity_check"},
	{"SELECT sqlite_compileoption_get(0)", KindDenied, "function sqlite_compileoption_get"},
	{"SELECT sqlite_source_id()", KindDenied, "function sqlite_source_id"},
	{"SELECT last_insert_rowid()", KindDenied, "function last_insert_rowid"},
	{"SELECT json_patch('{}','{}')", KindDenied, "function json_patch"},
	{"SELECT unhex('00', 'x')", KindDenied, "function unhex"},
	{"BEGIN", KindDenied, "BEGIN"},
	{"SAVEPOINT a", KindDenied, "SAVEPOINT"},
	// Writes.
	{"INSERT INTO t VALUES (3,'c')", KindDenied, "INSERT"},
	{"REPLACE INTO t VALUES (3,'c')", KindDenied, "INSERT"},
	{"UPDATE t SET b = 'x'", KindDenied, "UPDATE"},
	{"DELETE FROM t", KindDenied, "DELETE"},
	{"DELETE FROM t RETURNING a", KindDenied, "DELETE"},
	{"WITH x AS (SELECT 1) DELETE FROM t", KindDenied, "DELETE"},
	{"CREATE TABLE x (a)", KindDenied, ""},
	{"CREATE TEMP TABLE x (a)", KindDenied, ""},
	{"CREATE TEMP VIEW x AS SELECT 1", KindDenied, ""},
	{"CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END", KindDenied, ""},
	{"CREATE TABLE x AS SELECT * FROM t", KindDenied, ""},
	{"CREATE VIRTUAL TABLE x USING json_each", KindDenied, ""},
	{"CREATE INDEX x ON t(b)", KindDenied, ""},
	{"DROP TABLE t", KindDenied, ""},
	{"ALTER TABLE t ADD COLUMN x", KindDenied, ""},
	{"ANALYZE", KindDenied, ""},
	{"REINDEX", KindDenied, ""},
	{"EXPLAIN DELETE FROM t", KindDenied, "DELETE"},
	// More than one.
	{"SELECT 1; SELECT 2", KindSQL, "more than one"},
	{"SELECT 1; DELETE FROM t", KindSQL, "more than one"},
	{"SELECT 1; nonsense", KindSQL, "more than one"},
	{"SELECT 1\x00; DELETE FROM t", KindSQL, "NUL"},
	{"", KindSQL, "no statement"},
	{";", KindSQL, "no statement"},
	{"/* x", KindSQL, "no statement"},
	{"SELECT", KindSQL, "incomplete input"},
	// Bombs.
	{"WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x) SELECT count(*) FROM x", KindLimit, "too long"},
	{"WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x) SELECT n FROM x", KindLimit, ""},
	{"SELECT x1.a FROM " + crossJoin(20), KindLimit, ""},
	{"SELECT randomblob(1000000000)", KindLimit, "too large"},
	{"SELECT zeroblob(1000000000)", KindLimit, "too large"},
	{"SELECT zeroblob(9223372036854775807)", KindLimit, "too large"},
	{"SELECT length(zeroblob(1000000) || zeroblob(1000000))", KindLimit, "too large"},
	{"SELECT printf('%.*c', 1000000000, 'x')", KindLimit, "too large"},
	{"SELECT printf('%1000000000d', 1)", KindLimit, "too large"},
	{"SELECT printf('%.1000000000f', 1.5)", KindLimit, "too large"},
	{"SELECT replace(hex(zeroblob(100000)), '0', hex(zeroblob(1000)))", KindLimit, "too large"},
	{"SELECT hex(zeroblob(1000000))", KindLimit, "too large"},
	{"SELECT zeroblob(800000)", KindLimit, "the answer is too large"},
	{"SELECT 1" + strings.Repeat(", zeroblob(100000)", 100), KindLimit, "the answer is too large"},
	{"WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x LIMIT 1000000) SELECT DISTINCT n, randomblob(1000) FROM x ORDER BY 2", KindLimit, ""},
	{"WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x) SELECT group_concat(n) FROM x", KindLimit, ""},
	{"SELECT 'a' LIKE '" + strings.Repeat("%a", 1000) + "'", KindSQL, "pattern too complex"},
	{"SELECT 'a' GLOB '" + strings.Repeat("*a", 1000) + "'", KindSQL, "pattern too complex"},
	{"SELECT " + strings.Repeat("1+", 500) + "1", KindSQL, "too large"},
	{"SELECT " + strings.Repeat("abs(", 500) + "1" + strings.Repeat(")", 500), KindSQL, "Recursion limit"},
	{"SELECT '" + strings.Repeat("x", 70000) + "'", KindLimit, "too large"},
	{"SELECT 1" + strings.Repeat(" UNION SELECT 1", 100), KindSQL, "too many terms"},
	{"SELECT 1" + strings.Repeat(",1", 600), KindSQL, "too many columns"},
	{"SELECT ?1000000", KindSQL, "variable number"},
	{"SELECT json_extract(replace(hex(zeroblob(990)), '00', '[') || replace(hex(zeroblob(990)), '00', ']'), '$' || replace(hex(zeroblob(10000)), '00', '[0]'))", KindSQL, "too deeply nested"},
	{"SELECT json_set('{}', '$' || replace(hex(zeroblob(10000)), '00', '.a'), 1)", KindSQL, "too deeply nested"},
	{"SELECT json(replace(hex(zeroblob(10000)), '00', '['))", KindSQL, "malformed"},
	{cteBomb(60), "", ""},
}

func crossJoin(n int) string {
	var tables []string
	for i := range n {
		tables = append(tables, fmt.Sprintf("t x%d", i))
	}
	return strings.Join(tables, ", ") + " ORDER BY random()"
}

// cteBomb doubles with each of its parts.
func cteBomb(n int) string {
	s := "WITH t0 AS (SELECT 1 AS a)"
	for i := 1; i < n; i++ {
		s += fmt.Sprintf(", t%d AS (SELECT (SELECT a FROM t%d) + (SELECT a FROM t%d) AS a)", i, i-1, i-1)
	}
	return s + fmt.Sprintf(" SELECT a FROM t%d", n-1)
}

func TestHostileSQL(t *testing.T) {
	s := open(t, Options{})
	exec(t, s, "a", "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (1,'x'),(2,'y'),(3,'z'),(4,'u'); CREATE INDEX i ON t(b)", "")
	before := asJSON(t, query(t, s, "a", "SELECT * FROM t, sqlite_schema", ""))
	for _, tc := range forbidden {
		start := time.Now()
		_, err := s.Query(context.Background(), "a", tc.sql, nil, QueryLimits{Time: 200 * time.Millisecond})
		var e *Error
		if !errors.As(err, &e) || tc.kind != "" && e.Kind != tc.kind || !strings.Contains(e.Message, tc.say) {
			t.Errorf("%.100q: %v, want %s with %q", tc.sql, err, tc.kind, tc.say)
		}
		// The race detector slows everything; without it this is about 0.2 s.
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%.100q took %v", tc.sql, took)
		}
	}
	for _, left := range []string{"/tmp/sandboxd-test-y.db"} {
		if _, err := os.Lstat(left); !os.IsNotExist(err) {
			t.Errorf("%s was written: %v", left, err)
		}
	}
	if after := asJSON(t, query(t, s, "a", "SELECT * FROM t, sqlite_schema", "")); after != before {
		t.Errorf("hostile SQL changed\n%s to\n%s", before, after)
	}
	if files, err := filepath.Glob(filepath.Join(s.dir, "*", "*")); err != nil || len(files) > 3 {
		t.Errorf("files %v, %v", files, err)
	}
}

// One call of a function must end soon, since no deadline ends it.
func TestFunctionsAreLinear(t *testing.T) {
	s := open(t, Options{})
	const a500k, a250k = "hex(zeroblob(250000))", "hex(zeroblob(125000))"
	for _, expr := range []string{
		"instr(" + a500k + ", " + a250k + "||'b')",
		"instr(zeroblob(500000), zeroblob(250000)||x'01')",
		"replace(" + a500k + ", " + a250k + "||'b', 'x')",
		"trim(" + a500k + ", replace(" + a250k + ",'0','b')||'a')",
		"ltrim(" + a500k + ", " + a250k + ")",
		"rtrim(" + a500k + ", " + a250k + ")",
		a500k + " LIKE '" + strings.Repeat("%0000000001", 45) + "'",
		a500k + " LIKE '" + strings.Repeat("%_0_0_0_01", 49) + "'",
		a500k + " GLOB '" + strings.Repeat("*[0-9][0-8]", 45) + "x'",
		"like('" + strings.Repeat("%0", 249) + "1', " + a500k + ")",
		"soundex(" + a500k + ")", "quote(zeroblob(400000))", "upper(" + a500k + ")", "unistr(" + a500k + ")",
		"substr(" + a500k + ", 499999)", "substr(" + a500k + ", -499999, 3)", "octet_length(" + a500k + ")",
		"printf('%s%s', " + a250k + ", " + a250k + ")", "strftime(" + a250k + ", 'now')",
		"concat_ws(" + strings.Repeat(a250k+",", 3) + "'')",
		"json_insert('{}'" + strings.Repeat(", '$.a', 1", 45) + ")",
		"json_array_length('['||replace(" + a500k + ", '0', '1,')||'1]')",
		"json_valid(replace(" + a500k + ", '00', '[]'))",
		"json_pretty('['||replace(" + a250k + ", '0', '1,')||'1]')",
		"json_quote(" + a500k + ")",
		"round(1.5, 1000000000)", "char(" + strings.Repeat("1114111,", 99) + "1)",
	} {
		start := cpuTime(t)
		rows, err := s.Query(context.Background(), "a", "SELECT length("+expr+")", nil, QueryLimits{Time: 20 * time.Second})
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Limit != "value" && e.Limit != "bytes") {
			t.Errorf("%.80s: %v", expr, err)
		}
		limit := 300 * time.Millisecond
		if raceEnabled {
			limit = 5 * time.Second
		}
		took := cpuTime(t) - start
		t.Logf("%v for %.80s", took, expr)
		if took > limit {
			t.Errorf("%.80s took %v: %v", expr, took, rows)
		}
	}
}

// cpuTime is what this process has computed: the machine may be busy otherwise.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// Our functions mean what SQLite's mean.
func TestFunctions(t *testing.T) {
	s := open(t, Options{})
	plain, err := sqlite3.Open(":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	values := []string{
		"NULL", "''", "' '", "'  a b  '", "'aXbXa'", "'é日é'", "'日'", "'a'", "'ab'", "'ba'", "'aaa'", "x'00ff00'", "x'ff'", "x''", "12321", "1", "-2.5",
	}
	var exprs []string
	for _, a := range values {
		for _, f := range []string{"trim", "ltrim", "rtrim"} {
			exprs = append(exprs, f+"("+a+")")
		}
		for _, b := range values {
			for _, f := range []string{"trim", "ltrim", "rtrim", "instr"} {
				exprs = append(exprs, f+"("+a+", "+b+")")
			}
			for _, c := range []string{"NULL", "''", "'é'", "x'41'", "7"} {
				exprs = append(exprs, "replace("+a+", "+b+", "+c+")")
			}
		}
	}
	for _, e := range exprs {
		// Bytes that are not UTF-8 are compared as text by SQLite one way and by
		// ours another; they are not text.
		if strings.Contains(e, "x'ff'") && !strings.HasPrefix(e, "instr(x'") || strings.Contains(e, "x'00ff00'") && !strings.HasPrefix(e, "instr(x'") {
			continue
		}
		sql := "SELECT quote(v), typeof(v) FROM (SELECT " + e + " AS v)"
		st, _, err := plain.Prepare(sql)
		if err != nil {
			t.Fatal(err)
		}
		if !st.Step() {
			t.Fatalf("%s: %v", e, st.Err())
		}
		want := asJSON(t, [][]any{{st.ColumnText(0), st.ColumnText(1)}})
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		if got := asJSON(t, query(t, s, "a", sql, "").Rows); got != want {
			t.Errorf("%s is %s, and %s in SQLite", e, got, want)
		}
	}
}

// What a query may do, it can.
func TestAllowedSQL(t *testing.T) {
	s := open(t, Options{})
	exec(t, s, "a", "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (1,'x'),(2,'y');"+
		"CREATE VIEW v AS SELECT upper(b) AS u FROM t", "")
	for sql, want := range map[string]string{
		"SELECT u FROM v ORDER BY 1":                                                                    `[["X"],["Y"]]`,
		"SELECT name FROM sqlite_schema WHERE type='table'":                                             `[["t"]]`,
		"SELECT name FROM pragma_table_info('t')":                                                       `[["a"],["b"]]`,
		"PRAGMA table_info(t)":                                                                          `[[0,"a","INTEGER",0,null,1],[1,"b","TEXT",0,null,0]]`,
		"SELECT key, value FROM json_each('[7,8]')":                                                     `[[0,7],[1,8]]`,
		"SELECT '{\"a\":[1,2]}' -> '$.a', '{\"a\":3}' ->> 'a'":                                          `[["[1,2]",3]]`,
		"SELECT row_number() OVER (ORDER BY a DESC), a FROM t":                                          `[[1,2],[2,1]]`,
		"SELECT group_concat(b, '+') FROM t":                                                            `[["x+y"]]`,
		"WITH RECURSIVE x(n) AS (VALUES(1) UNION ALL SELECT n+1 FROM x WHERE n<3) SELECT sum(n) FROM x": `[[6]]`,
		"SELECT CAST(sqrt(16) AS INT), typeof(current_timestamp), iif(1,2,3), coalesce(NULL, 4)":        `[[4,"text",2,4]]`,
		"SELECT b FROM t WHERE b LIKE 'X' AND b GLOB 'x'":                                               `[["x"]]`,
		"SELECT date('2026-01-31', '+1 month'), strftime('%Y', '2026-01-01')":                           `[["2026-03-03","2026"]]`,
		"VALUES (1),(2)":                         `[[1],[2]]`,
		"SELECT avg(a), max(a), total(a) FROM t": `[[1.5,2,3]]`,
	} {
		if got := asJSON(t, query(t, s, "a", sql, "").Rows); got != want {
			t.Errorf("%s\n got %s\nwant %s", sql, got, want)
		}
	}
}

// After a crash inside SQLite all is freed, and the store goes on.
func TestAbandon(t *testing.T) {
	s := open(t, Options{MaxOpen: 2})
	exec(t, s, "a", "CREATE TABLE t (a)", "")
	query(t, s, "a", "SELECT * FROM t", "")
	fds, maps := resources(t)
	crash := "SELECT json_set('{}', '$' || replace(hex(zeroblob(10000)), '00', '.a'), 1)"
	for range 20 {
		var e *Error
		if _, err := s.Query(context.Background(), "a", crash, nil, QueryLimits{Time: 10 * time.Second}); !errors.As(err, &e) || e.Kind != KindSQL {
			t.Fatal(err)
		}
		// The writer crashes in the middle of a transaction.
		if _, err := s.Exec(context.Background(), "a", "INSERT INTO t VALUES (1); "+crash, nil); !errors.As(err, &e) || e.Kind != KindSQL {
			t.Fatal(err)
		}
		if rows := query(t, s, "a", "SELECT count(*) FROM t", ""); asJSON(t, rows.Rows) != "[[0]]" {
			t.Fatalf("half a transaction stayed: %s", asJSON(t, rows.Rows))
		}
	}
	exec(t, s, "a", "INSERT INTO t VALUES (1)", "")
	fds2, maps2 := resources(t)
	if fds2 > fds+4 || maps2 > maps+30 {
		t.Errorf("descriptors went from %d to %d, mappings from %d to %d", fds, fds2, maps, maps2)
	}
}

// resources counts open files and mappings of this process.
func resources(t *testing.T) (fds, maps int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(list), strings.Count(string(b), "\n")
}

// A cancelled caller gets its own error, soon.
func TestCancel(t *testing.T) {
	s := open(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := s.Query(ctx, "a", "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM x) SELECT count(*) FROM x", nil, QueryLimits{Time: time.Minute})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func FuzzQuery(f *testing.F) {
	for _, tc := range forbidden {
		f.Add(tc.sql, "[]")
	}
	f.Add("SELECT a, b FROM t WHERE a = ?", "[1]")
	f.Add("SELECT :x", `{"x":{"$bytes":"AA=="}}`)
	s := open(f, Options{})
	exec(f, s, "a", "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (1,'x')", "")
	f.Fuzz(func(t *testing.T, sql, params string) {
		rows, err := s.Query(context.Background(), "a", sql, json.RawMessage(params), QueryLimits{Time: 50 * time.Millisecond})
		var e *Error
		if err != nil {
			if !errors.As(err, &e) {
				t.Errorf("%q: an error that its author cannot mend: %v", sql, err)
			}
		} else if b, err := json.Marshal(rows); err != nil || !json.Valid(b) {
			t.Errorf("%q: %v: %s", sql, err, b)
		} else if o, err := rows.Objects(); err != nil || !json.Valid(o) {
			t.Errorf("%q: %v: %s", sql, err, o)
		}
		if rows := query(t, s, "a", "SELECT count(*), min(b) FROM t", ""); asJSON(t, rows.Rows) != `[[1,"x"]]` {
			t.Errorf("%q changed the data: %s", sql, asJSON(t, rows.Rows))
		}
	})
}
