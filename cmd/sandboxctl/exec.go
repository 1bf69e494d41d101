package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

type execFlags struct {
	cwd, id, user                string
	env                          []string
	timeout                      time.Duration
	background, interactive, tty bool
	descriptors                  string
	changes                      bool
}

func (a *app) execCommand() *cobra.Command {
	f := &execFlags{}
	c := &cobra.Command{
		Use:   "exec [flags] TENANT -- ARGV…",
		Short: "Run a command in the tenant's jail",
		Long: `Runs a command in the tenant's jail, which is made on first use. Its output
comes as it is, also to a terminal, and its exit code is sandboxctl's own (128
and the signal's number when a signal ended it). An interrupt goes to the command.`,
		Example: `  sandboxctl exec bob -- npm test
  sandboxctl exec -it bob -- bash
  sandboxctl exec --background --id dev bob -- npm run dev`,
		Args: args(2, -1, "TENANT -- ARGV…"),
		RunE: func(c *cobra.Command, given []string) error {
			argv := given[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			} else if strings.HasPrefix(argv[0], "-") {
				return usagef("exec takes its own flags before TENANT: exec %s %s -- ARGV…", argv[0], given[0])
			}
			if len(argv) == 0 {
				return usagef("exec takes TENANT -- ARGV…")
			}
			return a.exec(c.Context(), f, given[0], argv)
		},
	}
	fl := c.Flags()
	fl.SetInterspersed(false)
	fl.StringVar(&f.cwd, "cwd", "", "folder in the jail (default /workspace)")
	fl.StringVarP(&f.user, "user", "u", "", "a user's name or number in the jail (default its one user)")
	fl.StringArrayVar(&f.env, "env", nil, "NAME=VALUE, not for secrets; may be repeated")
	fl.DurationVar(&f.timeout, "timeout", 0, "kill it and all it started after this time")
	fl.BoolVarP(&f.background, "background", "d", false, "return as soon as it has started")
	fl.StringVar(&f.id, "id", "", "exec id of your own: the same again follows, never runs twice")
	fl.BoolVarP(&f.interactive, "stdin", "i", false, "pass standard input on")
	fl.BoolVarP(&f.tty, "tty", "t", false, "on a terminal: this one (with -i), or with -d one to attach to with -it and the same --id")
	fl.StringVar(&f.descriptors, "descriptors", "auto", `which of its own the command gets as they are: auto, all or none
(auto: files, and with -i a pipe to read)`)
	fl.BoolVar(&f.changes, "changes", false, "list the files that changed while it ran, on standard error")
	return c
}

func (a *app) exec(ctx context.Context, f *execFlags, tenant string, argv []string) error {
	env, err := pairs("--env", f.env)
	if err != nil {
		return err
	}
	req := &api.ExecRequest{Argv: argv, Cwd: f.cwd, User: f.user, Env: env, Timeout: policy.Duration(f.timeout), Background: f.background, ExecID: f.id, Stdin: f.interactive}
	if !slices.Contains([]string{"auto", "all", "none"}, f.descriptors) {
		return usagef("--descriptors is auto, all or none")
	}
	if f.tty && !f.interactive && !f.background {
		return usagef("exec -t needs -i, or -d")
	}
	if f.changes {
		req.Receipt = &api.ReceiptRequest{Files: true}
	}
	if f.tty {
		req.TTY = &api.TTY{Cols: 80, Rows: 24}
	}
	if f.background {
		p, err := a.client.Exec(ctx, tenant, req)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(p)
		}
		_, err = fmt.Fprintln(a.out, p.ExecID)
		return err
	}
	if req.ExecID == "" {
		// Known before it starts, for standard input and signals.
		req.ExecID = "ctl-" + strings.ToLower(rand.Text())
	}
	if f.tty {
		return a.execOnTerminal(ctx, tenant, req, f.id != "")
	}
	files := a.ownFiles(f)
	own := *req
	own.Stdin = req.Stdin && files[0] == nil
	err = a.followExec(ctx, tenant, &own, files)
	var refused *api.Error
	if f.descriptors == "auto" && errors.As(err, &refused) && strings.HasPrefix(refused.Field, "fds") {
		// A file that does not go into a jail (of FUSE, say): nothing has run.
		return a.followExec(ctx, tenant, req, [3]*os.File{})
	}
	return err
}

// followExec runs the command with this terminal as its own, or with files.
func (a *app) followExec(ctx context.Context, tenant string, req *api.ExecRequest, files [3]*os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := a.passSignals(ctx, tenant, req.ExecID)
	defer stop()
	events := a.client.ExecStream(ctx, tenant, req)
	if files != ([3]*os.File{}) {
		events = a.client.ExecWith(ctx, tenant, req, files)
	}
	var result *api.Process
	for e, err := range events {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.printEvent(&e); err != nil {
				return err
			}
		}
		switch e.Type {
		case api.EventStarted:
			if req.Stdin {
				go a.passStdin(ctx, tenant, req.ExecID)
			}
		case api.EventStdout, api.EventStderr:
			if !a.json {
				if err := a.rawOutput(&e); err != nil {
					return err
				}
			}
		case api.EventResult:
			result = e.Exec
		}
	}
	return a.execExit(result)
}

// passStdin ends when the command does: its context is the stream's.
func (a *app) passStdin(ctx context.Context, tenant, id string) {
	if err := a.client.Stdin(ctx, tenant, id, a.in, true); err != nil && ctx.Err() == nil {
		fmt.Fprintln(a.errOut, "sandboxctl: standard input: "+a.safeErr(err.Error()))
	}
}

// passSignals sends interrupts on to the command; the third ends sandboxctl.
func (a *app) passSignals(ctx context.Context, tenant, id string) (stop func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-signals:
			case <-done:
				return
			}
			if n == 2 {
				os.Exit(exitFailed)
			}
			if err := a.client.Signal(ctx, tenant, id, "INT"); err != nil {
				fmt.Fprintln(a.errOut, "sandboxctl: interrupt: "+a.safeErr(err.Error()))
			}
		}
	}()
	return func() { signal.Stop(signals); close(done) }
}

// rawOutput passes the command's bytes on as they are.
func (a *app) rawOutput(e *api.Event) error {
	data, err := e.Bytes()
	if err != nil {
		return err
	}
	w := a.out
	if e.Type == api.EventStderr {
		w = a.errOut
	}
	_, err = w.Write(data)
	return err
}

func (a *app) printEvent(e *api.Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, a.safe(string(line))+"\n")
	return err
}

// printChanges lists files that changed while a command ran.
func (a *app) printChanges(d *api.Diff) {
	if d == nil {
		return
	}
	for _, c := range d.Changes {
		fmt.Fprintf(a.errOut, "%s %s %s\n", c.Kind, c.Type, a.safeErr(c.Path))
	}
	if d.Truncated {
		fmt.Fprintln(a.errOut, "there are more changed files, or there was no time to look for them")
	}
}

// execExit passes the command's exit code on, and says what the code does not.
func (a *app) execExit(p *api.Process) error {
	if !a.json {
		for i := range p.Denials {
			// What is said below in words is not said twice.
			if d := &p.Denials[i]; d.Kind != "limit" || !slices.Contains([]string{"wall", "memory", "output"}, d.What) {
				a.printDenial(d)
			}
		}
		a.printChanges(p.Changes)
		switch {
		case p.TimedOut:
			fmt.Fprintf(a.errOut, "sandboxctl: it took longer than %s and was killed\n", p.Timeout)
		case p.OOMKilled:
			fmt.Fprintln(a.errOut, "sandboxctl: it used more memory than the jail may have and was killed")
		case p.Cause != "":
			fmt.Fprintf(a.errOut, "sandboxctl: the jail ended: %s\n", oneLine(p.Cause))
		}
		if p.Truncated {
			fmt.Fprintln(a.errOut, "sandboxctl: output beyond the limit was dropped")
		}
	}
	switch {
	case p.ExitCode != nil && *p.ExitCode == 0:
		return nil
	case p.ExitCode != nil:
		return &exitError{*p.ExitCode}
	case p.Signal != "":
		return &exitError{128 + int(unix.SignalNum(p.Signal))}
	default:
		return &exitError{exitFailed}
	}
}
