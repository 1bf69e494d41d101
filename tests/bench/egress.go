package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// The egress part: the proxy, as a jail reaches it, against nginx as a reverse
// proxy and against no proxy. The clients are this program's, inside the jail's
// network; the upstream is nginx in all cases.

const (
	benchHost  = "bench.world.test"
	downloadOf = 1 << 30
	idleConns  = 5000
	clients    = 32
)

// egress measures it.
func (r *report) egress(ctx context.Context, dir string, rounds int) (err error) {
	web, err := startNginx(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, web.stop()) }()
	sys, err := harness.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sys.Close(context.WithoutCancel(ctx))) }()
	j, err := enterJail(ctx, sys, web)
	if err != nil {
		return err
	}
	for _, f := range []func(context.Context, *way, int) error{r.requestRates, r.interception, r.download, r.idle} {
		if err := f(ctx, j, rounds); err != nil {
			return err
		}
	}
	return nil
}

// A way is a jail's network and what is at both ends of it.
type way struct {
	sys   *harness.System
	web   *nginx
	ns    int // of the jail's network
	proxy string
	ca    []byte
}

// enterJail makes a jail that may reach the upstream, and finds its network.
func enterJail(ctx context.Context, sys *harness.System, web *nginx) (*way, error) {
	_, err := sys.WritePolicy(func(text string) string {
		rule := fmt.Sprintf("    egress_limits: {rate: 1000000, connections: 20000}\n    egress:\n      - {host: %s, scheme: http, ports: [%d], addresses: [127.0.0.0/8], resolve: [127.0.0.1]}\n", benchHost, web.upstream)
		return strings.Replace(text, "    egress:\n", rule, 1)
	})
	if err != nil {
		return nil, err
	}
	if o, err := sys.Ctl(ctx, "", "policy", "reload"); err != nil || o.Code != 0 {
		return nil, fmt.Errorf("policy: %w: %s", err, o.Stderr)
	}
	const path = "/v1/tenants/" + tenant + "/jail"
	b, err := call(ctx, sys.API, "POST", path+"/exec", []byte(`{"command":"echo $HTTP_PROXY; cat $SSL_CERT_FILE"}`))
	if err != nil {
		return nil, err
	}
	var p api.Process
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, err
	}
	proxy, ca, _ := strings.Cut(p.Stdout, "\n")
	w := &way{sys: sys, web: web, ca: []byte(ca), proxy: strings.TrimPrefix(proxy, "http://")}
	mark := fmt.Sprintf("1%d", os.Getpid()+1_000_000)
	if _, err := call(ctx, sys.API, "POST", path+"/exec", fmt.Appendf(nil, `{"argv":["sleep",%q],"background":true}`, mark)); err != nil {
		return nil, err
	}
	pid, err := processWith(mark)
	if err != nil {
		return nil, err
	}
	w.ns, err = unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return w, err
}

// processWith finds the process whose last argument is mark.
func processWith(mark string) (int, error) {
	for stop := time.Now().Add(10 * time.Second); time.Now().Before(stop); time.Sleep(10 * time.Millisecond) {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			return 0, err
		}
		for _, f := range all {
			if b, err := os.ReadFile(f); err == nil && strings.HasSuffix(string(b), "\x00"+mark+"\x00") && strings.HasPrefix(string(b), "sleep") {
				var pid int
				_, err = fmt.Sscanf(f, "/proc/%d/cmdline", &pid)
				return pid, err
			}
		}
	}
	return 0, errors.New("the jail's process is not to be seen")
}

// dial connects from inside the jail's network. The thread comes back and lives
// on: it may be the one whose end would end the daemon (Pdeathsig).
func (w *way) dial(addr string) (c net.Conn, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(home)
	if err := unix.Setns(w.ns, unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	c, err = net.DialTimeout("tcp", addr, 10*time.Second)
	if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
		fail(back) // nothing here would be right any more
	}
	return c, err
}

// requestRates is small plain requests on kept-alive connections.
func (r *report) requestRates(ctx context.Context, w *way, _ int) error {
	through := fmt.Sprintf("GET http://%s:%d/small HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", benchHost, w.web.upstream)
	straight := "GET /small HTTP/1.1\r\nHost: " + benchHost + "\r\n\r\n"
	local := func(port int) func() (net.Conn, error) {
		return func() (net.Conn, error) { return net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)) }
	}
	ours := func() (net.Conn, error) { return w.dial(w.proxy) }
	// Rounds alternate, so that a busy machine slows all of them.
	var best [3]float64
	for range 5 {
		for i, c := range []struct {
			dial func() (net.Conn, error)
			head string
		}{{local(w.web.upstream), straight}, {local(w.web.proxy), straight}, {ours, through}} {
			n, err := throughput(ctx, c.dial, c.head, time.Second)
			if err != nil {
				return err
			}
			best[i] = max(best[i], n)
		}
	}
	r.Figures = append(r.Figures,
		figure{"plain requests, no proxy", best[0], "1/s", fmt.Sprintf("%d connections, best of 5 rounds", clients)},
		figure{"plain requests, nginx as reverse proxy", best[1], "1/s", ""},
		figure{"plain requests through the egress proxy", best[2], "1/s", fmt.Sprintf("%.0f %% of nginx", 100*best[2]/best[1])})
	return nil
}

// throughput sends the same request over and over on several connections.
func throughput(ctx context.Context, dial func() (net.Conn, error), head string, during time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	var total atomic.Int64
	errs := make([]error, clients)
	conns := make([]net.Conn, clients)
	for i := range conns {
		c, err := dial()
		if err != nil {
			return 0, err
		}
		defer c.Close()
		conns[i] = c
	}
	began := time.Now()
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			br := bufio.NewReader(c)
			for ctx.Err() == nil {
				if _, errs[i] = io.WriteString(c, head); errs[i] == nil {
					errs[i] = skipAnswer(br)
				}
				if errs[i] != nil {
					return
				}
				total.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(total.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}

// skipAnswer reads one answer with a Content-Length; it costs next to nothing,
// so that what is measured is not the client.
func skipAnswer(br *bufio.Reader) error {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return err
	}
	if len(line) < 12 || string(line[9:12]) != "200" {
		rest, _ := br.Peek(min(br.Buffered(), 500))
		return fmt.Errorf("answer %q %q", line, rest)
	}
	length := 0
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if len(line) > 16 && line[7] == '-' && strings.EqualFold(string(line[:15]), "content-length:") {
			for _, c := range line[15:] {
				if c >= '0' && c <= '9' {
					length = 10*length + int(c-'0')
				}
			}
		}
	}
	_, err = br.Discard(length)
	return err
}

// interception is one small request at a time on a kept-alive TLS connection:
// straight to the world, and read and written anew in between.
func (r *report) interception(ctx context.Context, w *way, rounds int) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca)
	client := func(dial func(ctx context.Context, network, addr string) (net.Conn, error), proxy *url.URL) *http.Client {
		return &http.Client{Transport: &http.Transport{DialContext: dial, Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: pool}}}
	}
	straight := client(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, netip.AddrPortFrom(w.sys.World.Addr, 443).String())
	}, nil)
	through := client(func(context.Context, string, string) (net.Conn, error) { return w.dial(w.proxy) }, &url.URL{Scheme: "http", Host: w.proxy})
	get := func(c *http.Client, host string) func(context.Context) error {
		return func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, "GET", "https://"+host+"/v1/x", nil)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+w.sys.World.Token)
			resp, err := c.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
				return fmt.Errorf("status %d: %w", resp.StatusCode, err)
			}
			return nil
		}
	}
	rows, err := measure(ctx, max(rounds, 100), []step{
		{"HTTPS request, no proxy", get(straight, harness.APIHost)},
		{"HTTPS request, intercepted, with a credential", get(through, harness.APIHost)},
	})
	if err != nil {
		return err
	}
	r.Rows = append(r.Rows, rows...)
	added := rows[1].P50 - rows[0].P50
	r.Figures = append(r.Figures, figure{"interception adds, p50", float64(added.Microseconds()), "µs", "kept-alive connection, credential added and looked for"})
	return nil
}

// download is one large answer, and what the proxy takes for it.
func (r *report) download(ctx context.Context, w *way, _ int) error {
	read := func(c net.Conn, err error, head string) (time.Duration, error) {
		if err != nil {
			return 0, err
		}
		defer c.Close()
		began := time.Now()
		if _, err := io.WriteString(c, head); err != nil {
			return 0, err
		}
		n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{c}, make([]byte, 256<<10))
		if err == nil && n < downloadOf {
			err = fmt.Errorf("%d bytes came", n)
		}
		return time.Since(began), err
	}
	var straight, through time.Duration
	for range 3 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.web.upstream))
		took, err := read(c, err, "GET /large HTTP/1.1\r\nHost: "+benchHost+"\r\nConnection: close\r\n\r\n")
		if err != nil {
			return err
		}
		straight = shorter(straight, took)
		c, err = w.dial(w.proxy)
		took, err = read(c, err, fmt.Sprintf("GET http://%s:%d/large HTTP/1.1\r\nHost: %[1]s:%[2]d\r\nConnection: close\r\n\r\n", benchHost, w.web.upstream))
		if err != nil {
			return err
		}
		through = shorter(through, took)
	}
	peak, err := w.proxyMemory(ctx, "VmHWM")
	if err != nil {
		return err
	}
	speed := func(d time.Duration) float64 { return downloadOf / d.Seconds() / (1 << 20) }
	r.Figures = append(r.Figures,
		figure{"1 GiB download, no proxy", speed(straight), "MiB/s", "best of 3"},
		figure{"1 GiB download through the egress proxy", speed(through), "MiB/s", fmt.Sprintf("%.0f %% of no proxy", 100*speed(through)/speed(straight))},
		figure{"largest memory of the proxy process", float64(peak >> 20), "MiB", "resident, after the above"})
	return nil
}

func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// idle holds many connections open and uses each again.
func (r *report) idle(ctx context.Context, w *way, _ int) error {
	before, err := w.proxyMemory(ctx, "VmRSS")
	if err != nil {
		return err
	}
	head := fmt.Sprintf("GET http://%s:%d/small HTTP/1.1\r\nHost: %[1]s:%[2]d\r\n\r\n", benchHost, w.web.upstream)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	ask := func(c net.Conn) error {
		if _, err := io.WriteString(c, head); err != nil {
			return err
		}
		return skipAnswer(bufio.NewReaderSize(c, 1024))
	}
	for range idleConns {
		c, err := w.dial(w.proxy)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if err := ask(c); err != nil {
			return err
		}
	}
	after, err := w.proxyMemory(ctx, "VmRSS")
	if err != nil {
		return err
	}
	held := 0
	for _, c := range conns {
		if err := ask(c); err == nil {
			held++
		}
	}
	r.Figures = append(r.Figures, figure{"idle connections that hold", float64(held), "", fmt.Sprintf("of %d; %.1f KiB of the proxy's memory each", idleConns, float64(after-before)/idleConns/1024)})
	return nil
}

// proxyMemory reads one line of the proxy process's status, in bytes.
func (w *way) proxyMemory(ctx context.Context, field string) (int64, error) {
	a, err := w.sys.Admin.Do(ctx, "GET", "/v1/status", nil)
	if err != nil {
		return 0, err
	}
	var s api.Status
	if err := json.Unmarshal(a.Body, &s); err != nil || s.Egress == nil {
		return 0, fmt.Errorf("status: %w: %s", err, a.Body)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Egress.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			var kb int64
			_, err := fmt.Sscanf(strings.TrimSpace(rest), "%d", &kb)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in the proxy's status", field)
}
