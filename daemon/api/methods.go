package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// maxMethods is how many methods a binding may be asked for.
const maxMethods = 256

// Methods of a binding that a run asks for. In JSON it is a list of names, or
// an object of names with their schemas.
type Methods struct {
	// Names are the methods; the run holds no other.
	Names []string
	// Schemas of methods hold beside those of the policy; nil for a list.
	Schemas map[string]MethodRequest
}

// MethodRequest is what a run's own caller says of one of its tools.
type MethodRequest struct {
	Description string          `json:"description,omitempty" max:"4096"`
	Args        json.RawMessage `json:"args,omitempty" doc:"JSON Schema of the argument, or of the array of arguments if it describes an array."`
	Result      json.RawMessage `json:"result,omitempty" doc:"JSON Schema of the answer."`
}

// MethodList asks for methods by their names.
func MethodList(names ...string) *Methods { return &Methods{Names: names} }

// MarshalJSON writes the form that it was read from.
func (m *Methods) MarshalJSON() ([]byte, error) {
	if m.Schemas != nil {
		return json.Marshal(m.Schemas)
	}
	return json.Marshal(append([]string{}, m.Names...))
}

// UnmarshalJSON reads a list of names or an object. Errors are *Error with the
// path inside the value.
func (m *Methods) UnmarshalJSON(b []byte) error {
	*m = Methods{}
	switch b = bytes.TrimSpace(b); {
	case bytes.HasPrefix(b, []byte("[")):
		if err := Decode(b, &m.Names); err != nil {
			return err
		}
	case bytes.HasPrefix(b, []byte("{")):
		if err := Decode(b, &m.Schemas); err != nil {
			return err
		}
		m.Names = slices.Sorted(maps.Keys(m.Schemas))
	default:
		return errors.New("must be an array of names, or an object of names and schemas")
	}
	if len(m.Names) > maxMethods {
		return fmt.Errorf("has more than %d entries", maxMethods)
	}
	return nil
}
