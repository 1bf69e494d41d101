package js

import (
	"embed"
	"strings"
)

//go:embed *.js
var files embed.FS

// closure are the parts of the function that is called with `host`, in the order
// of their evaluation.
var closure = []string{
	"base.js", "entry.js", "function.js", "bindings.js", "json.js", "console.js", "timers.js",
	"url.js", "encoding.js", "events.js", "abort.js", "performance.js", "crypto.js",
	"streams.js", "blob.js", "headers.js", "body.js", "fetch.js", "clone.js",
}

// entries are the functions that the host calls, in the order of package
// isolate's numbers.
const entries = "start, settle, fire, describe, prepare, resume"

// Source is the prelude: its value is the function that takes `host` and gives
// the entries. streams is the polyfill of the streams, a CommonJS module.
func Source(streams string) string {
	var b strings.Builder
	// The polyfill stands outside of what sees host.
	b.WriteString("(function () {\nconst streams = {};\n(function (exports, module) {\n" + streams + "\n})(streams, {});\n")
	b.WriteString("return function (host) {\n'use strict';\n")
	for _, name := range closure {
		text, err := files.ReadFile(name)
		if err != nil {
			panic(err) // the list above names a file that is not embedded
		}
		b.Write(text)
	}
	b.WriteString("return [" + entries + "];\n};\n})()\n")
	return b.String()
}
