package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// testAccounts knows two users and one group.
type testAccounts struct{}

func (testAccounts) uid(name string) (uint32, error) {
	id, ok := map[string]uint32{"root": 0, "svc": 990}[name]
	if !ok {
		return 0, fmt.Errorf("%q is no user of this system", name)
	}
	return id, nil
}

func (testAccounts) gid(name string) (uint32, error) {
	if name != "agents" {
		return 0, fmt.Errorf("%q is no group of this system", name)
	}
	return 2000, nil
}

const good = `version: 1
callers:
  - user: root
    tenants: ["*"]
    admin: true
  - group: agents
    tenants: [alice, user-*]
  - uid: 1234
    tenants: [bob]
profiles:
  skill:
    isolate:
      languages: [js, ts]
      bindings: {db: {type: db}, kv: {type: kv}, search: {type: tools, methods: [find]}}
      fetch: true
      limits: {wall: 3s, memory: 32MiB}
      functions: {count: 7}
    egress:
      - host: api.example.com
        ports: [443, 8443]
        methods: [GET]
        paths: ["/v1/*"]
        addresses: [10.0.0.0/8]
        resolve: [10.1.2.3]
        credential: {name: api-token, as: bearer}
      - {id: mirror, host: "*.mirror.example.org", scheme: http}
  project:
    jail:
      preview: true
      env: {CI: "1", N: 2}
      limits: {memory: 2GiB, cpus: 0.5, lifetime: 2h}
tenants:
  alice: {profile: skill}
  "user-*": {profile: skill}
  "user-admin-*": {profile: project}
  user-x: {profile: project}
`

func mustParse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := parse("policy.yaml", []byte(text), testAccounts{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParseGood(t *testing.T) {
	p := mustParse(t, good)
	skill, err := p.For("alice")
	if err != nil {
		t.Fatal(err)
	}
	want := IsolateDefaults()
	want.Wall, want.Memory = Duration(3e9), 32<<20
	if skill.Isolate.Limits != want {
		t.Errorf("isolate limits %+v, want %+v", skill.Isolate.Limits, want)
	}
	if b := skill.Isolate.Functions; b.Count != 7 || b.Bytes != FunctionDefaults().Bytes {
		t.Errorf("bounds of functions %+v", b)
	}
	if skill.Jail != nil {
		t.Error("skill has a jail that the file does not grant")
	}
	if r := skill.Egress[0]; r.ID != "skill/0" || r.Scheme != "https" || !reflect.DeepEqual(r.Ports, []uint16{443, 8443}) ||
		r.Credential == nil || r.Credential.Name != "api-token" || len(r.Resolve) != 1 || len(r.Addresses) != 1 || !r.Intercept() {
		t.Errorf("first rule read as %+v", r)
	}
	if r := skill.Egress[1]; r.ID != "mirror" || !reflect.DeepEqual(r.Ports, []uint16{80}) {
		t.Errorf("second rule read as %+v", r)
	}
	project, err := p.For("user-x")
	if err != nil {
		t.Fatal(err)
	}
	j := project.Jail
	if j.Template != "host" || !j.Preview || j.Env["CI"] != "1" || j.Env["N"] != "2" ||
		j.Limits.Memory != 2<<30 || j.Limits.CPUs != 0.5 || j.Limits.Pids != JailDefaults().Pids {
		t.Errorf("jail read as %+v", j)
	}
}

func TestFor(t *testing.T) {
	p := mustParse(t, good)
	for tenant, profile := range map[string]string{
		"alice": "skill", "user-1": "skill", "user-x": "project", "user-admin-1": "project",
		"user-admin": "skill", "bob": "", "alice2": "", "": "", "user-": "", "../alice": "", "ALICE": "", "user-*": "",
	} {
		got, err := p.For(tenant)
		switch {
		case profile == "" && !errors.Is(err, ErrNoTenant):
			t.Errorf("%q: got %v, %v, want ErrNoTenant", tenant, got, err)
		case profile != "" && (err != nil || got.Name != profile):
			t.Errorf("%q: got %v, %v, want %s", tenant, got, err, profile)
		}
	}
}

// What cannot be read grants nothing, and does not panic.
func TestNothingGranted(t *testing.T) {
	var none *Policy
	empty := mustParse(t, "")
	comment := mustParse(t, "# nothing\n---\n")
	for _, p := range []*Policy{none, {}, empty, comment} {
		if _, err := p.For("alice"); !errors.Is(err, ErrNoTenant) {
			t.Errorf("For: %v", err)
		}
		if _, err := p.Explain("alice"); !errors.Is(err, ErrNoTenant) {
			t.Errorf("Explain: %v", err)
		}
		root := Caller{UID: 0}
		if p.MayAct(root, "alice") || p.MayAdmin(root) || p.MayConnect(root) {
			t.Error("an empty policy lets uid 0 act")
		}
		if !p.MayAct(Caller{Admin: true}, "alice") || p.MayAct(Caller{Admin: true}, "a/b") {
			t.Error("the admin socket must work without a policy, for valid names only")
		}
	}
}

func TestMayAct(t *testing.T) {
	p := mustParse(t, good)
	for _, tc := range []struct {
		c       Caller
		tenant  string
		act, ad bool
	}{
		{Caller{UID: 0}, "anyone", true, true},
		{Caller{UID: 1234, GID: 5}, "bob", true, false},
		{Caller{UID: 1234, GID: 5}, "bobby", false, false},
		{Caller{UID: 1234, GID: 5}, "alice", false, false},
		{Caller{UID: 7, GID: 2000}, "alice", true, false},
		{Caller{UID: 7, GID: 7, Groups: []uint32{1, 2000}}, "user-9", true, false},
		{Caller{UID: 7, GID: 7, Groups: []uint32{1}}, "user-9", false, false},
		{Caller{UID: 2000, GID: 7}, "alice", false, false}, // a gid is not a uid
		{Caller{UID: 7, GID: 0}, "alice", false, false},    // nor a uid a gid
		{Caller{UID: 7, GID: 7, Admin: true}, "zoe", true, true},
		{Caller{UID: 0}, "Not Valid", false, true},
	} {
		if got := p.MayAct(tc.c, tc.tenant); got != tc.act {
			t.Errorf("MayAct(%+v, %q) = %v", tc.c, tc.tenant, got)
		}
		if got := p.MayAdmin(tc.c); got != tc.ad {
			t.Errorf("MayAdmin(%+v) = %v", tc.c, got)
		}
	}
}

func TestValidTenant(t *testing.T) {
	for _, ok := range []string{"a", "0", "alice", "a.b", "a-b_c.d", "a..b", strings.Repeat("x", 63)} {
		if err := ValidTenant(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "-a", "a-", "a.", ".a", "A", "a b", "a/b", "a\x00b", "ä", "a\n", "*", strings.Repeat("x", 64)} {
		var fe *FieldError
		if err := ValidTenant(bad); !errors.As(err, &fe) || fe.Field != "tenant" {
			t.Errorf("%q: got %v, want a FieldError", bad, err)
		}
	}
}

func TestExplain(t *testing.T) {
	p := mustParse(t, good)
	grants, err := p.Explain("user-7")
	if err != nil {
		t.Fatal(err)
	}
	byField := make(map[string]Grant)
	for _, g := range grants {
		byField[g.Field] = g
		if strings.Contains(g.Field, "project") || strings.Contains(g.Field, "alice") {
			t.Errorf("%s is not this tenant's", g.Field)
		}
	}
	for field, want := range map[string]Grant{
		"tenants.user-*.profile":                 {Value: "skill", File: "policy.yaml", Line: 34},
		"profiles.skill.isolate.fetch":           {Value: "true", File: "policy.yaml", Line: 15},
		"profiles.skill.isolate.limits.memory":   {Value: "32MiB", File: "policy.yaml", Line: 16},
		"profiles.skill.isolate.limits.cpu":      {Value: "1s"},
		"profiles.skill.isolate.functions.count": {Value: "7", File: "policy.yaml", Line: 17},
		"profiles.skill.isolate.functions.bytes": {Value: "16MiB"},
		"profiles.skill.egress[0].host":          {Value: "api.example.com", File: "policy.yaml", Line: 19},
	} {
		want.Field = field
		if byField[field] != want {
			t.Errorf("%s is explained as %+v, want %+v", field, byField[field], want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "policy.yaml")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err != nil {
		t.Errorf("good file: %v", err)
	}
	refused := func(what, want string) {
		t.Helper()
		_, err := Load(path)
		var pe *ParseError
		if !errors.As(err, &pe) || pe.File != path {
			t.Errorf("%s: got %v, want a ParseError", what, err)
		}
		checkError(t, what, err, want)
	}
	for _, mode := range []os.FileMode{0o620, 0o602} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		refused("writable by others", "chmod go-w")
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 12345, 0); err != nil {
		t.Fatal(err)
	}
	refused("another's file", "belongs to uid 12345")
	path = dir
	refused("a directory", "not a regular file")
}

// The system's own accounts are asked by Parse.
func TestOSAccounts(t *testing.T) {
	p, err := Parse("p", []byte("version: 1\ncallers: [{user: root, tenants: [a]}, {group: root, admin: true}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !p.MayAct(Caller{UID: 0, GID: 9}, "a") || !p.MayAdmin(Caller{UID: 9, GID: 0}) || p.MayAdmin(Caller{UID: 0, GID: 9}) {
		t.Error("root was not resolved to uid 0 and gid 0")
	}
	_, err = Parse("p", []byte("version: 1\ncallers:\n- {user: no-such-user-here, tenants: [a]}\n- {group: no-such-group-here, tenants: [a]}\n"))
	var all ParseErrors
	if !errors.As(err, &all) || len(all) != 2 || all[0].Line != 3 || all[1].Line != 4 {
		t.Errorf("unknown accounts: %v", err)
	}
}
