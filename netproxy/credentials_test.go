package netproxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandboxd/policy"
	"sandboxd/secrets"
)

// A store is what the daemon keeps: the key's file, unread, and sealed values.
type store struct {
	file *secrets.File
	key  *os.File
}

func newStore(t testing.TB) *store {
	t.Helper()
	dir := t.TempDir()
	file, err := secrets.OpenFile(filepath.Join(dir, "store.json"))
	if err != nil {
		t.Fatal(err)
	}
	key, fresh, err := secrets.OpenKeyFile(filepath.Join(dir, "key"))
	if err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	t.Cleanup(func() { key.Close() })
	return &store{file, key}
}

func (s *store) use(cfg *Config) { cfg.StoreKey, cfg.Stored = s.key, s.file.All }

// set is what the daemon does for `secret set`: the value goes from the caller's
// connection to the proxy process.
func (w *world) set(s *store, name, value string) error {
	w.Helper()
	ours, theirs := socketPair(w)
	defer theirs.Close()
	go func() {
		defer ours.Close()
		_, _ = ours.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(value))), value...))
	}()
	data, err := w.p.SealSecret(w.Context(), name, theirs)
	if err != nil {
		return err
	}
	if bytes.Contains(data, []byte(value)) {
		w.Error("the sealed value holds the value")
	}
	sealed := secrets.Sealed{Name: name, Changed: time.Now(), Data: data}
	if err := s.file.Put(sealed); err != nil {
		return err
	}
	return w.p.UseSecret(w.Context(), sealed)
}

func socketPair(t testing.TB) (net.Conn, *os.File) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	f, err := other.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	return c, f
}

func (w *world) fetcher(tenant string) *http.Client {
	c := &http.Client{Transport: w.p.Fetch(tenant, "r"), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	w.Cleanup(c.CloseIdleConnections)
	return c
}

// seenAuth answers with what it was sent, hidden from the redactor.
func seenAuth(rw http.ResponseWriter, r *http.Request) {
	sum := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	fmt.Fprintf(rw, "%x", sum)
}

func hashOf(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

func TestSecretsAreReplacedWhileInUse(t *testing.T) {
	s := newStore(t)
	w := newWorld(t, s.use)
	hold, going := make(chan struct{}), make(chan struct{})
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(going)
			<-hold
		}
		if r.URL.Path == "/echo" {
			fmt.Fprint(rw, r.URL.Query().Get("text"))
			return
		}
		seenAuth(rw, r)
	})
	w.rules("alice", u.rule(func(r *policy.Rule) { r.Credential = &policy.Injection{Name: "tok", As: "bearer"} }))
	c := w.fetcher("alice")
	get := func(path string) string {
		resp, err := c.Get(u.url(path))
		if err != nil {
			return err.Error()
		}
		return readAll(t, resp, nil)
	}
	if got := get("/"); !strings.Contains(got, "not set up") {
		t.Errorf("without a value: %q", got)
	}
	if err := w.set(s, "tok", "first-value-123"); err != nil {
		t.Fatal(err)
	}
	if got := get("/"); got != hashOf("Bearer first-value-123") {
		t.Errorf("the first value: %q", got)
	}
	slow := make(chan string)
	go func() { slow <- get("/slow") }()
	<-going
	if err := w.set(s, "tok", "second-value-456"); err != nil {
		t.Fatal(err)
	}
	if got := get("/"); got != hashOf("Bearer second-value-456") {
		t.Errorf("the next request after a change: %q", got)
	}
	close(hold)
	if got := <-slow; got != hashOf("Bearer first-value-123") {
		t.Errorf("the one under way: %q", got)
	}
	for _, old := range []string{"first-value-123", "second-value-456"} {
		if got := get("/echo?text=" + old); strings.Contains(got, old) || !strings.Contains(got, "***") {
			t.Errorf("a value that was replaced comes back: %q", got)
		}
	}
	// A new process is given all that is stored.
	proc, err := os.FindProcess(w.p.State().Pid)
	if err == nil {
		err = proc.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); w.p.State().Restarts == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no new process")
		}
	}
	if got := get("/"); got != hashOf("Bearer second-value-456") {
		t.Errorf("after the process was replaced: %q", got)
	}
	if _, err := s.file.Remove("tok"); err != nil {
		t.Fatal(err)
	}
	if err := w.p.ForgetSecret(t.Context(), "tok"); err != nil {
		t.Fatal(err)
	}
	if got := get("/"); !strings.Contains(got, "not set up") {
		t.Errorf("after its removal: %q", got)
	}
	for _, bad := range []string{"tiny", "line\nbreak-1234", strings.Repeat("x", secrets.MaxLength+1)} {
		err := w.set(s, "tok", bad)
		var value *ValueError
		if !errors.As(err, &value) || strings.Contains(err.Error(), bad) {
			t.Errorf("a bad value: %v", err)
		}
	}
}

func TestStoredSecretsNeedTheirKey(t *testing.T) {
	s, other := newStore(t), newStore(t)
	w := newWorld(t, s.use)
	if err := w.set(s, "tok", "first-value-123"); err != nil {
		t.Fatal(err)
	}
	w2 := newWorld(t, func(c *Config) { c.StoreKey, c.Stored = other.key, s.file.All })
	u := w2.upstream("api.test", hello)
	w2.rules("alice", u.rule(func(r *policy.Rule) { r.Credential = &policy.Injection{Name: "tok", As: "bearer"} }))
	if _, err := w2.fetcher("alice").Get(u.url("/")); err == nil || !strings.Contains(err.Error(), "not set up") {
		t.Errorf("with another key: %v", err)
	}
	if len(u.requests()) != 0 {
		t.Error("the request was made without its credential")
	}
}

func TestSeveralCredentialsOfAHost(t *testing.T) {
	s := newStore(t)
	w := newWorld(t, s.use)
	var kept atomic.Value
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/public/log" { // gives back what others were sent
			fmt.Fprintf(rw, "%v", kept.Load())
			return
		}
		kept.Store(fmt.Sprint(r.Header["Authorization"], r.Header["X-Key"], r.URL.Query()["k"]))
		fmt.Fprint(rw, hashOf(fmt.Sprint(r.Header["Authorization"], r.Header["X-Key"], r.URL.Query()["k"])))
	})
	plain := w.plainUpstream("api.test", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintf(rw, "%v", kept.Load()) })
	for name, value := range map[string]string{"a": "value-of-a-0001", "b": "value-of-b-0002", "c": "value-of-c-0003"} {
		if err := w.set(s, name, value); err != nil {
			t.Fatal(err)
		}
	}
	rule := func(id, method, path string, in *policy.Injection) policy.Rule {
		return u.rule(func(r *policy.Rule) {
			r.ID, r.Methods, r.Paths, r.Credential = id, []string{method}, []string{path}, in
		})
	}
	w.rules("alice",
		rule("a", "GET", "/a/*", &policy.Injection{Name: "a", As: "bearer"}),
		rule("b", "POST", "/a/*", &policy.Injection{Name: "b", As: "header", Field: "X-Key"}),
		rule("c", "GET", "/c", &policy.Injection{Name: "c", As: "query", Field: "k"}),
		rule("public", "GET", "/public/*", nil),
		plain.rule(func(r *policy.Rule) { r.ID, r.Scheme = "plain", "http" }))
	c := w.fetcher("alice")
	for _, tc := range []struct{ method, path, want, secret string }{
		{"GET", "/a/x", "[Bearer value-of-a-0001] [] []", "value-of-a-0001"},
		{"POST", "/a/x", "[] [value-of-b-0002] []", "value-of-b-0002"},
		{"GET", "/c?k=mine&x=1", "[] [] [value-of-c-0003]", "value-of-c-0003"},
	} {
		req, err := http.NewRequest(tc.method, u.url(tc.path), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if got := readAll(t, resp, err); got != hashOf(tc.want) {
			t.Errorf("%s %s: the server saw something else than %s", tc.method, tc.path, tc.want)
		}
		// What one request was given is not told to another without any.
		for _, from := range []string{u.url("/public/log"), fmt.Sprintf("http://api.test:%d/", plain.port)} {
			resp, err = c.Get(from)
			if got := readAll(t, resp, err); strings.Contains(got, tc.secret) || !strings.Contains(got, "***") {
				t.Errorf("%s says %q", from, got)
			}
		}
	}
}

// awsServer verifies signatures by its own means.
func awsServer(t *testing.T, service, id, key string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		payload := r.Header.Get("X-Amz-Content-Sha256")
		sum := sha256.Sum256(body)
		if payload == "" {
			payload = hex.EncodeToString(sum[:])
		}
		if len(payload) == 64 && payload != hex.EncodeToString(sum[:]) {
			http.Error(rw, "the payload has another hash", http.StatusBadRequest)
			return
		}
		if why := verifySigV4(r, service, id, key, payload); why != "" {
			http.Error(rw, why, http.StatusForbidden)
			return
		}
		fmt.Fprintf(rw, "%s %d %s", r.Method, len(body), payload)
	}
}

func TestAWSSignature(t *testing.T) {
	const id, key = "AKIDEXAMPLE012345", "aws/Secret+Key0123456789"
	s := newStore(t)
	w := newWorld(t, s.use)
	if err := w.set(s, "aws", key); err != nil {
		t.Fatal(err)
	}
	session := fmt.Sprintf(`{"Version":1,"AccessKeyId":%q,"SecretAccessKey":%q,"SessionToken":"session-0123456789"}`, id, key)
	if err := w.set(s, "sts", session); err != nil {
		t.Fatal(err)
	}
	const unsigned = "UNSIGNED-PAYLOAD"
	for _, service := range []string{"s3", "execute-api"} {
		u := w.upstream(service+".test", awsServer(t, service, id, key))
		in := &policy.Injection{Name: "aws", As: "aws-sigv4", Region: "eu-central-1", Service: service, AccessKeyID: id}
		sts := &policy.Injection{Name: "sts", As: "aws-sigv4", Region: "eu-central-1", Service: service, Payload: "signed"}
		w.rules("alice", u.rule(func(r *policy.Rule) { r.ID, r.Paths, r.Credential = "sts", []string{"/sts/*"}, sts }),
			u.rule(func(r *policy.Rule) { r.Credential = in }))
		c := w.fetcher("alice")
		for _, tc := range []struct {
			method, path, body string
			header             map[string]string
			chunked            bool
			want               string
		}{
			{"GET", "/b/k?list-type=2&prefix=a%2Fb&marker=x%20y", "", nil, false, "GET 0"},
			{"PUT", "/b/caf%C3%A9%20x", "some content", nil, false, "PUT 12"},
			{"POST", "/b/k?uploads", "streamed", nil, true, "POST 8"},
			{"PUT", "/b/own", "body", map[string]string{"X-Amz-Content-Sha256": hashOf("body"), "X-Amz-Date": "20010101T000000Z",
				"Authorization": "AWS4-HMAC-SHA256 Credential=PLACEHOLDER/x, SignedHeaders=host, Signature=00", "X-Amz-Meta-A": "b", "X-Amz-Security-Token": "theirs"}, false, "PUT 4"},
			{"PUT", "/b/lie", "body", map[string]string{"X-Amz-Content-Sha256": hashOf("another")}, false, "the "},
			{"PUT", "/b/chunks", "body", map[string]string{"X-Amz-Content-Sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, false, "payload_unsupported"},
			{"PUT", "/sts/k", "body", nil, false, "PUT 4 "},
		} {
			var body io.Reader = strings.NewReader(tc.body)
			if tc.chunked {
				body = io.MultiReader(body)
			}
			req, err := http.NewRequest(tc.method, u.url(tc.path), body)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range tc.header {
				req.Header.Set(k, v)
			}
			resp, err := c.Do(req)
			got := fmt.Sprint(err)
			if err == nil {
				got = readAll(t, resp, nil)
			}
			var denied *DeniedError
			if errors.As(err, &denied) {
				got = denied.Reason
			}
			if !strings.HasPrefix(got, tc.want) {
				t.Errorf("%s: %s %s: %q, want %q", service, tc.method, tc.path, got, tc.want)
			}
			if tc.path == "/b/k?uploads" && strings.Contains(got, unsigned) != (service == "s3") {
				t.Errorf("%s: the payload is signed as %q", service, got)
			}
		}
		large := bytes.Repeat([]byte("x"), 8<<20+1)
		resp, err := c.Post(u.url("/b/large"), "text/plain", bytes.NewReader(large))
		if service == "s3" {
			if got := readAll(t, resp, err); got != fmt.Sprintf("POST %d %s", len(large), unsigned) {
				t.Errorf("large to s3: %q", got)
			}
		} else if err == nil || !strings.Contains(err.Error(), "too large") {
			t.Errorf("large to another service: %v", err)
		}
	}
}

func TestOAuth2(t *testing.T) {
	s := newStore(t)
	w := newWorld(t, s.use)
	var issued atomic.Int64
	var lifetime atomic.Int64
	lifetime.Store(3600)
	var fail atomic.Bool
	login := w.upstream("login.test", func(rw http.ResponseWriter, r *http.Request) {
		id, secret, ok := r.BasicAuth()
		if r.Method != "POST" || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "read write" || r.FormValue("audience") != "crm" ||
			!ok || id != "client" || fail.Load() || (secret != "client-secret-1" && secret != "client-secret-2") {
			http.Error(rw, "no: "+secret, http.StatusUnauthorized)
			return
		}
		n := issued.Add(1)
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"access_token":"access-token-%s-%d","token_type":"Bearer","expires_in":%d}`, secret[len(secret)-1:], n, lifetime.Load())
	})
	u := w.upstream("api.test", func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%x|%s", r.Header.Get("Authorization")+"!", r.Header.Get("Authorization"))
	})
	oauth := &policy.OAuth2{TokenURL: login.url("/token"), ClientID: "client", Scopes: []string{"read", "write"}, Audience: "crm",
		Resolve: u.rule(nil).Resolve}
	in := &policy.Injection{Name: "crm", As: "bearer", Source: policy.FromOAuth2, OAuth2: oauth}
	w.rules("alice", u.rule(func(r *policy.Rule) { r.Credential = in }))
	c := w.fetcher("alice")
	if err := w.set(s, "crm", "client-secret-1"); err != nil {
		t.Fatal(err)
	}
	// Many at once: one token is made.
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			resp, err := c.Get(u.url("/"))
			if got := readAll(t, resp, err); !strings.HasSuffix(got, "|Bearer "+strings.Repeat("*", len("access-token-1-1"))) || strings.Contains(got, "access-token") {
				t.Errorf("got %q", got)
			}
		})
	}
	wg.Wait()
	if n := issued.Load(); n != 1 {
		t.Errorf("%d tokens were made for 16 requests", n)
	}
	for _, r := range u.requests() {
		if r.Header.Get("Authorization") != "Bearer access-token-1-1" {
			t.Errorf("the server saw %q", r.Header.Get("Authorization"))
		}
	}
	d := w.find(func(d Decision) bool { return d.Kind == "token" && d.Phase == "finished" })
	if d.Host != "login.test" || d.Credential != "crm" || d.Tenant != "alice" || d.Status != 200 || !d.Allowed || d.Path != "/token" {
		t.Errorf("record %+v", d)
	}
	// A new client's secret makes a new token at once.
	if err := w.set(s, "crm", "client-secret-2"); err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get(u.url("/"))
	readAll(t, resp, err)
	if seen := u.requests(); seen[len(seen)-1].Header.Get("Authorization") != "Bearer access-token-2-2" {
		t.Errorf("after a change the server saw %q", seen[len(seen)-1].Header.Get("Authorization"))
	}
	// What the token server says about a failure stays there.
	fail.Store(true)
	if err := w.set(s, "crm", "client-secret-3"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(u.url("/")); err == nil || strings.Contains(err.Error(), "client-secret") {
		t.Errorf("without a token: %v", err)
	}
	if strings.Contains(w.logs.String(), "client-secret") || strings.Contains(w.logs.String(), "access-token") {
		t.Error("the log holds a secret")
	}
}

func TestOAuth2GoesTheVerifiedWay(t *testing.T) {
	s := newStore(t)
	w := newWorld(t, s.use)
	stolen := w.upstream("evil.test", hello)
	redirecting := w.upstream("redirect.test", func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, stolen.url("/token"), http.StatusTemporaryRedirect)
	})
	wrong := w.upstreamTLS("wrong.test", hello, wrongCertificate(w))
	u := w.upstream("api.test", hello)
	if err := w.set(s, "crm", "client-secret-1"); err != nil {
		t.Fatal(err)
	}
	loopback := u.rule(nil).Resolve
	for name, o := range map[string]*policy.OAuth2{
		"redirect":      {TokenURL: redirecting.url("/token"), ClientID: "c", Resolve: loopback},
		"certificate":   {TokenURL: wrong.url("/token"), ClientID: "c", Resolve: loopback},
		"inner address": {TokenURL: "https://127.0.0.1/token", ClientID: "c"},
	} {
		w.rules("alice", u.rule(func(r *policy.Rule) {
			r.Credential = &policy.Injection{Name: "crm", As: "bearer", Source: policy.FromOAuth2, OAuth2: o}
		}))
		if _, err := w.fetcher("alice").Get(u.url("/")); err == nil || !strings.Contains(err.Error(), "not set up, or cannot be used") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(stolen.requests()) + len(wrong.requests()) + len(u.requests()); n != 0 {
		t.Errorf("%d requests went where they should not", n)
	}
}

func TestTokensOfTheOperator(t *testing.T) {
	said := make(chan string, 16)
	var asked atomic.Int64
	w := newWorld(t, func(c *Config) {
		c.OpenToken = func(_ context.Context, credential string) (*os.File, error) {
			asked.Add(1)
			if credential != "app" {
				return nil, errors.New("unknown")
			}
			ours, theirs := socketPair(t)
			go func() {
				defer ours.Close()
				_, _ = io.WriteString(ours, <-said)
			}()
			return theirs, nil
		}
	})
	u := w.upstream("api.test", seenAuth)
	rule := func(name string) policy.Rule {
		return u.rule(func(r *policy.Rule) {
			r.Credential = &policy.Injection{Name: name, As: "basic", Username: "x-access-token", Source: policy.FromCommand}
		})
	}
	w.rules("alice", rule("app"))
	w.rules("bob", rule("app"))
	basic := func(token string) string {
		return hashOf("Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+token)))
	}
	get := func(tenant string) string {
		resp, err := w.fetcher(tenant).Get(u.url("/"))
		if err != nil {
			return err.Error()
		}
		return readAll(t, resp, nil)
	}
	text, err := json.Marshal(map[string]any{"token": "ghs_token-number-1", "expires": time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	said <- string(text)
	for _, tenant := range []string{"alice", "bob", "alice"} {
		if got := get(tenant); got != basic("ghs_token-number-1") {
			t.Errorf("%s: %q", tenant, got)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the command ran %d times", n)
	}
	w.rules("carol", rule("other"))
	if got := get("carol"); !strings.Contains(got, "cannot be used") {
		t.Errorf("an unknown credential: %q", got)
	}
}

func TestPlaceholders(t *testing.T) {
	s := newStore(t)
	w := newWorld(t, s.use)
	u := w.upstream("api.test", seenAuth)
	other := w.upstream("other.test", hello)
	if err := w.set(s, "tok", "real-value-0123"); err != nil {
		t.Fatal(err)
	}
	rules := []policy.Rule{
		u.rule(func(r *policy.Rule) {
			r.ID, r.Paths = "h", []string{"/h"}
			r.Credential = &policy.Injection{Name: "tok", As: "header", Field: "Authorization", Placeholder: "API_KEY", PlaceholderPrefix: "sk-"}
		}),
		u.rule(func(r *policy.Rule) {
			r.ID, r.Paths = "b", []string{"/b"}
			r.Credential = &policy.Injection{Name: "tok", As: "basic", Username: "git", Placeholder: "API_KEY", PlaceholderPrefix: "sk-"}
		}),
		u.rule(func(r *policy.Rule) { r.ID, r.Paths = "open", []string{"/open/*"} }),
		other.rule(func(r *policy.Rule) { r.Methods = []string{"GET", "POST"} }),
	}
	w.rules("alice", rules...)
	w.rules("bob", rules...)
	env := w.p.Placeholders("alice", rules)
	ph := env["API_KEY"]
	if len(env) != 1 || !strings.HasPrefix(ph, "sk-placeholder") || ph == w.p.Placeholders("bob", rules)["API_KEY"] {
		t.Fatalf("placeholders %v", env)
	}
	c := w.fetcher("alice")
	do := func(method, target, field, value string) string {
		req, err := http.NewRequest(method, target, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		if field != "" {
			req.Header.Set(field, value)
		}
		resp, err := c.Do(req)
		var denied *DeniedError
		if errors.As(err, &denied) {
			return denied.Reason
		}
		return readAll(t, resp, err)
	}
	basicOf := func(v string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+v)) }
	const misplaced = "placeholder_misplaced"
	for name, tc := range map[string][2]string{
		"in its place":             {do("GET", u.url("/h"), "Authorization", "token "+ph), hashOf("token real-value-0123")},
		"none at all":              {do("GET", u.url("/h"), "", ""), hashOf("real-value-0123")},
		"bob's in its place":       {do("GET", u.url("/h"), "Authorization", w.p.Placeholders("bob", rules)["API_KEY"]), hashOf("real-value-0123")},
		"basic":                    {do("GET", u.url("/b"), "Authorization", basicOf(ph)), hashOf(basicOf("real-value-0123"))},
		"another field":            {do("GET", u.url("/h"), "X-Other", ph), misplaced},
		"the query":                {do("GET", u.url("/h?key="+ph), "", ""), misplaced},
		"a rule without":           {do("GET", u.url("/open/x"), "Authorization", "Bearer "+ph), misplaced},
		"another host":             {do("GET", other.url("/"), "Authorization", "Bearer "+ph), misplaced},
		"another host's path":      {do("GET", other.url("/"+ph), "", ""), misplaced},
		"another host's query":     {do("POST", other.url("/?a="+url.QueryEscape(ph)), "", ""), misplaced},
		"another host, basic":      {do("GET", other.url("/"), "Authorization", basicOf(ph)), misplaced},
		"another host without any": {do("GET", other.url("/"), "", ""), "hello"},
	} {
		if tc[0] != tc[1] {
			t.Errorf("%s: %q, want %q", name, tc[0], tc[1])
		}
	}
	w.find(func(d Decision) bool {
		return d.Reason == misplaced && d.Host == "other.test" && !d.Allowed && d.Tenant == "alice"
	})
	for _, r := range append(other.requests(), u.requests()...) {
		if strings.Contains(fmt.Sprint(r.Header, r.URL), ph) {
			t.Error("a placeholder went out")
		}
	}
}

func TestBudgetRefusal(t *testing.T) {
	var n atomic.Int64
	w := newWorld(t, func(c *Config) {
		c.OnDecisions = func(_ context.Context, list []Decision) []error {
			errs := make([]error, len(list))
			for i, d := range list {
				if d.Phase == "decided" && d.Credential == "api-token" && n.Add(1) > 2 {
					errs[i] = &BudgetError{Credential: d.Credential, Budget: "requests_per_day", Allowed: "2", Retry: 90 * time.Second}
				}
			}
			return errs
		}
	})
	u := w.upstream("api.test", hello)
	j := w.jail("alice", u.rule(func(r *policy.Rule) { r.Credential = bearer }))
	c := j.client()
	for i, want := range []int{200, 200, 429} {
		resp, err := c.Get(u.url("/"))
		body := readAll(t, resp, err)
		if resp.StatusCode != want {
			t.Errorf("request %d: %d %s", i, resp.StatusCode, body)
		}
		if want == 429 && (!strings.Contains(body, `"reason":"budget_requests_per_day"`) || !strings.Contains(body, "api-token") || !strings.Contains(body, `"allowed":"2"`) || resp.Header.Get("Retry-After") != "90") {
			t.Errorf("the refusal is %v %s", resp.Header, body)
		}
	}
	if len(u.requests()) != 2 {
		t.Errorf("the server saw %d requests", len(u.requests()))
	}
}
