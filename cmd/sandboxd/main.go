package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"sandboxd/internal/kernel"
	"sandboxd/isolate"
	"sandboxd/netproxy"
)

// version is set by the linker.
var version = ""

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// roles are the other processes that this binary can be. A role confines itself
// before it reads anything hostile, so nothing may happen before it: main looks
// for it before cobra does.
var roles = map[string]func(args []string){
	"isolate-worker": func([]string) { isolate.WorkerMain() },
	"netproxy":       func([]string) { netproxy.Main() },
	"kernel-probe":   func(args []string) { os.Exit(kernel.Main(args)) },
}

func main() {
	if len(os.Args) >= 3 && os.Args[1] == "role" {
		if role, ok := roles[os.Args[2]]; ok {
			role(os.Args[3:])
			return
		}
	}
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxd: "+err.Error())
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "sandboxd",
		Short:         "Runs code written by language models without trusting it",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(serveCommand(), devCommand(), &cobra.Command{
		Use:    "role NAME",
		Short:  "Internal: a process of the daemon's",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return fmt.Errorf("there is no role %q", args[0]) },
	}, &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), versionText()) },
	})
	return root
}
