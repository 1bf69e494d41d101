package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Tenants of the suites' policy: any name with the prefix. A test takes names
// of its own, so that tests do not meet.
const (
	// AgentPrefix tenants may do everything that the policy language can grant.
	AgentPrefix = "t-"
	// IsolatePrefix tenants have an isolate without bindings or fetch, and no
	// jail.
	IsolatePrefix = "iso-"
	// StrictPrefix tenants have isolates with workers of their own.
	StrictPrefix = "strict-"
	// AmplePrefix tenants have isolates with limits that a slow machine does not
	// meet by chance.
	AmplePrefix = "ample-"
	// NobodyPrefix tenants are agents whom the user "nobody" may act for.
	NobodyPrefix = "t-nobody-"
	// Stranger is granted nothing.
	Stranger = "stranger"
)

// TokenName is the credential that the policy adds to requests to APIHost.
const TokenName = "world-token"

// Scale multiplies a time that is meant for a machine of ordinary speed; the
// emulated one of tests/vm sets SANDBOXD_TEST_SCALE.
func Scale(d time.Duration) time.Duration { return time.Duration(factor()) * d }

func factor() int {
	n, err := strconv.Atoi(os.Getenv("SANDBOXD_TEST_SCALE"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// DeskSocket is where tests answer the calls of the binding DESK.
const DeskSocket = "/run/sandboxd-test-desk.sock"

// Limits that the policy grants and that tests push against.
const (
	JailMemory = 192 << 20
	JailPids   = 64
	JailCPUs   = 0.5
)

// CPULimit and WallLimit are an isolate's. Tests run into them, so they are not
// scaled all the way: plain loops are emulated at nearly full speed.
func CPULimit() time.Duration  { return time.Duration(min(factor(), 4)) * 500 * time.Millisecond }
func WallLimit() time.Duration { return time.Duration(min(factor(), 5)) * 3 * time.Second }

// A Profile is one more profile of the policy, for a suite of its own.
type Profile struct {
	// Prefix is the tenants'.
	Prefix string
	// Text is the profile as YAML in flow style; WORLD in it becomes the world's
	// address.
	Text string
}

func policyText(w *World, more []Profile) string {
	var profiles, tenants string
	for i, p := range more {
		profiles += fmt.Sprintf("  more%d: %s\n", i, strings.ReplaceAll(p.Text, "WORLD", w.Addr.String()))
		tenants += fmt.Sprintf("  %q: {profile: more%d}\n", p.Prefix+"*", i)
	}
	return fmt.Sprintf(`version: 1
callers:
  - user: root
    tenants: ["*"]
    admin: true
  - user: nobody
    tenants: ["%[1]s*"]
profiles:
  agent:
    isolate:
      languages: [js, ts, python, wasm]
      bindings:
        DB: {type: db}
        KV: {type: kv}
        LOG: {type: log}
        SEARCH: {type: tools, methods: [find, fail]}
        DESK:
          type: tools
          socket: %[15]s
          timeout: 5s
          methods:
            order: {args: {type: object, required: [id], properties: {id: {type: integer}}}, result: {type: object, required: [total], properties: {total: {type: number}}}}
            echo:
      fetch: true
      limits: {wall: %[2]s, cpu: %[3]s, memory: 32MiB, output: 64KiB, requests: 5}
    jail:
      template: host
      preview: true
      env: {SUITE: whole-system}
      limits: {memory: %[4]d, cpus: %[5]g, pids: %[6]d, wall: 10m, idle: 10m, lifetime: 1h, output: 1MiB}
    egress:
      - host: %[7]s
        methods: [GET, POST]
        paths: ["/v1/*"]
        addresses: [%[8]s]
        resolve: [%[9]s]
        credential: {name: %[10]s, as: bearer}
      - host: %[11]s
        methods: [GET]
        addresses: [%[8]s]
        resolve: [%[9]s]
  plain:
    isolate:
      languages: [js]
      limits: {wall: %[2]s, cpu: %[3]s, memory: 32MiB, output: 64KiB}
  strict:
    isolate:
      languages: [js, ts, python, wasm]
      isolation: strict
      bindings: {DB: {type: db}, KV: {type: kv}, LOG: {type: log}}
      limits: {wall: %[2]s, cpu: %[3]s, memory: 32MiB, output: 64KiB}
  ample:
    isolate:
      languages: [js, ts, python, wasm]
      bindings: {KV: {type: kv}, LOG: {type: log}}
      fetch: true
      limits: {wall: 5m, cpu: 1m, memory: 128MiB, output: 1MiB}
    egress:
      - host: %[11]s
        methods: [GET]
        addresses: [%[8]s]
        resolve: [%[9]s]
%[17]stenants:
%[18]s  "%[16]s*": {profile: ample}
  "%[14]s*": {profile: strict}
  "%[12]s*": {profile: agent}
  "%[13]s*": {profile: plain}
`, NobodyPrefix, WallLimit(), CPULimit(), JailMemory, JailCPUs, JailPids,
		APIHost, w.Prefix, w.Addr, TokenName, OtherHost, AgentPrefix, IsolatePrefix, StrictPrefix, DeskSocket, AmplePrefix, profiles, tenants)
}

// configure writes what the daemon is started with to dir.
func configure(dir string, w *World, more []Profile) error {
	if err := os.MkdirAll(filepath.Join(dir, "credentials"), 0o700); err != nil {
		return err
	}
	trusted := os.Getenv("SSL_CERT_FILE")
	if trusted == "" {
		trusted = "/etc/ssl/certs/ca-certificates.crt"
	}
	roots, err := os.ReadFile(trusted)
	if err != nil {
		return fmt.Errorf("the machine's own roots: %w", err)
	}
	for name, text := range map[string]string{
		"policy.yaml":              policyText(w, more),
		"credentials/" + TokenName: w.Token,
		"roots.pem":                string(roots) + "\n" + string(w.CA),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
