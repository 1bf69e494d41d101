package isolate

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A mistake is what a hint is made from.
type mistake struct {
	thrown
	err  *Error
	line string // of the user's source, "" if not known
	rest string // of line, from the column on
	head string // of line, before the column
}

func (c *code) mistake(t thrown, e *Error) *mistake {
	m := &mistake{thrown: t, err: e, line: sourceLine(c.req, e.File, e.Line)}
	if i := e.Column - 1; i >= 0 && i <= len(m.line) {
		m.head, m.rest = m.line[:i], m.line[i:]
	}
	return m
}

// maxSourceLine is how much of a line is shown.
const maxSourceLine = 300

// sourceLine is a line of the user's own file.
func sourceLine(req *Request, file string, line int) string {
	src, ok := req.Modules[file]
	if !ok || line < 1 {
		return ""
	}
	for range line - 1 {
		i := strings.IndexByte(src, '\n')
		if i < 0 {
			return ""
		}
		src = src[i+1:]
	}
	src, _, _ = strings.Cut(src, "\n")
	return strings.TrimRight(src, "\r")
}

// addSource shows the line that an error is about.
func (e *Error) addSource(req *Request) {
	if e != nil && e.Source == "" {
		e.Source = cut(strings.ToValidUTF8(sourceLine(req, e.File, e.Line), "\uFFFD"), maxSourceLine)
	}
}

// place is a position in text, as line and column from 1.
func place(text string, offset int) (line, column int) {
	before := text[:offset]
	return strings.Count(before, "\n") + 1, offset - strings.LastIndexByte(before, '\n')
}

// nearest is the name that was probably meant, "" if none is near.
func nearest(name string, names []string) string {
	best, least := "", max(1, len(name)/3)+1
	for _, n := range names {
		if strings.EqualFold(n, name) && n != name {
			return n
		}
		if d := distance(strings.ToLower(name), strings.ToLower(n)); d > 0 && d < least {
			best, least = n, d
		}
	}
	return best
}

// distance counts the letters to add, remove, replace or swap.
func distance(a, b string) int {
	const most = 64
	if len(a) > most || len(b) > most {
		return most
	}
	var before, row [most + 1]int
	last := row
	for j := range len(b) + 1 {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		last, before = before, row
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(before[j]+1, row[j-1]+1, before[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], last[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return "did you mean " + name + "? "
}

var (
	notDefined     = regexp.MustCompile(`^'?([A-Za-z_$][\w$]*)'? is not defined$`)
	ofNothing      = regexp.MustCompile(`^cannot (?:read|set) property '([^']*)' of (undefined|null)$`)
	noMethod       = regexp.MustCompile(`^env\.(\w+) has no method (\w+);`)
	readOnly       = regexp.MustCompile(`^'?([A-Za-z_$][\w$]*)'? is read-only$`)
	notInitialized = regexp.MustCompile(`^'?([A-Za-z_$][\w$]*)'? is not initialized$`)

	chain      = regexp.MustCompile(`^[A-Za-z_$][\w$]*(?:\??\.[A-Za-z_$][\w$]*)*`)
	memberCall = regexp.MustCompile(`^\??\.?([A-Za-z_$][\w$]*)\s*\(`)
	lastName   = regexp.MustCompile(`([A-Za-z_$][\w$]*)$`)
	// A call that gives a promise, with what is before it on its line.
	unawaited  = regexp.MustCompile(`(^|[^\w$.])(await\s+|return\s+)?((?:env\.[\w$]+\.[\w$]+|fetch)\()`)
	parameters = regexp.MustCompile(`export\s+default\s+(?:async\b\s*)?(?:function\b\s*\w*\s*)?\(?\s*([A-Za-z_$][\w$]*)?\s*(?:,\s*([A-Za-z_$][\w$]*))?`)

	pythonCode     = regexp.MustCompile(`(?m)^\s*(?:(?:async\s+)?def\s+\w+\s*\(.*\)\s*(?:->.*)?:|from\s+[\w.]+\s+import\s|import\s+[\w., ]+$|elif\s.*:$)`)
	typeScriptCode = regexp.MustCompile(`(?m)^\s*(?:export\s+)?(?:interface|type)\s+\w+|[\w)\]]\??\s*:\s*(?:string|number|boolean|any|unknown|void|Promise<|Record<)`)
)

// hint says what usually helps against a mistake in JavaScript.
func (c *code) hint(t thrown, e *Error) string {
	m := c.mistake(t, e)
	switch t.Name {
	case "ReferenceError":
		return c.hintName(m)
	case "SyntaxError":
		return c.hintSyntax(m)
	case "TypeError":
		return c.hintType(m)
	}
	return ""
}

// hintName is for a name that does not exist.
func (c *code) hintName(m *mistake) string {
	if x := notInitialized.FindStringSubmatch(m.Message); x != nil {
		return x[1] + " is used before the line that declares it with let, const or class"
	}
	x := notDefined.FindStringSubmatch(m.Message)
	if x == nil {
		return ""
	}
	name := x[1]
	if h := elsewhere[name]; h != "" {
		return h
	}
	for _, b := range c.req.Bindings {
		if strings.EqualFold(b.Name, name) {
			return "the binding is env." + b.Name + ": env is the second parameter of the default export"
		}
	}
	if _, ok := c.req.Env[name]; ok {
		return "the string is env." + name + ": env is the second parameter of the default export"
	}
	names := append(slices.Clone(globals), declared(c.req.Modules[m.err.File])...)
	return didYouMean(nearest(name, names)) + "beside the language there are " + strings.Join(globals, ", ")
}

var declaration = regexp.MustCompile(`\b(?:const|let|var|function|class|import)\s+\*?\s*([A-Za-z_$][\w$]*)`)

// declared are names that a source declares somewhere.
func declared(src string) []string {
	const most = 500
	var names []string
	for _, m := range declaration.FindAllStringSubmatch(src, most) {
		names = append(names, m[1])
	}
	return names
}

func (c *code) hintSyntax(m *mistake) string {
	src := c.req.Modules[m.err.File]
	switch {
	case strings.Contains(m.Message, "unexpected token: '"), strings.Contains(m.Message, "JSON"):
		if h := awaitHint(m.line); h != "" && strings.Contains(m.line, "JSON.parse") {
			return h
		}
		if strings.Contains(m.line, "JSON.parse") {
			return "JSON.parse takes JSON text; what bindings give is a value already"
		}
	case strings.Contains(m.Message, "return not in a function"):
		return "return stands outside of a function: put the code into `export default async function (input, env) { … }`"
	}
	switch {
	case m.err.Kind != KindRejected:
	case pythonCode.MatchString(src):
		return `this looks like Python: send "language": "python"`
	case strings.Contains(m.Message, "'await'"):
		return "await stands in a function that is not async: write async before that function"
	case c.req.Language == "js" && typeScriptCode.MatchString(m.line):
		return `this looks like TypeScript: send "language": "ts"`
	case strings.Contains(strings.ToLower(m.Message), "end of"):
		return "a bracket, quote or comment that was opened before is not closed"
	}
	return ""
}

func (c *code) hintType(m *mistake) string {
	if x := noMethod.FindStringSubmatch(m.Message); x != nil {
		for _, b := range c.req.Bindings {
			if b.Name == x[1] {
				if n := nearest(x[2], b.Methods); n != "" {
					return "did you mean env." + b.Name + "." + n + "?"
				}
			}
		}
		return "the request may ask for fewer methods than the policy grants; the policy lists what there can be"
	}
	if x := readOnly.FindStringSubmatch(m.Message); x != nil {
		return x[1] + " is a const: declare it with let to change it"
	}
	if x := ofNothing.FindStringSubmatch(m.Message); x != nil {
		return c.hintNothing(m, x[1], x[2])
	}
	if strings.HasSuffix(m.Message, "not a function") {
		return c.hintNotFunction(m)
	}
	if strings.HasSuffix(m.Message, "is not iterable") {
		if h := awaitHint(m.line); h != "" {
			return h
		}
		return "only arrays, strings, Map, Set and the like can be looped over or spread: Object.entries(…) makes an array of an object"
	}
	return ""
}

// hintNothing is for a member that is taken of undefined or null.
func (c *code) hintNothing(m *mistake, member, nothing string) string {
	// What is before the member; more of them may follow it.
	base, _, _ := strings.Cut(strings.ReplaceAll(chain.FindString(m.rest), "?.", ".")+".", "."+member+".")
	base = strings.TrimSuffix(base, ".")
	first, second := c.mainParameters()
	switch {
	case strings.HasPrefix(base, second+".") && strings.Count(base, ".") == 1:
		return c.hintNotGranted(strings.TrimPrefix(base, second+"."))
	case base == first && (len(c.req.Input) == 0 || bytes.Equal(c.req.Input, []byte("null"))):
		return base + " is null: the request came without \"input\""
	case strings.HasPrefix(base, first+"."):
		return fmt.Sprintf("%s is %s: the input of this run does not have it", base, nothing)
	case base == second:
		return "env is the second parameter of the default export: function (input, env)"
	case member == "then" || member == "catch":
		return "what stands before ." + member + " is no promise but " + nothing + ": does the function that was called return one?"
	case base == "ctx":
		return "there is a third parameter, ctx, only for fetch(request, env, ctx) in `export default { fetch }`"
	case base != "":
		return fmt.Sprintf("%s is %s here; what is granted to this run is %s", base, nothing, c.grants())
	}
	return "what is granted to this run is " + c.grants()
}

// mainParameters are the names of the default export's parameters.
func (c *code) mainParameters() (first, second string) {
	first, second = "input", "env"
	if x := parameters.FindStringSubmatch(c.req.Modules[c.req.Main]); x != nil {
		if x[1] != "" && x[1] != "async" && x[1] != "function" {
			first = x[1]
		}
		if x[2] != "" {
			second = x[2]
		}
	}
	return first, second
}

// hintNotGranted is for a binding that the run does not hold.
func (c *code) hintNotGranted(name string) string {
	var names []string
	for _, b := range c.req.Bindings {
		names = append(names, b.Name)
	}
	for n := range c.req.Env {
		names = append(names, n)
	}
	slices.Sort(names)
	near := nearest(name, names)
	if near != "" {
		near = "env." + near
	}
	return fmt.Sprintf(`env.%s is not granted to this run: %swhat is granted to this run is %s; the request asks for bindings in "bindings", and the tenant's policy has to grant them`,
		name, didYouMean(near), c.grants())
}

// hintNotFunction is for a call of what is none. The engine's column is where
// the member's name begins.
func (c *code) hintNotFunction(m *mistake) string {
	_, env := c.mainParameters()
	base := lastName.FindString(m.head)
	if x := memberCall.FindStringSubmatch(m.rest); x != nil {
		if base == env {
			for _, b := range c.req.Bindings {
				if b.Name == x[1] {
					return fmt.Sprintf("env.%s has methods: %s", b.Name, strings.Join(b.Methods, ", "))
				}
			}
		}
		if base != "" && promised(c.req.Modules[m.err.File], base) {
			return fmt.Sprintf("%s is a promise: write await before the call that it comes from", base)
		}
		if strings.HasSuffix(strings.TrimSpace(m.head), ")") {
			if h := awaitHint(m.head); h != "" {
				return h
			}
		}
		if base != "" {
			return fmt.Sprintf("%s has no function %s: look at what it holds with console.log(%[1]s)", base, x[1])
		}
	}
	return ""
}

// promised tells whether a variable was given the promise of a call.
func promised(src, name string) bool {
	// name is an identifier; a dollar sign is all there is to escape.
	re, err := regexp.Compile(`\b(?:const|let|var)\s+` + regexp.QuoteMeta(name) + `\s*=\s*(?:env\.[\w$]+\.[\w$]+|fetch)\(`)
	return err == nil && re.MatchString(src)
}

// awaitHint names a call in line whose promise nobody awaits.
func awaitHint(line string) string {
	for _, x := range unawaited.FindAllStringSubmatch(line, 20) {
		if !strings.HasPrefix(x[2], "await") {
			return fmt.Sprintf("%s…) gives a promise: write await before it, in an async function", x[3])
		}
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
