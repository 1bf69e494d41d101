package netproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/policy"
)

func TestTenantsDoNotReachEachOther(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	a := w.jail("alice", u.rule(nil))
	b := w.jail("bob")
	// Something listens in bob's jail, and bob's proxy listens for bob.
	var l net.Listener
	if err := b.within(func() (err error) {
		l, err = net.Listen("tcp", b.link.Address.String()+":8000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, to := range []string{
		b.proxyAddr(), b.link.Address.String() + ":8000", b.link.Gateway.String() + ":443", b.link.Gateway.String() + ":53",
	} {
		err := a.within(func() error {
			c, err := (&net.Dialer{Timeout: 300 * time.Millisecond}).Dial("tcp", to)
			if err == nil {
				c.Close()
			}
			return err
		})
		if err == nil {
			t.Errorf("alice reaches %s", to)
		}
	}
	var refused *connectRefused
	if _, err := b.client().Get(u.url("/")); !errors.As(err, &refused) || refused.status != 403 {
		t.Errorf("bob has alice's rule: %v", err)
	}
	if string(a.link.CA) == string(b.link.CA) {
		t.Error("two tenants have the same authority")
	}
}

func TestRulesChangeLive(t *testing.T) {
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	other := w.upstream("other.test", hello)
	j := w.jail("alice", u.rule(nil))
	at := fmt.Sprintf("api.test:%d", u.port)
	tc, err := j.tunnelTo(at, "api.test")
	if err != nil {
		t.Fatal(err)
	}
	get := "GET / HTTP/1.1\r\nHost: " + at + "\r\n\r\n"
	talk(t, tc, get)
	w.rules("alice", other.rule(nil), u.rule(nil))
	if _, body := talk(t, tc, get); body != "hello" {
		t.Errorf("what is granted as before was cut: %q", body)
	}
	w.rules("alice", other.rule(nil))
	if _, err := io.ReadAll(tc); err == nil {
		// A clean end is a cut, too; a timeout is not.
		t.Log("cut cleanly")
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the tunnel outlives its rule")
	}
	var refused *connectRefused
	if _, err := j.client().Get(u.url("/")); !errors.As(err, &refused) {
		t.Errorf("after revocation: %v", err)
	}
	d := w.find(func(d Decision) bool { return d.Kind == "tunnel" && d.Phase == "finished" && d.Reason == "revoked" })
	if d.Host != "api.test" {
		t.Errorf("record %+v", d)
	}
	// Rules that cannot be understood grant nothing.
	if err := w.p.SetRules(t.Context(), "alice", []policy.Rule{other.rule(nil), {Host: "*"}}, policy.EgressLimits{}); err == nil {
		t.Error("a bad rule was taken")
	}
	if _, err := j.client().Get(other.url("/")); !errors.As(err, &refused) || refused.status != 403 {
		t.Errorf("after a bad rule: %v", err)
	}
}

func TestConnectionLimit(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits.Connections = 3 })
	u := w.upstream("api.test", hello)
	a, b := w.jail("alice", u.rule(nil)), w.jail("bob", u.rule(nil))
	var held []net.Conn
	for range 3 {
		c := a.conn()
		// Only an answer says that the connection is counted.
		talk(t, c, "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		held = append(held, c)
	}
	if resp, body := talk(t, a.conn(), "CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n"); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a fourth: %d %s", resp.StatusCode, body)
	}
	if resp, err := b.client().Get(u.url("/")); err != nil {
		t.Errorf("another tenant: %v", err)
	} else {
		resp.Body.Close()
	}
	held[0].Close()
	for deadline := time.Now().Add(5 * time.Second); ; {
		if resp, _ := talk(t, a.conn(), "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n"); resp.StatusCode == 403 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("a closed connection still counts")
		}
	}
}

func TestRateLimit(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits.Rate, c.Limits.Burst = 0.001, 3 })
	j := w.jail("alice")
	var codes []int
	for range 5 {
		resp, _ := talk(t, j.conn(), "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		codes = append(codes, resp.StatusCode)
	}
	if fmt.Sprint(codes) != "[403 403 403 429 429]" {
		t.Errorf("%v", codes)
	}
}

func TestSlowHeadIsCut(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Limits.Header = 200 * time.Millisecond })
	j := w.jail("alice")
	if resp, _ := talk(t, j.conn(), "GET http://evil.test/ HTTP/1.1\r\nHost: evil"); resp.StatusCode != 408 {
		t.Errorf("status %d", resp.StatusCode)
	}
	c, err := j.dial(t.Context(), "tcp", "198.18.0.9:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = c.Write([]byte{22, 3, 1})
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("half a ClientHello holds a connection")
	}
}

// Closing a link does not wait for a server that never answers.
func TestCloseCutsWhatIsUnderWay(t *testing.T) {
	w := newWorld(t, nil)
	arrived := make(chan struct{}, 2)
	silent := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-r.Context().Done()
	}
	u, open := w.upstream("api.test", silent), w.upstream("open.test", silent)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }), open.rule(nil))
	ended := make(chan error, 2)
	for _, url := range []string{u.url("/"), open.url("/")} {
		go func() {
			resp, err := j.client().Post(url, "text/plain", strings.NewReader("body"))
			if err == nil {
				resp.Body.Close()
			}
			ended <- err
		}()
	}
	<-arrived
	<-arrived
	start := time.Now()
	if err := j.link.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("closing took %v", took)
	}
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a request outlives its link")
		}
	}
}

// The process has nothing that it could give away but what it works with.
func TestProxyProcessIsConfined(t *testing.T) {
	w := newWorld(t, nil)
	pid := w.p.State().Pid
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d", testUID, testUID, testUID, testUID),
		fmt.Sprintf("Gid:\t%d\t%d\t%d\t%d", testUID, testUID, testUID, testUID), "Groups:\t \n",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
		"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(string(status), line) {
			t.Errorf("no %q in its status", line)
		}
	}
	for _, ns := range []string{"mnt", "ipc", "uts", "cgroup"} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err != nil {
			t.Fatal(err)
		}
		if ours, _ := os.Readlink("/proc/self/ns/" + ns); ours == theirs {
			t.Errorf("it shares our %s namespace", ns)
		}
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(env) > 0 {
		t.Errorf("its environment is %q, %v", env, err)
	}
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if hasSecret(string(cmdline)) {
		t.Error("its command line holds the secret")
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	files := descriptors(t)
	w := newWorld(t, nil)
	u := w.upstream("api.test", hello)
	var links []*Link
	for i := range 3 {
		j := w.jail(fmt.Sprintf("t%d", i), u.rule(nil))
		resp, err := j.client().Get(u.url("/"))
		readAll(t, resp, err)
		links = append(links, j.link)
	}
	if _, err := w.p.Attach(t.Context(), "t0"); !errors.Is(err, ErrAttached) {
		t.Errorf("a second link: %v", err)
	}
	if err := links[0].Close(); err != nil {
		t.Error(err)
	}
	if err := links[0].Close(); err != nil {
		t.Error("closing again:", err)
	}
	if _, err := w.p.Attach(t.Context(), "t0"); err != nil {
		t.Error("attaching again:", err)
	}
	if err := w.p.RemoveTenant(t.Context(), "t1"); err != nil {
		t.Error(err)
	}
	pid := w.p.State().Pid
	if err := w.p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.p.Done():
	default:
		t.Error("Done is not closed")
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
	if n := w.p.network.Links(); n != 0 {
		t.Errorf("%d links are left", n)
	}
	for _, err := range []error{
		w.p.SetRules(t.Context(), "t0", nil, policy.EgressLimits{}),
		func() error { _, err := w.p.Attach(t.Context(), "t9"); return err }(),
		func() error { _, err := w.p.Expose(t.Context(), "t0", 80, time.Hour); return err }(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if err := w.p.Close(context.Background()); err != nil {
		t.Error("closing again:", err)
	}
	for _, l := range links {
		if _, err := l.NetNS.Stat(); err == nil {
			t.Error("a namespace is still held")
		}
	}
	u.srv.Close()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		after := descriptors(t)
		if after <= files+2 { // the poller's own
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors before, %d after", files, after)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range all {
		if target, err := os.Readlink(f); err == nil && (strings.HasPrefix(target, "net:") || strings.HasPrefix(target, "socket:")) {
			n++
		}
	}
	return n
}

func TestStartRefuses(t *testing.T) {
	short := func(t *testing.T) *os.File {
		path := filepath.Join(t.TempDir(), "c")
		if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	w := newWorld(t, nil)
	base := w.p.cfg
	base.Preview, base.Credentials = nil, nil
	for name, edit := range map[string]func(*Config){
		"no record":        func(c *Config) { c.OnDecisions = nil },
		"root":             func(c *Config) { c.UID = 0 },
		"no executable":    func(c *Config) { c.Exe = "/nonexistent" },
		"IPv6 link range":  func(c *Config) { c.Links = netip.MustParsePrefix("fd00::/64") },
		"short credential": func(c *Config) { c.Credentials = map[string]*os.File{"a": short(t)} },
		"bad name":         func(c *Config) { c.Credentials = map[string]*os.File{"../a": short(t)} },
	} {
		cfg := base
		edit(&cfg)
		if p, err := Start(t.Context(), cfg); err == nil {
			p.Close(context.Background())
			t.Errorf("%s: started", name)
		}
	}
	t.Setenv("SSL_CERT_FILE", "/nonexistent")
	t.Setenv("SSL_CERT_DIR", "/nonexistent")
	if _, err := Start(t.Context(), base); !errors.Is(err, ErrNoRoots) {
		t.Errorf("no roots: %v", err)
	}
}
