package schema

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func compile(t *testing.T, text string) *Schema {
	t.Helper()
	s, err := Compile(json.RawMessage(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

func TestCheck(t *testing.T) {
	const search = `{"type":"object","required":["q"],"additionalProperties":false,"properties":{
		"q":{"type":"string","minLength":1},"limit":{"type":"integer","minimum":1,"maximum":100},
		"tags":{"type":"array","items":{"type":"string","pattern":"^[a-z]+$"}},"when":{"type":"string","format":"date-time"},
		"kind":{"enum":["a","b"]},"data":{"$ref":"sandboxd:bytes"}}}`
	for _, tt := range []struct{ schema, value, want string }{
		{search, `{"q":"x","limit":3,"tags":["a"],"when":"2026-01-02T15:04:05Z","kind":"a","data":{"$bytes":"AAE="}}`, ""},
		{search, `{"limit":3}`, `lacks "q"`},
		{search, `{"q":"x","limit":"ten"}`, `.limit is the string "ten"; must be an integer`},
		{search, `{"q":"x","limit":0}`, `.limit is the number 0; minimum`},
		{search, `{"q":"x","limit":2.5}`, `.limit is the number 2.5; must be an integer`},
		{search, `{"q":"x","tags":["a","B"]}`, `.tags[1] is the string "B"; must match "^[a-z]+$"`},
		{search, `{"q":"x","when":"yesterday"}`, `.when is the string "yesterday"; must be a date-time`},
		{search, `{"q":"x","kind":"c"}`, `.kind is the string "c"; value must be one of 'a', 'b'`},
		{search, `{"q":"x","data":"AAE="}`, `.data is the string "AAE="; must be an object`},
		{search, `{"q":"x","more":1}`, `has "more", which the schema does not know`},
		{search, `[]`, `is an array of 0; must be an object`},
		{search, `{"q":`, `must be JSON`},
		{`{"anyOf":[{"type":"string"},{"type":"object","properties":{"a":{"type":"number"}}}]}`, `{"a":"x"}`, `.a is the string "x"; must be a number`},
		{`{"anyOf":[{"type":"string"},{"type":"number"}]}`, `null`, `is null; must be a string, or must be a number`},
		{`{"type":["string","null"]}`, `1`, `must be null or a string`},
		{`{"properties":{"a b":{"type":"null"}}}`, `{"a b":1}`, `["a b"] is the number 1; must be null`},
		{`true`, `1`, ""},
		{`false`, `1`, "must not be there"},
		{`{"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"},"v":{"type":"number"}}}},"$ref":"#/$defs/n"}`, `{"next":{"next":{"v":"x"}}}`, `.next.next.v is the string "x"`},
	} {
		err := compile(t, tt.schema).Check(context.Background(), json.RawMessage(tt.value))
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.value, err)
			}
			continue
		}
		var v *Violation
		if !errors.As(err, &v) || !strings.Contains(v.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.value, err, tt.want)
		}
	}
}

func TestFaultsOfSchemas(t *testing.T) {
	for _, tt := range []struct{ schema, path, want string }{
		{`{"type":"strin"}`, "type", "value must be one of 'array'"},
		{`{"properties":{"a":{"type":"object","required":"x"}}}`, "properties.a.required", "must be an array"},
		{`{"properties":{"a":{"pattern":"(?=x)"}}}`, "properties.a.pattern", "no look-ahead"},
		{`{"pattern":"` + strings.Repeat("a", 2000) + `"}`, "pattern", "at most 1024"},
		{`{"pattern":"((((a{9}){9}){9})?){99}"}`, "pattern", "repe"},
		{`{"$ref":"https://example.com/s.json"}`, "", "nothing is loaded"},
		{`{"$ref":"file:///etc/passwd"}`, "", "nothing is loaded"},
		{`{"$ref":"other.json"}`, "", "nothing is loaded"},
		{`{"$ref":"#/$defs/none"}`, "", "is not in the schema"},
		{`{"$ref":"#none"}`, "", "is not in the schema"},
		{`{"$schema":"https://example.com/meta"}`, "", ""},
		{`[]`, "", "group of keys"},
		{`{`, "", "must be JSON"},
		{`{"enum":[` + strings.Repeat("1,", 5000) + `1]}`, "", "4000 values"},
		{`{"minimum":1e99999999}`, "", "too long"},
		{strings.Repeat(`{"not":`, 70) + `true` + strings.Repeat(`}`, 70), "", "deeper"},
		{`{"description":"` + strings.Repeat("a", MaxBytes) + `"}`, "", "65536"},
	} {
		_, err := Compile(json.RawMessage(tt.schema))
		var e *Error
		if !errors.As(err, &e) || strings.Join(e.Path, ".") != tt.path || !strings.Contains(e.Message, tt.want) {
			t.Errorf("%.100s: got %v, want %q at %q", tt.schema, err, tt.want, tt.path)
		}
	}
}

// TestCost: neither a hostile value nor an unlucky schema takes the daemon's
// time or memory.
func TestCost(t *testing.T) {
	doubling := `{"$defs":{`
	for _, c := range "abcdefghijklmnopqrstuvwxy" {
		doubling += `"` + string(c) + `":{"allOf":[{"$ref":"#/$defs/` + string(c+1) + `"},{"$ref":"#/$defs/` + string(c+1) + `"}]},`
	}
	doubling += `"z":{"minimum":1}},"$ref":"#/$defs/a"}`
	tree := `{"properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]},"b":false}}`
	deep := strings.Repeat(`{"a":`, 60) + `{"b":1}` + strings.Repeat(`}`, 60)
	branches := `{"$defs":{"a":{"$ref":"#/$defs/b","properties":{"x":{"$ref":"#/$defs/a"}}},"b":{"properties":{"x":{"$ref":"#/$defs/a"}}}}`
	// Each level is looked at twice.
	nested := strings.Repeat(`{"x":`, 60) + `1` + strings.Repeat(`}`, 60)
	numbers := strings.TrimSuffix(strings.Repeat("123456789,", 90_000), ",")
	enum := make([]string, 3000)
	for i := range enum {
		enum[i] = strconv.Itoa(i)
	}
	for name, tt := range map[string]struct{ schema, value string }{
		"branches under not":      {branches + `,"not":{"not":{"$ref":"#/$defs/a"}}}`, nested},
		"branches, older draft":   {`{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"allOf":[{"properties":{"x":{"$ref":"#/definitions/a"}}},{"properties":{"x":{"$ref":"#/definitions/a"}}}],"type":"object"}},"$ref":"#/definitions/a"}`, nested},
		"paths of many faults":    {`{"$defs":{"a":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/a"}},{"type":"array","items":{"$ref":"#/$defs/a"},"minItems":1}]}},"$ref":"#/$defs/a"}`, strings.Repeat("[", 40) + "5" + strings.Repeat("]", 40)},
		"many numbers of an enum": {`{"items":{"enum":[` + strings.Join(enum, ",") + `]}}`, `[` + numbers + `]`},
		"many that are false":     {`{"items":{"allOf":[` + strings.Repeat("false,", 3000) + `false]}}`, `[` + numbers + `]`},
		"many false items":        {`{"allOf":[` + strings.Repeat(`{"items":false},`, 900) + `true]}`, `[` + numbers + `]`},
		"not evaluated":           {`{"unevaluatedItems":{"type":"string"},"allOf":[` + strings.Repeat(`{"contains":{"const":1}},`, 300) + `true]}`, `[` + numbers + `]`},
		"references that double":  {doubling, `1`},
		"alternatives that nest":  {tree, deep},
		"patterns on a long text": {`{"type":"array","items":{"pattern":"^(a?){100}b$"}}`, `["` + strings.Repeat("a", 1<<20) + `"]`},
		"a million wrong items":   {`{"items":{"type":"string"}}`, `[` + strings.Repeat("1,", 1_000_000) + `1]`},
		"a number of a gigabyte":  {`{"minimum":1}`, `1e999999999`},
		"a long number":           {`{"multipleOf":3}`, strings.Repeat("9", 100_000)},
		"deep":                    {`true`, strings.Repeat("[", 5000) + strings.Repeat("]", 5000)},
		"equal items":             {`{"uniqueItems":true}`, `[` + strings.Repeat("[1,2],", 10_000) + `1]`},
	} {
		s := compile(t, tt.schema)
		began, before := time.Now(), allocated()
		err := s.Check(context.Background(), json.RawMessage(tt.value))
		if n := allocated() - before; n > 1<<30 {
			t.Errorf("%s allocates %d bytes", name, n)
		}
		var v *Violation
		if !errors.As(err, &v) {
			t.Errorf("%s: got %v", name, err)
		}
		// Without a bound each of them takes minutes or gigabytes.
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		// It is as good as before.
		if err := compile(t, `{"type":"string"}`).Check(context.Background(), json.RawMessage(`"x"`)); err != nil {
			t.Errorf("%s: afterwards %v", name, err)
		}
	}
}

// TestTwice: of two values with one key, others may take the first.
func TestTwice(t *testing.T) {
	s := compile(t, `{"properties":{"id":{"type":"integer"}}}`)
	for value, ok := range map[string]bool{
		`{"id":1}`: true, `{"id":"x","id":1}`: false, `[{"a":{"b":1,"\u0062":2}}]`: false, `{"a:b\":":{"a":1},"b":[{"a":2},{"a":":"}]}`: true,
	} {
		if err := s.Check(context.Background(), json.RawMessage(value)); (err == nil) != ok {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestEnum: an enum is what the library would have made of it.
func TestEnum(t *testing.T) {
	s := compile(t, `{"enum":[null,true,"a","1",1,1.50,[1,{"b":2}],{"c":[]}]}`)
	for value, ok := range map[string]bool{
		`null`: true, `true`: true, `false`: false, `"a"`: true, `"b"`: false, `"1"`: true, `1`: true, `1.0`: true, `10e-1`: true, `2`: false, `1.5`: true, `"1.5"`: false,
		`[1,{"b":2}]`: true, `[1.0,{"b":2}]`: true, `[1,{"b":3}]`: false, `[]`: false, `{"c":[]}`: true, `{"c":{}}`: false, `{}`: false,
	} {
		err := s.Check(context.Background(), json.RawMessage(value))
		if (err == nil) != ok {
			t.Errorf("%s: %v", value, err)
		}
	}
}

func TestCheckWaitsNoLongerThanItsCaller(t *testing.T) {
	for range cap(checking) {
		checking <- struct{}{}
	}
	defer func() {
		for range cap(checking) {
			<-checking
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := compile(t, `true`).Check(ctx, json.RawMessage(`1`)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(`{"type":"object"}`, `{"a":1}`)
	f.Add(`{"$ref":"#"}`, `[]`)
	f.Add(`{"items":{"pattern":"a*"},"unevaluatedItems":false}`, `["b"]`)
	f.Fuzz(func(t *testing.T, schema, value string) {
		s, err := Compile(json.RawMessage(schema))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%q: %v", schema, err)
			}
			return
		}
		var v *Violation
		if err := s.Check(context.Background(), json.RawMessage(value)); err != nil && !errors.As(err, &v) {
			t.Errorf("%q %q: %v", schema, value, err)
		}
	})
}
