package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestExits(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	for script, want := range map[string]Exit{
		"exit 0":                           {},
		"exit 7":                           {Code: 7},
		"exit 255":                         {Code: 255},
		"kill -TERM $$":                    {Code: -1, Signal: "SIGTERM"},
		"kill -KILL $$":                    {Code: -1, Signal: "SIGKILL"},
		"kill -SEGV $$":                    {Code: -1, Signal: "SIGSEGV"},
		"(exit 3); (kill -9 $$ & wait $!)": {Code: -1, Signal: "SIGKILL"},
	} {
		o := sh(t, j, script)
		if o.exit.Code != want.Code || o.exit.Signal != want.Signal || o.exit.TimedOut || o.exit.Cause != "" {
			t.Errorf("%q: %+v", script, o.exit)
		}
		if o.exit.Wall <= 0 || o.exit.Usage.CPU < 0 {
			t.Errorf("%q: usage %+v", script, o.exit)
		}
	}
}

func TestCannotStart(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "echo x > notexec; printf '#!/nothing\n' > script; chmod +x script; ln -s /proc/self/cwd link; mkdir private; chmod 0 private")
	for _, tc := range []struct {
		spec  ExecSpec
		step  string
		errno unix.Errno
	}{
		{ExecSpec{Argv: []string{"/nothing"}}, "exec", unix.ENOENT},
		{ExecSpec{Argv: []string{"nothing"}}, "exec", unix.ENOENT},
		{ExecSpec{Argv: []string{"/workspace/notexec"}}, "exec", unix.EACCES},
		{ExecSpec{Argv: []string{"/workspace/script"}}, "exec", unix.ENOENT},
		{ExecSpec{Argv: []string{"true"}, Cwd: "/nothing"}, "cwd", unix.ENOENT},
		{ExecSpec{Argv: []string{"true"}, Cwd: "/etc/passwd"}, "cwd", unix.ENOTDIR},
		{ExecSpec{Argv: []string{"true"}, Cwd: "/proc/self/fd/3"}, "cwd", unix.ELOOP},
		{ExecSpec{Argv: []string{"true"}, Cwd: "/proc/self/cwd"}, "cwd", unix.ELOOP},
		{ExecSpec{Argv: []string{"true"}, Cwd: "/proc/1/root"}, "cwd", unix.ENOENT},
		{ExecSpec{Argv: []string{"true"}, Cwd: "/workspace/link"}, "cwd", unix.ELOOP},
		{ExecSpec{Argv: []string{"true"}, Cwd: "/workspace/private"}, "cwd", unix.EACCES},
	} {
		_, err := j.Exec(t.Context(), tc.spec)
		var se *StartError
		if !errors.As(err, &se) || se.Step != tc.step || se.Errno != tc.errno {
			t.Errorf("%q in %q: %v", tc.spec.Argv, tc.spec.Cwd, err)
		}
	}
	if o := run(t, j, ExecSpec{Argv: []string{"pwd"}, Cwd: "/usr/lib"}); o.stdout != "/usr/lib\n" {
		t.Errorf("%+v", o)
	}
	if o := run(t, j, ExecSpec{Argv: []string{"pwd"}}); o.stdout != "/workspace\n" {
		t.Errorf("%+v", o)
	}
}

func TestEnvironment(t *testing.T) {
	m := testManager(t)
	j, err := m.Create(t.Context(), Spec{
		Tenant: "alice", Env: map[string]string{"A": "jail", "B": "jail"}, Resolvers: []string{"10.1.2.3"},
		CABundle: []byte("the roots"),
	})
	if err != nil {
		t.Fatal(err)
	}
	o := run(t, j, ExecSpec{
		Argv: []string{"sh", "-c", `echo $A $B $HOME $PATH $HOSTNAME; hostname; cat $SSL_CERT_FILE; cat /etc/resolv.conf; id -un; umask; ls -l /proc/self/fd | wc -l`},
		Env:  map[string]string{"B": "exec"},
	})
	want := "jail exec /home/user " + defaultPath + " alice\nalice\nthe rootsnameserver 10.1.2.3\nuser\n0022\n5\n"
	if o.stdout != want || o.stderr != "" {
		t.Fatalf("got %q\nwant %q\n%s", o.stdout, want, o.stderr)
	}
	if o := run(t, j, ExecSpec{Argv: []string{"env"}}); strings.Contains(o.stdout, "GODEBUG") || strings.Contains(o.stdout, "root") {
		t.Fatalf("the daemon's environment shows: %s", o.stdout)
	}
}

func TestStdin(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if o := sh(t, j, "cat; readlink /proc/self/fd/0"); o.stdout != "/dev/null\n" {
		t.Fatalf("%+v", o)
	}
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"tr", "a-z", "A-Z"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), strings.Repeat("hello\n", 50000)); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin().Close(); err != nil {
		t.Fatal(err)
	}
	if o := collect(t, t.Context(), p); o.stdout != strings.Repeat("HELLO\n", 50000) || o.exit.Code != 0 {
		t.Fatalf("%d bytes, %+v", len(o.stdout), o.exit)
	}
}

// TestOrder lets one stream cause the other, so that their order is known.
func TestOrder(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{
		Argv: []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do echo out$i; read a; echo err$i >&2; read a; done"}, Stdin: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var last uint64
	for ev, err := range p.Events(t.Context(), 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		if last++; ev.Seq != last {
			t.Fatalf("event %d after %d", ev.Seq, last-1)
		}
		if ev.Kind == EventStdout || ev.Kind == EventStderr {
			got = append(got, ev.Kind+":"+strings.TrimSpace(string(ev.Data)))
			io.WriteString(p.Stdin(), "\n")
		}
	}
	var want []string
	for i := 1; i <= 10; i++ {
		want = append(want, fmt.Sprintf("stdout:out%d", i), fmt.Sprintf("stderr:err%d", i))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
	o := sh(t, j, "seq 1 20000; seq 1 20000 >&2")
	var all strings.Builder
	for i := 1; i <= 20000; i++ {
		fmt.Fprintln(&all, i)
	}
	if o.stdout != all.String() || o.stderr != all.String() {
		t.Fatalf("%d and %d bytes of %d", len(o.stdout), len(o.stderr), all.Len())
	}
}

func TestTimeoutKillsTheWholeTreeAndNothingElse(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	other, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := j.Exec(t.Context(), ExecSpec{
		// Double forks into sessions of their own, deaf to signals.
		Argv: []string{"sh", "-c", `trap "" TERM HUP INT
			(setsid sh -c 'trap "" TERM HUP; (setsid sleep 1000 &) ; echo deep; sleep 1000' &)
			echo started; sleep 1000`},
		Timeout: 700 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitLog(t.Context(), regexp.MustCompile("^deep$")); err != nil {
		t.Fatal(err)
	}
	o := collect(t, t.Context(), p)
	if !o.exit.TimedOut || o.exit.Signal != "SIGKILL" || o.exit.Wall < 700*time.Millisecond || o.exit.Wall > 5*time.Second {
		t.Fatalf("%+v", o.exit)
	}
	if err := p.group.await(t.Context(), "populated", 0); err != nil {
		t.Fatal(err)
	}
	if o := sh(t, j, "ps -e -o args= | grep -c '[s]leep 1000'"); o.stdout != "1\n" {
		t.Fatalf("sleepers: %q", o.stdout)
	}
	if other.over() {
		t.Fatal("the other command was killed too")
	}
}

func TestLeftBehind(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	// The leader ends; what it left has its pipe, writes on, and lives on.
	o := sh(t, j, "(while :; do echo noise; sleep 0.01; done &) ; echo done")
	if o.exit.Code != 0 || !strings.Contains(o.stdout, "done\n") {
		t.Fatalf("%+v", o.exit)
	}
	if o := sh(t, j, "pgrep -f noise >/dev/null && echo lives"); o.stdout != "lives\n" {
		t.Fatalf("%q", o.stdout)
	}
	// With a deadline it does not.
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", "(sleep 1000 &) ; exit 5"}, Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 5 || exit.TimedOut {
		t.Fatalf("%+v, %v", exit, err)
	}
	if err := p.group.await(t.Context(), "populated", 0); err != nil {
		t.Fatal(err)
	}
}

func TestSignals(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", `trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done`}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitLog(t.Context(), regexp.MustCompile("ready")); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if o := collect(t, t.Context(), p); o.exit.Code != 9 || !strings.Contains(o.stdout, "got") {
		t.Fatalf("%+v", o)
	}
	if err := p.Signal(t.Context(), unix.SIGTERM); err != nil {
		t.Fatal("a signal after the end is no error:", err)
	}
	for _, bad := range []unix.Signal{0, -1, 65} {
		if err := p.Signal(t.Context(), bad); err == nil {
			t.Errorf("signal %d was taken", bad)
		}
	}
	p, err = j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", `trap "" TERM; (setsid sleep 1000 &); sleep 1000`}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(t.Context()); err != nil || exit.Signal != "SIGKILL" || exit.TimedOut {
		t.Fatalf("%+v, %v", exit, err)
	}
	if err := p.group.await(t.Context(), "populated", 0); err != nil {
		t.Fatal(err)
	}
}

func TestExecIDIsIdempotent(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	spec := ExecSpec{ID: "one", Argv: []string{"sh", "-c", "echo x >> count; cat count"}}
	p, err := j.Exec(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	again, err := j.Exec(t.Context(), spec)
	if again != p || !errors.Is(err, ErrExists) {
		t.Fatalf("%v, %v", again, err)
	}
	if o := collect(t, t.Context(), p); o.stdout != "x\n" {
		t.Fatalf("%+v", o)
	}
	if again, err := j.Exec(t.Context(), spec); again != p || !errors.Is(err, ErrExists) {
		t.Fatalf("after the end: %v, %v", again, err)
	}
	if got, ok := j.Process("one"); !ok || got != p {
		t.Fatal("not found by its ID")
	}
	if infos := j.Processes(); len(infos) != 1 || infos[0].Exit == nil || infos[0].Pid <= 1 || infos[0].Events != 3 {
		t.Fatalf("%+v", infos)
	}
}

func TestConcurrentExecs(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	sh(t, j, "true")
	before := count(t, m)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			o := sh(t, j, fmt.Sprintf("seq %d %d; echo e%d >&2; exit %d", i*1000, i*1000+999, i, i))
			if o.exit.Code != i || o.stderr != fmt.Sprintf("e%d\n", i) || strings.Count(o.stdout, "\n") != 1000 ||
				!strings.HasPrefix(o.stdout, fmt.Sprintf("%d\n", i*1000)) {
				t.Errorf("command %d: %+v %q", i, o.exit, o.stderr)
			}
		})
	}
	wg.Wait()
	settled(t, m, before)
	if o := sh(t, j, "ps -e -o stat= | grep -c Z"); o.stdout != "0\n" {
		t.Fatalf("zombies: %q", o.stdout)
	}
	groups, err := os.ReadDir(string(j.cgroup))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g.IsDir() && g.Name() != "init" {
			t.Errorf("group %s is left", g.Name())
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if o := sh(t, j, "for i in $(seq 300); do (true &) ; done; (sleep 0.1; echo late) & wait"); o.stdout != "late\n" {
		t.Fatalf("%+v", o)
	}
	// From outside, because the jail hides others' processes.
	deadline := time.Now().Add(10 * time.Second)
	for {
		names, err := m.procList(fmt.Sprintf("%d/task", j.pid))
		if err != nil {
			t.Fatal(err)
		}
		kids := ""
		for _, tid := range names {
			b, _ := m.procFile(fmt.Sprintf("%d/task/%s/children", j.pid, tid))
			kids += string(b)
		}
		if kids == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("children of sandbox-init: %s", kids)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestOutputLimit(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	o := run(t, j, ExecSpec{Argv: []string{"sh", "-c", "yes | head -c 3000000; echo end >&2; exit 4"}, Output: 100_000})
	if o.exit.Code != 4 || !o.exit.Truncated || len(o.stdout)+len(o.stderr) != 100_000 {
		t.Fatalf("%d bytes, %+v", len(o.stdout)+len(o.stderr), o.exit)
	}
	if o := run(t, j, ExecSpec{Argv: []string{"head", "-c", "100000", "/dev/zero"}, Output: 100_000}); o.exit.Truncated || len(o.stdout) != 100_000 {
		t.Fatalf("%d bytes, %+v", len(o.stdout), o.exit)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"head", "-c", "60000000", "/dev/zero"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := error(nil)
	for _, err := range p.Events(t.Context(), 0, false) {
		first = err
		break
	}
	if !errors.Is(first, ErrGone) {
		t.Fatalf("events from the start: %v", first)
	}
	p.hist.mu.Lock()
	after := p.hist.firstKept() - 1
	p.hist.mu.Unlock()
	kept, last := 0, after
	var exit *Exit
	for ev, err := range p.Events(t.Context(), after, true) {
		if err != nil {
			t.Fatal(err)
		}
		if last++; ev.Seq != last {
			t.Fatalf("event %d after %d", ev.Seq, last-1)
		}
		kept += len(ev.Data)
		exit = ev.Exit
	}
	if kept < segmentBytes*(maxSegments-1) || kept > segmentBytes*(maxSegments+1) || exit == nil || exit.Code != 0 {
		t.Fatalf("%d bytes kept, exit %+v", kept, exit)
	}
}

func TestResume(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", "while read line; do echo $line; done"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	var last uint64
	for i := range 5 {
		fmt.Fprintf(p.Stdin(), "line%d\n", i)
		// A new connection each time.
		for ev, err := range p.Events(t.Context(), last, true) {
			if err != nil {
				t.Fatal(err)
			}
			last = ev.Seq
			if ev.Kind == EventStdout {
				seen = append(seen, strings.TrimSpace(string(ev.Data)))
				break
			}
		}
	}
	if got := strings.Join(seen, " "); got != "line0 line1 line2 line3 line4" {
		t.Fatal(got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var end error
	for _, err := range p.Events(ctx, last, true) {
		end = err
	}
	if !errors.Is(end, context.Canceled) {
		t.Fatalf("follow with a context that is over: %v", end)
	}
	n := 0
	for range p.Events(t.Context(), last, false) {
		n++
	}
	if n != 0 {
		t.Fatalf("%d events after the last", n)
	}
}

func TestWaitLogOfTheDead(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", "printf 'one\ntwo\nprompt> '"}})
	if err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]error{"^two$": nil, "^prompt> $": nil, "one.two": ErrExited, "three": ErrExited} {
		if err := p.WaitLog(t.Context(), regexp.MustCompile(pattern)); !errors.Is(err, want) {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

func TestCallersDescriptors(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", "echo direct; echo err >&2"}, Files: [3]*os.File{1: w}})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	o := collect(t, t.Context(), p)
	b, err := io.ReadAll(r)
	if err != nil || string(b) != "direct\n" || o.stdout != "" || o.stderr != "err\n" {
		t.Fatalf("%q, %+v, %v", b, o, err)
	}
}

func TestProcessLimit(t *testing.T) {
	m := testManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{Pids: 32, OpenFiles: 64}})
	if err != nil {
		t.Fatal(err)
	}
	neighbour := testJail(t, m, "bob")
	o := sh(t, j, "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done 2>&1; jobs | wc -l")
	if o.exit.Code == 0 && !strings.Contains(o.stdout, "fork") {
		t.Fatalf("100 processes with a limit of 32: %+v", o)
	}
	// Elsewhere it is the kernel's limit for a user that holds, and is not counted.
	if counted := slices.Contains(m.host.controllers, "pids"); counted != (o.exit.PidsRefused > 0) {
		t.Errorf("%d forks were refused; the host counts them: %t", o.exit.PidsRefused, counted)
	}
	if o := sh(t, neighbour, "i=0; while [ $i -lt 60 ]; do sleep 0.1 & i=$((i+1)); done; wait; echo fine"); o.stdout != "fine\n" {
		t.Fatalf("the neighbour: %+v", o)
	}
	if o := run(t, neighbour, ExecSpec{Argv: []string{"bash", "-c", "ulimit -n; ulimit -c; ulimit -u"}}); o.stdout != "4096\n0\n512\n" {
		t.Fatalf("%q", o.stdout)
	}
}
