package api

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandboxd/policy"
)

// decodeAs decodes into a fresh value of the request type and returns the
// error's field and message.
func decodeAs[T any](t *testing.T, text string) *Error {
	t.Helper()
	err := Decode([]byte(text), new(T))
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("%s: %T %v is no *Error", text, err, err)
	}
	return e
}

func TestDecodeRefusesByName(t *testing.T) {
	tests := []struct {
		name, text string
		decode     func(*testing.T, string) *Error
		field      string
		says       string
	}{
		{"unknown field", `{"language":"js","code":"1","colour":"red"}`, decodeAs[RunRequest], "colour", "unknown field"},
		{"other case", `{"Language":"js"}`, decodeAs[RunRequest], "Language", "unknown field"},
		{"unknown nested field", `{"language":"js","limits":{"wal":"1s"}}`, decodeAs[RunRequest], "limits.wal", "unknown field"},
		{"unknown field of a map's value", `{"language":"js","bindings":{"db":{"x":1}}}`, decodeAs[RunRequest], "bindings.db.x", "unknown field"},
		{"string for number", `{"tty":{"cols":"80","rows":24},"argv":["x"]}`, decodeAs[ExecRequest], "tty.cols", "must be a number, not a string"},
		{"number for string", `{"language":1}`, decodeAs[RunRequest], "language", "must be a string, not a number"},
		{"array element", `{"argv":["a",2]}`, decodeAs[ExecRequest], "argv[1]", "must be a string, not a number"},
		{"object for array", `{"argv":{}}`, decodeAs[ExecRequest], "argv", "must be an array, not an object"},
		{"array for object", `[]`, decodeAs[RunRequest], "", "must be an object, not an array"},
		{"null for string", `{"language":null}`, decodeAs[RunRequest], "language", "must be a string, not null"},
		{"null for duration", `{"argv":["x"],"timeout":null}`, decodeAs[ExecRequest], "timeout", "must not be null"},
		{"string for boolean", `{"argv":["x"],"stdin":"true"}`, decodeAs[ExecRequest], "stdin", "must be true or false"},
		{"map value", `{"language":"js","env":{"A":1}}`, decodeAs[RunRequest], "env.A", "must be a string"},
		{"odd map key", `{"language":"js","env":{"A B":1}}`, decodeAs[RunRequest], `env["A B"]`, "must be a string"},
		{"duration as number", `{"language":"js","limits":{"wall":5}}`, decodeAs[RunRequest], "limits.wall", "not a duration"},
		{"negative duration", `{"argv":["x"],"timeout":"-1s"}`, decodeAs[ExecRequest], "timeout", "negative"},
		{"size", `{"language":"js","limits":{"memory":"64 bananas"}}`, decodeAs[RunRequest], "limits.memory", "not a size"},
		{"time", `{"language":"js","deterministic":{"clock":"yesterday"}}`, decodeAs[RunRequest], "deterministic.clock", "RFC 3339"},
		{"fraction for integer", `{"port":1.5}`, decodeAs[WaitRequest], "port", "not an integer"},
		{"exponent for integer", `{"port":1e3}`, decodeAs[WaitRequest], "port", "not an integer"},
		{"range", `{"port":65536}`, decodeAs[WaitRequest], "port", "out of range"},
		{"negative for unsigned", `{"language":"js","deterministic":{"seed":-1}}`, decodeAs[RunRequest], "deterministic.seed", "not negative"},
		{"overflow", `{"port":99999999999999999999}`, decodeAs[WaitRequest], "port", "not an integer"},
		{"enum", `{"language":"cobol"}`, decodeAs[RunRequest], "language", "not one of js, ts"},
		{"enum in a list", `{"language":"js","needs":["files"]}`, decodeAs[RunRequest], "needs[0]", "not one of filesystem"},
		{"missing", `{"code":"1"}`, decodeAs[RunRequest], "language", "is missing"},
		{"missing nested", `{"language":"js","outbound":{}}`, decodeAs[RunRequest], "outbound.allow", "is missing"},
		{"too short", `{"sql":""}`, decodeAs[SQLRequest], "sql", "at least 1"},
		{"too long", `{"language":"js","run_id":"` + strings.Repeat("x", 129) + `"}`, decodeAs[RunRequest], "run_id", "at most 128"},
		{"too many", `{"language":"js","needs":[` + strings.Repeat(`"process",`, 9) + `"process"]}`, decodeAs[RunRequest], "needs", "more than 8"},
		{"twice", `{"language":"js","language":"ts"}`, decodeAs[RunRequest], "language", "occurs twice"},
		{"twice by escape", `{"language":"js","lang\u0075age":"ts"}`, decodeAs[RunRequest], "language", "occurs twice"},
		{"twice inside any", `{"language":"js","input":{"a":{"b":1,"b":2}}}`, decodeAs[RunRequest], "input.a.b", "occurs twice"},
		{"trailing value", `{"language":"js"} {}`, decodeAs[RunRequest], "", "data after the end"},
		{"trailing text", `{"language":"js"}x`, decodeAs[RunRequest], "", "data after the end"},
		{"cut off", `{"language":"js"`, decodeAs[RunRequest], "", "ends too early"},
		{"empty", ``, decodeAs[RunRequest], "", "ends too early"},
		{"not JSON", `{'language':'js'}`, decodeAs[RunRequest], "", "not valid JSON"},
		{"not UTF-8", "{\"language\":\"\xff\"}", decodeAs[RunRequest], "", "UTF-8"},
		{"deep", `{"language":"js","input":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, decodeAs[RunRequest], "input" + strings.Repeat("[0]", MaxDepth-1), "nested deeper"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := tt.decode(t, tt.text)
			if e == nil {
				t.Fatal("was accepted")
			}
			if e.Code != CodeInvalidRequest || e.Field != tt.field || !strings.Contains(e.Message, tt.says) {
				t.Fatalf("got %s, field %q, %q; want field %q and %q", e.Code, e.Field, e.Message, tt.field, tt.says)
			}
		})
	}
}

func TestDecodeAccepts(t *testing.T) {
	text := ` {"language":"ts","modules":{"main.ts":"export default 1"},"main":"main.ts",
	 "input": {"a":[1, 2.5, null, "x"]} ,"env":{"A":"b"},"needs":[],"bindings":{"db":{},"search":{"methods":["find"]}},
	 "outbound":null,"limits":{"wall":"1.5s","memory":"64MiB","output":1024,"requests":3},
	 "deterministic":{"seed":18446744073709551615,"clock":"2026-01-01T00:00:00Z"},"environment":"isolate","run_id":"a"}
	`
	var r RunRequest
	if err := Decode([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	if r.Outbound != nil || r.Limits.Wall != policy.Duration(1500*time.Millisecond) || r.Limits.Memory != 64<<20 || r.Limits.Output != 1024 {
		t.Errorf("got %+v %+v", r, r.Limits)
	}
	if string(r.Input) != `{"a":[1, 2.5, null, "x"]}` {
		t.Errorf("input is %s", r.Input)
	}
	if *r.Deterministic.Seed != 1<<64-1 || r.Deterministic.Clock.Year() != 2026 {
		t.Errorf("deterministic is %+v", r.Deterministic)
	}
	if len(r.Bindings) != 2 || r.Bindings["search"].Methods.Names[0] != "find" {
		t.Errorf("bindings are %+v", r.Bindings)
	}
}

func TestDecodeRequest(t *testing.T) {
	tests := []struct {
		name, media, body string
		code              string
		status            int
	}{
		{"good", "application/json", `{"language":"js"}`, "", 0},
		{"charset", "application/json; charset=UTF-8", `{"language":"js"}`, "", 0},
		{"other charset", "application/json; charset=latin1", `{"language":"js"}`, CodeInvalidRequest, 415},
		{"form", "application/x-www-form-urlencoded", `{"language":"js"}`, CodeInvalidRequest, 415},
		{"no type", "", `{"language":"js"}`, CodeInvalidRequest, 415},
		{"too large", "application/json", `{"language":"js","code":"` + strings.Repeat("x", MaxBody) + `"}`, CodeTooLarge, 413},
		{"empty body", "", "", CodeInvalidRequest, 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "/", strings.NewReader(tt.body))
			if tt.media != "" {
				r.Header.Set("Content-Type", tt.media)
			}
			var req RunRequest
			err := DecodeRequest(r, &req)
			var e *Error
			if tt.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.As(err, &e) || e.Code != tt.code || e.Status() != tt.status {
				t.Fatalf("got %v, want %s with status %d", err, tt.code, tt.status)
			}
		})
	}
}

// TestAnswersCarryWhatTheySay: what the daemon encodes, the client decodes.
func TestRunRoundTrip(t *testing.T) {
	code := 3
	in := Run{RunID: "a", Tenant: "t", Status: StatusError, Phase: "finished", ExitCode: &code, Error: &Error{Code: CodeError, Message: "m", Position: &Position{"f", 1, 2}},
		Usage: Usage{Wall: UsedDuration(time.Second, time.Minute), Requests: UsedCount(0, 3)}, Started: time.Now().UTC()}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Run
	if err := Decode(text, &out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if *out.ExitCode != 3 || out.Usage.Wall.Limit != policy.Duration(time.Minute) || *out.Usage.Requests.Used != 0 || out.Usage.CPU.Used != nil {
		t.Errorf("got %+v", out)
	}
}

func TestEventKeepsBytes(t *testing.T) {
	for _, data := range []string{"", "text", "käse", "\xff\xfe\x00", "half of \xc3"} {
		var e Event
		e.SetData([]byte(data))
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back Event
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if got, err := back.Bytes(); err != nil || string(got) != data {
			t.Errorf("%q came back as %q, %v", data, got, err)
		}
	}
	if _, err := (&Event{Encoding: "rot13"}).Bytes(); err == nil {
		t.Error("an unknown encoding was accepted")
	}
}

// FuzzDecode: hostile bytes give a value or an *Error that names no more than
// it should, and what was accepted is accepted again after encoding.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"language":"js","code":"1"}`, `{"language":"ts","limits":{"wall":"1s","memory":1}}`, `{"argv":["a"],"tty":{"cols":1,"rows":1}}`,
		`{"language":"js","input":{"a":[[[{}]]]}}`, `{"language":"js","input":1}{`, `{"language":"js","input":"\ud800"}`, "\x00", `{"a":`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range []any{new(RunRequest), new(ExecRequest), new(JailRequest), new(SQLRequest), new(ToolAnswer)} {
			err := Decode(data, v)
			var e *Error
			if err != nil {
				if !errors.As(err, &e) || e.Message == "" || len(e.Message) > 2000 {
					t.Fatalf("%T: error %v", v, err)
				}
				continue
			}
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatalf("%T was accepted and cannot be encoded: %v", v, err)
			}
			var any1 any
			if err := json.Unmarshal(text, &any1); err != nil {
				t.Fatalf("%T: %v", v, err)
			}
		}
	})
}

// What is handed on as it is can be the whole body; faults in it are found and
// named all the same.
func TestFaultsInsideRawValues(t *testing.T) {
	deep := strings.Repeat("[", MaxDepth)
	for input, want := range map[string]string{
		`{"a":1,"b":{"x":[0,{"k":1,"k":2}]}}`:            "input.b.x[1].k: the key occurs twice",
		`{"a":1,"\u0061":2}`:                             "input.a: the key occurs twice",
		`{"a b":[[1],[{"c":{},"d":0,"c":1}]]}`:           `input["a b"][1][0].c: the key occurs twice`,
		`{"":1,"":2}`:                                    `input[""]: the key occurs twice`,
		`["k","k",{"k":"k"},{"k":"k,{["},"\\",{"\"":0}]`: "",
		`{"a":{"a":{"a":1}},"b":{"a":1},"c":["a","a"]}`:  "",
		` [ 1 , 2 ] `:                                    "",
		`-0.5e3`:                                         "",
		`"\\"`:                                           "",
		`{"a":[1,}`:                                      "input: not valid JSON",
		`tru`:                                            "input: not valid JSON",
		deep:                                             "",
		strings.Repeat("[", 20000) + strings.Repeat("]", 20000): "input: nested deeper than 64 levels",
	} {
		if input == deep {
			input, want = deep+strings.Repeat("]", MaxDepth), "input"+strings.Repeat("[0]", MaxDepth-1)+": nested deeper than 64 levels"
		}
		var r RunRequest
		err := Decode([]byte(`{"language":"js","code":"x","input":`+input+`}`), &r)
		switch {
		case want == "" && err != nil:
			t.Errorf("%.60s: %v", input, err)
		case want == "" && string(r.Input) != strings.TrimSpace(input):
			t.Errorf("%.60s came as %.60s", input, r.Input)
		case want != "" && (err == nil || !strings.Contains(fieldAndMessage(err), want)):
			t.Errorf("%.60s: %v, want %.100s", input, err, want)
		}
	}
	err := Decode([]byte("{\"language\":\"js\",\n\"input\":{\n  \"a\": x}}"), new(RunRequest))
	var e *Error
	if !errors.As(err, &e) || e.Position == nil || e.Position.Line != 3 || e.Position.Column != 8 {
		t.Errorf("the position of x in line 3: %+v", e)
	}
}

func fieldAndMessage(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	return e.Field + ": " + e.Message
}
