package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	osexec "os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// otherUserArg makes the test binary a caller that is another user: it sends
// the request in its arguments and prints the status and the body.
const otherUserArg = "as-other-user"

func otherUserMain() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	args := os.Args[2:] // socket, method, path, body
	a, err := harness.NewClient(args[0]).Do(ctx, args[1], args[2], []byte(args[3]))
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Printf("%d %s", a.Status, a.Body)
}

// asUser sends a request as user nobody with the given group.
func asUser(t *testing.T, gid uint32, socket, method, path string, body any) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test binary may lie in a folder of root's: run it from a descriptor.
	f, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := []byte("{}")
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	cmd := osexec.CommandContext(deadline(t), "/proc/self/fd/3", otherUserArg, socket, method, path, string(text))
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: gid}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("as nobody: %v: %s", err, out.String())
	}
	return out.String()
}

// socketGroup is the group that may connect to a socket.
func socketGroup(t *testing.T, path string) uint32 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := st.Mode(); mode&os.ModeSocket == 0 || mode.Perm() != 0o660 {
		t.Errorf("%s has mode %v, want a socket with 0660", path, mode)
	}
	sys := st.Sys().(*syscall.Stat_t)
	if sys.Uid != 0 {
		t.Errorf("%s belongs to uid %d", path, sys.Uid)
	}
	return sys.Gid
}

func TestSocketsAreForTheirGroups(t *testing.T) {
	api, admin := socketGroup(t, sys.API.Socket), socketGroup(t, sys.Admin.Socket)
	if harness.UnderSystemd() {
		for name, gid := range map[string]uint32{"sandboxd": api, "sandboxd-admin": admin} {
			g, err := user.LookupGroup(name)
			if err != nil {
				t.Fatal(err)
			}
			if g.Gid != strconv.FormatUint(uint64(gid), 10) {
				t.Errorf("the socket of group %s belongs to gid %d", name, gid)
			}
		}
	}
	for _, socket := range []string{sys.API.Socket, sys.Admin.Socket} {
		if out := asUser(t, 65534, socket, "GET", "/healthz", nil); !strings.Contains(out, "permission denied") {
			t.Errorf("a user outside the group gets from %s: %s", socket, out)
		}
	}
}

// TestCallersActForTheirTenants: who is in the group may do what policy says for
// that user, and no more.
func TestCallersActForTheirTenants(t *testing.T) {
	gid := socketGroup(t, sys.API.Socket)
	own, foreign := tenant(t, harness.NobodyPrefix), tenant(t, harness.AgentPrefix)
	code := api.RunRequest{Language: "js", Code: "export default () => 7", RunID: "nobodys-" + own}
	if out := asUser(t, gid, sys.API.Socket, "POST", tenantPath(own)+"/run", code); !strings.HasPrefix(out, "200 ") || !strings.Contains(out, `"result":7`) {
		t.Errorf("for a tenant of the caller's: %s", out)
	}
	r := run(t, foreign, api.RunRequest{Language: "js", Code: "export default () => 8"})
	want(t, "PUT", jailPath(foreign), api.JailRequest{}, nil)
	for _, req := range []struct {
		method, path string
		body         any
	}{
		{"POST", tenantPath(foreign) + "/run", code},
		{"PUT", jailPath(foreign), api.JailRequest{}},
		{"DELETE", jailPath(foreign), nil},
		{"POST", jailPath(foreign) + "/exec", api.ExecRequest{Argv: []string{"true"}}},
		{"GET", jailPath(foreign) + "/files/workspace?list=true", nil},
		{"POST", tenantPath(foreign) + "/db/query", api.SQLRequest{SQL: "select 1"}},
		{"GET", tenantPath(foreign) + "/kv/x", nil},
		{"GET", tenantPath(foreign) + "/policy", nil},
		{"GET", "/v1/audit/verify", nil},
	} {
		if out := asUser(t, gid, sys.API.Socket, req.method, req.path, req.body); !strings.HasPrefix(out, "403 ") || !strings.Contains(out, `"denied"`) {
			t.Errorf("%s %s as another user: %s", req.method, req.path, out)
		}
	}
	// What is not the caller's is not told, not even that it is there.
	if out := asUser(t, gid, sys.API.Socket, "GET", "/v1/runs/"+r.RunID, nil); !strings.HasPrefix(out, "404 ") && !strings.HasPrefix(out, "403 ") {
		t.Errorf("another's run: %s", out)
	}
	for _, path := range []string{"/v1/runs", "/v1/jails"} {
		if out := asUser(t, gid, sys.API.Socket, "GET", path, nil); !strings.HasPrefix(out, "200 ") || strings.Contains(out, foreign) {
			t.Errorf("%s as another user: %s", path, out)
		}
	}
}
