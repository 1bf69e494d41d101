package jail

import (
	"testing"
)

func TestFirstExec(t *testing.T) {
	m := testManager(t)
	j := testJail(t, m, "alice")
	o := sh(t, j, "echo hello; id; cat /proc/self/status; ls -la / /dev; cat /proc/self/mountinfo /proc/self/cgroup; echo err >&2; exit 7")
	t.Log(o.stdout, o.stderr)
	if o.exit.Code != 7 || o.stderr != "err\n" {
		t.Fatalf("%+v", o)
	}
}
