package templates

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// ctl runs sandboxctl, which must succeed.
func ctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := sys.Ctl(t.Context(), "", args...)
	if err != nil || out.Code != 0 {
		t.Fatalf("sandboxctl %.200q: exit %d, %v\n%s%s", args, out.Code, err, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// call asks the API; out is the answer where it is one.
func call(t *testing.T, method, path string, body, out any) *api.Error {
	t.Helper()
	a, err := sys.API.Do(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	if a.Status >= 300 {
		return a.Error()
	}
	if out != nil {
		if err := json.Unmarshal(a.Body, out); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}

func jail(tenant string) string { return "/v1/tenants/" + tenant + "/jail" }

// debian imports the template debian, once.
var debian = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Scale(2*time.Minute))
	defer cancel()
	out, err := sys.CtlCommand(ctx, "template", "import", "debian", debianTar).CombinedOutput()
	if err != nil {
		return &exec.Error{Name: string(out), Err: err}
	}
	return nil
})

func needDebian(t *testing.T) {
	t.Helper()
	if err := debian(); err != nil {
		t.Fatal(err)
	}
}

// toolchain is what people do in a jail: it says what works, a line each.
const toolchain = `set -e
mkdir -p /workspace/p && cd /workspace/p
cat >a.c <<'END'
#include <pthread.h>
#include <stdio.h>
static void *thread(void *x) { return x; }
int main(void) { pthread_t t; pthread_create(&t, 0, thread, 0); pthread_join(t, 0); puts("gcc"); return 0; }
END
gcc -O1 -o a a.c -lpthread
./a
node -e 'new Promise(done => setTimeout(done, 1)).then(() => console.log("node"))'
printf '{"name":"p","version":"1.0.0","scripts":{"say":"echo npm"}}' >package.json
npm run --silent say
python3 -c 'import json, ssl, subprocess; print(subprocess.check_output(["echo", "python3"], text=True), end="")'
git init -q . && git add a.c && git -c user.name=n -c user.email=e@x commit -qm "git" && git log --format=%s
`

func TestToolsWorkInTheHostsSystemAndInADebian(t *testing.T) {
	needDebian(t)
	for _, template := range []string{"host", "debian"} {
		tenant := hostPrefix + template
		var made api.Jail
		if e := call(t, http.MethodPut, jail(tenant), map[string]any{"template": template}, &made); e != nil {
			t.Fatal(e)
		}
		if made.Template != template || made.Root != "read-only" {
			t.Errorf("%+v", made)
		}
		if out := ctl(t, "exec", tenant, "--", "sh", "-c", toolchain); strings.Join(strings.Fields(out), " ") != "gcc node npm python3 git" {
			t.Errorf("%s: %q", template, out)
		}
		if e := call(t, http.MethodDelete, jail(tenant), nil, nil); e != nil {
			t.Error(e)
		}
	}
}

func TestAFolderATarAndAnImageOfOneSystem(t *testing.T) {
	needDebian(t)
	dir := t.TempDir()
	system := filepath.Join(dir, "system")
	if err := os.Mkdir(system, 0o755); err != nil {
		t.Fatal(err)
	}
	// What is enough to see that it works: the folder is packed file by file.
	untar := exec.CommandContext(t.Context(), "tar", "-C", system, "-xf", debianTar, "--exclude=./usr/share", "--exclude=./usr/lib/gcc", "--exclude=./usr/lib/x86_64-linux-gnu/perl*")
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	image := filepath.Join(dir, "image.tar")
	imageOf(t, debianTar, image)
	ctl(t, "template", "import", "folder", system)
	ctl(t, "template", "import", "image", image)
	var list api.TemplateList
	if err := json.Unmarshal([]byte(ctl(t, "template", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	byName := map[string]api.Template{}
	for _, tm := range list.Templates {
		byName[tm.Name] = tm
	}
	whole, layered := byName["debian"], byName["image"]
	if len(whole.Layers) != 1 || len(layered.Layers) != 2 || whole.Layers[0] != layered.Layers[0] || layered.Kind != "oci" {
		t.Errorf("the image and the tar share no layer: %+v %+v", whole, layered)
	}
	for template, tc := range map[string]struct{ command, want string }{
		"debian": {"cat /etc/issue | head -c 6; pwd", "Debian/workspace"},
		"folder": {"dpkg --print-architecture >/dev/null && head -c 6 /etc/issue; ls /usr/share/perl5 2>/dev/null", "Debian"},
		"image":  {"greet; cat /etc/motd; ls /etc/issue 2>/dev/null; git --version | cut -c1-3; touch /srv/app/x 2>/dev/null; id -un", "hello image from /srv/app\nof the second layer\ngit\nuser"},
	} {
		tenant := debPrefix + template
		if e := call(t, http.MethodPut, jail(tenant), map[string]any{"template": template}, nil); e != nil {
			t.Fatal(e)
		}
		out, err := sys.Ctl(t.Context(), "", "exec", tenant, "--", "sh", "-c", tc.command)
		if err != nil || strings.TrimSpace(out.Stdout) != tc.want {
			t.Errorf("%s: %q %q, %v", template, out.Stdout, out.Stderr, err)
		}
	}
	ctl(t, "template", "rm", "folder")
	if out := ctl(t, "exec", debPrefix+"folder", "--", "cat", "/etc/debian_version"); out == "" {
		t.Error("a jail lost its template's files")
	}
	if e := call(t, http.MethodDelete, jail(debPrefix+"folder"), nil, nil); e != nil {
		t.Error(e)
	}
	e := call(t, http.MethodPut, jail(debPrefix+"folder"), map[string]any{"template": "folder"}, nil)
	if e == nil || e.Field != "template" || !strings.Contains(e.Message, "not known") {
		t.Errorf("a template that is gone: %+v", e)
	}
}

func TestWhoMayHaveWhichTemplate(t *testing.T) {
	needDebian(t)
	tenant := hostPrefix + "choice"
	e := call(t, http.MethodPut, jail(tenant), map[string]any{"template": "image"}, nil)
	if e == nil || e.Code != api.CodeDenied || !strings.Contains(e.Allowed, "host, debian") {
		t.Errorf("a template that the policy does not name: %+v", e)
	}
	if e := call(t, http.MethodPut, jail(tenant), map[string]any{}, nil); e != nil {
		t.Fatal(e)
	}
	e = call(t, http.MethodPut, jail(tenant), map[string]any{"template": "debian"}, nil)
	if e == nil || e.Code != api.CodeConflict || e.Field != "template" || e.Hint == "" {
		t.Errorf("another template while the jail runs: %+v", e)
	}
	e = call(t, http.MethodPost, jail(tenant)+"/exec", map[string]any{"argv": []string{"id"}, "user": "root"}, nil)
	if e == nil || e.Code != api.CodeDenied {
		t.Errorf("root of a read-only root: %+v", e)
	}
	a, err := sys.API.Do(t.Context(), http.MethodPut, "/v1/templates/host", []byte("x"))
	if err != nil || a.Status != http.StatusBadRequest {
		t.Errorf("a template named host: %+v, %v", a, err)
	}
	// The daemon's own host: no FIFO holds it up.
	fifo := filepath.Join(t.TempDir(), "fifo")
	if out, err := exec.CommandContext(t.Context(), "mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if e := call(t, http.MethodPut, "/v1/templates/x?path="+fifo, nil, nil); e == nil || e.Code != api.CodeInvalidRequest {
		t.Errorf("a FIFO: %+v", e)
	}
}
