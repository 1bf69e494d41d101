package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/daemon/client"
	"sandboxd/internal/kernel"
)

// Exit codes; exec passes on the command's own.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitRefused     = 3
	exitUnreachable = 4
)

// exitError ends the program with a code and without a message.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// usageError is a wrong call of the program.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// version is set by the linker.
var version = "unknown"

func main() {
	if n := len(kernel.HelperArgs); len(os.Args) > n && slices.Equal(os.Args[1:n+1], kernel.HelperArgs) {
		os.Exit(kernel.Main(os.Args[n+1:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main for tests, too.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{in: in, out: out, errOut: errOut}
	a.outTTY, a.errTTY = isTerminal(out), isTerminal(errOut)
	root := a.command()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	command, err := root.ExecuteContextC(ctx)
	if a.client != nil {
		a.client.Close()
	}
	return a.finish(command, err)
}

// finish prints the error of a command and chooses the exit code.
func (a *app) finish(command *cobra.Command, err error) int {
	var exit *exitError
	var usage *usageError
	var refused *api.Error
	var unreachable *client.UnreachableError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &refused):
		if a.json {
			text, err := json.Marshal(api.ErrorBody{Error: refused})
			if err == nil {
				fmt.Fprintln(a.errOut, a.safeErr(string(text)))
			}
		} else {
			a.printError(refused)
		}
		return exitOf(refused)
	case errors.As(err, &unreachable):
		fmt.Fprintln(a.errOut, "sandboxctl: "+a.safeErr(unreachable.Error()))
		fmt.Fprintln(a.errOut, "  hint: start it with `sandboxd dev` or `systemctl start sandboxd.socket`; name its socket with --socket or SANDBOXD_SOCKET")
		return exitUnreachable
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown "), strings.HasPrefix(err.Error(), "required flag"):
		fmt.Fprintln(a.errOut, "sandboxctl: "+a.safeErr(err.Error()))
		// A file that is not there is no lack of knowledge.
		if file := (*fs.PathError)(nil); !errors.As(err, &file) {
			fmt.Fprintf(a.errOut, "  hint: %s --help\n", command.CommandPath())
		}
		return exitUsage
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(a.errOut, "sandboxctl: ended by a signal")
		return exitFailed
	default:
		fmt.Fprintln(a.errOut, "sandboxctl: "+a.safeErr(err.Error()))
		return exitFailed
	}
}

// exitOf tells code that failed from a request that was refused.
func exitOf(e *api.Error) int {
	switch e.Code {
	case api.CodeError, api.CodeLimit, api.CodeBinding, api.CodeCanceled, api.CodeInternal:
		return exitFailed
	default:
		return exitRefused
	}
}

// app is what the commands share.
type app struct {
	in             io.Reader
	out, errOut    io.Writer
	outTTY, errTTY bool
	socket         string
	json           bool
	client         *client.Client
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "sandboxctl",
		Short:         "Calls a sandboxd",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		PersistentPreRun: func(*cobra.Command, []string) {
			if a.socket == "" {
				a.socket = client.DefaultSocket()
			}
			a.client = client.New(a.socket)
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "the daemon's socket (default: $SANDBOXD_SOCKET, then /run/sandboxd)")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON")
	subject(root, "Code, in an isolate where it can be:", a.runCommand(), a.functionCommand(), a.runsCommand(), a.kvCommand(), a.dbCommand())
	subject(root, "Jails and what runs in them:", a.jailCommand(), a.execCommand(), a.psCommand(), a.logsCommand(), a.waitCommand(), a.killCommand(), a.portCommand())
	subject(root, "Files of jails:", a.lsCommand(), a.catCommand(), a.cpCommand(), a.watchCommand(), a.diffCommand(), a.snapshotCommand(), a.exportCommand())
	subject(root, "The daemon and its host:", a.statusCommand(), a.doctorCommand(), a.policyCommand(), a.tenantCommand(), a.secretCommand(), a.auditCommand(), a.templateCommand())
	return root
}

// flagError says what is wrong with a flag in the words of who gave it.
func flagError(c *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &value):
		wanted := map[string]string{
			"duration": "is not a duration, such as 500ms, 2s or 10m",
			"int":      "is not a whole number",
			"uint":     "is not a whole number from 0",
			"uint64":   "is not a whole number from 0",
			"float64":  "is not a number",
			"bool":     "is not true or false",
		}[value.GetFlag().Value.Type()]
		if wanted != "" {
			return usagef("--%s: %q %s", value.GetFlag().Name, value.GetValue(), wanted)
		}
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if (name == "t" || name == "tenant") && strings.Contains(c.Use, " TENANT") {
			return usagef("%w; the tenant stands without one: %s", err, strings.TrimPrefix(c.UseLine(), c.Root().Name()+" "))
		}
	}
	return &usageError{err}
}

// subject adds commands under a heading of their own in the help.
func subject(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}

// args checks the number of arguments and names what is wanted.
func args(min, max int, form string) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		if len(given) < min || (max >= 0 && len(given) > max) {
			if c.Flags().Lookup("tenant") != nil && len(given) > min {
				return usagef("%s takes %s; the tenant is given with -t", commandName(c), form)
			}
			return usagef("%s takes %s", commandName(c), form)
		}
		if len(given) > 0 && strings.Contains(given[0], ":") && (form == "TENANT PATH" || form == "TENANT [PATH]") {
			return usagef("%q: tenant and path stand apart here: %s %s", given[0], commandName(c), form)
		}
		return nil
	}
}

// group is a command that has only subcommands.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: func(c *cobra.Command, given []string) error {
		var names []string
		for _, s := range c.Commands() {
			names = append(names, s.Name())
		}
		if len(given) > 0 {
			return usagef("%s has no %q, it has %s", commandName(c), given[0], strings.Join(names, ", "))
		}
		return usagef("%s needs one of %s", commandName(c), strings.Join(names, ", "))
	}}
	c.AddCommand(subs...)
	return c
}

// commandName is a command's path without the program.
func commandName(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
}
