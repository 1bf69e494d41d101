package arch

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Imports,GoFiles", "sandboxd/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list found only %d packages", len(all))
	}
	return all
}

// may says which of our own packages a folder's packages may import, besides
// those below the same folder: the arrows of the design, section 3.
var may = map[string][]string{
	"cmd":      {"daemon", "isolate", "jail", "netproxy", "policy", "secrets", "systemd", "internal"},
	"daemon":   {"isolate", "jail", "netproxy", "policy", "secrets", "systemd", "internal"},
	"isolate":  {"policy", "secrets", "internal"},
	"jail":     {"policy", "secrets", "internal"},
	"netproxy": {"policy", "secrets", "internal"},
	"policy":   {},
	"secrets":  {"policy"},
	"systemd":  {},
	"internal": {},
	"tests":    {"cmd", "daemon", "isolate", "jail", "netproxy", "policy", "secrets", "systemd", "internal"},
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, "sandboxd/")
		folder, _, _ := strings.Cut(from, "/")
		allowed, known := may[folder]
		if !known {
			t.Errorf("%s: folder %q is not on the design's map", p.ImportPath, folder)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, "sandboxd/")
			toFolder, _, _ := strings.Cut(to, "/")
			if !ours || toFolder == folder {
				continue
			}
			ok := false
			for _, a := range allowed {
				ok = ok || a == toFolder
			}
			if !ok {
				t.Errorf("%s imports %s: arrows from %s go only to %v", p.ImportPath, imp, folder, allowed)
			}
		}
	}
}

// sandbox-init starts with every jail and is PID 1 in it: what it links is a
// budget.
func TestInitStaysSmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "sandboxd/cmd/sandbox-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	banned := map[string]string{
		"net": "opens sockets by name", "net/http": "large", "os/exec": "init forks by itself",
		"os/user": "reads the host's files", "runtime/cgo": "init is static", "C": "init is static",
	}
	for _, dep := range strings.Fields(string(out)) {
		if why, bad := banned[dep]; bad {
			t.Errorf("sandbox-init links %s: %s", dep, why)
		}
	}
}

// There is no flag, option or test hook that turns certificate checks off: what
// does not exist cannot be reached by a request.
func TestNoPackageBypassesTLSVerification(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			// Put together so that this file does not hold the word itself.
			if strings.Contains(string(text), "Insecure"+"SkipVerify") {
				t.Errorf("%s/%s turns certificate checks off", p.ImportPath, f)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		text, err := os.ReadFile(filepath.Join(p.Dir, "doc.go"))
		if err != nil {
			t.Errorf("%s has no doc.go", p.ImportPath)
			continue
		}
		want := "// Package " + p.Name
		if p.Name == "main" {
			want = "// Command "
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("%s: doc.go does not begin with %q", p.ImportPath, want)
		}
	}
}

// A credential's value comes out of its type in one place, for a library that
// must be given it.
func TestValuesAreRevealedInOnePlace(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "secrets.Reveal(") && filepath.Join(p.ImportPath, f) != "sandboxd/netproxy/internal/proxy/oauth.go" {
				t.Errorf("%s/%s reveals a credential's value", p.ImportPath, f)
			}
		}
	}
}
