package daemon

import (
	"strings"
	"testing"

	"sandboxd/daemon/api"
	"sandboxd/daemon/pgquery/pgtest"
)

// TestNamedQueries: code makes the policy's queries on a real PostgreSQL, for
// its own tenant.
func TestNamedQueries(t *testing.T) {
	server, err := pgtest.Start(within(t), `create table orders (tenant text, id bigint, picture bytea); grant select on orders to sandbox;
		insert into orders values ('t-a', 1, '\x00ff'), ('t-a', 9007199254740993, null), ('t-b', 2, null);`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	d := startDaemonWith(t, `version: 1
callers:
  - {uid: 0, tenants: ["t-*"]}
profiles:
  all:
    isolate:
      languages: [js]
      limits: {wall: 20s, cpu: 1s}
      bindings:
        orders:
          type: sql
          socket: `+server.Socket+`
          user: `+pgtest.User+`
          database: `+pgtest.Database+`
          role: `+pgtest.Role+`
          queries:
            all: {sql: "select id, picture from orders where tenant = $1 order by id"}
            by_id: {sql: "select id from orders where tenant = $1 and id = $2", params: [{id: {type: integer}}]}
            broken: {sql: "select * from elsewhere where tenant = $1"}
tenants:
  "t-*": {profile: all}
`)
	code := caught + `export default async (_, env) => {
		const all = await env.orders.all();
		return [all, all[0].picture instanceof Uint8Array, await env.orders.by_id({id: 2}), await caught(() => env.orders.by_id("2")), await caught(() => env.orders.broken())];
	}`
	for tenant, want := range map[string]string{
		"t-a": `[[{"id":1,"picture":{"$bytes":"AP8="}},{"id":"9007199254740993","picture":null}],true,[],`,
		"t-b": `[[{"id":2,"picture":null}],false,[{"id":2}],`,
	} {
		r, err := d.api.Run(within(t), tenant, js(code))
		if err != nil {
			t.Fatal(err)
		}
		want += `"BindingError: orders.by_id: parameter id is the string \"2\"; must be an integer",` +
			`"BindingError: orders.broken: the query failed through no fault of this code (SQLSTATE 42P01); the daemon's log says more"]`
		if string(r.Result) != want || len(r.Calls) != 4 || r.Calls[0].Status != "ok" || r.Calls[2].Status != "invalid_args" || r.Calls[3].Status != "error" {
			t.Errorf("%s: got %s %+v %+v\nwant %s", tenant, r.Result, r.Error, r.Calls, want)
		}
	}
	r, err := d.api.Run(within(t), "t-a", &api.RunRequest{Language: "js", Code: "export default (_, env) => env.orders.all()",
		Bindings: map[string]api.BindingRequest{"orders": {Methods: api.MethodList("by_id")}}})
	if err != nil || r.Error == nil || !strings.Contains(r.Error.Message, "has no method all") {
		t.Errorf("a query that was not asked for: %+v, %v", r, err)
	}
}
