package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
	"sandboxd/tests/internal/harness"
)

// A shop is a host with something for every kind of client.
const shopHost = harness.OtherHost

// serveShop has shopHost offer a git repository, an npm package, a Python package
// and plain JSON until the test ends.
func serveShop(t *testing.T) {
	t.Helper()
	files := map[string][]byte{"/v1/x": []byte(`{"ok":true}`)}
	gitFiles(t, files)
	npmFiles(t, files)
	pipFiles(t, files)
	sys.World.Handle(shopHost, func(rw http.ResponseWriter, r *http.Request) {
		b, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(rw, r)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/") {
			rw.Header().Set("Content-Type", "text/html")
		}
		_, _ = rw.Write(b)
	})
	t.Cleanup(func() { sys.World.Handle(shopHost, nil) })
}

func gitFiles(t *testing.T, files map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	line := `git init -q -b main w && echo from-git > w/file && git -C w add file && git -C w -c user.name=a -c user.email=a@b commit -q -m first && git clone -q --bare w r.git && git -C r.git update-server-info`
	cmd := osexec.CommandContext(deadline(t), "sh", "-c", line)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git: %v: %s", err, out)
	}
	root := filepath.Join(dir, "r.git")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		files["/r.git"+strings.TrimPrefix(path, root)] = b
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func npmFiles(t *testing.T, files map[string][]byte) {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{
		"package/package.json": `{"name":"tiny","version":"1.0.0","main":"index.js"}`,
		"package/index.js":     `module.exports = "from-npm"`,
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if w.Close() != nil || z.Close() != nil {
		t.Fatal("pack")
	}
	sum := sha512.Sum512(packed.Bytes())
	files["/npm/tiny/-/tiny-1.0.0.tgz"] = packed.Bytes()
	files["/npm/tiny"] = fmt.Appendf(nil, `{"name":"tiny","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny","version":"1.0.0","main":"index.js","dist":{"tarball":"https://%s/npm/tiny/-/tiny-1.0.0.tgz","integrity":"sha512-%s"}}}}`,
		shopHost, base64.StdEncoding.EncodeToString(sum[:]))
}

func pipFiles(t *testing.T, files map[string][]byte) {
	t.Helper()
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	const info = "tiny-1.0.0.dist-info/"
	for _, f := range [][2]string{
		{"tiny.py", "word = 'from-pip'\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "tiny.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	const wheel = "/wheels/tiny-1.0.0-py3-none-any.whl"
	files[wheel] = packed.Bytes()
	files["/simple/tiny/"] = fmt.Appendf(nil, `<!DOCTYPE html><html><body><a href="https://%s%s">tiny-1.0.0-py3-none-any.whl</a></body></html>`, shopHost, wheel)
}

const (
	javaClient = `import java.net.URI; import java.net.http.*;
public class Client { public static void main(String[] a) throws Exception {
  var r = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString());
  System.out.println(r.statusCode() + " " + r.body()); } }`
	goClient = `package main
import ("fmt"; "io"; "net/http"; "os")
func main() {
	r, err := http.Get(os.Args[1])
	if err != nil { fmt.Fprintln(os.Stderr, err); os.Exit(1) }
	b, _ := io.ReadAll(r.Body)
	fmt.Println(r.StatusCode, string(b))
}`
	// A client that was never told of proxies, certificates or environment.
	rawClient = `import socket, ssl, sys
with socket.create_connection((sys.argv[1], 443), 20) as c, ssl.create_default_context().wrap_socket(c, server_hostname=sys.argv[1]) as s:
    s.sendall(b"GET /v1/x HTTP/1.1\r\nHost: " + sys.argv[1].encode() + b"\r\nConnection: close\r\n\r\n")
    print(b"".join(iter(lambda: s.recv(4096), b"")).decode())`
)

// noProxy runs a command without the proxy's variables.
const noProxy = "env -u HTTP_PROXY -u HTTPS_PROXY -u http_proxy -u https_proxy "

// TestClients: what people run in jails reaches a granted host, with and without
// the proxy's variables, trusts its certificate without a flag, and is clearly
// refused everywhere else.
func TestClients(t *testing.T) {
	who := tenant(t, harness.AgentPrefix)
	before := len(sys.World.Requests(harness.DeniedHost))
	serveShop(t)
	put(t, who, "raw.py", []byte(rawClient))
	put(t, who, "Client.java", []byte(javaClient))
	if has(t, "go") {
		put(t, who, "goclient", buildGo(t))
		sh(t, who, "chmod +x goclient")
	}
	clients := []struct{ name, line, says string }{
		{"curl", "curl -sS -m 20 https://HOST/v1/x", `"ok":true`},
		{"git", "rm -rf c && git clone -q https://HOST/r.git c && cat c/file", "from-git"},
		{"npm", "rm -rf n && mkdir n && cd n && npm install --silent --no-audit --no-fund --cache /tmp/npm$$ --fetch-retries 0 --registry https://HOST/npm/ tiny@1.0.0 && node -p 'require(\"tiny\")'", "from-npm"},
		{"pip", "rm -rf p && /usr/bin/python3 -m pip install -q --no-cache-dir --retries 0 --disable-pip-version-check --no-deps --target p --index-url https://HOST/simple/ tiny && PYTHONPATH=p python3 -c 'import tiny; print(tiny.word)'", "from-pip"},
		{"node fetch", "node -e 'fetch(\"https://HOST/v1/x\").then(r => r.text()).then(console.log, e => { console.error(e.cause || e); process.exit(1) })'", `"ok":true`},
		{"urllib", "python3 -c 'import urllib.request as u; print(u.urlopen(\"https://HOST/v1/x\", timeout=20).read())'", `"ok":true`},
		{"http.client", "python3 -c 'import http.client as h; c = h.HTTPSConnection(\"HOST\", timeout=20); c.request(\"GET\", \"/v1/x\"); print(c.getresponse().read())'", `"ok":true`},
		{"requests", "/usr/bin/python3 -c 'from pip._vendor import requests; print(requests.get(\"https://HOST/v1/x\", timeout=20).text)'", `"ok":true`},
		{"Go", "./goclient https://HOST/v1/x", `"ok":true`},
		{"raw socket", "python3 raw.py HOST", `"ok":true`},
	}
	if _, err := osexec.LookPath("javac"); err == nil {
		clients = append(clients, struct{ name, line, says string }{"Java HttpClient", "java -Xmx64m Client.java https://HOST/v1/x", `"ok":true`})
	} else {
		t.Log("this machine has no Java; the raw socket stands for programs that read no proxy variables")
	}
	// The virtual machine is small, and has not all of them.
	needs := map[string]string{"npm": "npm", "pip": "pip3", "requests": "pip3", "Go": "go"}
	for _, c := range clients {
		if program := needs[c.name]; program != "" && !has(t, program) {
			continue
		}
		for _, env := range []string{"", noProxy} {
			t.Run(strings.TrimSpace(c.name+" "+map[string]string{"": "with variables", noProxy: "without"}[env]), func(t *testing.T) {
				p := runClient(t, who, env, c.line, shopHost)
				if p.ExitCode == nil || *p.ExitCode != 0 || !strings.Contains(p.Stdout, c.says) {
					t.Errorf("granted: %s\n%s\n%s", ended(p), p.Stdout, p.Stderr)
				}
				p = runClient(t, who, env, c.line, harness.DeniedHost)
				if p.ExitCode == nil || *p.ExitCode == 0 && !strings.Contains(p.Stdout, "403") || strings.Contains(p.Stdout, c.says) {
					t.Errorf("refused: %s\n%s\n%s", ended(p), p.Stdout, p.Stderr)
				}
				if strings.Contains(p.Stderr, "timed out") {
					t.Errorf("the refusal is no refusal: %s", p.Stderr)
				}
			})
		}
	}
	// In clear text the refusal's own words arrive.
	out := sh(t, who, "curl -s -m 20 http://"+harness.DeniedHost+"/v1/x")
	if !strings.Contains(out, harness.DeniedHost) || !strings.Contains(out, `"rule":"{host: `+harness.DeniedHost) || !strings.Contains(out, `"code":"denied"`) {
		t.Errorf("the refusal says %s", out)
	}
	// Other tests reach it from the host itself.
	if seen := sys.World.Requests(harness.DeniedHost)[before:]; len(seen) > 0 {
		t.Errorf("the refused host saw %+v", seen)
	}
}

// has reports whether the machine has a program; only the virtual machine may
// lack one.
func has(t *testing.T, program string) bool {
	t.Helper()
	_, err := osexec.LookPath(program)
	if err != nil && !harness.UnderSystemd() {
		t.Fatalf("make deps-test installs %s: %v", program, err)
	}
	return err == nil
}

func runClient(t *testing.T, who, env, line, host string) api.Process {
	t.Helper()
	return exec(t, who, api.ExecRequest{Command: env + "sh -c '" + strings.ReplaceAll(strings.ReplaceAll(line, "HOST", host), "'", `'\''`) + "'",
		Timeout: policy.Duration(harness.Scale(25 * time.Second))})
}

func put(t *testing.T, who, name string, content []byte) {
	t.Helper()
	a, err := sys.API.Do(deadline(t), "PUT", jailPath(who)+"/files/workspace/"+name, content)
	if err != nil || a.Status/100 != 2 {
		t.Fatalf("put %s: %v, %d %s", name, err, a.Status, a.Body)
	}
}

// buildGo makes the Go client's program.
func buildGo(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(goClient), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := osexec.CommandContext(deadline(t), "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "c"), filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "c"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
