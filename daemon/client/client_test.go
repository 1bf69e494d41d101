package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"sandboxd/daemon/api"
)

// serve answers every request with h.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	go func() { _ = srv.Serve(l) }()
	c := New(path)
	t.Cleanup(func() { c.Close(); srv.Close() })
	return c
}

func TestNamesStayInTheirSegment(t *testing.T) {
	var got string
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.URL.EscapedPath() })
	ctx := context.Background()
	for _, tt := range []struct {
		call func() error
		want string
	}{
		{func() error { return c.KVDelete(ctx, "t", "a//b") }, "/v1/tenants/t/kv/a%2F%2Fb"},
		{func() error { return c.KVDelete(ctx, "t", "..") }, "/v1/tenants/t/kv/%2E%2E"},
		{func() error { return c.KVDelete(ctx, "t", "a/../b?c#d%") }, "/v1/tenants/t/kv/a%2F..%2Fb%3Fc%23d%25"},
		{func() error { return c.DestroyJail(ctx, "../x") }, "/v1/tenants/..%2Fx/jail"},
		{func() error { return c.Kill(ctx, "t", "..") }, "/v1/tenants/t/jail/processes/%2E%2E"},
		{func() error { return c.DeleteFile(ctx, "t", "/workspace/../../run") }, "/v1/tenants/t/jail/files/run"},
		{func() error { return c.DeleteFile(ctx, "t", "../a b") }, "/v1/tenants/t/jail/files/a%20b"},
		{func() error { return c.Health(ctx) }, "/healthz"},
	} {
		if err := tt.call(); err != nil || got != tt.want {
			t.Errorf("got %s, %v; want %s", got, err, tt.want)
		}
	}
}

func TestErrors(t *testing.T) {
	ctx := context.Background()
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":{"code":"denied","message":"no"}}`))
	})
	_, err := c.Status(ctx)
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeDenied {
		t.Errorf("got %v", err)
	}
	if _, err := c.Run(ctx, "t", &api.RunRequest{}); !errors.As(err, &e) || e.Code != api.CodeDenied {
		t.Errorf("a run: %v", err)
	}
	for _, err := range c.RunStream(ctx, "t", &api.RunRequest{}) {
		if !errors.As(err, &e) {
			t.Errorf("a stream: %v", err)
		}
	}
	garbage := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); _, _ = w.Write([]byte("<html>")) })
	if _, err := garbage.Status(ctx); err == nil || errors.As(err, new(*api.Error)) {
		t.Errorf("garbage gives %v", err)
	}
	var u *UnreachableError
	if err := New(filepath.Join(t.TempDir(), "none")).Health(ctx); !errors.As(err, &u) {
		t.Errorf("nobody there gives %v", err)
	}
}

func TestStreams(t *testing.T) {
	ctx := context.Background()
	body := ""
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "application/x-ndjson" {
			t.Errorf("accepts %q", r.Header.Get("Accept"))
		}
		_, _ = w.Write([]byte(body))
	})
	for _, tt := range []struct {
		name, body string
		follow     bool
		events     int
		want       error
	}{
		{"whole", "{\"type\":\"started\"}\n{\"type\":\"result\"}\n", true, 2, nil},
		{"cut off", "{\"type\":\"started\"}\n", true, 1, ErrUnfinished},
		{"a look at what is there", "{\"type\":\"started\"}\n", false, 1, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body = tt.body
			n, last := 0, error(nil)
			for _, err := range c.RunEvents(ctx, "r", 0, tt.follow) {
				if last = err; err == nil {
					n++
				}
			}
			if n != tt.events || !errors.Is(last, tt.want) {
				t.Errorf("%d events, then %v", n, last)
			}
		})
	}
	body = "{\"type\":\"error\",\"error\":{\"code\":\"gone\",\"message\":\"m\"}}\n"
	for _, err := range c.RunEvents(ctx, "r", 0, true) {
		if e := new(api.Error); !errors.As(err, &e) || e.Code != api.CodeGone {
			t.Errorf("a broken stream gives %v", err)
		}
	}
	body = "not json\n"
	for _, err := range c.RunEvents(ctx, "r", 0, true) {
		if err == nil {
			t.Error("garbage was an event")
		}
	}
}
