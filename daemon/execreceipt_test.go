package daemon

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// denialsOf are a command's refusals in short.
func denialsOf(p *api.Process) map[string]int64 {
	out := map[string]int64{}
	for _, d := range p.Denials {
		out[d.Kind+" "+d.What] += max(d.Count, 1)
	}
	return out
}

// TestReceiptTellsWhatWasRefused: each command's own, in its answer and in the
// audit log.
func TestReceiptTellsWhatWasRefused(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	for name, tc := range map[string]struct {
		req  api.ExecRequest
		want []string
	}{
		"nothing": {api.ExecRequest{Argv: []string{"true"}}, nil},
		"calls":   {api.ExecRequest{Command: "unshare -U true; unshare -U true; mknod x c 1 3"}, []string{"syscall mknodat", "syscall unshare"}},
		"time":    {api.ExecRequest{Argv: []string{"sleep", "1000"}, Timeout: policy.Duration(200 * time.Millisecond)}, []string{"limit wall"}},
		"output":  {api.ExecRequest{Command: "head -c 70000000 /dev/zero"}, []string{"limit output"}},
		"a call that ends the program": {
			api.ExecRequest{Argv: []string{"python3", "-c", "import ctypes; ctypes.CDLL(None).syscall(169, 1, 2, 3)"}},
			[]string{"syscall a call that ends the program: of modules, kexec, reboot or another ABI"},
		},
	} {
		p, err := d.api.Exec(ctx, "t-a", &tc.req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := denialsOf(p)
		if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, tc.want) {
			t.Errorf("%s: %v, want %v", name, keys, tc.want)
		}
		if name == "calls" && got["syscall unshare"] != 2 {
			t.Errorf("%v", got)
		}
	}
	// Of one that still runs.
	if _, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Command: "unshare -U true; echo tried; exec sleep 1000", Background: true, ExecID: "bg"}); err != nil {
		t.Fatal(err)
	}
	w, err := d.api.Wait(ctx, "t-a", "bg", &api.WaitRequest{LogRegexp: "^tried$"})
	if err != nil || denialsOf(&w.Process)["syscall unshare"] != 1 {
		t.Errorf("%+v, %v", w, err)
	}
	d.stop(t)
	log, err := os.ReadFile(filepath.Join(d.state("audit"), firstLog(t, d.state("audit"))))
	if err != nil || strings.Count(string(log), `"what":"mknodat"`) != 1 {
		t.Errorf("the audit log lacks a refusal, or has it twice: %v", err)
	}
}

func firstLog(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	return filepath.Base(names[0])
}

// TestReceiptListsChangedFiles when asked, and no others.
func TestReceiptListsChangedFiles(t *testing.T) {
	d := startDaemon(t)
	ctx := within(t)
	exec := func(command string, files bool) *api.Process {
		t.Helper()
		p, err := d.api.Exec(ctx, "t-a", &api.ExecRequest{Command: command, Receipt: &api.ReceiptRequest{Files: files}})
		if err != nil || p.ExitCode == nil || *p.ExitCode != 0 {
			t.Fatalf("%s: %+v, %v", command, p, err)
		}
		return p
	}
	if p := exec("mkdir -p old/deep; echo 1 > old/kept; echo 1 > old/deep/edited; echo 1 > old/removed; sleep 0.05", false); p.Changes != nil {
		t.Errorf("not asked for: %+v", p.Changes)
	}
	p := exec("echo 2 >> old/deep/edited; rm old/removed; printf x > \"$(printf 'odd\\377\\033[31m')\"; ln -s /etc/passwd link; mkfifo pipe; echo x > /tmp/elsewhere", true)
	got := map[string]string{}
	for _, c := range p.Changes.Changes {
		got[c.Path] = c.Kind + " " + c.Type
		if strings.Contains(c.Path, "odd") && c.PathBase64 == "" {
			t.Errorf("the bytes of %q are lost", c.Path)
		}
	}
	for path, want := range map[string]string{
		"/workspace/old/deep/edited": "modified file", "/workspace/link": "added symlink", "/workspace/pipe": "added fifo",
		"/workspace/odd\uFFFD\x1b[31m": "added file", "/workspace/old": "modified dir",
	} {
		if got[path] != want {
			t.Errorf("%q: %q, want %q", path, got[path], want)
		}
	}
	if len(got) != 5 || p.Changes.Truncated {
		t.Errorf("%v", got)
	}
	p = exec("for i in $(seq 1500); do : > many$i; done", true)
	if len(p.Changes.Changes) != maxReceiptChanges || !p.Changes.Truncated {
		t.Errorf("%d changes, truncated %t", len(p.Changes.Changes), p.Changes.Truncated)
	}
}
