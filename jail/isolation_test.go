package jail

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

//go:embed testdata/probe.c
var probeSource []byte

// refusals says what each line of the probe must be.
var refusals = map[string]string{
	"mount": "EPERM", "umount2": "EPERM", "pivot_root": "EPERM", "chroot": "EPERM", "open_tree": "EPERM",
	"move_mount": "EPERM", "fsopen": "EPERM", "mount_setattr": "EPERM", "unshare-user": "EPERM",
	"unshare-all": "EPERM", "unshare-time": "EPERM", "setns": "EPERM", "clone-newuser": "EPERM",
	"clone-newnet-high": "EPERM", "clone3": "ENOSYS", "ptrace": "EPERM", "ptrace-init": "EPERM",
	"process_vm_readv": "EPERM", "kcmp": "EPERM", "pidfd_getfd": "EPERM", "kill-init": "EPERM",
	"kill-init-probe": "EPERM", "bpf": "EPERM", "perf_event_open": "EPERM", "userfaultfd": "EPERM",
	"fanotify_init": "EPERM", "open_by_handle_at": "EPERM", "name_to_handle_at": "EPERM", "syslog": "EPERM",
	"iopl": "EPERM", "sethostname": "EPERM", "settimeofday": "EPERM", "swapon": "EPERM", "quotactl": "EPERM",
	"acct": "EPERM", "add_key": "ENOSYS", "keyctl": "ENOSYS", "io_uring_setup": "ENOSYS",
	"io_uring_enter": "ENOSYS", "memfd_secret": "ENOSYS", "unknown-999": "ENOSYS", "statmount": "ENOSYS",
	"mknod-char": "EPERM", "mknod-block": "EPERM", "mkfifo": "ok", "setuid-0": "EPERM", "setgroups": "EPERM",
	"personality": "EPERM", "personality-get": "ok", "prctl-set-mm": "EPERM", "seccomp-listener": "EPERM",
	"socket-unix": "ok", "socket-tcp": "ok", "socket-udp": "ok", "socket-raw": "EAFNOSUPPORT",
	"socket-mptcp": "EAFNOSUPPORT", "socket-sctp": "EAFNOSUPPORT", "socket-packet": "EAFNOSUPPORT",
	"socket-packet-high": "EAFNOSUPPORT", "socket-alg": "EAFNOSUPPORT", "socket-vsock": "EAFNOSUPPORT",
	"socket-rxrpc": "EAFNOSUPPORT", "socket-route": "ok", "socket-xfrm": "EAFNOSUPPORT",
	"socket-netfilter": "EAFNOSUPPORT", "tiocsti": "EPERM", "tiocsti-high": "EPERM", "tioclinux": "EPERM",
	"fionread": "ENOTTY", "write-usr": "EROFS", "chmod-usr": "EROFS", "write-etc": "EACCES", "write-root": "EACCES",
	"read-shadow": "ENOENT", "proc-1-root": "ENOENT", "proc-1-exe": "ENOENT", "proc-1-environ": "ENOENT",
	"core_pattern": "EACCES", "ip_forward": "EACCES", "max_user_namespaces": "EACCES", "sys": "ENOENT",
	"dev-mem": "ENOENT", "dev-kmsg": "ENOENT", "dev-fuse": "ENOENT", "dev-null": "ok", "dev-tty": "ENXIO",
	"hard-link-usr": "EXDEV", "reboot": "killed", "init_module": "killed", "kexec_load": "killed",
	"x32-getpid": "killed",
}

func TestProbe(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	if _, err := j.WriteFile(t.Context(), "probe.c", bytes.NewReader(probeSource), 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	o := sh(t, j, "gcc -Wno-all -o probe probe.c && ./probe")
	if o.exit.Code != 0 {
		t.Fatalf("%+v", o)
	}
	got := map[string]string{}
	for line := range strings.Lines(o.stdout) {
		name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[name] = result
	}
	for name, want := range refusals {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if len(got) < len(refusals) {
		t.Fatalf("%d lines", len(got))
	}
}

func TestNoPrivileges(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	o := sh(t, j, "cat /proc/self/status; cat /proc/self/uid_map")
	for _, want := range []string{
		"Uid:\t1000\t1000\t1000\t1000\n", "Gid:\t1000\t1000\t1000\t1000\n", "Groups:\t \n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n",
		"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
		"CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("no %q in\n%s", want, o.stdout)
		}
	}
	if f := strings.Fields(o.stdout[strings.LastIndex(strings.TrimSpace(o.stdout), "\n"):]); f[1] != fmt.Sprint(j.uid) || f[2] != "65536" {
		t.Errorf("uid map %v, range %d", f, j.uid)
	}
	// On the host no process of it is anybody else.
	p, err := j.Exec(t.Context(), ExecSpec{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.group.read("cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.readProc(strings.TrimSpace(string(b)) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d\t%[1]d\t%[1]d\t%[1]d", j.uid+tenantUID); s["Uid"] != want {
		t.Errorf("host sees uid %q, want %q", s["Uid"], want)
	}
	// A set-id program changes nothing.
	if o := sh(t, j, "find / -xdev -perm /6000 2>/dev/null | wc -l; /usr/bin/su -c id 2>&1 | head -1; id -u"); !strings.HasSuffix(o.stdout, "1000\n") {
		t.Errorf("%q", o.stdout)
	}
}

// TestMounts compares all mounts of a jail, as its processes see them, with what
// they must be.
func TestMounts(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	o := sh(t, j, "cat /proc/self/mountinfo")
	want := j.mountsWanted()
	var writable []string
	for line := range strings.Lines(o.stdout) {
		l, err := parseMount(line)
		if err != nil {
			t.Fatal(err)
		}
		if w, ok := want[l.point]; ok {
			if err := l.check(w); err != nil {
				t.Error(err)
			}
			delete(want, l.point)
		} else if !strings.HasPrefix(l.point, "/usr/") && !strings.HasPrefix(l.point, "/opt/") {
			t.Errorf("unexpected mount %s", line)
		}
		if slices.Contains(l.options, "rw") && !strings.HasPrefix(l.point, "/dev/") {
			writable = append(writable, l.point)
		}
		if l.fstype == "sysfs" || strings.HasPrefix(l.fstype, "cgroup") || l.fstype == "nsfs" {
			t.Errorf("%s is mounted", l.fstype)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	slices.Sort(writable)
	if got := strings.Join(writable, " "); got != "/ /home/user /proc /tmp /var/tmp /workspace" {
		t.Errorf("writable: %s", got)
	}
	// Nothing of them is in the host's namespace.
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(b, []byte(m.cfg.RunDir)) || bytes.Contains(b, []byte("upperdir=/layer")) {
		t.Errorf("the host sees the jail's mounts: %v", err)
	}
}

func TestNothingWritableButItsOwn(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	o := sh(t, j, `find /proc/sys /proc/fs /proc/bus /proc/irq -type f -writable 2>/dev/null | head
		find / -xdev -not -path "/dev/*" -writable -not -type l 2>/dev/null | sort
		find /usr /etc /opt /run -writable -type f 2>/dev/null
		find / -type s 2>/dev/null
		ls /dev`)
	// Each of these is a mount of its own, which -xdev shows and does not enter.
	want := "/home/user\n/tmp\n/var/tmp\n/workspace\n" +
		"fd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n"
	if o.stdout != want {
		t.Fatalf("got %q, want %q", o.stdout, want)
	}
	// What may be written may be executed and removed again.
	for _, dir := range []string{"/workspace", "/home/user", "/tmp", "/var/tmp", "/dev/shm"} {
		o := sh(t, j, fmt.Sprintf("cd %s && mkdir d && cp /usr/bin/true d/t && d/t && mv d e && rm -r e && mkfifo p; echo $?", dir))
		if o.stdout != "0\n" {
			t.Errorf("%s: %+v", dir, o)
		}
	}
}

func TestTenantsDoNotSeeEachOther(t *testing.T) {
	m := testManager(t)
	a, b := testJail(t, m, "alice"), testJail(t, m, "bob")
	sh(t, a, "echo canary-alice | tee /workspace/c ~/c /tmp/c /dev/shm/c /var/tmp/c; chmod -R a+rwX /workspace ~")
	if _, err := a.Exec(t.Context(), ExecSpec{Argv: []string{"python3", "-c", `
import socket, time
s = socket.socket(socket.AF_UNIX); s.bind("\0canary-alice"); s.listen()
t = socket.socket(); t.bind(("0.0.0.0", 8123)); t.listen()
print("up", flush=True); time.sleep(1000)`}, ID: "server"}); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitPort(t.Context(), 8123); err != nil {
		t.Fatal(err)
	}
	o := sh(t, b, `grep -rs canary-alice /workspace /home /tmp /var/tmp /dev/shm /etc /run /opt; ps -e -o comm= | grep -v -e sh -e ps -e grep
		grep canary /proc/net/unix; cat /proc/net/tcp | grep -i 1FBB; ipcs -m | grep 0x; cat /proc/1/cmdline 2>&1
		python3 -c '
import socket
for a in ["\0canary-alice"]:
    try: socket.socket(socket.AF_UNIX).connect(a); print("connected")
    except OSError as e: print(e.strerror)
try: socket.create_connection(("127.0.0.1", 8123), 2); print("connected")
except OSError as e: print(e.strerror)'`)
	want := "cat: /proc/1/cmdline: No such file or directory\nConnection refused\nConnection refused\n"
	if o.stdout != want {
		t.Fatalf("bob sees\n%s%s", o.stdout, o.stderr)
	}
	// By number, bob's user is nobody in alice's files.
	if a.uid == b.uid {
		t.Fatal("the same uid range")
	}
	st, err := a.Stat(t.Context(), "/workspace/c")
	if err != nil || st.Type != "file" {
		t.Fatalf("%+v, %v", st, err)
	}
	var raw unix.Stat_t
	if err := unix.Lstat(a.workspaceDir()+"/c", &raw); err != nil || raw.Uid != a.uid+tenantUID {
		t.Fatalf("owner %d, range %d: %v", raw.Uid, a.uid, err)
	}
}

func TestMemoryFileSystemsShareOneLimit(t *testing.T) {
	m := testManager(t)
	j, err := m.Create(t.Context(), Spec{Tenant: "alice", Limits: Limits{Disk: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	o := sh(t, j, `head -c 5000000 /dev/zero > /tmp/a && echo first; head -c 5000000 /dev/zero > /dev/shm/b || echo full
		rm /tmp/a /dev/shm/b; i=0; while [ $i -lt 2000 ] && true > /var/tmp/f$i; do i=$((i+1)); done 2>/dev/null; [ $i -lt 2000 ] && echo inodes`)
	if o.stdout != "first\nfull\ninodes\n" {
		t.Fatalf("%+v", o)
	}
}

func TestTools(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	for _, tc := range []struct{ script, want string }{
		{"node -e 'console.log(require(\"os\").cpus().length > 0, new Intl.DateTimeFormat().resolvedOptions().timeZone != null)'", "true true\n"},
		{"node -e 'new (require(\"worker_threads\").Worker)(\"console.log(42)\",{eval:true})'", "42\n"},
		{"npm --version >/dev/null && echo npm", "npm\n"},
		{"npm init -y >/dev/null 2>&1 && node -p 'require(\"./package.json\").name'", "workspace\n"},
		{"git init -q r && cd r && git config user.email a@b && git config user.name a && echo x > f && git add f && git commit -qm m && git log --oneline | wc -l", "1\n"},
		{"python3 -c 'import threading, ssl, sqlite3, subprocess; print(subprocess.check_output([\"echo\",\"py\"]).decode().strip())'", "py\n"},
		{"python3 -m venv --without-pip v && v/bin/python -c 'print(1)'", "1\n"},
		{"printf '#include <pthread.h>\n#include <stdio.h>\nvoid*f(void*a){puts(\"c\");return 0;}int main(){pthread_t t;pthread_create(&t,0,f,0);pthread_join(t,0);}' > a.c && gcc -pthread a.c -o a && ./a", "c\n"},
		{"perl -e 'print 7*6, qq(\n)'", "42\n"},
		{"date +%Z >/dev/null && getent hosts localhost", "127.0.0.1       localhost\n"},
		{"getent hosts $(hostname) | cut -c1-9", "127.0.0.1\n"},
		{"tar c /etc/passwd 2>/dev/null | tar t", "etc/passwd\n"},
		{"echo a | sed s/a/b/ > x; ls | xargs -n1 echo | grep -c x", "1\n"},
	} {
		if o := sh(t, j, tc.script); o.stdout != tc.want || o.exit.Code != 0 {
			t.Errorf("%s: %+v", tc.script, o)
		}
		sh(t, j, "rm -rf /workspace/*")
	}
}
