package browser

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/daemon/api"
)

// TestSecondInstall: what one tenant has installed, the next one installs without
// a request to the registry.
func TestSecondInstall(t *testing.T) {
	manifest, err := project.ReadFile("project/package.json")
	if err != nil {
		t.Fatal(err)
	}
	var how [2]map[string]int
	for i, name := range []string{"first", "second"} {
		tenant := jail(t, name)
		run(t, tenant, "/workspace", "mkdir", site)
		write(t, tenant, site+"/package.json", manifest)
		run(t, tenant, site, "npm", "install", "--no-audit", "--no-fund")
		run(t, tenant, site, "npx", "vite", "--version")
		how[i] = downloads(t, tenant)
	}
	t.Logf("first %v, second %v", how[0], how[1])
	if how[0]["passed"] > 0 || how[0]["hit"]+how[0]["miss"]+how[0]["revalidated"] < 5 {
		t.Errorf("the first install's downloads: %v", how[0])
	}
	if len(how[1]) != 1 || how[1]["hit"] < 5 {
		t.Errorf("the second install's downloads: %v, want hits only", how[1])
	}
	var status api.Status
	a, err := sys.Admin.Do(t.Context(), "GET", "/v1/status", nil)
	if err == nil {
		err = json.Unmarshal(a.Body, &status)
	}
	if err != nil || status.Egress == nil || status.Egress.Packages == nil || status.Egress.Packages.Bytes == 0 {
		t.Errorf("status %s, %v", a.Body, err)
	}
}

// downloads counts, by the package cache's part in it, the archives that the
// record says a tenant has got.
func downloads(t *testing.T, tenant string) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(sys.State, "audit", "*.json*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no audit log: %v", err)
	}
	count := map[string]int{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			var r struct {
				Tenant string
				Fields struct{ Phase, Path, Cache string }
			}
			if json.Unmarshal(line, &r) == nil && r.Tenant == tenant && r.Fields.Phase == "finished" && strings.HasSuffix(r.Fields.Path, ".tgz") {
				count[r.Fields.Cache]++
			}
		}
	}
	return count
}
