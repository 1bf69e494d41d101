package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A reader walks the YAML tree and gathers every fault instead of stopping at
// the first, so that an operator mends a file in one go. It walks nodes, not
// structs: only so does each fault know its line, and each value its origin.
type reader struct {
	file     string
	accounts accounts
	errs     ParseErrors
	origins  []origin
}

// An origin is where a value of the effective policy stands in the file.
type origin struct {
	field, value string
	line         int
}

// maxFaults ends a report on a file that is something else altogether.
const maxFaults = 100

func (r *reader) fail(n *yaml.Node, field, format string, args ...any) {
	if len(r.errs) < maxFaults {
		r.errs = append(r.errs, &ParseError{
			File: r.file, Line: n.Line, Column: n.Column, Field: field,
			Message: fmt.Sprintf(format, args...),
		})
	}
}

// A keyFunc reads the value of one key; field is the value's path.
type keyFunc func(v *yaml.Node, field string)

// keys reads a mapping whose keys are fixed.
func (r *reader) keys(n *yaml.Node, field string, known map[string]keyFunc) {
	r.entries(n, field, func(k, v *yaml.Node, path string) {
		f, ok := known[k.Value]
		if !ok {
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			r.fail(k, path, "is not a key here; possible: %s", strings.Join(names, ", "))
			return
		}
		f(v, path)
	})
}

// entries reads a mapping whose keys are names.
func (r *reader) entries(n *yaml.Node, field string, each func(k, v *yaml.Node, path string)) {
	if !r.kind(n, field, yaml.MappingNode, "keys and values (key: value)") {
		return
	}
	first := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge" {
			r.fail(k, field, "has a key that is not plain text; write each key out")
			continue
		}
		path := join(field, k.Value)
		if line, ok := first[k.Value]; ok {
			r.fail(k, path, "is set twice; it is already on line %d", line)
			continue
		}
		first[k.Value] = k.Line
		each(k, v, path)
	}
}

// list reads a sequence.
func (r *reader) list(n *yaml.Node, field string, each func(v *yaml.Node, path string)) {
	if !r.kind(n, field, yaml.SequenceNode, "a list ([a, b] or lines that start with -)") {
		return
	}
	if len(n.Content) == 0 {
		r.fail(n, field, "is an empty list; leave it out or name something")
	}
	for i, v := range n.Content {
		each(v, field+"["+strconv.Itoa(i)+"]")
	}
}

// kind refuses another kind of node than the wanted one.
func (r *reader) kind(n *yaml.Node, field string, want yaml.Kind, words string) bool {
	switch {
	case n.Anchor != "" || n.Kind == yaml.AliasNode:
		r.fail(n, field, "uses a YAML anchor or alias (& or *); write the value out, so that each grant stands where it is read")
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		r.fail(n, field, "has no value; want %s", words)
	case n.Kind != want:
		r.fail(n, field, "is %s; want %s", kindWords(n), words)
	default:
		return true
	}
	return false
}

func kindWords(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.SequenceNode:
		return "a list"
	default:
		return quote(n.Value)
	}
}

// text reads any plain scalar by its literal text and notes its origin.
func (r *reader) text(n *yaml.Node, field, words string) (string, bool) {
	if !r.kind(n, field, yaml.ScalarNode, words) {
		return "", false
	}
	if strings.ContainsRune(n.Value, 0) {
		r.fail(n, field, "holds a NUL character")
		return "", false
	}
	r.note(field, n.Value, n.Line)
	return n.Value, true
}

func (r *reader) note(field, value string, line int) {
	r.origins = append(r.origins, origin{field, value, line})
}

// boolean reads true or false.
func (r *reader) boolean(dst *bool) keyFunc {
	return func(n *yaml.Node, field string) {
		s, ok := r.text(n, field, "true or false")
		if !ok {
			return
		}
		// The tag keeps the text "true" (in quotes) apart from the value.
		if n.ShortTag() != "!!bool" || s != "true" && s != "false" {
			r.fail(n, field, "is %s; want true or false", quote(s))
			return
		}
		*dst = s == "true"
	}
}

// word reads a scalar that check accepts; check says what is wrong.
func (r *reader) word(dst *string, words string, check func(string) error) keyFunc {
	return func(n *yaml.Node, field string) {
		s, ok := r.text(n, field, words)
		if !ok {
			return
		}
		if err := check(s); err != nil {
			r.fail(n, field, "%v", err)
			return
		}
		*dst = s
	}
}

// words reads a list of scalars that check accepts, without repetition.
func (r *reader) words(dst *[]string, words string, check func(string) error) keyFunc {
	return func(n *yaml.Node, field string) {
		r.list(n, field, func(v *yaml.Node, path string) {
			var s string
			if r.word(&s, words, check)(v, path); s == "" {
				return
			}
			if slices.Contains(*dst, s) {
				r.fail(v, path, "names %s a second time", quote(s))
				return
			}
			*dst = append(*dst, s)
		})
	}
}

// id reads a uid or gid.
func (r *reader) id(dst **uint32) keyFunc {
	return func(n *yaml.Node, field string) {
		const words = "a number from 0 to 4294967294"
		s, ok := r.text(n, field, words)
		if !ok {
			return
		}
		v, err := strconv.ParseUint(s, 10, 32)
		// The largest value means "no id" to the kernel.
		if err != nil || v == 1<<32-1 || !digits(s) {
			r.fail(n, field, "is %s; want %s", quote(s), words)
			return
		}
		id := uint32(v)
		*dst = &id
	}
}

// join extends a path; a key that is not a plain word is quoted, since it may
// be hostile or just long.
func join(field, key string) string {
	for i := range len(key) {
		c := key[i]
		if !lowerAlnum(c) && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("._-*", rune(c)) || i == 64 {
			key = quote(key)
			break
		}
	}
	if field == "" {
		return key
	}
	return field + "." + key
}
