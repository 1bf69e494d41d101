package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
)

func (a *app) functionCommand() *cobra.Command {
	return group("fn", "Deployed functions: checked once, run many times", a.deployCommand(), a.invokeCommand(), a.functionListCommand(), a.functionRemoveCommand())
}

func (a *app) deployCommand() *cobra.Command {
	f := &runFlags{}
	var replaces string
	c := &cobra.Command{
		Use:   "deploy NAME FILE [FILE…]",
		Short: "Deploy a function, in place of the one of that name",
		Long: `Deploys a function. The first file is its entry; others are named as they lie
beside it, so that it can import them. The code is checked and its module is
evaluated once; each call begins after that, or the answer says why it cannot.`,
		Example: `  sandboxctl fn deploy -t alice invoice invoice.ts lib/money.ts
  sandboxctl fn invoke -t alice invoice --input '{"n": 1}'`,
		Args: args(2, -1, "NAME FILE [FILE…]"),
		RunE: func(c *cobra.Command, given []string) error {
			f.seeded = c.Flags().Changed("seed")
			return a.deploy(c.Context(), f, replaces, given)
		},
	}
	fl := c.Flags()
	f.grantFlags(fl)
	fl.StringVarP(&f.language, "language", "l", "", "js, ts, python or wasm (default: by the file's ending)")
	fl.StringArrayVar(&f.args, "arg", nil, "argument after the program's name (wasm); may be repeated")
	fl.StringVar(&replaces, "replaces", "", "only if the code deployed now has this hash, or \"none\" if there is to be none")
	return c
}

func (a *app) deploy(ctx context.Context, f *runFlags, replaces string, given []string) error {
	req, err := a.functionRequest(f, given[1:])
	if err != nil {
		return err
	}
	fn, err := a.client.Deploy(ctx, f.tenant, given[0], replaces, req)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(fn)
	}
	fmt.Fprintf(a.errOut, "deployed %s: %s\n", fn.Name, snapshotText(fn))
	return nil
}

func snapshotText(f *api.Function) string {
	switch {
	case f.Error != "":
		return f.Error
	case f.Snapshot:
		return "calls begin with its module evaluated"
	}
	return "each call evaluates its module: " + oneLine(f.SnapshotReason)
}

func (a *app) functionRequest(f *runFlags, files []string) (*api.FunctionRequest, error) {
	run, err := a.runRequest(f, files[0])
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(files[0])
	for _, file := range files[1:] {
		name, err := filepath.Rel(dir, file)
		if err != nil || run.Modules == nil || strings.HasPrefix(name, "..") {
			return nil, usagef("%s does not lie beside or below the first file", file)
		}
		text, err := a.readFile(file)
		if err != nil {
			return nil, err
		}
		if run.Language == "wasm" && filepath.Ext(file) == ".wasm" {
			text = base64.StdEncoding.AppendEncode(nil, text)
		}
		run.Modules[filepath.ToSlash(name)] = string(text)
	}
	return &api.FunctionRequest{Language: run.Language, Code: run.Code, Modules: run.Modules, Main: run.Main, Args: run.Args, Env: run.Env,
		Bindings: run.Bindings, Outbound: run.Outbound, Limits: run.Limits, Deterministic: run.Deterministic}, nil
}

func (a *app) invokeCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use:   "invoke NAME",
		Short: "Run a deployed function once",
		Long: `Runs a deployed function once. What it prints and its exit code are those of run;
flags can only take away from what was deployed.`,
		Example: `  sandboxctl fn invoke -t alice invoice --input '{"n": 1}'`,
		Args:    args(1, 1, "NAME"),
		RunE: func(c *cobra.Command, given []string) error {
			f.seeded = c.Flags().Changed("seed")
			return a.invoke(c.Context(), f, given[0])
		},
	}
	f.grantFlags(c.Flags())
	f.inputFlags(c.Flags())
	return c
}

func (a *app) invoke(ctx context.Context, f *runFlags, name string) error {
	req := &api.InvokeRequest{RunID: f.id, Record: f.record, Outbound: f.outbound(), Bindings: f.bindings()}
	var err error
	if req.Deterministic, err = f.deterministic(); err != nil {
		return err
	}
	if req.Input, err = readInput(f.input); err != nil {
		return err
	}
	if req.Env, err = pairs("--env", f.env); err != nil {
		return err
	}
	if req.Limits, err = f.limits(); err != nil {
		return err
	}
	if !a.json {
		return a.follow(a.client.InvokeStream(ctx, f.tenant, name, req))
	}
	run, err := a.client.Invoke(ctx, f.tenant, name, req)
	if err != nil {
		return err
	}
	if err := a.printJSON(run); err != nil {
		return err
	}
	return runExit(run)
}

func (a *app) functionListCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use: "list", Short: "List a tenant's functions", Args: args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			list, err := a.client.Functions(c.Context(), f.tenant)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(list)
			}
			var rows [][]string
			for i := range list.Functions {
				fn := &list.Functions[i]
				rows = append(rows, []string{fn.Name, fn.Language, bytesText(fn.Size), age(fn.Created), strconv.FormatUint(fn.Invocations, 10), age(fn.LastUsed), fn.CodeSHA256[:min(12, len(fn.CodeSHA256))], snapshotText(fn)})
			}
			return a.table([]string{"NAME", "LANGUAGE", "SIZE", "AGE", "CALLS", "LAST", "CODE", "START"}, rows)
		},
	}
	f.tenantFlag(c.Flags())
	return c
}

func (a *app) functionRemoveCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use: "rm NAME", Short: "Delete a function", Args: args(1, 1, "NAME"),
		RunE: func(c *cobra.Command, given []string) error {
			return a.done(a.client.DeleteFunction(c.Context(), f.tenant, given[0]))
		},
	}
	f.tenantFlag(c.Flags())
	return c
}
