package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// What users of other sandboxes suffer from most, and what holds it here. Packages
// are named where it is not this one; those with "below" are in this file.
//
//	A command never returns (of a daemon in between, a full machine, a deploy)
//	    TestExecOutcomes, TestEndedIsEnded below
//	Its timeout is ignored, comes late, leaves it running, spoils what follows
//	    TestExecTimeoutKillsItsTreeOnly, jail TestTimeoutKillsTheWholeTreeAndNothingElse
//	An exit is made up while the command runs, or when the sandbox dies
//	    TestEndedIsEnded below, jail TestEndOfInitEndsTheJail, daemon/client ErrUnfinished
//	No timeout at all unless one is given           TestPolicyBoundsEveryCommand below
//	A heredoc, an `exit`, a broken line spoil a shared shell; parallel commands mix
//	    TestEachCommandIsItsOwnProcess below, jail TestManyExecs
//	Standard input left open, or not to be had      TestExecOutcomes, TestExecStdinAndSignal
//	A fixed delay with every short command          TestEndedIsEnded below, make bench
//	The supervisor starves with its sandbox         TestBusyJailAnswers below
//	Files or processes lost when idle, on resume, with a teardown
//	    daemon TestIdleFreezesAndLifetimeEnds, jail TestFreeze, TestSnapshotsOutliveTheDaemon
//	An end without a reason                         TestJailLife, TestJailMaximumLife
//	Connecting changes what was agreed              daemon TestLifeOfAJail, TestJailUpdate
//	Renewing makes it immortal                      TestTouchMovesNoDeadline below, TestJailMaximumLife
//	What counts as activity                         TestClientTouchesJails, TestServerAndPreview
//	Orphans after a kill, a list of what is not there
//	    TestCrashIsSweptUp, TestJailLeavesNothing, jail TestNothingIsLeft
//	Many creations at once fail or leave orphans    TestManyJailsAtOnce below
//	Zombies until no process can be made            jail TestOrphansAreReaped
//	Slow starts                                     make bench
//	Rules by name, changed live; no "essential" list that stays open
//	    TestPolicyReloadCutsAndKeeps, TestEgressOfAJail
//	Tools that ignore proxy variables, or a resolver that answers nothing
//	    netproxy TestCapturedTLS, TestCapturedHTTP, TestDNS
//	Host services, and TCP that is not HTTP         TestNamedService, netproxy TestServiceByConnect
//	Ways around by address or another resolver      TestJailReachesNothingButTheProxy
//	A placeholder goes out as it is                 netproxy TestPlaceholders
//	Servers that nobody reaches; WebSockets with another Host
//	    netproxy TestPreviewWebSocket, tests/browser TestVite
//	The host lacks something, and only a panic says so
//	    jail TestUnsupportedHosts, TestCtlDoctor
//	Stray files in the real tree                    jail TestMounts, TestNothingIsLeft
//	Refusals that nobody sees                       TestReceipts
//	No quota, or one that nobody sees               TestDiskLimit, jail TestDiskImage
//	A token in a clone's address                    TestClientClones
//	A process for each piece of a file              jail TestFiles
//	Processor time of one command in another's      TestUseIsTheCommandsOwn below
//
// Not so: refused paths are seen by the program alone (EACCES, EROFS), not in the
// receipt; there are no hooks before a jail's end beside the signals that a caller
// sends; a second machine is nobody's business here.

// TestEndedIsEnded: a command has ended when its process has, neither when it
// closes its outputs nor when the last one that has them does.
func TestEndedIsEnded(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	p := exec(t, who, api.ExecRequest{Command: "exec >&- 2>&-; sleep 0.3; exit 7"})
	if p.ExitCode == nil || *p.ExitCode != 7 || p.Usage.Wall.Used.Std() < 300*time.Millisecond {
		t.Errorf("after closing its outputs: %s after %s", ended(p), p.Usage.Wall.Used)
	}
	p = exec(t, who, api.ExecRequest{Command: "sleep 1000 & echo out"})
	if p.ExitCode == nil || *p.ExitCode != 0 || p.Stdout != "out\n" {
		t.Errorf("with its outputs in another's hands: %s, %q", ended(p), p.Stdout)
	}
}

func TestPolicyBoundsEveryCommand(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	if p := exec(t, who, api.ExecRequest{Argv: []string{"true"}}); p.Timeout.Std() != 10*time.Minute {
		t.Errorf("a command without a timeout has %s, the policy grants 10m", p.Timeout)
	}
	wantError(t, do(t, "POST", jailPath(who)+"/exec", api.ExecRequest{Argv: []string{"true"}, Timeout: policy.Duration(time.Hour)}),
		http.StatusBadRequest, api.CodeInvalidRequest, "timeout")
}

func TestEachCommandIsItsOwnProcess(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	for _, script := range []string{"cat <<END\nhere\nEND", "cat <<'END'\nno end", "exit 3", "exec 0<&- 1>&-", "cd /tmp; export LOST=1; set -e; false", "echo 'unbalanced", "kill -9 $$"} {
		exec(t, who, api.ExecRequest{Command: script})
		if got := sh(t, who, "pwd; echo ${LOST-none}"); got != "/workspace\nnone\n" {
			t.Errorf("after %q: %q", script, got)
		}
	}
	if got := sh(t, who, "cat <<END\nhere\nEND"); got != "here\n" {
		t.Errorf("%q", got)
	}
}

// TestBusyJailAnswers although all of its processor time is taken.
func TestBusyJailAnswers(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	exec(t, who, api.ExecRequest{Command: "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait", Background: true, ExecID: "busy"})
	for range 5 {
		if got := sh(t, who, "echo here"); got != "here\n" {
			t.Errorf("%q", got)
		}
	}
	want(t, "DELETE", jailPath(who)+"/processes/busy", nil, nil)
	var w api.WaitAnswer
	want(t, "POST", jailPath(who)+"/processes/busy/wait", api.WaitRequest{Exit: true}, &w)
	if w.Process.Signal != "SIGKILL" {
		t.Errorf("%s", ended(w.Process))
	}
}

func TestTouchMovesNoDeadline(t *testing.T) {
	who, ctx, c := tenant(t, harness.AgentPrefix), deadline(t), callsAPI(t)
	sh(t, who, "true")
	before, err := c.Jail(ctx, who)
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.TouchJail(ctx, who)
	if err != nil || before.Deadline.IsZero() || !after.Deadline.Equal(before.Deadline) {
		t.Errorf("the deadline was %s and is %s, %v", before.Deadline, after.Deadline, err)
	}
}

func TestManyJailsAtOnce(t *testing.T) {
	ctx, c := deadline(t), callsAPI(t)
	var wg sync.WaitGroup
	for range 30 {
		who := tenant(t, harness.AgentPrefix)
		wg.Go(func() {
			p, err := c.Exec(ctx, who, &api.ExecRequest{Argv: []string{"hostname"}})
			if err != nil || p.Stdout != who+"\n" {
				t.Errorf("%s: %+v, %v", who, p, err)
			}
		})
	}
	wg.Wait()
}

// TestUseIsTheCommandsOwn: each has a cgroup to itself.
func TestUseIsTheCommandsOwn(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	used := func(script string) time.Duration {
		t.Helper()
		p := exec(t, who, api.ExecRequest{Command: script})
		if p.Usage.CPU.Used == nil {
			t.Fatal("the receipt does not tell its processor time")
		}
		return p.Usage.CPU.Used.Std()
	}
	spin := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done", 400_000)
	first, little, again := used(spin), used("true"), used(spin)
	if little > first/3 || again > 3*first {
		t.Errorf("%s, then %s for nothing, then %s for the first again", first, little, again)
	}
}
