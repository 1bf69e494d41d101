package daemon

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

func TestEachRouteHasItsHandler(t *testing.T) {
	handlers := (&Daemon{}).handlers()
	for _, r := range api.Routes {
		if handlers[r.Name] == nil {
			t.Errorf("route %s has no handler", r.Name)
		}
	}
	for name := range handlers {
		if _, ok := api.RouteByName(name); !ok {
			t.Errorf("handler %s has no route", name)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		pattern, host string
		want          bool
	}{
		{"a.example", "a.example", true}, {"a.example", "b.a.example", false}, {"a.example", "xa.example", false},
		{"*.example.com", "a.example.com", true}, {"*.example.com", "a.b.example.com", true}, {"*.example.com", "example.com", false},
		{"*.example.com", "badexample.com", false}, {"*.example.com", "*.example.com", true}, {"*.example.com", "*.a.example.com", true},
		{"*.a.example.com", "*.example.com", false}, {"a.example.com", "*.example.com", false}, {"*.example.com", "*.com", false},
		{"*.example.com", "*example.com", false}, {"example.com", "*.example.com", false},
	} {
		if got := covers(tt.pattern, tt.host); got != tt.want {
			t.Errorf("%s covers %s: %v", tt.pattern, tt.host, got)
		}
	}
}

func TestGrants(t *testing.T) {
	granted := map[string]policy.Binding{"db": {Type: "db"}, "Cache": {Type: "kv"}, "search": {Type: "tools", Methods: []string{"find", "count"}}}
	all, err := grants(granted, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, []string{"CACHE", "DB", "search"}) {
		t.Errorf("without asking the run holds %v", got)
	}
	none, err := grants(granted, map[string]api.BindingRequest{})
	if err != nil || len(none) != 0 {
		t.Errorf("asking for nothing gives %v, %v", none, err)
	}
	one, err := grants(granted, map[string]api.BindingRequest{"SEARCH": {Methods: api.MethodList("find")}})
	if err != nil || len(one) != 1 || !slices.Equal(one["search"].methods, []string{"find"}) {
		t.Errorf("asking for less gives %+v, %v", one, err)
	}
	for field, asked := range map[string]map[string]api.BindingRequest{
		"bindings.files":             {"files": {}},
		"bindings.search.methods[1]": {"search": {Methods: api.MethodList("find", "drop")}},
		"bindings.db.methods[0]":     {"db": {Methods: api.MethodList("exec")}},
	} {
		_, err := grants(granted, asked)
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeDenied || e.Field != field {
			t.Errorf("%v: got %v, want denied at %s", asked, err, field)
		}
	}
}

func TestCheckRun(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for _, tt := range []struct {
		name  string
		req   api.RunRequest
		field string
	}{
		{"code", api.RunRequest{Language: "js", Code: "1"}, ""},
		{"modules", api.RunRequest{Language: "ts", Modules: map[string]string{"lib/a.ts": "", "main.ts": ""}, Main: "main.ts"}, ""},
		{"nothing", api.RunRequest{Language: "js"}, "code"},
		{"both", api.RunRequest{Language: "js", Code: "1", Modules: map[string]string{"a": ""}}, "modules"},
		{"main alone", api.RunRequest{Language: "js", Code: "1", Main: "a"}, "main"},
		{"no main", api.RunRequest{Language: "js", Modules: map[string]string{"a.js": ""}}, "main"},
		{"main elsewhere", api.RunRequest{Language: "js", Modules: map[string]string{"a.js": ""}, Main: "b.js"}, "main"},
		{"climbing", api.RunRequest{Language: "js", Modules: map[string]string{"../a.js": ""}, Main: "../a.js"}, `modules["../a.js"]`},
		{"absolute", api.RunRequest{Language: "js", Modules: map[string]string{"/a.js": ""}, Main: "/a.js"}, `modules["/a.js"]`},
		{"not clean", api.RunRequest{Language: "js", Modules: map[string]string{"a//b.js": ""}, Main: "a//b.js"}, `modules["a//b.js"]`},
		{"control", api.RunRequest{Language: "js", Modules: map[string]string{"a\n": ""}, Main: "a\n"}, `modules["a\n"]`},
		{"long name", api.RunRequest{Language: "js", Modules: map[string]string{long: ""}, Main: long}, `modules["` + long[:80] + `"]`},
		{"id", api.RunRequest{Language: "js", Code: "1", RunID: "a/b"}, "run_id"},
		{"env name", api.RunRequest{Language: "js", Code: "1", Env: map[string]string{"A=B": ""}}, `env["A=B"]`},
		{"env NUL", api.RunRequest{Language: "js", Code: "1", Env: map[string]string{"A": "\x00"}}, `env["A"]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := checkRun(&tt.req)
			checkField(t, err, tt.field)
		})
	}
}

// checkField wants no error for "", or an invalid_request at the field.
func checkField(t *testing.T, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	var e *api.Error
	if !errors.As(err, &e) || e.Field != field {
		t.Fatalf("got %v, want an error at %s", err, field)
	}
}

func TestCheckExec(t *testing.T) {
	for _, tt := range []struct {
		name  string
		req   api.ExecRequest
		field string
	}{
		{"argv", api.ExecRequest{Argv: []string{"true"}}, ""},
		{"command", api.ExecRequest{Command: "a | b"}, ""},
		{"nothing", api.ExecRequest{}, "argv"},
		{"both", api.ExecRequest{Argv: []string{"a"}, Command: "b"}, "command"},
		{"empty program", api.ExecRequest{Argv: []string{""}}, "argv[0]"},
		{"terminal", api.ExecRequest{Argv: []string{"a"}, TTY: &api.TTY{Cols: 1, Rows: 1}}, ""},
		{"id", api.ExecRequest{Argv: []string{"a"}, ExecID: "../x"}, "exec_id"},
		{"env", api.ExecRequest{Argv: []string{"a"}, Env: map[string]string{"": ""}}, `env[""]`},
	} {
		t.Run(tt.name, func(t *testing.T) { checkField(t, checkExec(&tt.req), tt.field) })
	}
}

func TestGitClone(t *testing.T) {
	argv, err := gitClone(&api.GitClone{URL: "https://git.example/a.git", Branch: "-x", Depth: 1, Directory: "-d"})
	if err != nil || !slices.Equal(argv, []string{"git", "clone", "--branch=-x", "--depth=1", "--", "https://git.example/a.git", "-d"}) {
		t.Errorf("got %q, %v", argv, err)
	}
	for _, u := range []string{"", "git@host:a.git", "ssh://host/a", "file:///etc", "ext::sh -c x", "https://", "https://user:pw@host/a", "https://token@host/a"} {
		_, err := gitClone(&api.GitClone{URL: u})
		checkField(t, err, "clone.url")
	}
}

func TestCheckWait(t *testing.T) {
	for _, tt := range []struct {
		req   api.WaitRequest
		field string
	}{
		{api.WaitRequest{Port: 80}, ""}, {api.WaitRequest{LogRegexp: "ready"}, ""}, {api.WaitRequest{Exit: true}, ""},
		{api.WaitRequest{}, "port"}, {api.WaitRequest{Port: 80, Exit: true}, "port"}, {api.WaitRequest{LogRegexp: "("}, "log_regexp"},
		{api.WaitRequest{Exit: true, Timeout: policy.Duration(2 * maxWait)}, "timeout"},
	} {
		_, err := checkWait(&tt.req)
		checkField(t, err, tt.field)
	}
}
