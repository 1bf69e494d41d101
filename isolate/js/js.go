package js

import (
	"embed"
	"strings"
)

//go:embed *.js
var files embed.FS

// outside are the scripts that come first and never see `host`.
var outside = []string{"url.js"}

// closure are the parts of the function that is called with `host`, in the order
// of their evaluation.
var closure = []string{"base.js", "entry.js", "bindings.js", "json.js", "console.js", "timers.js", "encoding.js", "crypto.js", "abort.js", "fetch.js"}

// entries are the functions that the host calls, in the order of package
// isolate's numbers.
const entries = "start, settle, fire, describe"

// Source is the prelude: its value is the function that takes `host` and gives
// the entries.
func Source() string {
	var b strings.Builder
	for _, name := range outside {
		b.WriteString(read(name))
	}
	b.WriteString("(function (host) {\n'use strict';\n")
	for _, name := range closure {
		b.WriteString(read(name))
	}
	b.WriteString("return [" + entries + "];\n});\n")
	return b.String()
}

func read(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // a list above names a file that is not embedded
	}
	return string(text) + "\n"
}
