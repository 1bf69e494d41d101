// Package pgquery makes the named queries of the policy on a PostgreSQL of the
// operator's, for bindings of the type sql. Package daemon calls it.
//
// The text of a query is the operator's; code gives the values of its
// parameters, and never that of $1, which is the tenant. A query runs in a
// transaction that only reads and is always rolled back, over the extended
// protocol, with the server's statement_timeout and with bounds on rows and
// bytes. Connections are few, and shared by the tenants.
//
// The daemon connects over the server's Unix socket and is known by its user
// (peer authentication). There is no password: a server that asks for one is
// refused, and neither the environment nor a file of passwords is looked at.
// Who opened the socket is checked as for every service (daemon/service).
//
// It may import policy and daemon/service. It must never put a value of a tenant
// into the text of a statement, nor show code what the server says of the
// operator's tables.
package pgquery
