package netproxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sandboxd/policy"
)

func TestAnswersAreRedacted(t *testing.T) {
	w := newWorld(t, nil)
	forms := map[string]string{
		"/raw": secret, "/url": url.QueryEscape(secret), "/hex": hex.EncodeToString([]byte(secret)),
		"/base64": base64.StdEncoding.EncodeToString([]byte("xy" + secret)), "/json": fmt.Sprintf("%q", secret),
	}
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		text := "<" + forms[r.URL.Path] + ">"
		rw.Header().Set("X-Echo", text)
		rw.Header().Set("Trailer", "X-Late")
		defer func() { rw.Header().Set("X-Late", text) }()
		switch r.URL.Query().Get("how") {
		case "gzip":
			rw.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(rw)
			io.WriteString(z, text)
			z.Close()
		case "br":
			rw.Header().Set("Content-Encoding", "br")
			io.WriteString(rw, text)
		case "bytes":
			for i := range len(text) {
				io.WriteString(rw, text[i:i+1])
				rw.(http.Flusher).Flush()
			}
		case "error":
			http.Error(rw, text, http.StatusTeapot)
		default:
			io.WriteString(rw, text)
		}
	})
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }))
	c := j.client()
	c.Transport.(*http.Transport).DisableCompression = true
	for path, form := range forms {
		for _, how := range []string{"", "gzip", "bytes", "error"} {
			resp, err := c.Get(u.url(path + "?how=" + how))
			body := readAll(t, resp, err)
			all := body + fmt.Sprint(resp.Header, resp.Trailer)
			if strings.Contains(all, form) || !strings.HasPrefix(body, "<") || !strings.Contains(body, "***") {
				t.Errorf("%s %s: %q %v", path, how, body, resp.Header)
			}
		}
		resp, err := c.Get(u.url(path + "?how=br"))
		if body := readAll(t, resp, err); resp.StatusCode != 502 || !strings.Contains(body, "encoded_answer") {
			t.Errorf("an encoding that cannot be searched: %d %s", resp.StatusCode, body)
		}
	}
	req, err := http.NewRequest("GET", u.url("/raw"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=0-5")
	req.Header.Set("Accept-Encoding", "br, gzip")
	resp, err := c.Do(req)
	readAll(t, resp, err)
	seen := u.requests()
	if h := seen[len(seen)-1].Header; h.Get("Range") != "" || h.Get("Accept-Encoding") != "identity" {
		t.Errorf("the server was asked for %v", h)
	}
}

// Whatever the sandbox sends in the field that is injected, the server gets
// one, ours.
func TestInjectedFieldIsOurs(t *testing.T) {
	for as, in := range map[string]*policy.Injection{
		"header": {Name: "api-token", As: "header", Field: "X-Api-Key"},
		"bearer": bearer,
		"query":  {Name: "api-token", As: "query", Field: "key"},
	} {
		t.Run(as, func(t *testing.T) {
			w := newWorld(t, nil)
			u := w.upstream("api.test", hello)
			j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = in }))
			at := fmt.Sprintf("api.test:%d", u.port)
			tc, err := j.tunnelTo(at, "api.test")
			if err != nil {
				t.Fatal(err)
			}
			_, body := talk(t, tc, "GET /?key=theirs&%6bey=theirs&other=1 HTTP/1.1\r\nHost: "+at+"\r\nConnection: keep-alive, X-Api-Key, authorization, X-Gone\r\n"+
				"x-api-key: theirs\r\nX_Api_Key: theirs\r\nAuthorization: theirs\r\nauthorization: again\r\nX-Gone: 1\r\nProxy-Authorization: theirs\r\nForwarded: for=1\r\nX-Kept: 1\r\n\r\n")
			if body != "hello" {
				t.Fatalf("got %q", body)
			}
			r := u.requests()[0]
			values := map[string][]string{"header": r.Header["X-Api-Key"], "bearer": r.Header["Authorization"], "query": r.URL.Query()["key"]}[as]
			if len(values) != 1 || strings.TrimPrefix(values[0], "Bearer ") != secret {
				t.Errorf("the server saw %d values", len(values))
			}
			if r.Header.Get("X-Gone")+r.Header.Get("Proxy-Authorization")+r.Header.Get("Forwarded") != "" || r.Header.Get("X-Kept") != "1" || r.URL.Query().Get("other") != "1" {
				t.Errorf("the server saw %v %v", r.Header, r.URL)
			}
			for name := range r.Header {
				if as == "header" && strings.Contains(name, "_") {
					t.Errorf("a twin of the field came through: %s", name)
				}
			}
		})
	}
}

// rawUpstream answers every connection's first request with these bytes and
// keeps what it was sent.
func (w *world) rawUpstream(name, answer string) (*upstream, func() string) {
	cert := w.cert(name, nil)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { l.Close() })
	got := make(chan string, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var sent bytes.Buffer
				req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(c, &sent)))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				got <- sent.String()
				_, _ = io.WriteString(c, answer)
			}()
		}
	}()
	u := &upstream{name: name, port: uint16(l.Addr().(*net.TCPAddr).Port)}
	return u, func() string { return <-got }
}

func TestUpstreamGetsOneCanonicalRequest(t *testing.T) {
	w := newWorld(t, nil)
	u, sent := w.rawUpstream("api.test", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Methods = []string{"POST"} }))
	at := fmt.Sprintf("api.test:%d", u.port)
	tc, err := j.tunnelTo(at, "api.test")
	if err != nil {
		t.Fatal(err)
	}
	_, body := talk(t, tc, "POST /a%2Fb?x=%zz HTTP/1.1\r\nhOST:  "+strings.ToUpper(at)+" \r\nX-A:\tone \r\nx-a: two\r\n"+
		"Transfer-Encoding: chunked\r\nTE: trailers\r\nTrailer: Authorization\r\nKeep-Alive: 5\r\n\r\n003\r\nabc\r\n0\r\nAuthorization: evil\r\n\r\n")
	if body != "ok" {
		t.Fatalf("got %q", body)
	}
	want := "POST /a%2Fb?x=%zz HTTP/1.1\r\nHost: " + at + "\r\nTransfer-Encoding: chunked\r\nX-A: one\r\nX-A: two\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
	if got := sent(); got != want {
		t.Errorf("the server was sent\n%q, want\n%q", got, want)
	}
}

// A hostile or broken server: the sandbox gets one answer that it can frame,
// or sees that it is broken off.
func TestHostileUpstream(t *testing.T) {
	w := newWorld(t, nil)
	for name, tc := range map[string]struct {
		answer string
		status int // 0: broken off
		body   string
	}{
		"both framings":  {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200, "ok"},
		"not http":       {"hello\r\n\r\n", 502, "upstream_failed"},
		"closes at once": {"", 502, "upstream_failed"},
		"1xx flood":      {strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n", 100) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 502, "upstream_failed"},
		"upgrade":        {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nraw", 502, "upstream_failed"},
		"huge head":      {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) + "\r\n\r\n", 502, "upstream_failed"},
		"body too short": {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nok", 0, ""},
		"chunk cut off":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", 0, ""},
		"odd reason":     {"HTTP/1.1 200 " + secret + "\r\nContent-Length: 2\r\n\r\nok", 200, "ok"},
		"our own mark":   {"HTTP/1.1 200 OK\r\nSandboxd-Refused: no_rule\r\nContent-Length: 2\r\n\r\nok", 200, "ok"},
		"two messages":   {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 200, "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			u, _ := w.rawUpstream("api.test", tc.answer)
			w.rules("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }))
			resp, err := (&http.Client{Transport: w.p.Fetch("alice", "r")}).Get(u.url("/"))
			if tc.status == 502 {
				if err == nil || !strings.Contains(err.Error(), "the request failed") {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if tc.status == 0 {
				if err == nil {
					t.Errorf("a broken answer looks whole: %q", body)
				}
				return
			}
			if err != nil || resp.StatusCode != tc.status || string(body) != tc.body || hasSecret(resp.Status) {
				t.Errorf("%s %q %v", resp.Status, body, err)
			}
		})
	}
}
