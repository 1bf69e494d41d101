package browser

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

//go:embed project
var project embed.FS

const site = "/workspace/site"

// jail gives a test a tenant whose jail ends with it.
func jail(t *testing.T, name string) string {
	t.Helper()
	tenant := prefix + name
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := box.DestroyJail(ctx, tenant); err != nil {
			t.Errorf("destroy the jail: %v", err)
		}
	})
	return tenant
}

func write(t *testing.T, tenant, path string, text []byte) {
	t.Helper()
	if err := box.WriteFile(t.Context(), tenant, path, bytes.NewReader(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run runs a command that must end well.
func run(t *testing.T, tenant, dir string, argv ...string) {
	t.Helper()
	p, err := box.Exec(t.Context(), tenant, &api.ExecRequest{Argv: argv, Cwd: dir, Timeout: policy.Duration(patience)})
	if err != nil {
		t.Fatal(err)
	}
	if p.ExitCode == nil || *p.ExitCode != 0 {
		t.Fatalf("%s: %+v", strings.Join(argv, " "), p)
	}
}

// serve starts a server in the background.
func serve(t *testing.T, tenant, dir, id string, argv ...string) {
	t.Helper()
	if _, err := box.Exec(t.Context(), tenant, &api.ExecRequest{Argv: argv, Cwd: dir, ExecID: id, Background: true}); err != nil {
		t.Fatal(err)
	}
}

func listens(t *testing.T, tenant, id string, port int) {
	t.Helper()
	if _, err := box.Wait(t.Context(), tenant, id, &api.WaitRequest{Port: port, Timeout: policy.Duration(patience)}); err != nil {
		t.Fatal(err)
	}
}

func expose(t *testing.T, tenant string, port int) string {
	t.Helper()
	p, err := box.Expose(t.Context(), tenant, port, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return p.URL
}

// TestVite: a page comes from a dev server, an edit reaches it by hot reload,
// over a WebSocket, and a frozen jail wakes for a visitor.
func TestVite(t *testing.T) {
	bob := jail(t, "vite")
	files, err := fs.Sub(project, "project")
	if err != nil {
		t.Fatal(err)
	}
	run(t, bob, "/workspace", "mkdir", "-p", site)
	err = fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		write(t, bob, site+"/"+path, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, bob, site, "npm", "install", "--no-audit", "--no-fund")
	serve(t, bob, site, "dev", "npm", "run", "dev")
	listens(t, bob, "dev", 5173)
	tab := browse(t)
	tab.open(expose(t, bob, 5173))
	tab.shows(`document.querySelector("#heading")?.textContent === "As it was written"`)
	tab.screenshot("vite-before.png")

	// What the page itself holds tells hot reload from loading it again.
	tab.run(`window.stayed = true`)
	write(t, bob, site+"/heading.js", []byte(`export const heading = "As it was edited";`))
	tab.shows(`document.querySelector("#heading").textContent === "As it was edited" && window.stayed === true`)
	write(t, bob, site+"/style.css", []byte(`#heading { color: rgb(0, 100, 0); }`))
	tab.shows(`getComputedStyle(document.querySelector("#heading")).color === "rgb(0, 100, 0)" && window.stayed === true`)
	tab.screenshot("vite-after.png")

	if j, err := box.FreezeJail(t.Context(), bob); err != nil || j.State != "frozen" {
		t.Fatalf("freeze: %+v, %v", j, err)
	}
	tab.do(chromedp.Reload())
	tab.shows(`document.querySelector("#heading")?.textContent === "As it was edited" && window.stayed === undefined`)
	if j, err := box.Jail(t.Context(), bob); err != nil || j.State != "running" {
		t.Errorf("after a visit the jail is %+v, %v", j, err)
	}
}

// TestNotYetListening: the page that says so is replaced by the server's, by
// itself, and of an ended one nothing is left.
func TestNotYetListening(t *testing.T) {
	bob := jail(t, "late")
	run(t, bob, "/workspace", "sh", "-c", "echo '<h1>Here I am</h1>' > index.html")
	tab := browse(t)
	url := expose(t, bob, 8000)
	tab.open(url)
	tab.shows(`document.body.innerText.includes("Nothing listens on port 8000 yet")`)
	serve(t, bob, "/workspace", "web", "python3", "-m", "http.server", "--bind", "127.0.0.1", "8000")
	tab.shows(`document.querySelector("h1").textContent === "Here I am"`)
	if err := box.ClosePort(t.Context(), bob, 8000); err != nil {
		t.Fatal(err)
	}
	tab.open(url)
	tab.shows(`document.body.innerText.includes("This preview has ended")`)
}

// TestTenantsStayApart: what one tenant's page keeps in the browser, or sends to
// another's address, does not reach that.
func TestTenantsStayApart(t *testing.T) {
	server := func(name string) string {
		tenant := jail(t, name)
		write(t, tenant, "/workspace/server.js", []byte(`
			require("http").createServer((request, answer) => {
				if (request.headers.cookie) answer.setHeader("X-Saw-Cookie", request.headers.cookie);
				answer.setHeader("Content-Type", "text/html");
				answer.end("<h1>" + (request.headers.cookie || "no cookie") + "</h1>");
			}).on("upgrade", (request, socket) => {
				const key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
				const accept = require("crypto").createHash("sha1").update(key).digest("base64");
				socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + "\r\n\r\n");
			}).listen(3000, "127.0.0.1")`))
		serve(t, tenant, "/workspace", "web", "node", "server.js")
		listens(t, tenant, "web", 3000)
		return expose(t, tenant, 3000)
	}
	mine, theirs := server("mine"), server("theirs")
	tab := browse(t)
	tab.open(mine)
	_, base, _ := strings.Cut(strings.TrimSuffix(mine, "/"), ".")
	host, _, _ := strings.Cut(base, ":")
	tab.run(fmt.Sprintf(`
		document.cookie = "plain=1";
		document.cookie = "wide=1; Domain=%s";
		localStorage.setItem("kept", "1")`, host))
	tab.do(chromedp.Reload())
	tab.shows(`document.querySelector("h1").textContent.includes("plain=1")`)
	reach := func(url string) string {
		said, err := chromedp.Run(tab.ctx, chromedp.Evaluate[string](fmt.Sprintf(`
			fetch(%q, {credentials: "include"}).then(() => "fetched").catch(() => "refused")
				.then(text => new Promise(done => {
					const socket = new WebSocket(%q.replace("http", "ws"));
					socket.onopen = () => done(text + ", socket open");
					socket.onerror = () => done(text + ", socket refused");
				}))`, url, url), chromedp.EvalAwaitPromise))
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	if got := reach(mine); got != "fetched, socket open" {
		t.Errorf("a page reaches its own server: %s", got)
	}
	if got := reach(theirs); got != "refused, socket refused" {
		t.Errorf("one tenant's page reaches the other's server: %s", got)
	}
	tab.open(theirs)
	tab.shows(`document.querySelector("h1").textContent === "no cookie" && localStorage.getItem("kept") === null && document.cookie === ""`)
}
