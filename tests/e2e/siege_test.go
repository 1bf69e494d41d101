package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// siege is what a jail does at once to be a burden to everybody.
var siege = map[string]string{
	"fork bomb":       `bomb() { bomb | bomb & }; bomb; exec sleep 1000`,
	"output flood":    `exec yes "$(head -c 4000 /dev/zero | tr '\0' x)"`,
	"very many files": `mkdir d; while :; do i=0; while [ $i -lt 5000 ]; do : > d/$i; i=$((i+1)); done; rm -r d; mkdir d; done`,
	"descriptors": `exec python3 -c 'import os, time
try:
    while True: os.pipe()
except OSError: time.sleep(1000)'`,
	"names": `exec python3 -c 'import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server = [l.split()[1] for l in open("/etc/resolv.conf") if l.startswith("nameserver")][0]
n = 0
while True:
    n += 1
    q = b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"\x08" + b"%08d" % (n % 100000000) + b"\x07invalid\x00\x00\x01\x00\x01"
    try: s.sendto(q, (server, 53))
    except OSError: time.sleep(0.01)'`,
	"connections": `exec python3 -c 'import os, socket, time, urllib.parse
u = urllib.parse.urlparse(os.environ["http_proxy"])
held = []
while True:
    try:
        s = socket.create_connection((u.hostname, u.port), 5); s.sendall(b"CONNECT x"); held.append(s)
    except OSError: time.sleep(0.05); held = held[-500:]'`,
}

// burden is what the daemon itself takes.
type burden struct{ memory, threads, files int }

func burdenOf(t *testing.T) burden {
	t.Helper()
	pid, err := sys.Pid(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return burden{kib << 10, threads(t), len(fds)}
}

// TestSiege: whatever one jail does, the daemon's memory, threads and descriptors
// stay bounded, and a neighbour's commands run. How long those take is tests/bench's
// to say: where there are no controllers, a jail has all of the machine.
func TestSiege(t *testing.T) {
	who, beside := tenant(t, harness.AgentPrefix+"siege-"), tenant(t, harness.AgentPrefix+"beside-")
	sh(t, beside, "true")
	before := burdenOf(t)
	for name, line := range siege {
		exec(t, who, api.ExecRequest{Command: line, Background: true, ExecID: strings.ReplaceAll(name, " ", "-")})
	}
	var most burden
	var took []time.Duration
	for began := time.Now(); time.Since(began) < harness.Scale(4*time.Second); {
		// Also what the daemon does for the jail, which may not be able to start it.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		a, err := sys.API.Do(ctx, "POST", jailPath(who)+"/exec", api.ExecRequest{Argv: []string{"true"}})
		cancel()
		if err == nil && a.Status == http.StatusInternalServerError {
			t.Errorf("a command of the jail's: %s", a.Body)
		}
		one := time.Now()
		sh(t, beside, "true")
		took = append(took, time.Since(one))
		now := burdenOf(t)
		most = burden{max(most.memory, now.memory), max(most.threads, now.threads), max(most.files, now.files)}
	}
	slices.Sort(took)
	t.Logf("before %+v, at most %+v; %d commands beside, median %v, slowest %v", before, most, len(took), took[len(took)/2], took[len(took)-1])
	if grown := most.memory - before.memory; grown > 192<<20 {
		t.Errorf("the daemon's memory has grown by %d MiB", grown>>20)
	}
	if most.threads > before.threads+32 || most.files > before.files+256 {
		t.Errorf("threads and descriptors: before %+v, at most %+v", before, most)
	}
	began := time.Now()
	want(t, "DELETE", jailPath(who), nil, nil)
	t.Logf("it ended in %v", time.Since(began).Round(time.Millisecond))
	eventually(t, "its descriptors are closed", func() bool { return burdenOf(t).files <= before.files+16 })
}
