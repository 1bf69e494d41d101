package isolate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	exportDefaultAt = regexp.MustCompile(`\bexport\s+default\b|\bexport\s*\{[^}]*\bas\s+default\b`)
	commonJS        = regexp.MustCompile(`(?m)^[ \t]*(module\.exports|exports\.[\w$]+)\s*=`)
	topFunction     = regexp.MustCompile(`(?m)^(?:export[ \t]+)?(?:async[ \t]+)?(?:function[ \t]*\*?[ \t]*([A-Za-z_$][\w$]*)|(?:const|let|var)[ \t]+([A-Za-z_$][\w$]*)[ \t]*=[ \t]*(?:async\b[ \t]*)?(?:function\b|\([^)\n]*\)[^=\n]*=>|[\w$]+[ \t]*=>))`)
)

// noExport is for a main module without a default export that can be called,
// which did nothing as a script, either, if that could be one; declared are the
// functions in it.
func (c *code) noExport(t *thrown, script bool, declared []string) *Error {
	src := c.req.Modules[c.req.Main]
	e := &Error{Kind: KindRejected, File: c.req.Main, Line: 1, Column: 1}
	e.Message = c.req.Main + " has no default export that is a function"
	if script {
		e.Message += ", and as a script it printed and returned nothing"
	}
	const want = "write `export default async function (input, env) { … }`"
	at := func(loc []int) {
		if loc != nil {
			e.Line, e.Column = place(src, loc[0])
		}
	}
	if loc := exportDefaultAt.FindStringIndex(src); loc != nil && t.Default != "" && t.Default != "undefined" {
		at(loc)
		e.Message = fmt.Sprintf("%s has no default export that is a function, but one that is %s", c.req.Main, article(t.Default))
		e.Hint = want
		if len(t.Members) > 0 {
			e.Hint = fmt.Sprintf("of an object only fetch(request, env, ctx) is called, and it has %s: %s", cut(strings.Join(t.Members, ", "), 200), want)
		}
		return e
	}
	switch {
	case pythonCode.MatchString(src):
		at(pythonCode.FindStringIndex(src))
		e.Hint = `this looks like Python: send "language": "python"`
	case commonJS.MatchString(src):
		at(commonJS.FindStringIndex(src))
		e.Hint = "modules are ES modules, without module.exports: " + want
	case topFunction.MatchString(src):
		loc := topFunction.FindStringSubmatchIndex(src)
		at(loc)
		name := ""
		for i := 2; i+1 < len(loc); i += 2 {
			if loc[i] >= 0 {
				name = src[loc[i]:loc[i+1]]
			}
		}
		e.Hint = fmt.Sprintf("%s is there, but is not the default export: add `export default %[1]s;`, or write `export default` before the function", name)
	default:
		e.Hint = want
	}
	if len(t.Exports) > 0 {
		e.Hint += "; it exports " + cut(strings.Join(t.Exports, ", "), 200)
	}
	if len(declared) > 0 {
		e.Hint += "; it declares " + cut(strings.Join(declared, ", "), 200)
	}
	return e
}

func article(kind string) string {
	if strings.ContainsRune("aeiou", rune(kind[0])) {
		return "an " + kind
	}
	return "a " + kind
}

// atEntry gives an error of the result the place of the default export: there
// is no other.
func (c *code) atEntry(e *Error) {
	src := c.req.Modules[c.req.Main]
	e.File, e.Line, e.Column = c.req.Main, 1, 1
	if loc := exportDefaultAt.FindStringIndex(src); loc != nil {
		e.Line, e.Column = place(src, loc[0])
	} else if loc := hasMain.FindStringIndex(src); loc != nil {
		e.Line, e.Column = place(src, loc[0])
	} else if skip := len(leading.FindString(src)); skip < len(src) {
		e.Line, e.Column = place(src, skip)
	}
}

// nodeModules are what Node.js modules are for that an isolate does not have,
// and what a step needs that uses them.
var nodeModules = map[string]string{
	"fs": "filesystem", "fs/promises": "filesystem", "path": "filesystem", "os": "process", "child_process": "process", "process": "process",
	"net": "process", "http": "process", "https": "process", "worker_threads": "process", "cluster": "process", "readline": "process", "tls": "process", "dns": "process",
}

// hintModule is for a module that is not there.
func (c *code) hintModule(spec string) string {
	var names []string
	for n := range c.req.Modules {
		names = append(names, "./"+n)
	}
	slices.Sort(names)
	if strings.HasPrefix(spec, ".") || strings.HasPrefix(spec, "/") {
		return didYouMean(nearest(spec, names)) + "the modules of this run are " + strings.Join(c.names(), ", ")
	}
	if needs, ok := nodeModules[strings.TrimPrefix(spec, "node:")]; ok {
		use := "input, env and bindings"
		if needs == "process" {
			use = "fetch and bindings"
		}
		return fmt.Sprintf(`an isolate has no Node.js modules: use %s, or run this step in a jail ("needs": [%q])`, use, needs)
	}
	return fmt.Sprintf(`the modules of this run are %s; an isolate has no packages and no Node.js modules: pass the source among the modules, or run this step in a jail ("needs": ["packages"])`,
		strings.Join(c.names(), ", "))
}
