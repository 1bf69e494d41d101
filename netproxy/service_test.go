package netproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sandboxd/policy"
)

// short is a context that ends soon.
func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// A tcpService is a server of no protocol that the proxy knows.
type tcpService struct {
	name string
	port uint16
}

func (w *world) service(name string, serve func(net.Conn)) *tcpService {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return &tcpService{name, uint16(l.Addr().(*net.TCPAddr).Port)}
}

// echo says what it is told.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c)
}

func (s *tcpService) rule(edit func(*policy.Rule)) policy.Rule {
	r := policy.Rule{ID: "t/" + s.name, Host: s.name, Scheme: "tcp", Ports: []uint16{s.port}, Resolve: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	if edit != nil {
		edit(&r)
	}
	return r
}

// dial does what a program in the jail does: ask for the name, connect.
func (s *tcpService) dial(j *jail) (net.Conn, error) {
	rr, err := lookup(j, s.name, dns.TypeA)
	if err != nil || len(rr) != 1 {
		return nil, fmt.Errorf("dns: %v, %w", rr, err)
	}
	c, err := j.dial(j.Context(), "tcp", fmt.Sprintf("%s:%d", rr[0].(*dns.A).A, s.port))
	if err != nil {
		return nil, err
	}
	j.Cleanup(func() { c.Close() })
	return c, c.SetDeadline(time.Now().Add(10 * time.Second))
}

// talk says a line and returns the answer.
func (s *tcpService) talk(j *jail, line string) string {
	j.Helper()
	c, err := s.dial(j)
	if err != nil {
		j.Fatal(err)
	}
	defer c.Close()
	return say(j, c, line)
}

func say(j *jail, c net.Conn, line string) string {
	j.Helper()
	if _, err := fmt.Fprintln(c, line); err != nil {
		j.Error(err)
	}
	got, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return got[:len(got)-1]
}

func TestNamedServices(t *testing.T) {
	w := newWorld(t, nil)
	db, cache := w.service("db.test", echo), w.service("cache.test", echo)
	a := w.jail("alice", db.rule(nil))
	b := w.jail("bob")
	if got := db.talk(a, "select 1"); got != "select 1" {
		t.Fatalf("the service says %q", got)
	}
	d := w.find(func(d Decision) bool { return d.Kind == "service" && d.Phase == "finished" })
	if !d.Allowed || d.Host != "db.test" || d.Port != db.port || d.Rule != "t/db.test" || d.BytesOut != 9 || d.BytesIn != 9 || d.Scheme != "tcp" {
		t.Errorf("record %+v", d)
	}
	// A second tenant has neither the name nor, at that address, the service.
	if _, err := lookup(b, "db.test", dns.TypeA); err == nil {
		t.Error("bob finds alice's service")
	}
	rr, err := lookup(a, "db.test", dns.TypeA)
	if err != nil {
		t.Fatal(err)
	}
	at := rr[0].(*dns.A).A.String()
	for _, to := range []string{fmt.Sprintf("%s:%d", at, db.port)} {
		if c, err := b.dial(t.Context(), "tcp", to); err == nil {
			c.Close()
			t.Errorf("bob reaches %s", to)
		}
	}
	// Neither another port of it nor another host on that port.
	for _, to := range []string{fmt.Sprintf("%s:%d", at, db.port+1), fmt.Sprintf("198.18.0.77:%d", db.port), fmt.Sprintf("127.0.0.1:%d", db.port)} {
		if c, err := a.dial(t.Context(), "tcp", to); err == nil {
			c.Close()
			t.Errorf("alice reaches %s", to)
		}
	}
	// Live: what is added is there, what stays is not cut, what goes is.
	open, err := db.dial(a)
	if err != nil {
		t.Fatal(err)
	}
	if got := say(a, open, "one"); got != "one" {
		t.Fatal(got)
	}
	w.rules("alice", db.rule(nil), cache.rule(nil))
	if got := say(a, open, "two"); got != "two" {
		t.Errorf("what stayed was cut: %s", got)
	}
	if got := cache.talk(a, "three"); got != "three" {
		t.Errorf("what was added says %q", got)
	}
	w.rules("alice", cache.rule(nil))
	if _, err := io.ReadAll(open); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("what went is still open")
	}
	w.find(func(d Decision) bool { return d.Kind == "service" && d.Reason == "revoked" && d.Host == "db.test" })
	if c, err := a.dial(t.Context(), "tcp", fmt.Sprintf("%s:%d", at, db.port)); err == nil {
		c.Close()
		t.Error("what went still answers")
	}
}

// Through the proxy variables a service is a CONNECT without TLS inside.
func TestServiceByConnect(t *testing.T) {
	w := newWorld(t, nil)
	greet := w.service("smtp.test", func(c net.Conn) {
		fmt.Fprint(c, "220 ready\n")
		_, _ = io.Copy(io.Discard, c)
	})
	j := w.jail("alice", greet.rule(nil))
	c := j.conn()
	fmt.Fprintf(c, "CONNECT smtp.test:%d HTTP/1.1\r\nHost: smtp.test:%d\r\n\r\n", greet.port, greet.port)
	br := bufio.NewReader(c)
	for _, want := range []string{"HTTP/1.1 200 Connection established\r\n", "\r\n", "220 ready\n"} {
		if line, err := br.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q, %v; want %q", line, err, want)
		}
	}
}

// A service is held to addresses, bytes and time like everything else.
func TestServiceLimits(t *testing.T) {
	w := newWorld(t, nil)
	db := w.service("db.test", echo)
	local := w.service("local.test", echo)
	j := w.jail("alice", db.rule(func(r *policy.Rule) {
		r.Limits = &policy.EgressLimits{BytesIn: 100, Time: policy.Duration(time.Minute), Connections: 1}
	}), local.rule(func(r *policy.Rule) { r.Host, r.Resolve = "localhost", nil }))
	c, err := db.dial(j)
	if err != nil {
		t.Fatal(err)
	}
	if got := say(j, c, "small"); got != "small" {
		t.Fatal(got)
	}
	second, err := db.dial(j)
	if err == nil {
		_, err = second.Read(make([]byte, 1))
	}
	if err == nil {
		t.Error("a second connection at the same time")
	}
	d := w.find(func(d Decision) bool { return d.Reason == "connections_limit" })
	if d.Allowed || d.Kind != "service" || d.Rule != "t/db.test" || d.Limit != "rule" {
		t.Errorf("record %+v", d)
	}
	if _, err := c.Write(make([]byte, 200)); err != nil {
		t.Error(err)
	}
	if got, _ := io.ReadAll(c); len(got) > 100-len("small\n") {
		t.Errorf("%d more bytes came back", len(got))
	}
	w.find(func(d Decision) bool {
		return d.Phase == "finished" && d.Reason == "bytes_in_limit" && d.Limit == "rule"
	})
	// A name that leads to this host itself is not reached, whatever it is called.
	c, err = (&tcpService{"localhost", local.port}).dial(j)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if err == nil {
		t.Error("this host itself is reached")
	}
}

// A link that cannot offer what the rules say is not made, and leaves nothing.
func TestTooManyServices(t *testing.T) {
	w := newWorld(t, nil)
	var rules []policy.Rule
	for i := range maxServices + 1 {
		rules = append(rules, policy.Rule{ID: fmt.Sprint(i), Host: fmt.Sprintf("h%d.test", i), Scheme: "tcp", Ports: []uint16{5432}})
	}
	w.rules("alice", rules...)
	before := descriptors(t)
	if _, err := w.p.Attach(t.Context(), "alice"); !errors.Is(err, ErrExhausted) {
		t.Fatalf("attached: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); w.p.network.Links() > 0 || descriptors(t) > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d links are left, and %d descriptors instead of %d", w.p.network.Links(), descriptors(t), before)
		}
	}
	w.rules("alice", rules[0])
	l, err := w.p.Attach(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
