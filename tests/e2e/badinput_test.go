package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// valid is the least request body that each operation takes. Every operation of
// the API with a body must have one here, so that none escapes the tests below.
var valid = map[string]string{
	"run":             `{"language":"js","code":"export default () => 1"}`,
	"run-call":        `{"result":1}`,
	"run-replay":      `{}`,
	"function-deploy": `{"language":"js","code":"export default () => 1"}`,
	"function-invoke": `{}`,
	"jail-create":     `{}`,
	"jail-update":     `{"idle_timeout":"5m"}`,
	"exec":            `{"argv":["true"]}`,
	"process-signal":  `{"signal":"CONT"}`,
	"process-wait":    `{"exit":true}`,
	"process-resize":  `{"cols":80,"rows":24}`,
	"port-expose":     `{}`,
	"policy-check":    `{"policy":"version: 1"}`,
	"snapshot-create": `{}`,
	"git":             `{"clone":{"url":"https://git.world.test/x.git"}}`,
	"db-query":        `{"sql":"select 1"}`,
	"db-exec":         `{"sql":"create table never (x)"}`,
}

// stage is where bad input is thrown at: a tenant that has nothing and must
// still have nothing afterwards, and one with a jail and a process.
type stage struct{ bare, owner, run string }

func newStage(t *testing.T) stage {
	s := stage{bare: tenant(t, harness.AgentPrefix+"bare-"), owner: tenant(t, harness.AgentPrefix+"owner-")}
	s.run = "waiting-" + s.owner
	exec(t, s.owner, api.ExecRequest{Argv: []string{"sleep", "6000"}, Background: true, ExecID: "p"})
	// A run of the owner's that waits for its tool, the call "c1".
	ctx, end := context.WithCancel(context.Background())
	waiting, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { end(); <-ended })
	go func() {
		defer close(ended)
		// Its end by the test's is no error.
		_ = sys.API.Stream(ctx, "POST", tenantPath(s.owner)+"/run", api.RunRequest{Language: "js", RunID: s.run,
			Code: `export default async (i, env) => await env.SEARCH.find()`, Bindings: bindings("SEARCH")}, func(e api.Event) bool {
			if e.Type == api.EventCall {
				close(waiting)
			}
			return true
		})
	}()
	select {
	case <-waiting:
	case <-ended:
		t.Fatal("the run ended before it called its tool")
	}
	return s
}

// path fills in a route's pattern.
func (s stage) path(r api.Route) string {
	who := s.bare
	if strings.Contains(r.Pattern, "{exec}") {
		who = s.owner
	}
	return strings.NewReplacer("{tenant}", who, "{exec}", "p", "{run}", s.run, "{call}", "c1", "{port}", "8000", "{function}", "f", "{snapshot}", "snap-0000000000000000",
		"{path...}", "workspace/x", "{key...}", "k").Replace(r.Pattern)
}

// unchanged fails the test if anything came of the bad requests.
func (s stage) unchanged(t *testing.T) {
	t.Helper()
	wantError(t, do(t, "GET", jailPath(s.bare), nil), 404, api.CodeNotFound, "")
	var runs api.RunList
	want(t, "GET", "/v1/runs?tenant="+s.bare, nil, &runs)
	for _, r := range runs.Runs {
		if r.Status != api.StatusRefused {
			t.Errorf("a bad request became a run: %+v", r)
		}
	}
	var rows api.Rows
	want(t, "POST", tenantPath(s.bare)+"/db/query", api.SQLRequest{SQL: "select count(*) from sqlite_master"}, &rows)
	if text, _ := json.Marshal(rows.Rows); string(text) != "[[0]]" {
		t.Errorf("tables came of bad requests: %s", text)
	}
	var functions api.FunctionList
	want(t, "GET", tenantPath(s.bare)+"/functions", nil, &functions)
	if len(functions.Functions) != 0 {
		t.Errorf("a bad request was deployed: %+v", functions.Functions)
	}
	var list api.ProcessList
	want(t, "GET", jailPath(s.owner)+"/processes", nil, &list)
	if len(list.Processes) != 1 || list.Processes[0].State != "running" {
		t.Errorf("the owner's processes are now %+v", list.Processes)
	}
}

// A wrong is one fault in a request body: at field, the JSON text in its place.
type wrong struct{ field, text string }

var (
	durationType = reflect.TypeFor[policy.Duration]()
	sizeType     = reflect.TypeFor[policy.Size]()
	timeType     = reflect.TypeFor[time.Time]()
	rawType      = reflect.TypeFor[json.RawMessage]()
)

// wrongs lists values that a field of type t with the tags must refuse.
func wrongs(field string, t reflect.Type, tag reflect.StructTag) []wrong {
	at := func(texts ...string) []wrong {
		var w []wrong
		for _, text := range texts {
			w = append(w, wrong{field, text})
		}
		return w
	}
	if t.Kind() == reflect.Pointer {
		return wrongs(field, t.Elem(), tag)
	}
	switch t {
	case durationType:
		return at(`"soon"`, `"-5s"`, `{}`, `[]`, `true`)
	case sizeType:
		return at(`"lots"`, `-1`, `"1 apple"`, `{}`, `1.5`)
	case timeType:
		return at(`"yesterday"`, `7`, `{}`)
	case rawType:
		return nil // any value is right
	}
	switch t.Kind() {
	case reflect.String:
		w := at(`7`, `true`, `{}`, `[]`)
		if tag.Get("enum") != "" {
			w = append(w, at(`"nonsense"`, `""`)...)
		}
		if n, err := strconv.Atoi(tag.Get("max")); err == nil && n < 1<<20 {
			w = append(w, at(`"`+strings.Repeat("x", n+1)+`"`)...)
		}
		return w
	case reflect.Bool:
		return at(`"true"`, `1`, `{}`, `null`)
	case reflect.Map:
		w := append(at(`7`, `"x"`, `[]`), wrong{field + ".A", `{"A":[7]}`})
		return w
	case reflect.Slice:
		w := append(at(`7`, `"x"`, `{}`), wrong{field + "[0]", `[{"no":1}]`})
		if tag.Get("enum") != "" {
			w = append(w, wrong{field + "[1]", `["` + strings.Split(tag.Get("enum"), ",")[0] + `","nonsense"]`})
		}
		if t.Elem() == rawType {
			w = slices.DeleteFunc(w, func(x wrong) bool { return x.field != field })
		}
		return w
	case reflect.Struct:
		return append(at(`7`, `"x"`, `[]`), structWrongs(field, t)...)
	default: // numbers
		w := at(`"7"`, `{}`, `[]`, `true`, `1e400`)
		if k := t.Kind(); k != reflect.Float64 && k != reflect.Float32 {
			w = append(w, at(`1.5`)...)
		}
		for key, step := range map[string]int{"min": -1, "max": 1} {
			if n, err := strconv.Atoi(tag.Get(key)); err == nil {
				w = append(w, at(strconv.Itoa(n+step))...)
			}
		}
		return w
	}
}

// structWrongs lists faults of each field of a struct, given in an object that
// is otherwise right, and of the object itself.
func structWrongs(path string, t reflect.Type) []wrong {
	base := map[string]string{}
	for i := range t.NumField() {
		if f := t.Field(i); f.Tag.Get("required") == "true" {
			base[jsonName(f)] = sample(f)
		}
	}
	object := func(name, text string) string {
		fields := maps.Clone(base)
		if text == "" {
			delete(fields, name)
		} else {
			fields[name] = text
		}
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(fields)) {
			parts = append(parts, strconv.Quote(k)+":"+fields[k])
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	join := func(name string) string { return strings.TrimPrefix(path+"."+name, ".") }
	all := []wrong{{join("nonsense"), object("nonsense", "1")}}
	for i := range t.NumField() {
		f := t.Field(i)
		name := jsonName(f)
		for _, w := range wrongs(name, f.Type, f.Tag) {
			// What is below the field keeps its text; the object is around it.
			all = append(all, wrong{join(w.field), object(name, w.text)})
		}
		if f.Tag.Get("required") == "true" {
			all = append(all, wrong{join(name), object(name, "")})
		}
		all = append(all, wrong{join(strings.ToUpper(name)), object(strings.ToUpper(name), "1")})
	}
	return all
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// sample is a right value for a required field.
func sample(f reflect.StructField) string {
	if enum := f.Tag.Get("enum"); enum != "" {
		return strconv.Quote(strings.Split(enum, ",")[0])
	}
	t := f.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return `"x"`
	case reflect.Slice:
		return `[]`
	case reflect.Struct:
		var parts []string
		for i := range t.NumField() {
			if g := t.Field(i); g.Tag.Get("required") == "true" {
				parts = append(parts, strconv.Quote(jsonName(g))+":"+sample(g))
			}
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	return `1`
}

// TestEveryFieldIsChecked throws wrong types, ranges, sizes and names at every
// field of every request type of the API.
func TestEveryFieldIsChecked(t *testing.T) {
	s := newStage(t)
	for _, route := range api.Routes {
		if route.Request == nil {
			continue
		}
		if _, ok := valid[route.Name]; !ok {
			t.Errorf("no valid body for %s: its fields are not tested", route.Name)
			continue
		}
		t.Run(route.Name, func(t *testing.T) {
			faults := structWrongs("", route.Request)
			if len(faults) < 5 {
				t.Fatalf("only %d faults", len(faults))
			}
			for _, w := range faults {
				a := do(t, route.Method, s.path(route), w.text)
				e := a.Error()
				if e == nil || a.Status != 400 || e.Code != api.CodeInvalidRequest || e.Field != w.field || e.Message == "" {
					t.Errorf("%.200s: answer %d %.300s; want 400 and field %q", w.text, a.Status, a.Body, w.field)
				}
			}
		})
	}
	s.unchanged(t)
}

// TestEveryQueryParameterIsChecked does so with the query.
func TestEveryQueryParameterIsChecked(t *testing.T) {
	s := newStage(t)
	bad := map[string][]string{"integer": {"x", "-1", "1.5", ""}, "boolean": {"maybe", "1", "TRUE"}, "time": {"yesterday", "2026"}}
	for _, route := range api.Routes {
		path, body := s.path(route), any(nil)
		if text, ok := valid[route.Name]; ok {
			body = text
		}
		check := func(query, field string) {
			t.Helper()
			a := do(t, route.Method, path+"?"+query, body)
			if e := a.Error(); e == nil || a.Status != 400 || e.Code != api.CodeInvalidRequest || e.Field != field {
				t.Errorf("%s ?%s: answer %d %.300s; want 400 and field %q", route.Name, query, a.Status, a.Body, field)
			}
		}
		check("nonsense=1", "nonsense")
		for _, q := range route.Query {
			for _, value := range bad[q.Type] {
				check(q.Name+"="+value, q.Name)
			}
			check(q.Name+"=true&"+q.Name+"=true", q.Name)
		}
	}
	s.unchanged(t)
}

func TestTenantNamesAreChecked(t *testing.T) {
	s := newStage(t)
	for _, name := range []string{"UPPER", "-x", "x-", ".x", "x.", "_", "a%20b", "a%00b", "%2e%2e", "a%2Fb", "ä", "a:b", strings.Repeat("x", 64)} {
		for _, route := range api.Routes {
			if !route.Tenant {
				continue
			}
			var body any
			if text, ok := valid[route.Name]; ok {
				body = text
			}
			path := strings.Replace(s.path(api.Route{Pattern: strings.Replace(route.Pattern, "{tenant}", "{NAME}", 1)}), "{NAME}", name, 1)
			a := do(t, route.Method, path, body)
			if e := a.Error(); e == nil || a.Status != 400 || e.Code != api.CodeInvalidRequest || e.Field != "tenant" {
				t.Errorf("%s %s: answer %d %.200s", route.Method, path, a.Status, a.Body)
			}
		}
	}
	s.unchanged(t)
}

// TestBodiesAreChecked: what is no JSON object of the right kind at all.
func TestBodiesAreChecked(t *testing.T) {
	s := newStage(t)
	deep := strings.Repeat(`{"input":`, 1) + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}"
	tests := []struct {
		name, contentType, body string
		status                  int
		code, field             string
	}{
		{"nothing", "application/json", "", 400, api.CodeInvalidRequest, "language"},
		{"no JSON", "application/json", "language=js", 400, api.CodeInvalidRequest, ""},
		{"an array", "application/json", "[]", 400, api.CodeInvalidRequest, ""},
		{"null", "application/json", "null", 400, api.CodeInvalidRequest, ""},
		{"cut off", "application/json", `{"language":"js","code":"`, 400, api.CodeInvalidRequest, "code"},
		{"two values", "application/json", valid["run"] + valid["run"], 400, api.CodeInvalidRequest, ""},
		{"a key twice", "application/json", `{"language":"js","code":"1","code":"2"}`, 400, api.CodeInvalidRequest, "code"},
		{"not UTF-8", "application/json", "{\"language\":\"js\",\"code\":\"\xff\"}", 400, api.CodeInvalidRequest, ""},
		{"too deep", "application/json", deep, 400, api.CodeInvalidRequest, ""},
		{"too large", "application/json", `{"language":"js","code":"` + strings.Repeat("x", 17<<20) + `"}`, 413, api.CodeTooLarge, ""},
		{"another content type", "text/plain", valid["run"], 415, api.CodeInvalidRequest, "Content-Type"},
		{"a form", "application/x-www-form-urlencoded", valid["run"], 415, api.CodeInvalidRequest, "Content-Type"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := do(t, "POST", tenantPath(s.bare)+"/run", tt.body, "Content-Type", tt.contentType)
			e := a.Error()
			if e == nil || a.Status != tt.status || e.Code != tt.code || tt.field != "" && e.Field != tt.field {
				t.Errorf("answer %d %.300s; want %d %s, field %q", a.Status, a.Body, tt.status, tt.code, tt.field)
			}
		})
	}
	s.unchanged(t)
}

// TestMeaningIsChecked: fields that are right each by itself.
func TestMeaningIsChecked(t *testing.T) {
	s := newStage(t)
	exec, run, wait := jailPath(s.bare)+"/exec", tenantPath(s.bare)+"/run", jailPath(s.owner)+"/processes/p/wait"
	tests := []struct{ method, path, body, field string }{
		{"POST", run, `{"language":"js"}`, "code"},
		{"POST", run, `{"language":"js","code":"1","modules":{"a.js":"1"},"main":"a.js"}`, "modules"},
		{"POST", run, `{"language":"js","modules":{"a.js":"1"},"main":"b.js"}`, "main"},
		{"POST", run, `{"language":"js","code":"1","main":"a.js"}`, "main"},
		{"POST", run, `{"language":"js","modules":{"../a.js":"1"},"main":"../a.js"}`, `modules["../a.js"]`},
		{"POST", run, `{"language":"js","modules":{"/a.js":"1"},"main":"/a.js"}`, `modules["/a.js"]`},
		{"POST", run, `{"language":"js","code":"1","run_id":"../x"}`, "run_id"},
		{"POST", run, `{"language":"js","code":"1","run_id":"a b"}`, "run_id"},
		{"POST", run, `{"language":"js","code":"1","env":{"A=B":"x"}}`, `env["A=B"]`},
		{"POST", run, `{"language":"js","code":"1","outbound":{"allow":["https://a.test/"]}}`, "outbound.allow[0]"},
		{"POST", run, `{"language":"js","code":"1","outbound":{"allow":["*"]}}`, "outbound.allow[0]"},
		{"POST", run, `{"language":"js","code":"1","needs":["process"],"environment":"isolate"}`, "environment"},
		{"POST", run, `{"language":"shell","code":"1","environment":"isolate"}`, "environment"},
		{"POST", run, `{"language":"js","code":"1","limits":{"wall":"100h"}}`, "limits.wall"},
		{"POST", run, `{"language":"js","code":"1","limits":{"cpu":"100h"}}`, "limits.cpu"},
		{"POST", run, `{"language":"js","code":"1","limits":{"memory":"100GiB"}}`, "limits.memory"},
		{"POST", run, `{"language":"js","code":"1","limits":{"output":"100GiB"}}`, "limits.output"},
		{"POST", run, `{"language":"js","code":"1","limits":{"requests":-1}}`, "limits.requests"},
		{"PUT", jailPath(s.bare), `{"limits":{"memory":"900GiB"}}`, "limits.memory"},
		{"PUT", jailPath(s.bare), `{"limits":{"pids":100000}}`, "limits.pids"},
		{"PUT", jailPath(s.bare), `{"limits":{"cpus":64}}`, "limits.cpus"},
		{"PUT", jailPath(s.bare), `{"max_lifetime":"10000h"}`, "max_lifetime"},
		{"PUT", jailPath(s.bare), `{"idle_timeout":"10000h"}`, "idle_timeout"},
		{"PUT", jailPath(s.bare), `{"env":{"":"x"}}`, `env[""]`},
		{"POST", exec, `{}`, "argv"},
		{"POST", exec, `{"argv":[]}`, "argv"},
		{"POST", exec, `{"argv":[""]}`, "argv[0]"},
		{"POST", exec, `{"argv":["a\u0000b"]}`, "argv[0]"},
		{"POST", exec, `{"argv":["true"],"command":"true"}`, "command"},
		{"POST", exec, `{"argv":["true"],"cwd":"relative"}`, "cwd"},
		{"POST", exec, `{"argv":["true"],"exec_id":"../x"}`, "exec_id"},
		{"POST", exec, `{"argv":["true"],"exec_id":"a/b"}`, "exec_id"},
		{"POST", exec, `{"argv":["true"],"timeout":"10000h"}`, "timeout"},
		{"POST", exec, `{"argv":["true"],"env":{"A\u0000":"x"}}`, ""},
		{"POST", wait, `{}`, "port"},
		{"POST", wait, `{"exit":true,"port":80}`, "port"},
		{"POST", wait, `{"log_regexp":"("}`, "log_regexp"},
		{"POST", jailPath(s.bare) + "/git", `{"clone":{"url":"file:///etc"}}`, "clone.url"},
		{"POST", jailPath(s.bare) + "/git", `{"clone":{"url":"--upload-pack=x"}}`, "clone.url"},
		{"POST", jailPath(s.bare) + "/git", `{"clone":{"url":"https://u:p@git.world.test/x"}}`, "clone.url"},
		{"POST", tenantPath(s.bare) + "/db/query", `{"sql":"select ?","params":[{"a":1}]}`, "params[0]"},
		{"POST", jailPath(s.bare) + "/ports/0", `{}`, "port"},
		{"POST", jailPath(s.bare) + "/ports/65536", `{}`, "port"},
		{"POST", jailPath(s.bare) + "/ports/x", `{}`, "port"},
		{"PUT", jailPath(s.bare) + "/files/workspace/x?mode=999", `x`, "mode"},
		{"PUT", jailPath(s.bare) + "/files/workspace/x?mode=7777777", `x`, "mode"},
		{"GET", jailPath(s.owner) + "/files/workspace?list=true&depth=1000", ``, "depth"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s %.60s", tt.field, tt.body), func(t *testing.T) {
			a := do(t, tt.method, tt.path, tt.body)
			e := a.Error()
			if e == nil || a.Status != 400 || e.Code != api.CodeInvalidRequest || tt.field != "" && e.Field != tt.field || e.Message == "" {
				t.Errorf("answer %d %.400s; want 400 and field %q", a.Status, a.Body, tt.field)
			}
		})
	}
	s.unchanged(t)
}

func TestUnknownThings(t *testing.T) {
	s := newStage(t)
	for path, field := range map[string]string{
		"/v1/runs/no-such-run": "run", "/v1/runs/no-such-run/events": "run",
		jailPath(s.owner) + "/processes/none": "exec", jailPath(s.owner) + "/ports/9": "port", jailPath(s.owner) + "/files/workspace/none": "path",
		tenantPath(s.bare) + "/kv/none": "key", "/v1/nothing": "", "/": "",
	} {
		a := do(t, "GET", path, nil)
		if e := a.Error(); e == nil || a.Status != 404 || e.Code != api.CodeNotFound || e.Message == "" {
			t.Errorf("%s (%s): answer %d %.300s", path, field, a.Status, a.Body)
		}
	}
	a := do(t, "PATCH", tenantPath(s.bare)+"/run", valid["run"])
	wantError(t, a, 405, api.CodeInvalidRequest, "method")
	for _, user := range []string{"-1", "4294967296", "+0", "00"} {
		a := do(t, "POST", jailPath(s.bare)+"/exec", api.ExecRequest{Argv: []string{"true"}, User: user})
		wantError(t, a, 400, api.CodeInvalidRequest, "user")
	}
	s.unchanged(t)
	for _, user := range []string{"root", "0"} {
		a := do(t, "POST", jailPath(s.bare)+"/exec", api.ExecRequest{Argv: []string{"true"}, User: user})
		wantError(t, a, 403, api.CodeDenied, "user")
	}
}
