package data

import (
	"strings"

	"github.com/ncruces/go-sqlite3"
)

// queryActions is all that a query may do.
var queryActions = set(
	sqlite3.AUTH_SELECT,
	sqlite3.AUTH_READ,
	sqlite3.AUTH_FUNCTION,
	sqlite3.AUTH_RECURSIVE, // the deadline ends what does not end
	sqlite3.AUTH_PRAGMA,    // see pragmas
)

// execActions is what the service's own statements may do beside. ATTACH and
// DETACH (other files; VACUUM INTO needs them, too), virtual tables, temporary
// objects and transactions (an Exec is one) are not in it.
var execActions = set(
	sqlite3.AUTH_INSERT, sqlite3.AUTH_UPDATE, sqlite3.AUTH_DELETE,
	sqlite3.AUTH_CREATE_TABLE, sqlite3.AUTH_DROP_TABLE, sqlite3.AUTH_ALTER_TABLE,
	sqlite3.AUTH_CREATE_INDEX, sqlite3.AUTH_DROP_INDEX, sqlite3.AUTH_REINDEX,
	sqlite3.AUTH_CREATE_VIEW, sqlite3.AUTH_DROP_VIEW,
	sqlite3.AUTH_CREATE_TRIGGER, sqlite3.AUTH_DROP_TRIGGER,
	sqlite3.AUTH_ANALYZE,
)

// pragmas only read the schema, and take no value that would change anything.
var pragmas = set("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list")

// functions are what SQL may call. One call of each takes time in proportion to
// its arguments, which are at most maxValue: SQLite looks at the deadline only
// between its instructions, and a call is one instruction. So json_patch and
// unhex are not in it (each was seen to take, or can take, minutes), and instr,
// replace, trim, ltrim and rtrim are our own (see functions.go). What reads the
// connection's or the library's state is not in it either.
var functions = set(strings.Fields(`
	abs avg ceil ceiling char coalesce concat concat_ws count cume_dist current_date current_time
	current_timestamp date datetime dense_rank first_value floor format glob group_concat hex if ifnull iif
	instr json json_array json_array_length json_each json_error_position json_extract json_group_array
	json_group_object json_insert json_object json_pretty json_quote json_remove json_replace json_set
	json_tree json_type json_valid jsonb jsonb_array jsonb_extract jsonb_group_array jsonb_group_object
	jsonb_insert jsonb_object jsonb_remove jsonb_replace jsonb_set julianday lag last_value lead length
	like likelihood likely lower ltrim max min nth_value ntile nullif octet_length percent_rank
	printf quote random randomblob rank replace round row_number
	rtrim sign soundex sqlite_version strftime string_agg substr substring sum time timediff total trim
	typeof unicode unistr unixepoch unlikely upper zeroblob
	acos acosh asin asinh atan atan2 atanh cos cosh degrees exp ln log log10 log2 mod pi pow power radians
	sin sinh sqrt tan tanh trunc
	-> ->>
`)...)

// execFunctions are for the service's own statements beside. The last ones are
// what ALTER TABLE is made of; SQLite lets no statement call them itself.
var execFunctions = set("changes", "total_changes", "last_insert_rowid",
	"sqlite_rename_column", "sqlite_rename_table", "sqlite_rename_test", "sqlite_rename_quotefix", "sqlite_drop_column", "sqlite_fail")

func set[T comparable](all ...T) map[T]bool {
	m := make(map[T]bool, len(all))
	for _, v := range all {
		m[v] = true
	}
	return m
}

// authorize is SQLite's authorizer: it is asked while a statement is prepared.
func (c *conn) authorize(action sqlite3.AuthorizerActionCode, third, fourth, schema, inner string) sqlite3.AuthorizerReturnCode {
	if c.ours {
		return sqlite3.AUTH_OK
	}
	write := c.key.kind == writer
	ok := queryActions[action] || write && execActions[action]
	what := actionNames[action]
	switch action {
	case sqlite3.AUTH_FUNCTION:
		// The schema of a table may hold functions that its owner was allowed.
		name := strings.ToLower(fourth)
		ok, what = functions[name] || write && execFunctions[name], "the function "+quote(fourth)
	case sqlite3.AUTH_PRAGMA:
		ok, what = pragmas[strings.ToLower(third)], "PRAGMA "+quote(third)
	case sqlite3.AUTH_ATTACH:
		what = "ATTACH (or VACUUM INTO)"
	}
	// A temporary object would stay on the connection and stand before the
	// tables of the next Exec. ALTER TABLE reads and updates that schema, too.
	if schema == "temp" && action != sqlite3.AUTH_READ && action != sqlite3.AUTH_UPDATE {
		ok, what = false, "a temporary object"
	}
	if ok {
		return sqlite3.AUTH_OK
	}
	if what == "" {
		what = "this kind of statement"
	}
	c.denied = what
	return sqlite3.AUTH_DENY
}

var actionNames = map[sqlite3.AuthorizerActionCode]string{
	sqlite3.AUTH_INSERT: "INSERT", sqlite3.AUTH_UPDATE: "UPDATE", sqlite3.AUTH_DELETE: "DELETE",
	sqlite3.AUTH_CREATE_TABLE: "CREATE TABLE", sqlite3.AUTH_DROP_TABLE: "DROP TABLE", sqlite3.AUTH_ALTER_TABLE: "ALTER TABLE",
	sqlite3.AUTH_CREATE_INDEX: "CREATE INDEX", sqlite3.AUTH_DROP_INDEX: "DROP INDEX", sqlite3.AUTH_REINDEX: "REINDEX",
	sqlite3.AUTH_CREATE_VIEW: "CREATE VIEW", sqlite3.AUTH_DROP_VIEW: "DROP VIEW",
	sqlite3.AUTH_CREATE_TRIGGER: "CREATE TRIGGER", sqlite3.AUTH_DROP_TRIGGER: "DROP TRIGGER",
	sqlite3.AUTH_CREATE_VTABLE: "CREATE VIRTUAL TABLE", sqlite3.AUTH_DROP_VTABLE: "DROP of a virtual table",
	sqlite3.AUTH_ANALYZE: "ANALYZE", sqlite3.AUTH_DETACH: "DETACH",
	sqlite3.AUTH_TRANSACTION: "BEGIN, COMMIT or ROLLBACK", sqlite3.AUTH_SAVEPOINT: "SAVEPOINT",
}

// quote shows a name of the statement's author, short and on one line.
func quote(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), 64)], "?")
}
