package recording

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sandboxd/isolate"
)

// format is that of the files; another one cannot be read.
const format = 1

// A Recording is one run that can be run again.
type Recording struct {
	Format int
	Tenant string
	RunID  string
	Made   time.Time
	// Expires is when the recording is dropped.
	Expires time.Time
	// CodeSHA256 is what the run's record calls its code.
	CodeSHA256 string
	Identity   isolate.Identity
	// Request is what the engine was asked, with seed, clock, limits and the
	// methods that were granted.
	Request isolate.Request
	Calls   []Call // in the order of their numbers
	// Order has the numbers of the calls in the order of their answers.
	Order   []int
	Outcome Outcome
	// Incomplete says why the run cannot be had again, "" if it can.
	Incomplete string
}

// A Call is one host call of a recorded run.
type Call struct {
	Nth     int // from 1
	Binding string
	Method  string
	// ArgsSHA256 is of all the arguments, Args what may be shown of them.
	ArgsSHA256 string
	Args       string
	// Answer is JSON, or Failed the error's text. A call without either had no
	// answer when the run ended.
	Answer json.RawMessage
	Failed *string
}

func (c *Call) String() string {
	return fmt.Sprintf("%s.%s%s", c.Binding, c.Method, argumentsText(c.Args))
}

// argumentsText shows a JSON array as arguments.
func argumentsText(args string) string {
	if inner, ok := strings.CutPrefix(args, "["); ok {
		return "(" + strings.TrimSuffix(inner, "]") + ")"
	}
	return "(…)"
}

// maxShown is how much of a call's arguments is kept to be shown, in bytes.
const maxShown = 2 << 10

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// describe is a call as it is recorded.
func describe(c isolate.Call) Call {
	return Call{Nth: c.Nth, Binding: c.Binding, Method: c.Method, ArgsSHA256: hashOf(c.Args), Args: shown(c)}
}

// shown is the beginning of a call's arguments. Of a request that is to leave
// only what cannot hold a secret that the code was given: no header and no body.
func shown(c isolate.Call) string {
	args := []byte(c.Args)
	if c.Binding == "fetch" {
		var list []isolate.FetchRequest
		if json.Unmarshal(args, &list) != nil || len(list) != 1 {
			return ""
		}
		url, _, more := strings.Cut(list[0].URL, "?")
		if more {
			url += "?…"
		}
		var err error
		if args, err = json.Marshal([]string{list[0].Method, url}); err != nil {
			return ""
		}
	}
	if len(args) > maxShown {
		return string(bytes.ToValidUTF8(args[:maxShown], nil)) + "…"
	}
	return string(args)
}
