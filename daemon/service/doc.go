// Package service calls services of this host on their Unix sockets, for
// bindings that are not answered by the run's own caller. Package daemon uses
// it, and daemon/pgquery for its connections.
//
// The protocol for tools: for each call the daemon connects, sends one request
//
//	POST /call HTTP/1.1
//	Content-Type: application/json
//
//	{"call_id": "…", "tenant": "alice", "run_id": "run-…",
//	 "binding": "search", "method": "find", "args": [{"q": "lamp"}]}
//
// and reads one answer with status 200:
//
//	{"result": ANY}    or    {"error": {"message": "shown to the code"}}
//
// Binary data is {"$bytes": "base64"} in arguments and results. A call is never
// sent twice; call_id is unique, so that a service can tell. When the run ends
// or cancels the call, the connection is closed. Who the tenant is, the daemon
// says; what the arguments say is hostile.
//
// Whoever opened the socket must be root, the daemon's own user or the one that
// the policy names: the kernel says who did (SO_PEERCRED), so that nobody else
// can answer in the service's place.
//
// It may import policy. It must never show a path of this host to code, nor
// repeat a call.
package service
