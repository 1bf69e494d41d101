package jail

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestUsers(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	for user, want := range map[string]string{
		"": "1000 1000 /home/user user", "1000": "1000 1000 /home/user user", "user": "1000 1000 /home/user user",
		"nobody": "65534 65534 /nonexistent nobody", "4242": "4242 4242 / 4242", "65535": "65535 65535 / 65535",
	} {
		o := run(t, j, ExecSpec{Argv: []string{"sh", "-c", `echo $(id -u) $(id -g) $HOME $USER; echo err >/dev/stderr; id -G >&2
			grep -E "^(Cap(Prm|Eff|Inh|Bnd|Amb)|NoNewPrivs|Seccomp):" /proc/self/status | sort -u | tr -s '\t\n' ' ' >&2`}, User: user})
		if o.stdout != want+"\n" {
			t.Errorf("%q: %q, want %q", user, o.stdout, want)
		}
		const none = "0000000000000000"
		if status := fmt.Sprintf("CapAmb: %[1]s CapBnd: %[1]s CapEff: %[1]s CapInh: %[1]s CapPrm: %[1]s NoNewPrivs: 1 Seccomp: 2 ", none); !strings.HasSuffix(o.stderr, status) ||
			!strings.HasPrefix(o.stderr, "err\n"+strings.Fields(want)[1]+"\n") {
			t.Errorf("%q: %q", user, o.stderr)
		}
	}
	for _, user := range []string{
		"-1", "65536", "4294967295", "4294967296", "18446744073709551616", "+0", "+5", "00", "01000", "1000:0", "1000:1000", "0x10", " 5", "5 ", "noone",
		"../x", "a/b", "a\x00b", "a\nb", "root:x", "$(id)", "é", strings.Repeat("9", 1000),
	} {
		_, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"true"}, User: user})
		var se *SpecError
		if !errors.As(err, &se) || se.Field != "user" {
			t.Errorf("%q: %v", user, err)
		}
	}
	for _, user := range []string{"0", "root"} {
		if _, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"true"}, User: user}); !errors.Is(err, ErrNoRoot) {
			t.Errorf("%q: %v", user, err)
		}
	}
	if n := len(j.Processes()); n != 6 {
		t.Errorf("%d processes are known", n)
	}
	// Another user's terminal is its own.
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sh", "-c", "tty; stat -c %u $(tty); echo ok >/dev/tty"}, User: "33", Terminal: &Size{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	if o := collect(t, t.Context(), p); o.stdout != "/dev/pts/0\r\n33\r\nok\r\n" {
		t.Errorf("%q", o.stdout)
	}
}

// TestFirstCommandIsChecked as whoever it runs.
func TestFirstCommandIsCheckedAsItsUser(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if o := run(t, j, ExecSpec{Argv: []string{"id", "-u"}, User: "33"}); o.stdout != "33\n" {
		t.Errorf("%+v", o)
	}
	if err := j.verifyCommand(j.pid, &account{uid: 1}); err == nil {
		t.Error("sandbox-init passes for a command")
	}
}

func TestFindAccount(t *testing.T) {
	const passwd = "\n:x:5:5::/:/bin/sh\nbad:x:+5:5::/:/bin/sh\nbad:x:65536:0::/:/bin/sh\nbad:x:5:-1::/:/bin/sh\nshort:x:5:5:/\n" +
		"one:x:5:6:gecos, with words:/home/one:/bin/zsh\none:x:0:0::/:/bin/sh\nrel:x:7:7::home:sh\nlast:x:8:8::/l:/bin/l"
	byName := func(name string) func(*account) bool { return func(a *account) bool { return a.name == name } }
	for name, want := range map[string]account{
		"one": {5, 6, "one", "/home/one", "/bin/zsh"}, "rel": {7, 7, "rel", "/", "/bin/sh"}, "last": {8, 8, "last", "/l", "/bin/l"},
	} {
		if got, ok := findAccount(passwd, byName(name)); !ok || got != want {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
	for _, name := range []string{"", "bad", "short", "gecos"} {
		if got, ok := findAccount(passwd, byName(name)); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// FuzzPasswd: whatever a tenant writes into its passwd, an account is inside its
// range and can be executed with.
func FuzzPasswd(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/sh\n", "user")
	f.Add("a:b:c:d:e:f:g\n::::::\n", "a")
	f.Add("x:x:18446744073709551615:1::/\x00:/", "x")
	f.Fuzz(func(t *testing.T, passwd, user string) {
		uid, numeric, err := parseUser(user)
		if err != nil {
			return
		}
		a, ok := findAccount(passwd, func(a *account) bool { return numeric && a.uid == uid || !numeric && a.name == user })
		if !ok {
			return
		}
		if a.uid > maxUserID || a.gid > maxUserID || numeric && a.uid != uid || !numeric && a.name != user {
			t.Fatalf("%+v", a)
		}
		for name, value := range a.env() {
			if len(value) > len(passwd)+len(user)+16 || name == "HOME" && value[0] != '/' || name == "SHELL" && value[0] != '/' {
				t.Fatalf("%s=%q", name, value)
			}
		}
	})
}

// TestHostilePasswd: the file is the tenant's where the root is writable.
func TestHostilePasswd(t *testing.T) {
	m := testManager(t)
	importSmall(t, m, "small")
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Template: "small", WritableRoot: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"a pipe":        "mkfifo /etc/passwd",
		"a folder":      "mkdir /etc/passwd",
		"a link to it":  "ln -s passwd /etc/passwd",
		"a link out":    "ln -s /proc/1/mem /etc/passwd",
		"what is large": "s=x; i=0; while [ $i -lt 21 ]; do s=$s$s; i=$((i+1)); done; echo $s >/etc/passwd",
	} {
		o := run(t, j, ExecSpec{Argv: []string{"/bin/sh", "-c", "rm -rf /etc/passwd && " + script}, User: "0"})
		if o.exit.Code != 0 {
			t.Fatalf("%s: %+v", name, o)
		}
		_, err := j.account(t.Context(), "user")
		var se *SpecError
		if !errors.As(err, &se) || se.Field != "user" {
			t.Errorf("%s: %v", name, err)
		}
		if a, err := j.account(t.Context(), "1234"); err != nil || a.uid != 1234 {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

// TestRootInside: where the root is writable a command may own it, and is no
// more than that: no capability, and no hold on sandbox-init, whose id it has.
func TestRootInside(t *testing.T) {
	m := testManager(t)
	importSmall(t, m, "small")
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Template: "small", WritableRoot: true})
	if err != nil {
		t.Fatal(err)
	}
	asRoot := func(script string) output {
		t.Helper()
		return run(t, j, ExecSpec{Argv: []string{"/bin/sh", "-c", script}, User: "root"})
	}
	if o := asRoot("id -u; id -g; echo $HOME; echo x >/etc/own && cat /etc/own"); o.stdout != "0\n0\n/root\nx\n" {
		t.Errorf("%q, %q", o.stdout, o.stderr)
	}
	for script, why := range map[string]string{
		"echo x >/proc/sys/kernel/core_pattern": "a setting of the kernel",
		"cat /proc/1/mem":                       "sandbox-init's memory",
		"cat /proc/1/environ":                   "sandbox-init's environment",
		"ls /proc/1/fd/":                        "sandbox-init's descriptors",
		"ls /proc/1/root/":                      "sandbox-init's root",
		"echo -500 >/proc/1/oom_score_adj":      "sandbox-init's place among victims",
		"mknod /etc/null c 1 3":                 "a device",
		// It seems to work, for package managers; the file stays what it was.
		`chown 1000 /usr/bin/cat; s=$(stat -c %u /usr/bin/cat); test "$s" = 1000`: "another's file",
		"cat /proc/kcore /proc/kmsg | (read -r x)":                                "the kernel's memory",
		"echo 0 >/proc/self/oom_score_adj; echo $$ >/sys/fs/cgroup/cgroup.procs":  "another group",
	} {
		if o := asRoot(script); o.exit.Code == 0 {
			t.Errorf("user 0 gets %s: %q", why, o.stdout)
		}
	}
	asRoot("s=1; while [ $s -le 64 ]; do kill -$s 1; s=$((s+1)); done")
	if o := asRoot("echo lives"); o.stdout != "lives\n" {
		t.Errorf("after signals to sandbox-init: %+v", o)
	}
	if o := sh(t, j, "id -u; cat /etc/own; echo y >/etc/own"); o.stdout != "1000\nx\n" || o.exit.Code == 0 {
		t.Errorf("%+v", o)
	}
}
