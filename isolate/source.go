package isolate

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"sort"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// A unit is one module as the interpreter gets it.
type unit struct {
	text string
	// smap maps positions in text to the user's file; nil where they are the
	// same.
	smap *sourceMap
	// shift is what was put before the first line.
	shift int
}

// code is the modules of one run.
type code struct {
	req   *Request
	units map[string]*unit
	// prepared is what a compiler made of the TypeScript; nil means that it is
	// done here.
	prepared map[string]*compiled
	// evaluated: the interpreter has all modules already, and asks for none.
	evaluated bool
	// rejected is why a module could not be given to the interpreter.
	rejected *Error
}

func newCode(req *Request, prepared map[string]*compiled) *code {
	return &code{req: req, units: map[string]*unit{}, prepared: prepared}
}

const exportDefault = "export default "

var (
	hasExport = regexp.MustCompile(`(?m)(^|[;}])\s*export\s*(default\b|\{|\*|async\b|function\b|const\b|let\b|var\b|class\b)`)
	// A source that is one function expression, as models write tools.
	isArrow    = regexp.MustCompile(`^(async\b\s*)?(\(|[A-Za-z_$][\w$]*\s*=>)`)
	isFunction = regexp.MustCompile(`^(async\s+)?function\s*\*?\s*\(`)
	// What must stand at the top of a module, and what a script declares.
	topOnly  = regexp.MustCompile(`(?m)^\s*(import\s*[\w{*"']|declare\s|namespace\s|module\s+[\w"'])`)
	declares = regexp.MustCompile(`(?m)^(?:(?:async\s+)?function\s*\*?\s*([A-Za-z_$][\w$]*)|class\s+([A-Za-z_$][\w$]*)|(?:const|let|var)\s+([A-Za-z_$][\w$]*)\s*=\s*(?:async\b\s*)?(?:function\b|\([^()]*\)\s*=>|[A-Za-z_$][\w$]*\s*=>))`)
	hasMain  = regexp.MustCompile(`(?m)^(async\s+)?function\s+main\s*[(<]`)
	leading  = regexp.MustCompile(`^(\s+|//[^\n]*(\n|$)|/\*(?s:.*?)\*/)+`)
	fence    = regexp.MustCompile("^\\s*```[A-Za-z]*[ \t]*\r?\n")
)

// The frame of a plain script: it may await and return, and declare an input and
// an env of its own.
const (
	scriptHead = exportDefault + "async function (input, env) {{ "
	scriptTail = "\n}}"
)

// entry prepares the main module: a Markdown fence is taken off, and a bare
// function or a plain script becomes the default export. Line numbers stay.
func entry(src string) (text string, shift int) {
	if m := fence.FindString(src); m != "" {
		if body, ok := strings.CutSuffix(strings.TrimRight(src, " \t\r\n"), "```"); ok {
			src = strings.Repeat("\n", strings.Count(m, "\n")) + body[len(m):]
		}
	}
	if hasExport.MatchString(src) {
		return src, 0
	}
	skip := len(leading.FindString(src))
	rest := src[skip:]
	if isArrow.MatchString(rest) || isFunction.MatchString(rest) {
		if !strings.Contains(src[:skip], "\n") {
			shift = len(exportDefault)
		}
		return src[:skip] + exportDefault + rest, shift
	}
	if hasMain.MatchString(src) {
		return src + "\nexport { main as default };\n", 0
	}
	if strings.TrimSpace(rest) == "" || topOnly.MatchString(src) {
		return src, 0
	}
	return scriptHead + src + scriptTail, len(scriptHead)
}

// forgotten are the functions that a script declares, which did nothing: most
// likely one of them should have been exported.
func (c *code) forgotten() (names []string) {
	src := c.req.Modules[c.req.Main]
	if text, _ := entry(src); !strings.HasPrefix(text, scriptHead) {
		return nil
	}
	for _, m := range declares.FindAllStringSubmatch(src, -1) {
		names = append(names, m[1]+m[2]+m[3])
	}
	return names
}

// load gives a module by its name among Request.Modules.
func (c *code) load(name string) (*unit, *Error) {
	if u := c.units[name]; u != nil {
		return u, nil
	}
	src, ok := c.req.Modules[name]
	if !ok {
		return nil, &Error{Kind: KindRejected, Message: fmt.Sprintf("module %q is not among the modules", name)}
	}
	if p := c.prepared[name]; p != nil {
		u, err := p.unit()
		if err == nil {
			c.units[name] = u
		}
		return u, err
	}
	u := &unit{text: src}
	if name == c.req.Main {
		u.text, u.shift = entry(src)
	}
	switch c.kind(name) {
	case "json":
		if !json.Valid([]byte(src)) {
			return nil, &Error{Kind: KindRejected, File: name, Message: name + " is not JSON"}
		}
		u.text, u.shift = exportDefault+src, len(exportDefault)
	case "ts":
		if err := transform(name, u); err != nil {
			return nil, err
		}
	}
	c.units[name] = u
	return u, nil
}

// kind tells how a module is read: by its extension, the main one else by the
// language of the request.
func (c *code) kind(name string) string {
	switch path.Ext(name) {
	case ".ts", ".mts", ".cts":
		return "ts"
	case ".js", ".mjs":
		return "js"
	case ".json":
		return "json"
	}
	return c.req.Language
}

// transform makes JavaScript of TypeScript.
func transform(name string, u *unit) *Error {
	r := api.Transform(u.text, api.TransformOptions{
		Loader:     api.LoaderTS,
		Sourcefile: name,
		Sourcemap:  api.SourceMapExternal,
		// The user's text is at hand; it need not travel in the map.
		SourcesContent: api.SourcesContentExclude,
		Target:         api.ES2023,
		LogLevel:       api.LogLevelSilent,
		LogLimit:       1,
		Charset:        api.CharsetUTF8,
		TsconfigRaw:    `{"compilerOptions":{"target":"ES2023","useDefineForClassFields":true}}`,
	})
	if len(r.Errors) > 0 {
		m := r.Errors[0]
		e := &Error{Kind: KindRejected, File: name, Message: "SyntaxError: " + m.Text}
		if l := m.Location; l != nil {
			e.Line, e.Column = l.Line, l.Column+1
			if l.Line == 1 {
				e.Column -= u.shift
			}
		}
		return e
	}
	smap, err := parseSourceMap(r.Map)
	if err != nil {
		return &Error{Kind: KindRejected, File: name, Message: "its source map cannot be read: " + err.Error()}
	}
	u.text, u.smap = string(r.Code), smap
	return nil
}

// extensions are tried in this order where a specifier has none.
var extensions = []string{"", ".ts", ".mts", ".js", ".mjs", ".json", "/index.ts", "/index.js"}

// resolve finds the module that a specifier in base means.
func (c *code) resolve(base, spec string) (string, error) {
	name := spec
	switch {
	case strings.HasPrefix(spec, "./") || strings.HasPrefix(spec, "../"):
		name = path.Join(path.Dir(base), spec)
	case strings.HasPrefix(spec, "/"):
		name = path.Clean(spec)[1:]
	}
	for _, ext := range extensions {
		if _, ok := c.req.Modules[name+ext]; ok {
			return name + ext, nil
		}
	}
	// TypeScript is written with the extension that the output would have.
	for from, to := range map[string]string{".js": ".ts", ".mjs": ".mts"} {
		if stem, ok := strings.CutSuffix(name, from); ok {
			if _, ok := c.req.Modules[stem+to]; ok {
				return stem + to, nil
			}
		}
	}
	e := &Error{Kind: KindRejected, File: base, Message: fmt.Sprintf("cannot find module %q, imported by %s", spec, base)}
	e.Line, e.Column = c.locate(base, spec)
	e.Hint = c.hintModule(spec)
	c.rejected = e
	return "", e
}

func (c *code) names() []string {
	var names []string
	for n := range c.req.Modules {
		names = append(names, n)
	}
	sort.Strings(names)
	if len(names) > 10 {
		names = append(names[:10], "…")
	}
	return names
}

// locate finds where a specifier is written.
func (c *code) locate(base, spec string) (line, column int) {
	src := c.req.Modules[base]
	for _, q := range []string{`"`, `'`} {
		if i := strings.Index(src, q+spec+q); i >= 0 {
			return strings.Count(src[:i], "\n") + 1, i - strings.LastIndexByte(src[:i], '\n')
		}
	}
	return 0, 0
}

// position maps a position in what the interpreter got to the user's file.
func (c *code) position(file string, line, column int) (int, int, bool) {
	u := c.units[file]
	if u == nil && c.evaluated {
		u, _ = c.load(file) // nil for what is not a module
	}
	if u == nil {
		_, ok := c.req.Modules[file]
		return line, column, ok
	}
	if u.smap != nil {
		line, column = u.smap.find(line, column)
	}
	if line == 1 {
		column = max(1, column-u.shift)
	}
	// What is missing at the end of a script is found beyond it.
	if last := strings.Count(c.req.Modules[file], "\n") + 1; line > last {
		line, column = last, len(c.req.Modules[file])-strings.LastIndexByte(c.req.Modules[file], '\n')
	}
	return line, column, true
}
