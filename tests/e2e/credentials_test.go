package e2e

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// credPrefix tenants have every kind of credential on CredHost.
const credPrefix = "cred-"

const awsID = "AKIDEXAMPLE012345"

// A vault is what the tests of credentials know and no sandbox may.
type vault struct{ store, aws, client, command, access string }

func (v *vault) all() []string { return []string{v.store, v.aws, v.client, v.command, v.access} }

// credentials puts a policy in force that uses every kind, stores the values,
// and has the world demand them.
func credentials(t *testing.T) *vault {
	t.Helper()
	v := &vault{}
	for _, s := range []*string{&v.store, &v.aws, &v.client, &v.command, &v.access} {
		*s = "S3c/" + rand.Text() + "+x"
	}
	dir, err := os.MkdirTemp("/opt", "sandboxd-token-") // neither /tmp nor /var/tmp, of which the unit has its own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	script := filepath.Join(dir, "token")
	text := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --for ] || exit 1\n[ -z \"$HOME\" ] || exit 1\ngrep -q '^CapEff:.0*$' /proc/self/status || exit 1\necho '{\"token\": \"%s\"}'\n", v.command)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("addresses: [%s], resolve: [%s]", sys.World.Prefix, sys.World.Addr)
	rule := func(path, credential string) string {
		if credential != "" {
			credential = ", credential: {" + credential + "}"
		}
		return fmt.Sprintf("      - {host: %s, paths: [%q], %s%s}\n", harness.CredHost, path, at, credential)
	}
	profile := "profiles:\n  cred:\n    isolate: {languages: [js], fetch: true, limits: {requests: 50}}\n    jail: {template: host}\n    egress:\n" +
		rule("/bearer/*", "name: e2e-store, as: bearer, placeholder: E2E_KEY, placeholder_prefix: sk-") +
		rule("/git/*", "name: e2e-store, as: basic, username: git") +
		rule("/query/*", "name: e2e-store, as: query, field: key") +
		rule("/aws/*", "name: e2e-aws, as: aws-sigv4, region: eu-central-1, service: s3, access_key_id: "+awsID) +
		rule("/oauth/*", "name: e2e-oauth, as: bearer") +
		rule("/command/*", "name: e2e-command, as: header, field: X-Token") +
		rule("/budget/*", "name: e2e-budget, as: bearer") +
		rule("/open/*", "") +
		fmt.Sprintf("      - {host: %s, methods: [GET], %s}\n", harness.OtherHost, at)
	entries := fmt.Sprintf("credentials:\n  e2e-oauth: {oauth2: {token_url: 'https://%s/token', client_id: e2e, %s}}\n", harness.LoginHost, at) +
		fmt.Sprintf("  e2e-command: {command: [%s, --for, e2e], timeout: 20s}\n", script) +
		"  e2e-budget: {budget: {requests_per_day: 2}}\n"
	changePolicy(t, func(text string) string {
		text = strings.Replace(text, "profiles:\n", entries+profile, 1)
		return strings.Replace(text, "tenants:\n  ", "tenants:\n  \""+credPrefix+"*\": {profile: cred}\n  ", 1)
	})
	for name, value := range map[string]string{"e2e-store": v.store, "e2e-aws": v.aws, "e2e-oauth": v.client, "e2e-budget": v.store} {
		if o := ctl(t, value+"\n", "secret", "set", name); o.Code != 0 || o.Stdout+o.Stderr != "" {
			t.Fatalf("secret set %s: %+v", name, o)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), harness.Scale(30*time.Second))
			defer cancel()
			if o, err := sys.Ctl(ctx, "", "secret", "rm", name); err != nil || o.Code != 0 {
				t.Errorf("secret rm %s: %v %+v", name, err, o)
			}
		})
	}
	sys.World.Handle(harness.CredHost, v.serve)
	sys.World.Handle(harness.LoginHost, func(rw http.ResponseWriter, r *http.Request) {
		if id, secret, _ := r.BasicAuth(); id != "e2e" || secret != url.QueryEscape(v.client) && secret != v.client {
			http.Error(rw, "no", http.StatusUnauthorized)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"access_token":%q,"expires_in":3600}`, v.access)
	})
	return v
}

// serve demands the credential of the path's kind, and then answers as the
// query's "how" says.
func (v *vault) serve(rw http.ResponseWriter, r *http.Request) {
	kind := strings.Split(r.URL.Path, "/")[1]
	_, password, _ := r.BasicAuth()
	ok := map[string]bool{
		"bearer": r.Header.Get("Authorization") == "Bearer "+v.store, "budget": r.Header.Get("Authorization") == "Bearer "+v.store,
		"git": password == v.store, "query": r.URL.Query().Get("key") == v.store, "aws": v.signed(r),
		"oauth": r.Header.Get("Authorization") == "Bearer "+v.access, "command": r.Header.Get("X-Token") == v.command,
		"open": r.Header.Get("Authorization") == "" && r.Header.Get("X-Token") == "",
	}
	if !ok[kind] {
		http.Error(rw, "the credential for "+kind+" is wrong", http.StatusUnauthorized)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/info/refs") { // enough of a git server for ls-remote
		fmt.Fprintf(rw, "%040d\trefs/heads/main\n", 7)
		return
	}
	v.answer(rw, r, r.URL.Query().Get("how"))
}

// answer is a server that gives away what it knows, in many ways.
func (v *vault) answer(rw http.ResponseWriter, r *http.Request, how string) {
	text := "<" + strings.Join(v.all(), "><") + ">"
	encoded := func(coding string, w io.WriteCloser, to *bytes.Buffer) {
		_, _ = io.WriteString(w, text)
		_ = w.Close()
		rw.Header().Set("Content-Encoding", coding)
		_, _ = rw.Write(to.Bytes())
	}
	var b bytes.Buffer
	switch how {
	case "":
		fmt.Fprint(rw, "welcome")
	case "gzip":
		encoded("gzip", gzip.NewWriter(&b), &b)
	case "deflate":
		encoded("deflate", zlib.NewWriter(&b), &b)
	case "twice":
		encoded("gzip, gzip", gzip.NewWriter(&b), &b)
	case "br":
		rw.Header().Set("Content-Encoding", "br")
		fmt.Fprint(rw, text)
	case "part":
		rw.Header().Set("Content-Range", "bytes 0-9/100")
		rw.WriteHeader(http.StatusPartialContent)
		fmt.Fprint(rw, v.store[:10])
	case "redirect":
		http.Redirect(rw, r, "https://"+harness.OtherHost+"/v1/stolen?"+url.QueryEscape(v.store), http.StatusFound)
	case "header":
		rw.Header()["X-"+strings.NewReplacer("/", "-", "+", "-").Replace(v.store)] = []string{"name"}
		rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		rw.Header().Set("Set-Cookie", "session="+url.QueryEscape(v.store)+"; Path=/")
		rw.Header().Set("Www-Authenticate", `Basic realm="`+v.store+`"`)
		rw.WriteHeader(http.StatusUnauthorized)
	case "chunks":
		for i := range len(text) {
			_, _ = io.WriteString(rw, text[i:i+1])
			rw.(http.Flusher).Flush()
		}
	case "error":
		http.Error(rw, text, http.StatusInternalServerError)
	case "trailer":
		rw.Header().Set("Trailer", "X-Late")
		fmt.Fprint(rw, "late")
		rw.Header().Set("X-Late", v.store)
	case "forms":
		for _, s := range v.all() {
			fmt.Fprintf(rw, "%x %X %s %s %q ", s, s, url.QueryEscape(s), url.PathEscape(s), s)
			for i := range 3 {
				padded := strings.Repeat("a", i) + s + "z"
				fmt.Fprintf(rw, "%s %s ", base64.StdEncoding.EncodeToString([]byte(padded)), base64.URLEncoding.EncodeToString([]byte(padded)))
			}
		}
	default:
		fmt.Fprint(rw, text)
	}
}

// signed verifies an AWS signature, of requests without query and body.
func (v *vault) signed(r *http.Request) bool {
	auth, date := r.Header.Get("Authorization"), r.Header.Get("X-Amz-Date")
	_, rest, _ := strings.Cut(auth, "SignedHeaders=")
	names, signature, _ := strings.Cut(rest, ", Signature=")
	if len(date) != 16 || !strings.Contains(auth, "Credential="+awsID+"/"+date[:8]+"/eu-central-1/s3/aws4_request") {
		return false
	}
	query := ""
	if how := r.URL.Query().Get("how"); how != "" {
		query = "how=" + how
	}
	canonical := r.Method + "\n" + r.URL.Path + "\n" + query + "\n"
	for name := range strings.SplitSeq(names, ";") {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		canonical += name + ":" + value + "\n"
	}
	hash := sha256.Sum256([]byte(canonical + "\n" + names + "\nUNSIGNED-PAYLOAD"))
	key := []byte("AWS4" + v.aws)
	for _, part := range []string{date[:8], "eu-central-1", "s3", "aws4_request",
		"AWS4-HMAC-SHA256\n" + date + "\n" + date[:8] + "/eu-central-1/s3/aws4_request\n" + hex.EncodeToString(hash[:])} {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(part))
		key = m.Sum(nil)
	}
	return signature == hex.EncodeToString(key)
}

// given reports whether text gives one of the values away, in whatever form.
func (v *vault) given(text string) string {
	lower := strings.ToLower(text)
	for _, s := range v.all() {
		for _, form := range []string{s, hex.EncodeToString([]byte(s)), url.QueryEscape(s), url.PathEscape(s)} {
			if strings.Contains(lower, strings.ToLower(form)) {
				return form
			}
		}
		for i := range 3 { // the middle of its base64, which does not depend on what is around it
			e := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("a", i) + s))[4:24]
			for _, form := range []string{e, strings.NewReplacer("+", "-", "/", "_").Replace(e)} {
				if strings.Contains(text, form) {
					return form
				}
			}
		}
	}
	return ""
}

// warmUp has every token made: before, no answer can be searched for it.
func warmUp(t *testing.T, who string) {
	t.Helper()
	for _, kind := range kinds {
		if out := sh(t, who, "curl -sS --max-time 25 https://"+harness.CredHost+"/"+kind+"/x"); out != "welcome" {
			t.Fatalf("%s: %q", kind, out)
		}
	}
}

var kinds = []string{"bearer", "git", "query", "aws", "oauth", "command", "open"}

func TestCredentialsOfEveryKind(t *testing.T) {
	v := credentials(t)
	who := tenant(t, credPrefix)
	var list api.SecretList
	o := ctl(t, "", "secret", "list", "--json")
	if err := json.Unmarshal([]byte(o.Stdout), &list); err != nil || o.Code != 0 || v.given(o.Stdout) != "" {
		t.Fatalf("secret list: %v %+v", err, o)
	}
	got := map[string]string{}
	for _, s := range list.Secrets {
		got[s.Name] = s.Source
		for _, u := range s.Uses {
			got[s.Name] += " " + u.As
		}
	}
	for name, want := range map[string]string{"e2e-store": "store bearer basic query", "e2e-aws": "store aws-sigv4", "e2e-oauth": "oauth2 bearer",
		"e2e-command": "command header", harness.TokenName: "file bearer"} {
		if got[name] != want {
			t.Errorf("secret list: %s is %q, want %q", name, got[name], want)
		}
	}
	for _, kind := range kinds {
		target := "https://" + harness.CredHost + "/" + kind + "/x"
		if out := sh(t, who, "curl -sS --max-time 25 "+target); out != "welcome" {
			t.Errorf("a jail's curl, %s: %q", kind, out)
		}
	}
	if out := sh(t, who, "git ls-remote https://"+harness.CredHost+"/git/repo"); !strings.Contains(out, "refs/heads/main") {
		t.Errorf("a jail's git: %q", out)
	}
	var calls []string
	for _, kind := range kinds {
		calls = append(calls, fmt.Sprintf("await (await fetch(%q)).text()", "https://"+harness.CredHost+"/"+kind+"/x"))
	}
	r := fetchRun(t, who, "export default async () => ["+strings.Join(calls, ", ")+"]", harness.CredHost)
	if want := `["` + strings.Join(strings.Split(strings.Repeat("welcome ", len(kinds)-1)+"welcome", " "), `","`) + `"]`; string(r.Result) != want {
		t.Errorf("an isolate's fetch: %s, %+v", r.Result, r.Error)
	}
	records := auditText(t)
	for _, name := range []string{"e2e-store", "e2e-aws", "e2e-oauth", "e2e-command"} {
		if !strings.Contains(records, `"credential":"`+name+`"`) {
			t.Errorf("the record does not name %s", name)
		}
	}
	if !strings.Contains(records, `"event":"secret_set"`) || !strings.Contains(records, `"kind":"token"`) {
		t.Error("the record lacks the changes or the tokens")
	}
}

// TestPlaceholderInTheEnvironment: an SDK that insists on a key finds one.
func TestPlaceholderInTheEnvironment(t *testing.T) {
	v := credentials(t)
	who := tenant(t, credPrefix)
	key := strings.TrimSpace(sh(t, who, "echo $E2E_KEY"))
	if !strings.HasPrefix(key, "sk-placeholder") || v.given(key) != "" {
		t.Fatalf("E2E_KEY is %q", key)
	}
	const curl = `curl -sS --max-time 25 -H "Authorization: Bearer $E2E_KEY" https://`
	if out := sh(t, who, curl+harness.CredHost+"/bearer/x"); out != "welcome" {
		t.Errorf("in its place: %q", out)
	}
	if out := sh(t, who, curl+harness.OtherHost+"/v1/x"); !strings.Contains(out, "placeholder_misplaced") {
		t.Errorf("elsewhere: %q", out)
	}
	for _, s := range sys.World.Requests(harness.OtherHost) {
		if strings.Contains(fmt.Sprint(s.Header), key) {
			t.Error("the placeholder went elsewhere")
		}
	}
}

// TestNoWayToASecret: whatever a server gives back and however a jail asks, no
// form of a credential comes in.
func TestNoWayToASecret(t *testing.T) {
	v := credentials(t)
	who := tenant(t, credPrefix)
	warmUp(t, who)
	var script strings.Builder
	n := 0
	ask := func(options string, targets ...string) {
		n += len(targets)
		fmt.Fprintf(&script, "curl -sS -i --raw --max-time 60 -w '\\n== %%{url}\\n' %s", options)
		for _, target := range targets {
			fmt.Fprintf(&script, " 'https://%s%s'", harness.CredHost, target)
		}
		script.WriteString(" 2>&1\n")
	}
	var targets []string
	for _, kind := range kinds {
		for _, how := range []string{"echo", "gzip", "deflate", "twice", "br", "part", "redirect", "header", "chunks", "error", "trailer", "forms"} {
			if kind == "bearer" || kind == "open" || how == "forms" || how == "header" {
				targets = append(targets, "/"+kind+"/x?how="+how)
			}
		}
	}
	ask("", targets...)
	for _, options := range []string{"-r 0-9", "-I", "-X TRACE", "-X OPTIONS", "-L", "-H 'Accept-Encoding: br, zstd'", "-H 'Range: bytes=5-'", "-H 'TE: trailers'",
		"-H 'Connection: Authorization'", "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='",
		"-H 'If-Range: x' -H 'Range: bytes=0-1'", "-d a=b", "-H 'X-HTTP-Method-Override: TRACE'"} {
		ask(options, "/bearer/x?how=echo", "/bearer/x?how=header")
	}
	out := sh(t, who, script.String())
	if strings.Count(out, "HTTP/1.1 ") < n || strings.Count(out, "****") < 20 {
		t.Errorf("%d requests have too few answers:\n%s", n, out)
	}
	if form := v.given(out); form != "" {
		at := strings.Index(strings.ToLower(out), strings.ToLower(form))
		from := at - 1500
		t.Errorf("%q came in:\n%s", form, out[max(from, 0):min(len(out), at+300)])
	}
	if v.given(strings.Join(v.all(), " ")) == "" {
		t.Error("the check sees nothing")
	}
	for _, s := range sys.World.Requests(harness.OtherHost) {
		if v.given(fmt.Sprint(s.Header)+s.Query) != "" {
			t.Errorf("a redirect carried it along: %+v", s)
		}
	}
}

// TestSecretRotation: the next request has the new value, without a restart,
// and a restart keeps it.
func TestSecretRotation(t *testing.T) {
	v := credentials(t)
	who := tenant(t, credPrefix)
	get := func() string {
		return sh(t, who, "curl -sS --max-time 25 https://"+harness.CredHost+"/bearer/x")
	}
	if out := get(); out != "welcome" {
		t.Fatalf("before: %q", out)
	}
	old := v.store
	v.store = "N3w/" + rand.Text() + "+y"
	if out := get(); !strings.Contains(out, "is wrong") {
		t.Errorf("the old value where the new is wanted: %q", out)
	}
	if o := ctl(t, v.store, "secret", "set", "e2e-store"); o.Code != 0 {
		t.Fatalf("set: %+v", o)
	}
	if out := get(); out != "welcome" {
		t.Errorf("the new value: %q", out)
	}
	if err := sys.Kill(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if out := get(); out != "welcome" {
		t.Errorf("after a crash: %q", out)
	}
	for _, bad := range []struct {
		stdin string
		args  []string
		code  int
		say   string
	}{
		{"short", []string{"secret", "set", "e2e-store"}, 3, "shorter than 8"},
		{"", []string{"secret", "set", "e2e-store"}, 2, "standard input"},
		{"two\nlines-of-text", []string{"secret", "set", "e2e-store"}, 3, "control character"},
		{v.store, []string{"secret", "set", "e2e-store", v.store}, 2, "takes NAME"},
		{v.store, []string{"secret", "set", "../x"}, 3, "name"},
		{v.store, []string{"secret", "set", harness.TokenName}, 3, "came as a file"},
		{"", []string{"secret", "rm", harness.TokenName}, 3, "came as a file"},
	} {
		if o := ctl(t, bad.stdin, bad.args...); o.Code != bad.code || !strings.Contains(o.Stderr, bad.say) || bad.code != 2 && v.given(o.Stderr) != "" {
			t.Errorf("%v: %+v", bad.args[:3], o)
		}
	}
	if out := get(); out != "welcome" {
		t.Errorf("after refused changes: %q", out)
	}
	_ = old
}

// TestBudgetOverRestarts: a day's budget is one of the day, not of the process.
func TestBudgetOverRestarts(t *testing.T) {
	credentials(t)
	who := tenant(t, credPrefix)
	get := func() string {
		return sh(t, who, "curl -sS --max-time 25 -w ' %{http_code}' https://"+harness.CredHost+"/budget/x")
	}
	for range 2 {
		if out := get(); out != "welcome 200" {
			t.Fatalf("within the budget: %q", out)
		}
	}
	over := func(out string) bool {
		return strings.HasSuffix(out, " 429") && strings.Contains(out, "budget_requests_per_day") && strings.Contains(out, "e2e-budget")
	}
	if out := get(); !over(out) {
		t.Errorf("beyond the budget: %q", out)
	}
	if err := sys.Kill(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := sys.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if out := get(); !over(out) {
		t.Errorf("after a crash: %q", out)
	}
	if out := sh(t, tenant(t, credPrefix+"b-"), "curl -sS --max-time 25 https://"+harness.CredHost+"/budget/x"); out != "welcome" {
		t.Errorf("another tenant: %q", out)
	}
	if !strings.Contains(auditText(t), `"reason":"budget_requests_per_day"`) {
		t.Error("the refusal is not on record")
	}
}
