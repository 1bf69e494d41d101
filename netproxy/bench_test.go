package netproxy

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"sandboxd/policy"
)

func BenchmarkAttach(b *testing.B) {
	w := newWorld(b, nil)
	for b.Loop() {
		l, err := w.p.Attach(b.Context(), "alice")
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func drain(b *testing.B, resp *http.Response, err error) int64 {
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != 200 {
		b.Fatal(resp.StatusCode, err)
	}
	return n
}

// BenchmarkRequest is one small request on a kept-alive connection; direct is
// the floor, without a proxy.
func BenchmarkRequest(b *testing.B) {
	w := newWorld(b, func(c *Config) { c.Limits.Rate, c.Limits.Burst = 1e9, 1e9 })
	u := w.upstream("api.test", hello)
	p := w.plainUpstream("plain.test", hello)
	o := w.upstream("open.test", hello)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }),
		p.rule(func(r *policy.Rule) { r.Scheme = "http" }), o.rule(nil))
	fetch := &http.Client{Transport: w.p.Fetch("alice", "run")}
	plain := fmt.Sprintf("http://plain.test:%d/", p.port)
	for _, bc := range []struct {
		name   string
		client *http.Client
		url    string
	}{
		{"direct-http", &http.Client{}, p.srv.URL},
		{"http", j.client(), plain},
		{"direct-https", o.srv.Client(), o.srv.URL},
		{"tunnel", j.client(), o.url("/")},
		{"intercepted", j.client(), u.url("/")},
		{"isolate", fetch, u.url("/")},
	} {
		b.Run(bc.name, func(b *testing.B) {
			if bc.name == "direct-https" {
				bc.client = j.client()
				bc.client.Transport.(*http.Transport).Proxy = nil
				bc.client.Transport.(*http.Transport).DialContext = nil
				bc.client.Transport.(*http.Transport).TLSClientConfig.ServerName = "open.test"
			}
			for b.Loop() {
				resp, err := bc.client.Get(bc.url)
				drain(b, resp, err)
			}
		})
	}
}

// BenchmarkDownload is the speed of one large answer.
func BenchmarkDownload(b *testing.B) {
	const size = 256 << 20
	w := newWorld(b, nil)
	block := make([]byte, 256<<10)
	serve := func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", fmt.Sprint(size))
		for range size / len(block) {
			if _, err := rw.Write(block); err != nil {
				return
			}
		}
	}
	u := w.upstream("api.test", serve)
	o := w.upstream("open.test", serve)
	p := w.plainUpstream("plain.test", serve)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }), o.rule(nil),
		p.rule(func(r *policy.Rule) { r.Scheme = "http" }))
	direct := j.client()
	direct.Transport.(*http.Transport).Proxy = nil
	direct.Transport.(*http.Transport).DialContext = nil
	direct.Transport.(*http.Transport).TLSClientConfig.ServerName = "open.test"
	for _, bc := range []struct {
		name   string
		client *http.Client
		url    string
	}{
		{"direct-http", &http.Client{}, p.srv.URL},
		{"http", j.client(), fmt.Sprintf("http://plain.test:%d/", p.port)},
		{"direct-https", direct, o.srv.URL},
		{"tunnel", j.client(), o.url("/")},
		{"intercepted", j.client(), u.url("/")},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				resp, err := bc.client.Get(bc.url)
				if n := drain(b, resp, err); n != size {
					b.Fatal(n)
				}
			}
		})
	}
}
