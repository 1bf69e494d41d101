package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// patience is what a browser and a package manager get on a machine that is
// busy with other things.
const patience = 2 * time.Minute

// A tab of a browser of the test's own.
type tab struct {
	*testing.T
	ctx context.Context
}

// browse starts a browser with an empty profile.
func browse(t *testing.T) *tab {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("no chromium: run `make deps-browser`: %v", err)
	}
	// Not the test's context, which ends before what is cleaned up: the browser is
	// asked to end. As root it has no sandbox of its own; it loads nothing but the test's pages.
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("no-proxy-server", true), chromedp.WSURLReadTimeout(patience),
	)...)
	t.Cleanup(cancel)
	ctx, _ = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("the browser's end: %v", err)
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("chromium did not start: %v", err)
	}
	return &tab{t, ctx}
}

func (t *tab) do(a chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, a); err != nil {
		t.Fatal(err)
	}
}

func (t *tab) open(url string) {
	t.Helper()
	t.do(chromedp.Navigate(url))
}

// run runs a script in the page.
func (t *tab) run(script string) {
	t.Helper()
	t.do(chromedp.Evaluate[chromedp.Void](script))
}

// shows waits until an expression is true, in whatever page is there by then.
func (t *tab) shows(expression string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		// Between two pages there is nothing to ask.
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression)); err == nil && ok {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			page, err := chromedp.Run(t.ctx, chromedp.Evaluate[string](`location.href + "\n" + document.documentElement.outerHTML`))
			t.Fatalf("%s does not come true: %v\n%s", expression, err, page)
		}
	}
}

// screenshot keeps what the tab shows as an artefact.
func (t *tab) screenshot(name string) {
	t.Helper()
	png, err := chromedp.Run(t.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(artifacts, name), png, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
