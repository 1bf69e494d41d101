package jail

import (
	"testing"

	"sandboxd/internal/seccomp"
)

func TestFiltersCompile(t *testing.T) {
	for name, f := range map[string]*seccomp.Filter{"exec": ExecFilter(), "init": InitFilter()} {
		prog, err := seccomp.Compile(f)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: %d instructions", name, len(prog))
	}
}
