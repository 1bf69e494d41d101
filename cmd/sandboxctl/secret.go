package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandboxd/daemon/api"
	"sandboxd/secrets"
)

func (a *app) secretCommand() *cobra.Command {
	set := &cobra.Command{
		Use: "set NAME", Short: "Store a credential or replace it; its value is read from standard input", Args: args(1, 1, "NAME"),
		Long: `Stores a credential, or replaces it: the next request that a rule gives it to has
the new value. The value is read from standard input, without the line end at its
end, and on a terminal asked for. It goes to the egress proxy's process alone; the
daemon keeps it encrypted.`,
		RunE: func(c *cobra.Command, given []string) error {
			value, err := a.readValue(given[0])
			if err != nil {
				return err
			}
			defer clear(value)
			s, err := a.client.SetSecret(c.Context(), given[0], value)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			return nil
		},
	}
	rm := &cobra.Command{
		Use: "rm NAME", Short: "Delete a stored credential; rules that name it refuse", Args: args(1, 1, "NAME"),
		RunE: func(c *cobra.Command, given []string) error { return a.client.DeleteSecret(c.Context(), given[0]) },
	}
	list := &cobra.Command{
		Use: "list", Short: "List credentials: where each comes from, when it changed, which rules send it", Args: args(0, 0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := a.client.Secrets(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(l)
			}
			return a.printSecrets(l)
		},
	}
	return group("secret", "Credentials that the proxy adds to requests (administrators)", set, list, rm)
}

// readValue reads the value, never from an argument: arguments are seen by
// every process of the host.
func (a *app) readValue(name string) ([]byte, error) {
	if f, ok := a.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintf(a.errOut, "value of %s: ", oneLine(name))
		value, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(a.errOut)
		return value, err
	}
	value, err := io.ReadAll(io.LimitReader(a.in, secrets.MaxLength+3))
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(value)) == 0 {
		return nil, usagef("secret set reads the value from standard input, which is empty")
	}
	return value, nil
}

func (a *app) printSecrets(l *api.SecretList) error {
	var rows [][]string
	for _, s := range l.Secrets {
		changed := ""
		if s.Changed != nil {
			changed = age(*s.Changed)
		}
		var as, uses []string
		for _, u := range s.Uses {
			if !strings.Contains(strings.Join(as, ","), u.As) {
				as = append(as, u.As)
			}
			uses = append(uses, u.Rule)
		}
		rows = append(rows, []string{s.Name, s.Source, changed, strings.Join(as, ","), strings.Join(uses, ", ")})
	}
	return a.table([]string{"NAME", "FROM", "CHANGED", "AS", "RULES"}, rows)
}
