package schema

import (
	"fmt"
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxFuel is what one check may use: 1 for each schema that a value is held
	// against, more for patterns. It is some tenths of a second.
	maxFuel = 1_000_000
	// maxPattern is the longest pattern.
	maxPattern = 1 << 10
	// maxProgram is the largest program of a pattern, in instructions.
	maxProgram = 4000
	// patternFuel is how many steps of a pattern's program take one unit.
	patternFuel = 32
)

// outOfFuel is thrown in a check and caught by enough.
type outOfFuel struct{}

// fuel counts the work of a check down.
type fuel struct{ left int }

func (f *fuel) burn(n int) {
	if f.left -= n; f.left < 0 {
		panic(outOfFuel{})
	}
}

// enough fills up, does work, and tells whether that came to its end. The
// library knows no other way out of a check than this.
func (f *fuel) enough(work func()) (ok bool) {
	f.left = maxFuel
	defer func() {
		switch r := recover().(type) {
		case nil:
		case outOfFuel:
			ok = false
		default:
			panic(r)
		}
	}()
	work()
	return true
}

// A pattern is a regular expression that burns fuel.
type pattern struct {
	*regexp.Regexp
	size int
	fuel *fuel
}

// regexp implements jsonschema.RegexpEngine.
func (f *fuel) regexp(text string) (jsonschema.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("it has %d bytes, at most %d are taken", len(text), maxPattern)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("%w (as Go's regexp reads it: no look-ahead, no back-reference)", err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, err
	}
	if n := len(program.Inst); n > maxProgram {
		return nil, fmt.Errorf("its repetitions make a program of %d steps, at most %d are taken", n, maxProgram)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return &pattern{re, len(program.Inst), f}, nil
}

func (p *pattern) MatchString(s string) bool {
	p.fuel.burn(1 + len(s)*p.size/patternFuel)
	return p.Regexp.MatchString(s)
}
