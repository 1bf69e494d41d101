package schema

import (
	"encoding/json"
	"errors"
	"fmt"
)

// maxNumber is the longest number in characters. JavaScript's have 24 at most;
// an exponent of millions would make the library compute with millions of
// digits.
const (
	maxNumber   = 400
	maxExponent = 4 // characters, with its sign
)

var errNumber = errors.New("holds a number that is too long")

// scan refuses what is costly to read, before it is read: text that is not
// JSON, too many values, too deep ones, numbers that are too long. keys is how
// many keys all objects have.
func scan(text json.RawMessage, most int) (keys int, err error) {
	if !json.Valid(text) {
		return 0, errors.New("must be JSON")
	}
	values, depth := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '{', '[':
			if depth++; depth > maxDepth {
				return 0, fmt.Errorf("is nested deeper than %d levels", maxDepth)
			}
			values++
		case '}', ']':
			depth--
		case ',':
			values++
		case ':':
			keys++
		case '"':
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			n := number(text[i:])
			if n < 0 {
				return 0, errNumber
			}
			i += n - 1
		}
		if values > most {
			return 0, fmt.Errorf("consists of more than %d values", most)
		}
	}
	return keys, nil
}

// keysOf is how many keys the objects in v have, of those that occur twice one.
func keysOf(v any) int {
	n := 0
	switch v := v.(type) {
	case map[string]any:
		n = len(v)
		for _, e := range v {
			n += keysOf(e)
		}
	case []any:
		for _, e := range v {
			n += keysOf(e)
		}
	}
	return n
}

// number is the length of the number that text begins with, -1 if it is too
// long.
func number(text []byte) int {
	exponent := -1
	n := 0
	for ; n < len(text); n++ {
		switch c := text[n]; {
		case c == 'e' || c == 'E':
			exponent = n
		case c != '-' && c != '+' && c != '.' && (c < '0' || c > '9'):
			return n
		case n >= maxNumber || exponent >= 0 && n-exponent > maxExponent:
			return -1
		}
	}
	return n
}
