package netproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// app is a tenant's server.
func (w *world) app(tenant string, h http.HandlerFunc) {
	s := httptest.NewServer(h)
	w.Cleanup(s.Close)
	w.mu.Lock()
	w.jailPorts[tenant] = s.Listener.Addr().String()
	w.mu.Unlock()
}

// visit asks the preview listener as a browser would, with that Host.
func (w *world) visit(host, path string, header http.Header) (*http.Response, string) {
	w.Helper()
	req, err := http.NewRequest("GET", "http://"+w.p.cfg.Preview.Addr().String()+path, nil)
	if err != nil {
		w.Fatal(err)
	}
	req.Host = host
	for k, v := range header {
		req.Header[k] = v
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	return resp, readAll(w, resp, err)
}

func hostOf(v Preview) string { return strings.TrimSuffix(strings.TrimPrefix(v.URL, "http://"), "/") }

func (w *world) expose(tenant string, port uint16, ttl time.Duration) Preview {
	w.Helper()
	v, err := w.p.Expose(w.Context(), tenant, port, ttl)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

func TestPreview(t *testing.T) {
	w := newWorld(t, nil)
	w.app("bob", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Add("Set-Cookie", "a=b; Domain=localhost; Path=/; HttpOnly")
		rw.Header().Add("Set-Cookie", "sandboxd_session=x")
		rw.Header().Set("Strict-Transport-Security", "max-age=1; includeSubDomains")
		rw.Header().Set("Clear-Site-Data", `"*"`)
		rw.Header().Set("Referrer-Policy", "unsafe-url")
		fmt.Fprintf(rw, "host=%s origin=%s cookie=%s xff=%s xfh=%s path=%s", r.Host, r.Header.Get("Origin"), r.Header.Get("Cookie"),
			r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Host"), r.URL.RequestURI())
	})
	v := w.expose("bob", 3000, time.Hour)
	host := hostOf(v)
	label, _, _ := strings.Cut(host, ".")
	if len(label) > 63 || len(v.Token) != 32 || !strings.Contains(label, v.Token) || !strings.HasSuffix(host, "."+w.p.cfg.PreviewBase) {
		t.Errorf("URL %q", v.URL)
	}
	resp, body := w.visit(host, "/a%2fb?c", http.Header{
		"Origin": {"http://" + host}, "Cookie": {"app=1; sandboxd_x=2; __Host-sandboxd=3"}, "X-Forwarded-For": {"1.1.1.1"},
	})
	if want := "host=localhost:3000 origin=http://localhost:3000 cookie=app=1 xff= xfh=" + host + " path=/a%2fb?c"; body != want {
		t.Errorf("the app saw %q, want %q", body, want)
	}
	if c := resp.Header.Values("Set-Cookie"); len(c) != 1 || c[0] != "a=b; Path=/; HttpOnly" {
		t.Errorf("cookies %q", c)
	}
	if resp.Header.Get("Strict-Transport-Security")+resp.Header.Get("Clear-Site-Data") != "" || resp.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("header %v", resp.Header)
	}
	other := w.expose("bob", 8080, time.Hour)
	for name, tc := range map[string]struct {
		host string
		want int
	}{
		"upper case":              {strings.ToUpper(host), 200},
		"unknown token":           {"p3000-" + strings.Repeat("0", 32) + "." + w.p.cfg.PreviewBase, 404},
		"other port's token":      {"p8080-" + v.Token + "." + w.p.cfg.PreviewBase, 404},
		"the base itself":         {w.p.cfg.PreviewBase, 421},
		"another base":            {label + ".evil.test", 421},
		"deeper":                  {"x." + host, 421},
		"an address":              {"127.0.0.1", 421},
		"another listener's port": {label + ".localhost:1", 421},
	} {
		if resp, body := w.visit(tc.host, "/", nil); resp.StatusCode != tc.want {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	if ports := w.p.Ports("bob"); len(ports) != 2 || ports[0] != v || ports[1] != other {
		t.Errorf("ports %+v", ports)
	}
	if err := w.p.Unexpose(t.Context(), "bob", 3000); err != nil {
		t.Fatal(err)
	}
	if err := w.p.Unexpose(t.Context(), "bob", 3000); !errors.Is(err, ErrNotExposed) {
		t.Errorf("withdrawn twice: %v", err)
	}
	again := w.expose("bob", 3000, time.Hour)
	if resp, body := w.visit(host, "/", http.Header{"Accept": {"text/html"}}); resp.StatusCode != 410 || !strings.Contains(body, "<h1>") {
		t.Errorf("a stale address: %d %s", resp.StatusCode, body)
	}
	if resp, _ := w.visit(hostOf(again), "/", nil); resp.StatusCode != 200 {
		t.Errorf("its successor: %d", resp.StatusCode)
	}
	if err := w.p.RemoveTenant(t.Context(), "bob"); err != nil {
		t.Fatal(err)
	}
	if resp, _ := w.visit(hostOf(again), "/", nil); resp.StatusCode != 410 || len(w.p.Ports("bob")) != 0 {
		t.Errorf("after the tenant is gone: %d, %v", resp.StatusCode, w.p.Ports("bob"))
	}
}

func TestPreviewExpires(t *testing.T) {
	w := newWorld(t, nil)
	w.app("bob", hello)
	v := w.expose("bob", 3000, 300*time.Millisecond)
	if resp, _ := w.visit(hostOf(v), "/", nil); resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		resp, _ := w.visit(hostOf(v), "/", nil)
		if resp.StatusCode == 410 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("status %d after its time", resp.StatusCode)
		}
	}
}

func TestPreviewWaitsForTheServer(t *testing.T) {
	w := newWorld(t, nil)
	v := w.expose("bob", 3000, time.Hour)
	resp, body := w.visit(hostOf(v), "/", http.Header{"Accept": {"text/html"}})
	if resp.StatusCode != 503 || !strings.Contains(body, `http-equiv="refresh"`) || !strings.Contains(body, "3000") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	w.app("bob", hello)
	if resp, body := w.visit(hostOf(v), "/", nil); resp.StatusCode != 200 || body != "hello" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

func TestPreviewWebSocket(t *testing.T) {
	w := newWorld(t, nil)
	w.app("bob", func(rw http.ResponseWriter, r *http.Request) {
		if r.Host != "localhost:5173" || r.Header.Get("Origin") != "http://localhost:5173" {
			http.Error(rw, r.Host+" "+r.Header.Get("Origin"), http.StatusForbidden)
			return
		}
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, append([]byte("echo "), b...)) != nil {
				return
			}
		}
	})
	v := w.expose("bob", 5173, time.Hour)
	dial := func(origin string) (*websocket.Conn, *http.Response, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return websocket.Dial(ctx, "ws://"+w.p.cfg.Preview.Addr().String()+"/hmr", &websocket.DialOptions{
			Host: hostOf(v), HTTPHeader: http.Header{"Origin": {origin}},
		})
	}
	if _, resp, err := dial("http://evil.test"); err == nil || resp == nil || resp.StatusCode != 403 {
		t.Errorf("from another site: %v %v", resp, err)
	}
	c, _, err := dial("http://" + hostOf(v))
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Write(ctx, websocket.MessageText, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := c.Read(ctx); err != nil || string(b) != "echo hi" {
		t.Fatalf("%q %v", b, err)
	}
	if err := w.p.Unexpose(ctx, "bob", 5173); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the socket outlives the preview: %v", err)
	}
}

func TestPreviewStreamsEvents(t *testing.T) {
	w := newWorld(t, nil)
	step := make(chan struct{})
	w.app("bob", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			fmt.Fprint(rw, "data: x\n\n")
			rw.(http.Flusher).Flush()
			<-step
		}
	})
	v := w.expose("bob", 3000, time.Hour)
	c, err := net.Dial("tcp", w.p.cfg.Preview.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", hostOf(v))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 9)
	for range 2 {
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "data: x\n\n" {
			t.Fatalf("%q %v", buf, err)
		}
		step <- struct{}{}
	}
}

func TestPreviewAddressesStayApart(t *testing.T) {
	w := newWorld(t, nil)
	got := make(chan string, 1)
	w.app("bob", func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Origin") })
	bob, eve := w.expose("bob", 3000, time.Minute), w.expose("eve", 3000, time.Minute)
	for origin, want := range map[string]string{
		"http://" + hostOf(eve):                  "null",
		"http://" + strings.ToUpper(hostOf(eve)): "null",
		"http://" + hostOf(bob):                  "http://localhost:3000",
		"https://elsewhere.test":                 "https://elsewhere.test",
	} {
		if resp, _ := w.visit(hostOf(bob), "/", http.Header{"Origin": {origin}}); resp.StatusCode != 200 {
			t.Fatalf("Origin %s: %s", origin, resp.Status)
		}
		if o := <-got; o != want {
			t.Errorf("Origin %s arrives as %q, want %q", origin, o, want)
		}
	}
}

func TestPreviewsOfOneTenantAreFew(t *testing.T) {
	w := newWorld(t, nil)
	for i := range maxPreviews {
		w.expose("bob", uint16(3000+i), time.Minute)
	}
	if _, err := w.p.Expose(w.Context(), "bob", 9000, time.Minute); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	w.expose("bob", 3000, time.Minute) // anew, in place of the old one
	w.expose("eve", 9000, time.Minute)
}
