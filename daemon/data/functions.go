package data

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/ncruces/go-sqlite3"
)

// SQLite's own trim, replace and instr compare in a loop within a loop: trim of
// 500 kB by 50 kB took 160 s, and no deadline ends it meanwhile. Ours take time
// in proportion to their arguments. They mean the same.
func registerFunctions(db *sqlite3.Conn) error {
	const flags = sqlite3.DETERMINISTIC | sqlite3.INNOCUOUS
	trims := []struct {
		name        string
		left, right bool
	}{{"trim", true, true}, {"ltrim", true, false}, {"rtrim", false, true}}
	var all error
	for _, t := range trims {
		fn := trimFunc(t.left, t.right)
		all = errors.Join(all, db.CreateFunction(t.name, 1, flags, fn), db.CreateFunction(t.name, 2, flags, fn))
	}
	return errors.Join(all,
		db.CreateFunction("instr", 2, flags, instrFunc),
		db.CreateFunction("replace", 3, flags, replaceFunc))
}

func anyNull(args []sqlite3.Value) bool {
	for _, a := range args {
		if a.Type() == sqlite3.NULL {
			return true
		}
	}
	return false
}

// trimFunc cuts the characters of the second argument, or spaces.
func trimFunc(left, right bool) sqlite3.ScalarFunction {
	return func(ctx sqlite3.Context, args ...sqlite3.Value) {
		if anyNull(args) {
			ctx.ResultNull()
			return
		}
		cut := map[rune]bool{' ': true}
		if len(args) == 2 {
			clear(cut)
			for _, r := range args[1].Text() {
				cut[r] = true
			}
		}
		is := func(r rune) bool { return cut[r] }
		s := []byte(args[0].Text())
		if left {
			s = bytes.TrimLeftFunc(s, is)
		}
		if right {
			s = bytes.TrimRightFunc(s, is)
		}
		ctx.ResultText(string(s))
	}
}

// instrFunc returns the place of the second argument in the first, from 1, in
// bytes for two blobs and in characters otherwise; 0 when it is not there.
func instrFunc(ctx sqlite3.Context, args ...sqlite3.Value) {
	if anyNull(args) {
		ctx.ResultNull()
		return
	}
	if args[0].Type() == sqlite3.BLOB && args[1].Type() == sqlite3.BLOB {
		in := args[0].Blob(nil)
		ctx.ResultInt(bytes.Index(in, args[1].Blob(nil)) + 1)
		return
	}
	in := []byte(args[0].Text())
	i := bytes.Index(in, []byte(args[1].Text()))
	if i > 0 {
		i = utf8.RuneCount(in[:i])
	}
	ctx.ResultInt(i + 1)
}

func replaceFunc(ctx sqlite3.Context, args ...sqlite3.Value) {
	if anyNull(args[:2]) {
		ctx.ResultNull()
		return
	}
	in, old := []byte(args[0].Text()), []byte(args[1].Text())
	if len(old) == 0 { // whatever the third is
		ctx.ResultText(string(in))
		return
	}
	if anyNull(args) {
		ctx.ResultNull()
		return
	}
	by := []byte(args[2].Text())
	if len(in)+bytes.Count(in, old)*(len(by)-len(old)) > maxValue {
		ctx.ResultError(sqlite3.TOOBIG)
		return
	}
	ctx.ResultText(string(bytes.ReplaceAll(in, old, by)))
}
