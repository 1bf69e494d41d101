package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sandboxd/tests/internal/harness"
)

// starts starts a system on an empty cache of compiled interpreters, and then
// again, each until its first answer. The second one is returned.
func starts(ctx context.Context, dir string) (*harness.System, []figure, error) {
	// Where `sandboxd dev` keeps what it has compiled.
	if err := os.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache")); err != nil {
		return nil, nil, err
	}
	fmt.Fprintln(os.Stderr, "bench: a first start compiles the interpreters, which takes some seconds")
	began := time.Now()
	sys, err := harness.Start(ctx)
	if err != nil {
		return nil, nil, err
	}
	out, err := firstAnswer(ctx, sys, "start to first answer, nothing compiled yet", began)
	if err == nil {
		err = sys.Stop(ctx)
	}
	if err == nil {
		began = time.Now()
		if err = sys.Restart(ctx); err == nil {
			var warm []figure
			warm, err = firstAnswer(ctx, sys, "start to first answer, all compiled", began)
			out = append(out, warm...)
		}
	}
	if err != nil {
		sys.Close(context.WithoutCancel(ctx))
		return nil, nil, err
	}
	return sys, out, nil
}

func firstAnswer(ctx context.Context, sys *harness.System, name string, began time.Time) ([]figure, error) {
	if err := increment(sys.API, tenant, "js", trivial)(ctx); err != nil {
		return nil, err
	}
	return []figure{{Name: name, Value: time.Since(began).Seconds(), Unit: "s"}}, nil
}
