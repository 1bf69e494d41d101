package isolate

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"sandboxd/isolate/quickjs"
)

// A thrown is what the prelude tells of an exception.
type thrown struct {
	Kind    string   `json:"kind"`
	Name    string   `json:"name"`
	Message string   `json:"message"`
	Stack   string   `json:"stack"`
	Cause   string   `json:"cause"`
	Exports []string `json:"exports"`
}

// stackFrame is a line of a stack trace: "    at name (file:line:column)" or
// "    at file:line:column".
var stackFrame = regexp.MustCompile(`^(\s+at (?:.* \()?)([^():\s][^()]*?):(\d+)(?::(\d+))?(\)?)\s*$`)

const maxStackText = 16 << 10

// mapStack rewrites the frames of a trace to the user's files, leaves out those
// that are not the user's, and returns the first one's position.
func (c *code) mapStack(stack string) (text, file string, line, column int) {
	var out []string
	for _, l := range strings.Split(cut(stack, maxStackText), "\n") {
		if l == "" || strings.Contains(l, quickjs.PreludeFile) || strings.HasSuffix(l, "(native)") {
			continue
		}
		m := stackFrame.FindStringSubmatch(l)
		if m == nil {
			out = append(out, l)
			continue
		}
		ln, _ := strconv.Atoi(m[3])
		col, _ := strconv.Atoi(m[4])
		ln, col, ok := c.position(m[2], ln, col)
		if !ok {
			out = append(out, l)
			continue
		}
		if file == "" {
			file, line, column = m[2], ln, col
		}
		out = append(out, fmt.Sprintf("%s%s:%d:%d%s", m[1], m[2], ln, col, m[5]))
	}
	return strings.Join(out, "\n"), file, line, column
}

// mapText rewrites the frames in text that the code printed.
func (c *code) mapText(s string) string {
	if len(s) > maxStackText || !strings.Contains(s, "\n    at ") {
		return s
	}
	text, _, _, _ := c.mapStack(s)
	return text
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

const maxMessage = 4 << 10

// errorOf makes an Error of a description by the prelude.
func (c *code) errorOf(text string, kind string) *Error {
	var t thrown
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return &Error{Kind: kind, Message: "the code threw something that cannot be shown"}
	}
	e := &Error{Kind: kind}
	switch {
	case t.Kind == "no_export":
		e = c.noExport(nil)
		if len(t.Exports) > 0 {
			e.Hint += "; it exports " + cut(strings.Join(t.Exports, ", "), 200)
		}
		return e
	case t.Kind == "binding":
		e.Kind = KindBinding
		e.Message = t.Message
	case t.Name == "thrown":
		e.Message = "the code threw " + t.Message
	case t.Message == "":
		e.Message = t.Name
	default:
		e.Message = t.Name + ": " + t.Message
	}
	if t.Cause != "" {
		e.Message += " (cause: " + cut(t.Cause, 500) + ")"
	}
	e.Message = cut(strings.ToValidUTF8(e.Message, "\uFFFD"), maxMessage)
	e.Stack, e.File, e.Line, e.Column = c.mapStack(strings.ToValidUTF8(t.Stack, "\uFFFD"))
	e.Hint = c.hint(t)
	return e
}

// noExport says that there is nothing to run. declared are functions that there
// are.
func (c *code) noExport(declared []string) *Error {
	e := &Error{Kind: KindRejected, File: c.req.Main, Message: c.req.Main + " has no default export that is a function",
		Hint: "write `export default async function (input, env) { … }`"}
	if declared != nil {
		e.Message += ", and as a script it printed and returned nothing"
		e.Hint += "; it declares " + cut(strings.Join(declared, ", "), 200)
	}
	return e
}

var (
	notDefined = regexp.MustCompile(`^'?([A-Za-z_$][\w$]*)'? is not defined$`)
	ofNothing  = regexp.MustCompile(`^cannot read property '([^']*)' of (undefined|null)$`)
)

// elsewhere are globals that people expect and that need a Linux process.
var elsewhere = map[string]string{
	"require":        "there is no require: use import, and pass the source among the modules",
	"module":         "modules are ES modules: use export default",
	"exports":        "modules are ES modules: use export default",
	"process":        "there is no process; strings of the caller's are in env, and a step that needs Node.js runs in a jail",
	"Buffer":         "there is no Buffer: use Uint8Array, TextEncoder, TextDecoder, toBase64() and fromBase64()",
	"XMLHttpRequest": "there is no XMLHttpRequest: use fetch",
	"document":       "there is no document: this is not a browser",
	"window":         "there is no window: this is not a browser; the global object is globalThis",
	"Deno":           "this is not Deno; a step that needs files or processes runs in a jail",
	"Bun":            "this is not Bun; a step that needs files or processes runs in a jail",
	"env":            "env is the second parameter of the default export: function (input, env)",
	"input":          "input is the first parameter of the default export: function (input, env)",
}

// webGlobals are the web interfaces that there are.
const webGlobals = "fetch, Request, Response, Headers, FormData, Blob, File, URL, URLSearchParams, AbortController, AbortSignal, Event, EventTarget, CustomEvent, " +
	"ReadableStream, WritableStream, TransformStream, TextEncoder, TextDecoder, TextEncoderStream, TextDecoderStream, crypto, structuredClone, performance, atob, btoa and queueMicrotask"

// hint says what usually helps.
func (c *code) hint(t thrown) string {
	if m := notDefined.FindStringSubmatch(t.Message); m != nil && t.Name == "ReferenceError" {
		if h := elsewhere[m[1]]; h != "" {
			return h
		}
		for _, b := range c.req.Bindings {
			if b.Name == m[1] {
				return "the binding is env." + m[1] + ": env is the second parameter of the default export"
			}
		}
		return "beside the language there are console, timers, " + webGlobals
	}
	if m := ofNothing.FindStringSubmatch(t.Message); m != nil {
		return "what is granted to this run is " + c.grants()
	}
	return ""
}

func (c *code) grants() string {
	var names []string
	for _, b := range c.req.Bindings {
		names = append(names, "env."+b.Name)
	}
	if c.req.Fetch {
		names = append(names, "fetch")
	}
	if len(names) == 0 {
		return "nothing but console"
	}
	return strings.Join(names, ", ")
}
