package attack

import (
	"os"
	"strings"
	"testing"
	"time"

	"sandboxd/jail"
)

// What must still work: threads, processes, sockets and compilers of the
// runtimes that a host usually has (B03). A wall that stops these is taken down
// by its users.
func TestRuntimesWork(t *testing.T) {
	const node = `const {Worker} = require("worker_threads"), http = require("http");
new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", {eval: true}).on("message", n => {
	const s = http.createServer((q, r) => r.end("served " + n)).listen(0, "127.0.0.1", async () => {
		console.log(await (await fetch("http://127.0.0.1:" + s.address().port)).text());
		console.log(require("child_process").execFileSync("/bin/echo", ["child"]).toString().trim());
		process.exit(0);
	});
});`
	const python = `
import socket, subprocess, threading, multiprocessing, tempfile
out = []
t = threading.Thread(target=lambda: out.append("thread")); t.start(); t.join()
with multiprocessing.Pool(2) as p: out.append(str(sum(p.map(abs, [-1, -2]))))
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); c.close(); s.close()
out.append(subprocess.check_output(["/bin/echo", "child"], text=True).strip())
with tempfile.TemporaryFile() as f: f.write(b"x")
print(" ".join(out))`
	const gcc = `printf '#include <pthread.h>\n#include <stdio.h>\nstatic void *f(void *p) { return p; }
int main(void) { pthread_t t; void *r; pthread_create(&t, 0, f, "thread"); pthread_join(t, &r); puts(r); }\n' >t.c && gcc -pthread t.c -o t && ./t`
	const git = `git init -q r && cd r && git config user.name n && git config user.email e@example.com && echo x >f && git add f && git commit -qm m && git log --format=%s`
	tests := []struct {
		program, want string
		argv          []string
	}{
		{"/bin/sh", "one two", []string{"/bin/sh", "-c", "printf 'one ' & wait; echo two | cat"}},
		{"/usr/bin/node", "served 42\nchild", []string{"/usr/bin/node", "-e", node}},
		{"/usr/bin/python3", "thread 3 child", []string{"/usr/bin/python3", "-c", python}},
		{"/usr/bin/gcc", "thread", []string{"/bin/sh", "-c", gcc}},
		{"/usr/bin/git", "m", []string{"/bin/sh", "-c", git}},
		{"/usr/bin/perl", "parent child", []string{"/usr/bin/perl", "-e", `$| = 1; if ($p = fork) { waitpid $p, 0; print "child" } else { print "parent "; exit }`}},
	}
	j := newJail(t, "runtimes")
	for _, tt := range tests {
		if _, err := os.Stat(tt.program); err != nil {
			t.Logf("%s: this host has none, so its jails have none", tt.program)
			continue
		}
		p, err := j.Exec(t.Context(), jail.ExecSpec{Argv: tt.argv, Timeout: 2 * time.Minute, Output: 1 << 20})
		if err != nil {
			t.Errorf("%s: %v", tt.program, err)
			continue
		}
		exit, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for e, err := range p.Events(t.Context(), 0, false) {
			if err != nil {
				t.Fatal(err)
			}
			out.Write(e.Data)
		}
		if exit.Code != 0 || strings.TrimSpace(out.String()) != tt.want {
			t.Errorf("%s: %+v, printed %q, want %q", tt.program, exit, out.String(), tt.want)
		}
	}
}
