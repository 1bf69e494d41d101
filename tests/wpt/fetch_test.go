package wpt

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "embed"

	"sandboxd/isolate"
)

//go:embed fetch.js
var fetchRunner string

const fetchFile = "fetch/test.js"

// TestFetchSuite runs the suite of a polyfill for fetch: the Web Platform Tests
// of that are not among those that Node.js carries.
func TestFetchSuite(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(suites, fetchFile))
	if err != nil {
		t.Fatalf("%v; `make wpt` fetches it", err)
	}
	input := map[string]string{"text": string(text), "base": "http://fetch.test/", "reader": runner[strings.Index(runner, "class FileReader"):]}
	list := results(t, newPool(t), fetchFile, fetchRunner, input, fetchServer{})
	passed := 0
	for _, s := range list {
		if s.Passed {
			passed++
		}
	}
	t.Logf("fetch %d/%d", passed, len(list))
	if len(list) < 80 || 100*passed < 90*len(list) {
		t.Errorf("%d of %d pass, at least 90 %% have to", passed, len(list))
	}
	compare(t, readKnown(t), fetchFile, list)
}

// A fetchServer answers as the suite's own server does.
type fetchServer struct{}

func (fetchServer) Event(isolate.Event) {}

func (fetchServer) Call(ctx context.Context, c isolate.Call) (json.RawMessage, error) {
	var args []isolate.FetchRequest
	if err := json.Unmarshal(c.Args, &args); err != nil || len(args) != 1 {
		return nil, fmt.Errorf("call %s", c.Args)
	}
	req := args[0]
	u, err := url.Parse(req.URL)
	if err != nil {
		return nil, err
	}
	res := isolate.FetchResponse{Status: 200, StatusText: "OK", URL: req.URL}
	answer := func(kind, body string) {
		res.Headers, res.Body = append(res.Headers, [2]string{"content-type", kind}), []byte(body)
	}
	switch strings.TrimPrefix(u.Path, "/redirect/") {
	case "/request":
		headers := map[string]string{}
		for _, h := range req.Headers {
			headers[strings.ToLower(h[0])] = h[1]
		}
		b, err := json.Marshal(map[string]any{"method": req.Method, "url": u.RequestURI(), "headers": headers, "data": string(req.Body)})
		if err != nil {
			return nil, err
		}
		answer("application/json", string(b))
	case "301", "302", "303", "307", "308":
		res.URL = "http://" + u.Host + "/hello"
		res.Headers = [][2]string{{"x-request-url", res.URL}}
		answer("text/plain", "hi")
	case "/hello":
		res.Headers = [][2]string{{"x-request-url", req.URL}}
		answer("text/plain", "hi")
	case "/hello/utf8":
		answer("text/plain; charset=utf-8", "hello")
	case "/hello/utf16le":
		answer("text/plain; charset=utf-16le", "h\x00e\x00l\x00l\x00o\x00")
	case "/binary":
		b := make([]byte, 256)
		for i := range b {
			b[i] = byte(i)
		}
		answer("application/octet-stream", string(b))
	case "/boom":
		res.Status, res.StatusText = 500, "Internal Server Error"
		answer("text/plain", "boom")
	case "/empty":
		res.Status, res.StatusText = 204, "No Content"
	case "/slow":
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "/error":
		return nil, fmt.Errorf("the server has closed the connection")
	case "/form":
		answer("application/x-www-form-urlencoded", "number=1&space=one+two&empty=&encoded=a%2Bb&")
	case "/json":
		answer("application/json", `{"name":"Hubot","login":"hubot"}`)
	case "/json-error":
		answer("application/json", "not json {")
	case "/headers":
		res.Headers = [][2]string{{"date", "Mon, 13 Oct 2014 21:02:27 GMT"}}
		answer("text/html; charset=utf-8", "")
	default:
		res.Status, res.StatusText = 404, "Not Found"
	}
	return json.Marshal(res)
}
