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
	// Default is the type of the default export, Members its keys.
	Default string   `json:"default"`
	Members []string `json:"members"`
	// Result: it is about the value that the code returned.
	Result bool `json:"result"`
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
		return c.noExport(&t, false, nil)
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
	if e.File == "" && t.Result {
		c.atEntry(e)
	}
	e.Hint = c.hint(t, e)
	return e
}

// globals are the names that there are besides the language's own, for people
// who look for another.
var globals = []string{"console", "fetch", "Request", "Response", "Headers", "URL", "URLSearchParams", "AbortController", "AbortSignal", "Event",
	"EventTarget", "CustomEvent", "TextEncoder", "TextDecoder", "TextEncoderStream", "TextDecoderStream", "Blob", "File", "FormData", "ReadableStream", "WritableStream", "TransformStream",
	"DOMException", "crypto", "performance", "atob", "btoa", "structuredClone", "queueMicrotask", "setTimeout", "clearTimeout", "setInterval", "clearInterval"}

// elsewhere are globals that people expect and that need a Linux process.
var elsewhere = map[string]string{
	"require":        "there is no require: use import, and pass the source among the modules",
	"module":         "modules are ES modules: use export default",
	"exports":        "modules are ES modules: use export default",
	"process":        "there is no process; strings of the caller's are in env, and a step that needs Node.js runs in a jail",
	"Buffer":         "there is no Buffer: use Uint8Array, TextEncoder, TextDecoder, toBase64() and fromBase64()",
	"global":         "the global object is globalThis",
	"document":       "there is no document: this is not a browser",
	"localStorage":   "there is no localStorage: what shall last goes through a binding such as env.KV",
	"alert":          "there is no alert: console.log(…) writes a line",
	"print":          "there is no print: console.log(…) writes a line",
	"XMLHttpRequest": "there is no XMLHttpRequest: use fetch, where it is granted",
	"axios":          "there is no axios: use fetch, where it is granted",
	"__dirname":      "there are no files: use import, and pass the source among the modules",
	"fs":             "there are no files: use input and bindings, or run this step in a jail (\"needs\": [\"filesystem\"])",
	"window":         "there is no window: this is not a browser; the global object is globalThis",
	"self":           "the global object is globalThis",
	"Deno":           "this is not Deno; a step that needs files or processes runs in a jail",
	"Bun":            "this is not Bun; a step that needs files or processes runs in a jail",
	"env":            "env is the second parameter of the default export: function (input, env)",
	"input":          "input is the first parameter of the default export: function (input, env)",
}
