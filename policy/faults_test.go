package policy

import (
	"errors"
	"strings"
	"testing"
)

// inProfile puts text under a profile p, from line 4; inRule under its only
// rule, from line 6.
func inProfile(s string) string {
	return "version: 1\nprofiles:\n  p:\n" + indent(s, 4)
}

func inRule(s string) string {
	return "version: 1\nprofiles:\n  p:\n    egress:\n    - host: a.example.com\n" + indent(s, 6)
}

func indent(s string, n int) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad) + "\n"
}

func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		line       int
		field, say string
	}{
		// The file as a whole.
		{"not yaml", "version: 1\n\t- x: [\n", 2, "", "is not YAML"},
		{"binary", "\x00\x01\x02", 0, "", "is not YAML"},
		{"a list", "- a\n", 1, "", "is a list; want keys"},
		{"a word", "hello\n", 1, "", `is "hello"; want keys`},
		{"no version", "profiles: {p: {}}\n", 1, "version", "is missing; write version: 1"},
		{"other version", "version: 2\n", 1, "version", "reads version 1"},
		{"unknown key", "version: 1\nprofile:\n  a: 1\n", 2, "profile", "is not a key here; possible: callers, credentials, profiles, tenants, version"},
		{"twice", "version: 1\ntenants: {}\ntenants: {}\n", 3, "tenants", "already on line 2"},
		{"two documents", "version: 1\n---\nversion: 1\n", 2, "", "second document"},
		{"broken second document", "version: 1\n---\n[\n", 0, "", "is not YAML"},
		{"alias", "version: 1\nprofiles:\n  a: &x {}\n  b: *x\n", 3, "profiles.a", "anchor or alias"},
		{"merge", "version: 1\nprofiles:\n  <<: {a: {}}\n", 3, "profiles", "not plain text"},
		{"key not text", "version: 1\nprofiles:\n  [a]: {}\n", 3, "profiles", "not plain text"},
		{"huge", strings.Repeat("#", MaxFile+1), 0, "", "larger than 1MiB"},
		{"hostile key", "version: 1\n\"x\\e[31m\\n\": 1\n", 2, `"x\x1b[31m\n"`, "is not a key here"},

		{"functions of a jail", inProfile("jail:\n  functions: {count: 1}"), 5, "profiles.p.jail.functions", "is not a key here"},
		{"functions none", inProfile("isolate:\n  languages: [js]\n  functions: {count: 0}"), 6, "profiles.p.isolate.functions.count", "want 1 to 100000"},
		{"functions bytes", inProfile("isolate:\n  languages: [js]\n  functions: {bytes: many}"), 6, "profiles.p.isolate.functions.bytes", "want a size"},

		// Callers.
		{"caller nobody", "version: 1\ncallers:\n- tenants: [a]\n", 3, "callers[0]", "exactly one of user, uid, group, gid"},
		{"caller twofold", "version: 1\ncallers:\n- {uid: 1, user: root, tenants: [a]}\n", 3, "callers[0]", "2 times"},
		{"caller no tenants", "version: 1\ncallers:\n- uid: 1\n", 3, "callers[0]", "grants nothing"},
		{"caller empty tenants", "version: 1\ncallers:\n- {uid: 1, tenants: []}\n", 3, "callers[0].tenants", "empty list"},
		{"caller bad tenant", "version: 1\ncallers:\n- {uid: 1, tenants: [A]}\n", 3, "callers[0].tenants[0]", "not a tenant's name"},
		{"caller star inside", "version: 1\ncallers:\n- {uid: 1, tenants: ['a*b']}\n", 3, "callers[0].tenants[0]", "at the end only"},
		{"caller tenant twice", "version: 1\ncallers:\n- {uid: 1, tenants: [a, a]}\n", 3, "callers[0].tenants[1]", "second time"},
		{"caller unknown user", "version: 1\ncallers:\n- {user: zoe, tenants: [a]}\n", 3, "callers[0].user", "no user"},
		{"caller unknown group", "version: 1\ncallers:\n- {group: zoe, tenants: [a]}\n", 3, "callers[0].group", "no group"},
		{"caller negative uid", "version: 1\ncallers:\n- {uid: -1, tenants: [a]}\n", 3, "callers[0].uid", "want a number"},
		{"caller no uid", "version: 1\ncallers:\n- {uid: 4294967295, tenants: [a]}\n", 3, "callers[0].uid", "4294967294"},
		{"caller octal uid", "version: 1\ncallers:\n- {uid: 0o17, tenants: [a]}\n", 3, "callers[0].uid", "want a number"},
		{"caller admin word", "version: 1\ncallers:\n- {uid: 1, admin: yes-please}\n", 3, "callers[0].admin", "true or false"},

		// Tenants.
		{"tenant without profile", "version: 1\ntenants:\n  a: {}\n", 3, "tenants.a", "has no profile"},
		{"tenant null", "version: 1\ntenants:\n  a:\n", 3, "tenants.a", "has no value"},
		{"tenant unknown profile", "version: 1\ntenants:\n  a: {profile: q}\n", 3, "tenants.a.profile", `names profile "q"`},
		{"tenant bad name", inProfile("{}") + "tenants:\n  Bob: {profile: p}\n", 6, "tenants.Bob", "not a tenant's name"},
		{"tenant extra", inProfile("{}") + "tenants:\n  a:\n    profile: p\n    limits: {}\n", 8, "tenants.a.limits", "is not a key here"},

		// Isolates.
		{"isolate null", inProfile("isolate:"), 4, "profiles.p.isolate", "has no value"},
		{"no languages", inProfile("isolate: {fetch: true}"), 4, "profiles.p.isolate", "has no languages"},
		{"language", inProfile("isolate: {languages: [js, perl]}"), 4, "profiles.p.isolate.languages[1]", `is "perl"; possible: js, ts, python, wasm`},
		{"isolation", inProfile("isolate: {languages: [js], isolation: some}"), 4, "profiles.p.isolate.isolation", `is "some"; possible: shared, strict`},
		{"languages not a list", inProfile("isolate: {languages: js}"), 4, "profiles.p.isolate.languages", "want a list"},
		{"fetch tag", inProfile("isolate: {languages: [js], fetch: !!bool ''}"), 4, "profiles.p.isolate.fetch", "want true or false"},
		{"fetch", inProfile("isolate: {languages: [js], fetch: 'true'}"), 4, "profiles.p.isolate.fetch", "want true or false"},
		{"binding type", inProfile("isolate: {languages: [js], bindings: {x: {type: mail}}}"), 4, "profiles.p.isolate.bindings.x.type", "possible: kv, db, log, tools, sql"},
		{"binding no type", inProfile("isolate: {languages: [js], bindings: {x: {}}}"), 4, "profiles.p.isolate.bindings.x", "has no type"},
		{"binding name", inProfile("isolate: {languages: [js], bindings: {__proto__: {type: kv}}}"), 4, "profiles.p.isolate.bindings.__proto__", "not a binding's name"},
		{"binding fetch", inProfile("isolate: {languages: [js], bindings: {Fetch: {type: kv}}}"), 4, "profiles.p.isolate.bindings.Fetch", "fetch: true"},
		{"binding case", inProfile("isolate: {languages: [js], bindings: {kv: {type: kv}, KV: {type: kv}}}"), 4, "profiles.p.isolate.bindings.KV", "in case only"},
		{"binding methods", inProfile("isolate: {languages: [js], bindings: {kv: {type: kv, methods: [get]}}}"), 4, "profiles.p.isolate.bindings.kv", "only the type tools"},
		{"tools without methods", inProfile("isolate: {languages: [js], bindings: {t: {type: tools}}}"), 4, "profiles.p.isolate.bindings.t", "has no methods"},
		{"tools then", inProfile("isolate: {languages: [js], bindings: {t: {type: tools, methods: [then]}}}"), 4, "profiles.p.isolate.bindings.t.methods[0]", "not a method's name"},

		// Limits.
		{"limit zero", inProfile("isolate:\n  languages: [js]\n  limits:\n    wall: 0s"), 7, "profiles.p.isolate.limits.wall", "leave it out for the default"},
		{"limit negative", inProfile("isolate:\n  languages: [js]\n  limits:\n    memory: -1"), 7, "profiles.p.isolate.limits.memory", "negative"},
		{"limit no unit", inProfile("isolate:\n  languages: [js]\n  limits:\n    wall: 5"), 7, "profiles.p.isolate.limits.wall", "number with a unit"},
		{"limit huge", inProfile("isolate:\n  languages: [js]\n  limits:\n    memory: 5GiB"), 7, "profiles.p.isolate.limits.memory", "want 1MiB to 4GiB"},
		{"limit fraction", inProfile("isolate:\n  languages: [js]\n  limits:\n    requests: 1.5"), 7, "profiles.p.isolate.limits.requests", "not a whole number"},
		{"limit unknown", inProfile("isolate:\n  languages: [js]\n  limits:\n    walls: 1s"), 7, "profiles.p.isolate.limits.walls", "is not a key here"},
		{"limit elsewhere", inProfile("isolate:\n  languages: [js]\n  limits:\n    cpus: 1"), 7, "profiles.p.isolate.limits.cpus", "no meaning for an isolate"},
		{"limit elsewhere", inProfile("jail:\n  limits: {requests: 1}"), 5, "profiles.p.jail.limits.requests", "no meaning for a jail"},
		{"limit NaN", inProfile("jail:\n  limits: {cpus: NaN}"), 5, "profiles.p.jail.limits.cpus", "is not a number"},
		{"limit tiny", inProfile("jail:\n  limits: {memory: 1KiB}"), 5, "profiles.p.jail.limits.memory", "4MiB"},
		{"limit word", inProfile("jail:\n  limits: {cpus: two}"), 5, "profiles.p.jail.limits.cpus", "is not a number"},
		{"limit list", inProfile("jail:\n  limits: {cpus: [1]}"), 5, "profiles.p.jail.limits.cpus", "want a value such as 1"},

		// Jails.
		{"template", inProfile("jail: {template: ../x}"), 4, "profiles.p.jail.template", "is not a name"},
		{"env name", inProfile("jail: {env: {1A: x}}"), 4, "profiles.p.jail.env.1A", "not a variable's name"},
		{"env null", inProfile("jail: {env: {A: }}"), 4, "profiles.p.jail.env.A", "has no value"},
		{"env NUL", inProfile(`jail: {env: {A: "a\0b"}}`), 4, "profiles.p.jail.env.A", "NUL"},
		{"profile name", "version: 1\nprofiles:\n  a.b: {}\n", 3, "profiles.a.b", "not a profile's name"},
		{"profile key", inProfile("egres: []"), 4, "profiles.p.egres", "possible: egress, egress_limits, isolate, jail"},

		// Egress.
		{"no host", "version: 1\nprofiles:\n  p:\n    egress:\n    - {ports: [1]}\n", 5, "profiles.p.egress[0]", "has no host"},
		{"rule text", "version: 1\nprofiles:\n  p:\n    egress:\n    - a.example.com\n", 5, "profiles.p.egress[0]", "want keys"},
		{"scheme", inRule("scheme: ftp"), 6, "profiles.p.egress[0].scheme", "possible: https, http"},
		{"tcp pattern", "version: 1\nprofiles:\n  p:\n    egress:\n    - {host: '*.example.com', scheme: tcp, ports: [5432]}\n", 5, "profiles.p.egress[0].host", "names one host"},
		{"tcp no ports", inRule("scheme: tcp"), 5, "profiles.p.egress[0]", "has no ports"},
		{"tcp dns", inRule("scheme: tcp\nports: [53]"), 5, "profiles.p.egress[0].ports", "name server"},
		{"tcp paths", inRule("scheme: tcp\nports: [5432]\npaths: [/a]"), 5, "profiles.p.egress[0].paths", "not read"},
		{"tcp credential", inRule("scheme: tcp\nports: [5432]\ncredential: {name: t, as: bearer}"), 5, "profiles.p.egress[0].credential", "not read"},
		{"cache word", inRule("cache: everything"), 6, "profiles.p.egress[0].cache", "packages"},
		{"cache of http", inRule("cache: packages\nscheme: http"), 5, "profiles.p.egress[0].cache", "https"},
		{"cache of a secret", inRule("cache: packages\ncredential: {name: t, as: bearer}"), 5, "profiles.p.egress[0].cache", "keeps nothing"},
		{"websocket word", inRule("websocket: sometimes"), 6, "profiles.p.egress[0].websocket", "true or false"},
		{"websocket credential", inRule("websocket: true\ncredential: {name: t, as: bearer}"), 5, "profiles.p.egress[0].websocket", "without a credential"},
		{"limits key", inRule("limits: {rat: 1}"), 6, "profiles.p.egress[0].limits.rat", "possible: burst, bytes_in, bytes_out"},
		{"limits rate", inRule("limits: {rate: 0}"), 6, "profiles.p.egress[0].limits.rate", "0.001 to"},
		{"limits burst", inRule("limits: {burst: 5}"), 6, "profiles.p.egress[0].limits.burst", "write rate, too"},
		{"limits size", inRule("limits: {bytes_out: lots}"), 6, "profiles.p.egress[0].limits.bytes_out", "not a size"},
		{"limits time", inRule("limits: {time: 5}"), 6, "profiles.p.egress[0].limits.time", "duration"},
		{"limits without rules", inProfile("egress_limits: {rate: 5}"), 4, "profiles.p.egress_limits", "there are none"},
		{"port 0", inRule("ports: [0]"), 6, "profiles.p.egress[0].ports[0]", "1 to 65535"},
		{"port large", inRule("ports: [443, 65536]"), 6, "profiles.p.egress[0].ports[1]", "1 to 65535"},
		{"port name", inRule("ports: [https]"), 6, "profiles.p.egress[0].ports[0]", "1 to 65535"},
		{"port twice", inRule("ports: [443, 443]"), 6, "profiles.p.egress[0].ports[1]", "second time"},
		{"no ports", inRule("ports: []"), 6, "profiles.p.egress[0].ports", "empty list"},
		{"method", inRule("methods: [get]"), 6, "profiles.p.egress[0].methods[0]", "write GET"},
		{"method connect", inRule("methods: [CONNECT]"), 6, "profiles.p.egress[0].methods[0]", "cannot be granted"},
		{"method space", inRule("methods: ['GET /']"), 6, "profiles.p.egress[0].methods[0]", "is not a method"},
		{"range bits", inRule("addresses: [10.0.0.1/8]"), 6, "profiles.p.egress[0].addresses[0]", "write 10.0.0.0/8"},
		{"range one", inRule("addresses: [10.0.0.1]"), 6, "profiles.p.egress[0].addresses[0]", "write 10.0.0.1/32"},
		{"range all", inRule("addresses: [0.0.0.0/0]"), 6, "profiles.p.egress[0].addresses[0]", "too wide"},
		{"range all 6", inRule("addresses: ['::/0']"), 6, "profiles.p.egress[0].addresses[0]", "too wide"},
		{"range mapped", inRule("addresses: ['::ffff:10.0.0.0/104']"), 6, "profiles.p.egress[0].addresses[0]", "write them as IPv4"},
		{"range word", inRule("addresses: [private]"), 6, "profiles.p.egress[0].addresses[0]", "not a range"},
		{"resolve word", inRule("resolve: [a.example.com]"), 6, "profiles.p.egress[0].resolve[0]", "not an address"},
		{"resolve zone", inRule("resolve: ['fe80::1%eth0']"), 6, "profiles.p.egress[0].resolve[0]", "not an address"},
		{"resolve mapped", inRule("resolve: ['::ffff:10.0.0.1']"), 6, "profiles.p.egress[0].resolve[0]", "write 10.0.0.1"},
		{"resolve any", inRule("resolve: [0.0.0.0]"), 6, "profiles.p.egress[0].resolve[0]", "no host's address"},
		{"resolve private", inRule("resolve: [10.1.2.3]"), 5, "profiles.p.egress[0].resolve", "add addresses: [10.1.2.3/32]"},
		{"resolve outside", inRule("resolve: [10.1.2.3]\naddresses: [10.2.0.0/16]"), 5, "profiles.p.egress[0].resolve", "in none of the rule's addresses"},
		{"id", inRule("id: 'a b'"), 6, "profiles.p.egress[0].id", "is not an id"},
		{"same ids", inRule("id: x") + "    - {host: b.example.com, id: x}\n", 5, "profiles.p.egress", `two rules with the id "x"`},

		// Credentials.
		{"credential http", inRule("scheme: http\ncredential: {name: t, as: bearer}"), 5, "profiles.p.egress[0].credential", "clear text"},
		{"credential word", inRule("credential: token"), 6, "profiles.p.egress[0].credential", "want keys"},
		{"credential no name", inRule("credential: {as: bearer}"), 6, "profiles.p.egress[0].credential", "has no name"},
		{"credential no as", inRule("credential: {name: t}"), 6, "profiles.p.egress[0].credential", "has no as"},
		{"credential value", inRule("credential: {name: t, as: bearer, value: s3cret}"), 6, "profiles.p.egress[0].credential.value", "is not a key here"},
		{"credential path", inRule("credential: {name: ../t, as: bearer}"), 6, "profiles.p.egress[0].credential.name", "not a credential's name"},
		{"credential as", inRule("credential: {name: t, as: Bearer}"), 6, "profiles.p.egress[0].credential.as", "possible: bearer, basic, header, query"},
		{"basic no user", inRule("credential: {name: t, as: basic}"), 6, "profiles.p.egress[0].credential", "needs username"},
		{"basic colon", inRule("credential: {name: t, as: basic, username: 'a:b'}"), 6, "profiles.p.egress[0].credential.username", "without a colon"},
		{"bearer user", inRule("credential: {name: t, as: bearer, username: u}"), 6, "profiles.p.egress[0].credential", "has no username"},
		{"bearer field", inRule("credential: {name: t, as: bearer, field: u}"), 6, "profiles.p.egress[0].credential", "has no field"},
		{"header no field", inRule("credential: {name: t, as: header}"), 6, "profiles.p.egress[0].credential", "needs field, the header's name"},
		{"header host", inRule("credential: {name: t, as: header, field: host}"), 6, "profiles.p.egress[0].credential.field", "Host frames or routes"},
		{"header proxy", inRule("credential: {name: t, as: header, field: proxy-authorization}"), 6, "profiles.p.egress[0].credential.field", "frames or routes"},
		{"header CRLF", inRule(`credential: {name: t, as: header, field: "a\r\nb"}`), 6, "profiles.p.egress[0].credential.field", "is not a name"},
		{"credential wild", "version: 1\nprofiles:\n  p:\n    egress:\n    - {host: '*.a.example.com', credential: {name: t, as: bearer}}\n", 5, "profiles.p.egress[0].credential", "exact host"},
		{"addresses wild", "version: 1\nprofiles:\n  p:\n    egress:\n    - {host: '*.a.example.com', addresses: [10.0.0.0/8]}\n", 5, "profiles.p.egress[0].host", "one exact host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := parse("f.yaml", []byte(tc.text), testAccounts{})
			if p != nil || err == nil {
				t.Fatalf("accepted:\n%s", tc.text)
			}
			var all ParseErrors
			if !errors.As(err, &all) {
				t.Fatalf("error is %T", err)
			}
			for _, e := range all {
				if e.Field == tc.field && strings.Contains(e.Message, tc.say) && (tc.line == 0 || e.Line == tc.line) && e.File == "f.yaml" {
					return
				}
			}
			t.Errorf("want line %d, field %q, message with %q, got:\n%v", tc.line, tc.field, tc.say, err)
		})
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := parse("f", []byte("version: 9\nbogus: 1\ncallers: [{uid: x}]\nprofiles: {p: {jail: {limits: {pids: 0}}}}\ntenants: {A: {profile: z}}\n"), testAccounts{})
	var all ParseErrors
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	lines := make(map[int]bool)
	last := 0
	for _, e := range all {
		lines[e.Line] = true
		if e.Line < last {
			t.Error("faults are not in the file's order")
		}
		last = e.Line
	}
	for line := 1; line <= 5; line++ {
		if !lines[line] {
			t.Errorf("the fault on line %d is missing in:\n%v", line, err)
		}
	}
	var first *ParseError
	if !errors.As(err, &first) || first.Line != 1 {
		t.Errorf("errors.As gives %v, want the first fault", first)
	}
}

func TestHostPatterns(t *testing.T) {
	for _, ok := range []string{"api.example.com", "*.example.com", "localhost", "xn--bcher-kva.example", "a-1.b", "*.internal.corp"} {
		if err := checkHostPattern(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for bad, say := range map[string]string{
		"":                        "empty",
		".":                       "empty",
		"*":                       "whole first label",
		"*.com":                   "anybody",
		"*.co.uk":                 "anybody",
		"*.github.io":             "anybody",
		"*.internal":              "anybody",
		"*.*.example.com":         "whole first label",
		"a.*.example.com":         "whole first label",
		"api*.example.com":        "whole first label",
		"API.example.com":         "write api.example.com",
		"api.example.com.":        "write api.example.com",
		"bücher.example":          "write xn--bcher-kva.example",
		"*.Bücher.example":        "write *.xn--bcher-kva.example",
		"https://api.example.com": "without scheme",
		"api.example.com:443":     "without scheme",
		"user@api.example.com":    "without scheme",
		"api.example.com/v1":      "without scheme",
		"[::1]":                   "without scheme",
		"10.1.2.3":                "is an address",
		"0x7f.1":                  "is an address",
		"2130706433":              "is an address",
		"a.0x7f000001":            "is an address",
		"127.0.0.0x1":             "is an address",
		"-a.example.com":          "host's name",
		"a_b.example.com":         "host's name",
		"a..example.com":          "label",
		"a\x00.example.com":       "host's name",
		"a b.example.com":         "without scheme",
		"１２７.0.0.1":               "is an address",
	} {
		checkError(t, bad, checkHostPattern(bad), say)
	}
	long := strings.Repeat("a.", 130) + "com"
	checkError(t, long, checkHostPattern(long), "253")
}

func TestPaths(t *testing.T) {
	for _, ok := range []string{"/", "/*", "/v1/*", "/v1*", "/v1/users", "/a%20b", "/a%25", "/@scope%2Bx", "/~user/a.b-c_d", "/a;b=c", "/%C3%A4"} {
		if err := checkPath(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for bad, say := range map[string]string{
		"":                              "start with /",
		"*":                             "start with /",
		"v1":                            "start with /",
		"/a*b":                          "at the end only",
		"/a**":                          "at the end only",
		"//":                            "//",
		"/a//b":                         "//",
		"/a/../b":                       `".."`,
		"/..":                           `".."`,
		"/./a":                          `"."`,
		"/a?b":                          "no query",
		"/a#b":                          "no fragment",
		"/a%2Fb":                        "%2F, which the proxy refuses",
		"/a%5Cb":                        "%5C, which the proxy refuses",
		"/%00":                          "refuses",
		"/%2E%2E/a":                     `write '.' itself`,
		"/%41":                          `write 'A' itself`,
		"/%2f":                          "upper-case hexadecimal",
		"/%2*":                          "upper-case hexadecimal",
		"/%":                            "upper-case hexadecimal",
		"/%zz":                          "upper-case hexadecimal",
		"/a b":                          "write it as %20",
		"/a\\b":                         "write it as %5C",
		"/ä":                            "write it as %C3",
		"/a\nb":                         "write it as %0A",
		"/" + strings.Repeat("a", 2000): "longer",
	} {
		checkError(t, bad, checkPath(bad), say)
	}
}
