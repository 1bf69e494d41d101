package main

import (
	"context"
	"encoding/json"
	"fmt"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// Modules whose evaluation is most of a run: a table is made before the function
// can be called.
var tables = []struct{ name, language, code string }{
	{"JavaScript", "js", `const table = new Map();
for (let i = 0; i < 5000; i++) table.set('key ' + i, { id: i, name: 'name ' + i });
export default (input) => input + table.size / 5000;`},
	{"Python", "python", `import json, re, decimal, statistics
table = {f'key {i}': {'id': i, 'name': f'name {i}'} for i in range(5000)}
def main(input, env):
    return input + len(table) // 5000
`},
}

// tableRows: code that makes a table, run as it comes and deployed before. The
// first of the two is the floor.
func tableRows(ctx context.Context, sys *harness.System) ([][]step, error) {
	var groups [][]step
	for _, t := range tables {
		path := "/v1/tenants/" + tenant + "/functions/table-" + t.language
		body, err := json.Marshal(api.FunctionRequest{Language: t.language, Code: t.code})
		if err != nil {
			return nil, err
		}
		text, err := call(ctx, sys.API, "PUT", path, body)
		if err != nil {
			return nil, err
		}
		var f api.Function
		if err := json.Unmarshal(text, &f); err != nil {
			return nil, err
		}
		if !f.Snapshot {
			return nil, fmt.Errorf("the function has no snapshot: %s", f.SnapshotReason)
		}
		groups = append(groups, []step{
			{t.name + " that makes a table, as a run", increment(sys.API, tenant, t.language, t.code)},
			{"…as a deployed function", incrementAt(sys.API, path+"/invoke", []byte(`{"input":1}`))},
		})
	}
	return groups, nil
}
