package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sandboxd/daemon/api"
)

func (a *app) kvCommand() *cobra.Command {
	get := &cobra.Command{
		Use: "get TENANT KEY", Short: "Print a value", Args: args(2, 2, "TENANT KEY"),
		RunE: func(c *cobra.Command, given []string) error {
			v, err := a.client.KVGet(c.Context(), given[0], given[1])
			if err != nil {
				return err
			}
			return a.printJSON(v)
		},
	}
	put := &cobra.Command{
		Use: "put TENANT KEY JSON|-", Short: "Store a JSON value", Args: args(3, 3, "TENANT KEY JSON, or - for standard input"),
		RunE: func(c *cobra.Command, given []string) error {
			value := []byte(given[2])
			if given[2] == "-" {
				var err error
				if value, err = a.readFile("-"); err != nil {
					return err
				}
			}
			if !json.Valid(value) {
				return usagef("the value is not JSON; strings need quotes: '\"text\"'")
			}
			return a.done(a.client.KVPut(c.Context(), given[0], given[1], value))
		},
	}
	del := &cobra.Command{
		Use: "delete TENANT KEY", Short: "Delete a value", Args: args(2, 2, "TENANT KEY"),
		RunE: func(c *cobra.Command, given []string) error {
			return a.done(a.client.KVDelete(c.Context(), given[0], given[1]))
		},
	}
	list := &cobra.Command{
		Use: "list TENANT [PREFIX]", Short: "List keys", Args: args(1, 2, "TENANT [PREFIX]"),
		RunE: func(c *cobra.Command, given []string) error { return a.kvList(c, given) },
	}
	return group("kv", "A tenant's key-value store", get, put, del, list)
}

func (a *app) kvList(c *cobra.Command, given []string) error {
	prefix, after := "", ""
	if len(given) == 2 {
		prefix = given[1]
	}
	all := api.KVList{Keys: []string{}}
	for {
		page, err := a.client.KVList(c.Context(), given[0], prefix, after)
		if err != nil {
			return err
		}
		all.Keys = append(all.Keys, page.Keys...)
		if after = page.Cursor; after == "" {
			break
		}
	}
	if a.json {
		return a.printJSON(all)
	}
	for _, k := range all.Keys {
		fmt.Fprintln(a.out, oneLine(k))
	}
	return nil
}

func (a *app) dbCommand() *cobra.Command {
	query := &cobra.Command{
		Use: "query TENANT SQL [PARAM…]", Short: "Read the tenant's database", Args: args(2, -1, "TENANT SQL [PARAM…]"),
		RunE: func(c *cobra.Command, given []string) error {
			rows, err := a.client.Query(c.Context(), given[0], sqlRequest(given[1:]))
			if refused := (*api.Error)(nil); errors.As(err, &refused) && refused.Code == api.CodeDenied && refused.Hint == "" {
				refused.Hint = "db query only reads; db exec changes"
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(rows)
			}
			return a.printRows(rows)
		},
	}
	exec := &cobra.Command{
		Use: "exec TENANT SQL [PARAM…]", Short: "Change the tenant's database", Args: args(2, -1, "TENANT SQL [PARAM…]"),
		RunE: func(c *cobra.Command, given []string) error {
			done, err := a.client.ExecSQL(c.Context(), given[0], sqlRequest(given[1:]))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(done)
			}
			_, err = fmt.Fprintf(a.out, "%d rows changed\n", done.Changes)
			return err
		},
	}
	return group("db", "A tenant's database", query, exec)
}

// sqlRequest takes parameters as JSON where they are, and as text otherwise.
func sqlRequest(given []string) *api.SQLRequest {
	req := &api.SQLRequest{SQL: given[0]}
	for _, p := range given[1:] {
		var v any
		raw := json.RawMessage(p)
		if json.Unmarshal(raw, &v) != nil {
			raw, _ = json.Marshal(p) // a string always marshals
		}
		req.Params = append(req.Params, raw)
	}
	return req
}

func (a *app) printRows(rows *api.Rows) error {
	var table [][]string
	for _, row := range rows.Rows {
		var cells []string
		for _, v := range row {
			switch x := v.(type) {
			case nil:
				cells = append(cells, "NULL")
			case string:
				cells = append(cells, x)
			default:
				text, err := json.Marshal(x)
				if err != nil {
					return err
				}
				cells = append(cells, string(text))
			}
		}
		table = append(table, cells)
	}
	head := make([]string, len(rows.Columns))
	for i, c := range rows.Columns {
		head[i] = oneLine(c)
	}
	return a.table(head, table)
}
