package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
)

func (a *app) replayCommand() *cobra.Command {
	var tenant, code string
	c := &cobra.Command{
		Use:   "replay RUN",
		Short: "Run a recorded run again from its recorded answers, without any effect",
		Long: `Runs a recorded run again with the same input, seed and clock; its host calls are
answered from the recording, so that nothing is written and nothing is sent. It
exits with 0 if it came out the same, and with 1 if not. With --code it shows
what other code makes of the same answers, and exits as run does.`,
		Example: `  sandboxctl run -t alice --record skill.ts     # prints [run-…]
  sandboxctl runs replay run-…
  sandboxctl runs replay run-… --code mended.ts`,
		Args: args(1, 1, "RUN"),
		RunE: func(c *cobra.Command, given []string) error {
			req := &api.ReplayRequest{}
			if code != "" {
				text, err := a.readFile(code)
				if err != nil {
					return err
				}
				req.Code = string(text)
			}
			run, err := a.client.Replay(c.Context(), given[0], tenant, req)
			if err != nil {
				return err
			}
			if a.json {
				if err := a.printJSON(run); err != nil {
					return err
				}
				return replayExit(run)
			}
			return a.printReplay(run)
		},
	}
	c.Flags().StringVarP(&tenant, "tenant", "t", "", "whose run, where several tenants have one with this id")
	c.Flags().StringVar(&code, "code", "", "file with other code for the run's entry, or -")
	return c
}

func (a *app) printReplay(r *api.Run) error {
	var exit *exitError
	if err := a.showRun(r, nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	p := r.Replay
	if p == nil {
		return replayExit(r)
	}
	verdict := "identical"
	switch {
	case len(p.Differs) > 0:
		verdict = "different in " + strings.Join(p.Differs, ", ")
	case !p.Identical:
		verdict = "the same as far as the recording goes"
	}
	fmt.Fprintf(a.errOut, "replay of %s: %s\n", a.safeErr(p.Of), verdict)
	if p.Note != "" {
		fmt.Fprintf(a.errOut, "  not deterministic: %s\n", a.safeErr(p.Note))
	}
	return replayExit(r)
}

// replayExit is that of the comparison, or with other code that of the run.
func replayExit(r *api.Run) error {
	switch {
	case r.Status == api.StatusRefused && r.Error != nil && (r.Replay == nil || !r.Replay.Identical):
		return &exitError{exitRefused}
	case r.Replay != nil && r.Replay.ChangedCode:
		return runExit(r)
	case r.Replay == nil || !r.Replay.Identical:
		return &exitError{exitFailed}
	}
	return nil
}
