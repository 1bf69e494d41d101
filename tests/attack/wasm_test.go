package attack

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/isolate"
	"sandboxd/tests/internal/harness"
)

// goModule compiles a program for WASI.
func goModule(t *testing.T, src string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", "main.wasm", "main.go")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	b, err := os.ReadFile(filepath.Join(dir, "main.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func wasmRun(tenant, module string) *isolate.Request {
	r := script(tenant, "")
	r.Language, r.Main, r.Modules = "wasm", "main.wasm", map[string]string{"main.wasm": module}
	return r
}

// prowler looks for everything of the host's that a program may find, and for
// what an earlier run has left.
const prowler = `package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

func main() {
	found := []string{}
	note := func(what string, err error) {
		if err == nil {
			found = append(found, what)
		}
	}
	for _, p := range []string{"/etc/passwd", "/proc/self/maps", "/dev/urandom", "/root", "/usr", "/sys", "../etc", "../../../../etc/shadow", "/tmp/canary", "/proc/1/environ"} {
		_, err := os.Stat(p)
		note(p, err)
	}
	for i, to := range []string{"/etc/passwd", "../../../etc/passwd", "/proc/self/root/etc/passwd"} {
		link := fmt.Sprintf("/tmp/l%d", i)
		os.Symlink(to, link)
		_, err := os.ReadFile(link)
		note("through a link: "+to, err)
		note("rename out", os.Rename(link, "../../out"+fmt.Sprint(i)+"/x"))
	}
	for fd := 4; fd < 64; fd++ {
		_, err := syscall.Seek(fd, 0, 1)
		note(fmt.Sprint("descriptor ", fd), err)
	}
	_, err := net.Dial("tcp", "127.0.0.1:80")
	note("a connection", err)
	_, err = net.Listen("tcp", "127.0.0.1:0")
	note("a listener that is the host's", err)
	note("a process", exec.Command("/bin/sh").Run())
	found = append(found, os.Environ()...)
	os.WriteFile("/tmp/canary", []byte("feathers"), 0o600)
	filepath.Walk("/", func(p string, _ os.FileInfo, _ error) error { return nil })
	json.NewEncoder(os.Stdout).Encode(found)
}
`

// A program of a tenant's own finds nothing of the host's, nor of the run
// before.
func TestWasmFindsNothing(t *testing.T) {
	pool, module := newPool(t), goModule(t, prowler)
	for i := range 3 {
		h := &host{}
		r := wasmRun("prowler", module)
		r.Limits.Wall = harness.Scale(20 * time.Second)
		res, err := pool.Run(t.Context(), r, h)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		if err := json.Unmarshal(res.Value, &found); err != nil {
			t.Fatalf("%+v %+v: %v", res, res.Error, err)
		}
		for _, f := range found {
			// Go's own library makes a network of its own where there is none.
			if !strings.Contains(f, "listener") && !strings.Contains(f, "connection") {
				t.Errorf("run %d found %s", i, f)
			}
		}
		if len(h.wrong) > 0 {
			t.Errorf("the host was asked for %q", h.wrong)
		}
	}
}

// However a module of one tenant's ends, another tenant is served beside it.
func TestHostileWasm(t *testing.T) {
	pool := newPool(t)
	for name, module := range map[string][]byte{
		"a loop": harness.WasmLoop(), "a foreign import": harness.WasmForeign(), "noise": []byte("\x00asm\x01\x00\x00\x00" + strings.Repeat("\xff\x80", 1000)),
		"a header": []byte("\x00asm\x01\x00\x00\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() {
				r := wasmRun("hostile", string(module))
				r.Limits.CPU = 500 * time.Millisecond
				res, err := pool.Run(t.Context(), r, &host{})
				if err == nil && (res.Status == isolate.StatusOK || res.Error == nil || res.Error.Kind == isolate.KindInternal) {
					err = fmt.Errorf("%+v %+v", res, res.Error)
				}
				done <- err
			}()
			for {
				select {
				case err := <-done:
					if err != nil {
						t.Error(err)
					}
					return
				default:
					r := wasmRun("next", string(harness.WasmCat()))
					r.Input = json.RawMessage(`[1]`)
					res, err := pool.Run(t.Context(), r, &host{})
					if err != nil || string(res.Value) != "[1]" {
						t.Fatalf("the neighbour: %+v, %v", res, err)
					}
				}
			}
		})
	}
	if s := pool.Stats(); s.Running != 0 {
		t.Errorf("%d runs are still under way", s.Running)
	}
}
