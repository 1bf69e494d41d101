package policy

import (
	"strconv"

	"go.yaml.in/yaml/v3"
)

// FunctionBounds bound a tenant's deployed functions together.
type FunctionBounds struct {
	Count int  `json:"count" yaml:"count,omitempty"`
	Bytes Size `json:"bytes" yaml:"bytes,omitempty"`
}

// FunctionDefaults bound deployed functions where a profile says nothing.
func FunctionDefaults() FunctionBounds { return FunctionBounds{Count: 100, Bytes: 16 << 20} }

// maxFunctions is the largest number of functions that a policy can grant one
// tenant: each is a file.
const maxFunctions = 100_000

// functions reads the bounds of deployed functions.
func (r *reader) functions(n *yaml.Node, field string, b *FunctionBounds) {
	r.keys(n, field, map[string]keyFunc{
		"count": func(v *yaml.Node, path string) {
			if s, ok := r.text(v, path, "a number such as 100"); ok {
				c, err := strconv.Atoi(s)
				if err != nil || c < 1 || c > maxFunctions {
					r.fail(v, path, "is %s; want 1 to %d, or leave it out for the default", quote(s), maxFunctions)
					return
				}
				b.Count = c
			}
		},
		"bytes": func(v *yaml.Node, path string) {
			if s, ok := r.text(v, path, "a size such as 16MiB"); ok {
				size, err := ParseSize(s)
				if err != nil || size < 1 || size > 1<<40 {
					r.fail(v, path, "is %s; want a size from 1 to 1TiB, or leave it out for the default", quote(s))
					return
				}
				b.Bytes = size
			}
		},
	})
}

// functionDefaults completes the bounds and notes what the file does not say.
func (r *reader) functionDefaults(field string, b *FunctionBounds) {
	d := FunctionDefaults()
	if b.Count == 0 {
		b.Count = d.Count
		r.note(field+".count", strconv.Itoa(d.Count), 0)
	}
	if b.Bytes == 0 {
		b.Bytes = d.Bytes
		r.note(field+".bytes", d.Bytes.String(), 0)
	}
}
