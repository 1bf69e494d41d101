package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// languages by the ending of a file's name.
var languages = map[string]string{".js": "js", ".mjs": "js", ".ts": "ts", ".mts": "ts", ".py": "python", ".sh": "shell", ".wasm": "wasm"}

// runFlags are the flags of run.
type runFlags struct {
	tenant, language, input, environment, id string
	needs, allow, bind, env, args            []string
	noBindings, record, seeded               bool
	seed                                     uint64
	clock                                    string
	wall, cpu                                time.Duration
	memory, output                           string
	requests                                 int
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use:   "run FILE|-",
		Short: "Run code once",
		Long: `Runs a file, or standard input, for a tenant. The result goes to stdout, logs and
errors to stderr. It exits with 0, with 1 if the code failed or was killed, and
with 3 if it was refused.

A WebAssembly module (WASI preview 1) gets the input on its standard input. Its
result is what it gives to sandboxd.result, or its standard output if that is one
JSON value.`,
		Example: `  sandboxctl run -t alice --allow api.example.com --input '{"n": 1}' skill.ts
  echo 'export default (input) => input * 2' | sandboxctl run -l js --input 21 -
  sandboxctl run --arg -v --input '{"n": 1}' tool.wasm`,
		Args: args(1, 1, "one FILE, or - for standard input"),
		RunE: func(c *cobra.Command, given []string) error {
			f.seeded = c.Flags().Changed("seed")
			if f.noBindings && len(f.bind) > 0 {
				return usagef("--bind and --no-bindings exclude each other")
			}
			return a.run(c.Context(), f, given[0])
		},
	}
	fl := c.Flags()
	f.grantFlags(fl)
	f.inputFlags(fl)
	fl.StringVarP(&f.language, "language", "l", "", "js, ts, python, wasm or shell (default: by the file's ending)")
	fl.StringSliceVar(&f.needs, "needs", nil, "what of Linux it needs: filesystem, process, packages")
	fl.StringVar(&f.environment, "environment", "", "force isolate or jail")
	fl.StringArrayVar(&f.args, "arg", nil, "argument after the program's name (wasm); may be repeated")
	return c
}

// grantFlags are the flags of whom the code is run for and what it may do.
func (f *runFlags) grantFlags(fl *pflag.FlagSet) {
	f.tenantFlag(fl)
	fl.StringSliceVar(&f.allow, "allow", nil, "host that it may reach, at most what policy grants; may be repeated")
	fl.StringSliceVar(&f.bind, "bind", nil, "NAME of a binding that it holds (default: all that it may); may be repeated")
	fl.BoolVar(&f.noBindings, "no-bindings", false, "hold no binding")
	fl.StringArrayVar(&f.env, "env", nil, "NAME=VALUE for the code, not for secrets; may be repeated")
	fl.Uint64Var(&f.seed, "seed", 0, "make the run deterministic with this seed")
	fl.StringVar(&f.clock, "clock", "", "make the run deterministic with this time to begin at, such as 2026-01-01T00:00:00Z")
	fl.DurationVar(&f.wall, "wall", 0, "limit of time, such as 2s")
	fl.DurationVar(&f.cpu, "cpu", 0, "limit of processor time, such as 500ms")
	fl.StringVar(&f.memory, "memory", "", "limit of memory, such as 32MiB")
	fl.StringVar(&f.output, "output", "", "limit of output, such as 64KiB")
	fl.IntVar(&f.requests, "requests", 0, "limit of outgoing requests")
}

func (f *runFlags) tenantFlag(fl *pflag.FlagSet) {
	tenant := os.Getenv("SANDBOXD_TENANT")
	if tenant == "" {
		tenant = "dev"
	}
	fl.StringVarP(&f.tenant, "tenant", "t", tenant, "the tenant, also $SANDBOXD_TENANT")
}

// inputFlags are the flags of one call.
func (f *runFlags) inputFlags(fl *pflag.FlagSet) {
	fl.StringVar(&f.input, "input", "", "input as JSON, or @FILE")
	fl.StringVar(&f.id, "id", "", "run id of your own: the same again follows, never runs twice")
	fl.BoolVar(&f.record, "record", false, "make the run deterministic and keep what 'runs replay' needs")
}

func (a *app) run(ctx context.Context, f *runFlags, file string) error {
	req, err := a.runRequest(f, file)
	if err != nil {
		return err
	}
	if a.json {
		run, err := a.client.Run(ctx, f.tenant, req)
		if err != nil {
			return err
		}
		if err := a.printJSON(run); err != nil {
			return err
		}
		return runExit(run)
	}
	return a.follow(a.client.RunStream(ctx, f.tenant, req))
}

// follow prints a run as it happens.
func (a *app) follow(events iter.Seq2[api.Event, error]) error {
	var run *api.Run
	for e, err := range events {
		if err != nil {
			return err
		}
		switch e.Type {
		case api.EventLog:
			a.printLog(e.Log)
		case api.EventStdout, api.EventStderr:
			if err := a.printOutput(&e); err != nil {
				return err
			}
		case api.EventDenied:
			a.printDenial(e.Denial)
		case api.EventCall:
			fmt.Fprintf(a.errOut, "call %s of %s.%s waits for POST /v1/runs/%s/calls/%s\n", e.Call.CallID, e.Call.Binding, e.Call.Method, e.RunID, e.Call.CallID)
		case api.EventResult:
			run = e.Run
		}
	}
	return a.printRun(run)
}

// printOutput prints output of a sandbox where it belongs.
func (a *app) printOutput(e *api.Event) error {
	data, err := e.Bytes()
	if err != nil {
		return err
	}
	if e.Type == api.EventStderr {
		_, err = io.WriteString(a.errOut, a.safeErr(string(data)))
	} else {
		_, err = io.WriteString(a.out, a.safe(string(data)))
	}
	return err
}

func (a *app) printRun(r *api.Run) error {
	// What a Wasm program printed is on the screen already.
	if len(r.Result) > 0 && string(r.Result) != "null" && (r.Language != "wasm" || !sameJSON([]byte(r.Stdout), r.Result)) {
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, r.Result, "", "  "); err != nil {
			return err
		}
		fmt.Fprintln(a.out, a.safe(pretty.String()))
	}
	if r.Error != nil {
		a.printError(r.Error)
	}
	if r.Phase == "not_started" {
		fmt.Fprintf(a.errOut, "%s, nothing ran [%s]\n", r.Status, r.RunID)
		return runExit(r)
	}
	fmt.Fprintf(a.errOut, "%s in %s: wall %s, cpu %s, memory %s", r.Status, r.Environment, durationUse(r.Usage.Wall), durationUse(r.Usage.CPU), sizeUse(r.Usage.MemoryPeak))
	if n := r.Usage.Requests.Used; n != nil && *n > 0 {
		fmt.Fprintf(a.errOut, ", requests %d of %d", *n, r.Usage.Requests.Limit)
	}
	fmt.Fprintf(a.errOut, " [%s]\n", r.RunID)
	if rec := r.Recording; rec != nil && !rec.Complete {
		fmt.Fprintf(a.errOut, "the run cannot be replayed: %s\n", a.safeErr(rec.Why))
	}
	return runExit(r)
}

// sameJSON compares two JSON texts but for the space between their tokens.
func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

func runExit(r *api.Run) error {
	switch r.Status {
	case api.StatusOK:
		return nil
	case api.StatusRefused:
		return &exitError{exitRefused}
	default:
		return &exitError{exitFailed}
	}
}

// runRequest builds the request from flags and file.
func (a *app) runRequest(f *runFlags, file string) (*api.RunRequest, error) {
	req := &api.RunRequest{Language: f.language, Needs: f.needs, Environment: f.environment, RunID: f.id, Record: f.record, Args: f.args}
	var err error
	if req.Deterministic, err = f.deterministic(); err != nil {
		return nil, err
	}
	code, err := a.readFile(file)
	if err != nil {
		return nil, err
	}
	if req.Language == "" {
		req.Language = languages[filepath.Ext(file)]
		if bytes.HasPrefix(code, []byte("\x00asm")) {
			req.Language = "wasm"
		}
		if req.Language == "" {
			return nil, usagef("the language of %s is not known by its ending; name it with -l js, ts, python, wasm or shell", file)
		}
	}
	if req.Language == "wasm" {
		code = base64.StdEncoding.AppendEncode(nil, code)
	}
	if file == "-" {
		req.Code = string(code)
	} else {
		// As a module the code keeps its name in errors.
		req.Main = filepath.Base(file)
		req.Modules = map[string]string{req.Main: string(code)}
	}
	if req.Input, err = readInput(f.input); err != nil {
		return nil, err
	}
	if req.Env, err = pairs("--env", f.env); err != nil {
		return nil, err
	}
	req.Outbound, req.Bindings = f.outbound(), f.bindings()
	req.Limits, err = f.limits()
	return req, err
}

// outbound and bindings are nil where nothing was said.
func (f *runFlags) outbound() *api.Outbound {
	if len(f.allow) == 0 {
		return nil
	}
	return &api.Outbound{Allow: f.allow}
}

func (f *runFlags) bindings() map[string]api.BindingRequest {
	if len(f.bind) == 0 && !f.noBindings {
		return nil
	}
	all := map[string]api.BindingRequest{}
	for _, name := range f.bind {
		all[name] = api.BindingRequest{}
	}
	return all
}

// deterministic is nil where neither seed nor clock was given.
func (f *runFlags) deterministic() (*api.Deterministic, error) {
	if !f.seeded && f.clock == "" {
		return nil, nil
	}
	d := &api.Deterministic{}
	if f.seeded {
		d.Seed = &f.seed
	}
	if f.clock != "" {
		t, err := time.Parse(time.RFC3339, f.clock)
		if err != nil {
			return nil, usagef("--clock: %q is not a time such as 2026-01-01T00:00:00Z", f.clock)
		}
		d.Clock = &t
	}
	return d, nil
}

func (f *runFlags) limits() (*policy.Limits, error) {
	l := policy.Limits{Wall: policy.Duration(f.wall), CPU: policy.Duration(f.cpu), Requests: f.requests}
	for name, v := range map[string]struct {
		text string
		to   *policy.Size
	}{"--memory": {f.memory, &l.Memory}, "--output": {f.output, &l.Output}} {
		if v.text == "" {
			continue
		}
		size, err := policy.ParseSize(v.text)
		if err != nil {
			return nil, usagef("%s: %w", name, err)
		}
		*v.to = size
	}
	if l == (policy.Limits{}) {
		return nil, nil
	}
	return &l, nil
}

// readFile reads a file or, for -, standard input.
func (a *app) readFile(name string) ([]byte, error) {
	var text []byte
	var err error
	if name == "-" {
		text, err = io.ReadAll(io.LimitReader(a.in, api.MaxBody))
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, &usageError{err}
	}
	return text, nil
}

func readInput(input string) (json.RawMessage, error) {
	if input == "" {
		return nil, nil
	}
	text := []byte(input)
	if name, ok := strings.CutPrefix(input, "@"); ok {
		var err error
		if text, err = os.ReadFile(name); err != nil {
			return nil, usagef("--input: %w", err)
		}
	}
	if !json.Valid(text) {
		return nil, usagef("--input is not JSON; strings need quotes: --input '\"text\"'")
	}
	return text, nil
}

// pairs reads NAME=VALUE.
func pairs(flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, kv := range list {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			return nil, usagef("%s: %q is not NAME=VALUE", flag, kv)
		}
		out[name] = value
	}
	return out, nil
}
