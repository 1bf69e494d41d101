package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"sandboxd/tests/internal/leftovers"
)

//go:embed skills
var skills embed.FS

//go:embed all:project
var project embed.FS

func projectFiles() fs.FS {
	sub, err := fs.Sub(project, "project")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

func main() {
	bin := flag.String("bin", "build", "folder with sandboxd and sandboxctl")
	flag.Parse()
	// A reader that goes away (`| head`) must not keep us from cleaning up.
	signal.Ignore(syscall.SIGPIPE)
	// The daemon gets a signal when the thread that started it ends: this one,
	// which lives as long as we do.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: failed: %v\n", err)
		os.Exit(1)
	}
}

// run tells both stories and then takes stock of what is left.
func run(ctx context.Context, bin string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the demo makes namespaces and must run as root")
	}
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	before, err := leftovers.Take()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := stories(ctx, bin); err != nil {
		return errors.Join(err, ctx.Err())
	}
	headline("Afterwards")
	left, err := leftovers.Settle(before, 15*time.Second)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("something of ours is left, or another sandboxd began or ended meanwhile:\n  %s", strings.Join(left, "\n  "))
	}
	say("Nothing is left: no process, mount, namespace, link, cgroup, loop device or temporary file.")
	fmt.Printf("\nThe demo took %.0f s.\n", time.Since(began).Seconds())
	return nil
}

// stories sets the stage, tells both stories and takes the stage down again,
// whatever happens.
func stories(ctx context.Context, bin string) (err error) {
	dir, err := os.MkdirTemp("", "sandboxd-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	headline("The stage")
	w, err := newWorld(dir)
	if err != nil {
		return fmt.Errorf("the world outside: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	say("An HTTPS API (%s, wants a bearer token) and a git server (%s, wants a password) run in a network namespace of their own.", apiHost, gitHost)

	d, err := startDaemon(ctx, bin, dir, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()

	if err := tellSkill(ctx, d, w); err != nil {
		return fmt.Errorf("the skill: %w", err)
	}
	if err := tellProject(ctx, d, w); err != nil {
		return fmt.Errorf("the project: %w", err)
	}
	return tellRecord(ctx, d, w)
}

func headline(text string) {
	fmt.Printf("\n━━ %s %s\n", text, strings.Repeat("━", max(3, 72-len(text))))
}

func say(format string, args ...any) {
	fmt.Printf("\n%s\n", fmt.Sprintf(format, args...))
}
