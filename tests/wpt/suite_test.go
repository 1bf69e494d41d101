package wpt

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandboxd/isolate"
)

// Where `make wpt` and `make guests` put what is needed.
const (
	suites = "../../build/wpt"
	guests = "../../build/guests"
)

//go:embed run.js
var runner string

var limits = isolate.Limits{Wall: 60 * time.Second, CPU: 30 * time.Second, Memory: 512 << 20,
	Output: 16 << 20, Result: 16 << 20, Calls: 1000, Requests: 1000, Concurrency: 16}

// A subtest is one result that a file of tests gives.
type subtest struct {
	Name, Message string
	Passed        bool
}

// script matches what a file of tests loads.
var script = regexp.MustCompile(`(?m)^// META: script=(\S+)`)

// runWPT runs one file of the Web Platform Tests in an isolate of its own.
func runWPT(t *testing.T, p isolate.Pool, name string) []subtest {
	t.Helper()
	root := filepath.Join(suites, "wpt")
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatalf("%v; `make wpt` fetches it", err)
		}
		return string(b)
	}
	text := read(name)
	input := struct {
		Scripts  []string          `json:"scripts"`
		Files    map[string]string `json:"files"`
		Location string            `json:"location"`
	}{Location: "http://web-platform.test/" + name, Files: map[string]string{}}
	input.Scripts = []string{read("resources/testharness.js"), "add_completion_callback((tests, status) => __ended({tests, status}));"}
	for _, m := range script.FindAllStringSubmatch(text, -1) {
		at := m[1]
		if !strings.HasPrefix(at, "/") {
			at = path.Join(path.Dir(name), at)
		}
		input.Scripts = append(input.Scripts, read(strings.TrimPrefix(at, "/")))
	}
	input.Scripts = append(input.Scripts, text, ";done();")
	var data []string
	for _, dir := range []string{path.Dir(name), "fetch/data-urls"} {
		more, err := filepath.Glob(filepath.Join(root, dir, "resources", "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, more...)
	}
	for _, file := range data {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		input.Files[rel] = read(rel)
	}
	return results(t, p, name, runner, input, &output{})
}

// results runs code that gives the results of tests.
func results(t *testing.T, p isolate.Pool, name, code string, input any, h isolate.Host) []subtest {
	t.Helper()
	var out struct {
		Tests   [][3]any
		Status  int
		Message string
	}
	run(t, p, name, code, input, &out, h)
	if out.Status != 0 {
		t.Errorf("%s: the harness says %d: %s", name, out.Status, out.Message)
	}
	var list []subtest
	for _, r := range out.Tests {
		list = append(list, subtest{Name: fmt.Sprint(r[0]), Passed: r[1] == 0.0, Message: fmt.Sprint(r[2])})
	}
	return list
}

// run runs code with an input, and reads its result.
func run(t *testing.T, p isolate.Pool, name, code string, input, result any, h isolate.Host) {
	t.Helper()
	b, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.Run(context.Background(), &isolate.Request{Tenant: "wpt", Language: "js", Main: "run.js",
		Modules: map[string]string{"run.js": code}, Input: b, Limits: limits, Fetch: true}, h)
	if err != nil {
		t.Fatal(err)
	}
	if res.Status != isolate.StatusOK {
		t.Errorf("%s: %s: %+v\n%+v", name, res.Status, res.Error, h)
		return
	}
	if err := json.Unmarshal(res.Value, result); err != nil {
		t.Fatal(err)
	}
}

// output keeps what the code printed.
type output struct{ text string }

func (o *output) Event(e isolate.Event) { o.text += e.Message + "\n" }

// Call is the server that a few tests send a form to: it gives it back.
func (o *output) Call(_ context.Context, c isolate.Call) (json.RawMessage, error) {
	var args []isolate.FetchRequest
	if err := json.Unmarshal(c.Args, &args); err != nil || len(args) != 1 || !strings.HasSuffix(args[0].URL, "/echo-content.py") {
		return nil, fmt.Errorf("nothing answers %s", c.Args)
	}
	return json.Marshal(isolate.FetchResponse{Status: 200, StatusText: "OK", URL: args[0].URL, Headers: [][2]string{{"content-type", "text/plain"}}, Body: args[0].Body})
}
