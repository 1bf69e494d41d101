package policy

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

const credentialPolicy = `version: 1
credentials:
  app:
    command: [/usr/lib/tokens/app, --installation, "42"]
    timeout: 5s
    budget: {requests_per_minute: 60, requests_per_day: 1000, bytes_per_day: 10MiB}
  vault: {socket: /run/vault/token.sock}
  crm:
    oauth2:
      token_url: https://login.example.com:8443/token
      client_id: sandbox
      scopes: [read, write]
      audience: crm
      auth: body
      addresses: [10.1.0.0/16]
      resolve: [10.1.2.3]
  plain: {budget: {requests_per_day: 5}}
profiles:
  p:
    egress:
    - {host: a.example.com, paths: [/app/*], credential: {name: app, as: bearer, placeholder: APP_TOKEN, placeholder_prefix: ghs_}}
    - {host: a.example.com, credential: {name: crm, as: header, field: X-Token}}
    - {host: s3.example.com, credential: {name: aws, as: aws-sigv4, region: eu-central-1, service: s3, access_key_id: AKIDEXAMPLE01234}}
  q:
    egress:
    - {host: a.example.com, credential: {name: app, as: query, field: token}}
tenants:
  t: {profile: q}
`

func TestCredentials(t *testing.T) {
	p, err := Parse("f", []byte(credentialPolicy))
	if err != nil {
		t.Fatal(err)
	}
	app := p.Credential("app")
	if !reflect.DeepEqual(app.Command, []string{"/usr/lib/tokens/app", "--installation", "42"}) || app.Timeout.Std() != 5*time.Second ||
		*app.Budget != (Budget{60, 1000, 10 << 20}) {
		t.Errorf("app: %+v", app)
	}
	if c := p.Credential("vault"); c.Socket != "/run/vault/token.sock" || c.Timeout.Std() != 10*time.Second || c.Budget != nil {
		t.Errorf("vault: %+v", c)
	}
	if p.Credential("other") != nil || (*Policy)(nil).Credential("app") != nil {
		t.Error("an entry that is not there")
	}
	rules := p.profiles["p"].Egress
	if in := rules[0].Credential; in.Source != FromCommand || in.Placeholder != "APP_TOKEN" || in.PlaceholderPrefix != "ghs_" {
		t.Errorf("rule 0: %+v", in)
	}
	if in := rules[1].Credential; in.Source != FromOAuth2 || in.OAuth2.ClientID != "sandbox" || in.OAuth2.Auth != "body" || len(in.OAuth2.Resolve) != 1 {
		t.Errorf("rule 1: %+v", in)
	}
	if in := rules[2].Credential; in.Source != "" || in.Region != "eu-central-1" || in.Service != "s3" || in.AccessKeyID != "AKIDEXAMPLE01234" {
		t.Errorf("rule 2: %+v", in)
	}
	var got []string
	for name, uses := range p.CredentialUses() {
		for _, u := range uses {
			got = append(got, name+" "+u.Profile+" "+u.Rule+" "+u.Injection.As)
		}
		if len(uses) == 0 {
			got = append(got, name)
		}
	}
	for _, want := range []string{"app p p/0 bearer", "app q q/0 query", "crm p p/1 header", "aws p p/2 aws-sigv4", "vault", "plain"} {
		if !strings.Contains(fmt.Sprint(got), want) {
			t.Errorf("uses %q lack %q", got, want)
		}
	}
	grants, err := p.Explain("t")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(grants)
	if !strings.Contains(text, "credentials.app.budget.requests_per_day 1000 f 6") || strings.Contains(text, "vault") {
		t.Errorf("explain: %s", text)
	}
}

func TestCredentialFaults(t *testing.T) {
	const head = "version: 1\ncredentials:\n  c: "
	rule := func(s string) string { return inRule("credential: " + s) }
	two := "version: 1\nprofiles:\n  p:\n    egress:\n    - {host: a.example.com, credential: {name: a, as: bearer, placeholder: T}}\n"
	for _, tc := range []struct {
		name, text string
		line       int
		field, say string
	}{
		{"two sources", head + "{command: [/a], socket: /b}\n", 3, "credentials.c", "at most one"},
		{"command relative", head + "{command: [a]}\n", 3, "credentials.c.command[0]", "absolute path"},
		{"command detour", head + "{command: [/a/../b]}\n", 3, "credentials.c.command[0]", "absolute path"},
		{"command empty", head + "{command: []}\n", 3, "credentials.c.command", "empty list"},
		{"socket relative", head + "{socket: run/x}\n", 3, "credentials.c.socket", "absolute path"},
		{"timeout alone", head + "{timeout: 1s}\n", 3, "credentials.c.timeout", "remove it"},
		{"timeout long", head + "{socket: /a, timeout: 1h}\n", 3, "credentials.c.timeout", "up to 1m"},
		{"a value", head + "{value: hunter22}\n", 3, "credentials.c.value", "is not a key here"},
		{"name", "version: 1\ncredentials:\n  a/b: {}\n", 3, `credentials."a/b"`, "not a credential's name"},
		{"token http", head + "{oauth2: {token_url: 'http://a.b/t', client_id: x}}\n", 3, "credentials.c.oauth2.token_url", "https"},
		{"token user", head + "{oauth2: {token_url: 'https://u:p@a.b/t', client_id: x}}\n", 3, "credentials.c.oauth2.token_url", "https"},
		{"token query", head + "{oauth2: {token_url: 'https://a.b/t?x', client_id: x}}\n", 3, "credentials.c.oauth2.token_url", "https"},
		{"token wild", head + "{oauth2: {token_url: 'https://*.b/t', client_id: x}}\n", 3, "credentials.c.oauth2.token_url", "exact host"},
		{"token client", head + "{oauth2: {token_url: 'https://a.b/t'}}\n", 3, "credentials.c.oauth2", "has no client_id"},
		{"token resolve", head + "{oauth2: {token_url: 'https://a.b/t', client_id: x, resolve: [127.0.0.1]}}\n", 3, "credentials.c.oauth2.resolve", "not a public address"},
		{"budget empty", head + "{budget: {}}\n", 3, "credentials.c.budget", "bounds nothing"},
		{"budget zero", head + "{budget: {requests_per_day: 0}}\n", 3, "credentials.c.budget.requests_per_day", "want a number"},
		{"budget bytes", head + "{budget: {bytes_per_day: 0}}\n", 3, "credentials.c.budget.bytes_per_day", "is 0"},
		{"budget other", head + "{budget: {per_week: 1}}\n", 3, "credentials.c.budget.per_week", "is not a key here"},
		{"aws region", rule("{name: t, as: aws-sigv4, service: s3}"), 6, "profiles.p.egress[0].credential", "needs region"},
		{"aws service", rule("{name: t, as: aws-sigv4, region: a}"), 6, "profiles.p.egress[0].credential", "needs service"},
		{"aws payload", rule("{name: t, as: aws-sigv4, region: a, service: s3, payload: maybe}"), 6, "profiles.p.egress[0].credential.payload", "possible: signed, unsigned"},
		{"bearer region", rule("{name: t, as: bearer, region: a}"), 6, "profiles.p.egress[0].credential", "has no region"},
		{"placeholder name", rule("{name: t, as: bearer, placeholder: A-B}"), 6, "profiles.p.egress[0].credential.placeholder", "not a variable's name"},
		{"prefix alone", rule("{name: t, as: bearer, placeholder_prefix: sk-}"), 6, "profiles.p.egress[0].credential", "no placeholder"},
		{"placeholder twice", two + "    - {host: b.example.com, credential: {name: b, as: bearer, placeholder: T}}\n", 6, "profiles.p.egress[1].credential.placeholder", "give each its own"},
		{"placeholder in env", two + "    jail: {env: {T: x}}\n", 5, "profiles.p.egress[0].credential.placeholder", "jail.env"},
		{"oauth2 as aws", head + "{oauth2: {token_url: 'https://a.b/t', client_id: x}}\nprofiles: {p: {egress: [{host: a.b, credential: {name: c, as: aws-sigv4, region: a, service: s3}}]}}\n",
			3, "profiles.p.egress", "sends c, a token of OAuth2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := parse("f.yaml", []byte(tc.text), testAccounts{})
			var all ParseErrors
			if p != nil || !errors.As(err, &all) {
				t.Fatalf("accepted:\n%s", tc.text)
			}
			for _, e := range all {
				if e.Field == tc.field && strings.Contains(e.Message, tc.say) && e.Line == tc.line {
					return
				}
			}
			t.Errorf("want line %d, field %q, message with %q, got:\n%v", tc.line, tc.field, tc.say, err)
		})
	}
}
