package api

import "reflect"

// A Route is one operation of the API. The daemon registers a handler for each
// by its Name; a test keeps the two equal.
type Route struct {
	Name    string
	Method  string
	Pattern string // net/http ServeMux pattern without the method
	Summary string
	// Admin routes need the admin socket or a caller that policy makes admin.
	Admin bool
	// Tenant routes need a caller that may act for {tenant}.
	Tenant bool
	// Request is the JSON body's type, nil if there is none.
	Request reflect.Type
	// Response is the JSON answer's type, nil if there is none.
	Response reflect.Type
	// Stream routes answer as application/x-ndjson of Event when asked to.
	Stream bool
	// RawRequest and RawResponse carry bytes instead of JSON.
	RawRequest, RawResponse string // media type
	Query                   []Query
	Status                  int // of success; 0 means 200
}

// Query is a query parameter; an unknown one is refused by name.
type Query struct {
	Name, Type, Doc string // Type: string, integer, boolean, duration, time
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

const (
	tenantPath  = "/v1/tenants/{tenant}"
	jailPath    = tenantPath + "/jail"
	processPath = jailPath + "/processes/{exec}"
	octets      = "application/octet-stream"
	tarType     = "application/x-tar"

	templatePath = "/v1/templates/{template}"

	functionPath = tenantPath + "/functions/{function}"
	secretPath   = "/v1/secrets/{secret}"
)

// ofTenant tells runs apart to which several tenants' callers gave the same id.
var ofTenant = []Query{{"tenant", "string", "Whose run, where several tenants have one with this id."}}

var eventsQuery = []Query{
	{"after", "integer", "Only events with a higher seq; what is no longer kept is 410. Without it, from the oldest that is kept."},
	{"follow", "boolean", "Go on until the end."},
}

var streamQuery = []Query{{"stream", "boolean", "Answer as a stream, as with Accept: application/x-ndjson."}}

// Routes are all operations.
var Routes = []Route{
	{Name: "run", Method: "POST", Pattern: tenantPath + "/run", Tenant: true, Stream: true, Summary: "Run code once.",
		Request: typeOf[RunRequest](), Response: typeOf[Run](), Query: streamQuery},
	{Name: "runs", Method: "GET", Pattern: "/v1/runs", Summary: "Records of runs, newest first.", Response: typeOf[RunList](),
		Query: []Query{{"tenant", "string", "Only this tenant's."}, {"since", "time", "Only those started since."},
			{"status", "string", "Only those with this status."}, {"limit", "integer", "At most so many; 100 by default, 1000 at most."}}},
	{Name: "run-get", Method: "GET", Pattern: "/v1/runs/{run}", Summary: "One run's record.", Response: typeOf[Run](), Query: ofTenant},
	{Name: "run-events", Method: "GET", Pattern: "/v1/runs/{run}/events", Summary: "A run's events; 410 when they are no longer kept.",
		Stream: true, Query: append(ofTenant, eventsQuery...)},
	{Name: "run-cancel", Method: "DELETE", Pattern: "/v1/runs/{run}", Summary: "End a run.", Response: typeOf[Run](), Query: ofTenant},
	{Name: "run-call", Method: "POST", Pattern: "/v1/runs/{run}/calls/{call}", Summary: "Answer a call of the caller's own tool.",
		Request: typeOf[ToolAnswer](), Status: 204, Query: ofTenant},
	{Name: "run-replay", Method: "POST", Pattern: "/v1/runs/{run}/replay", Stream: true, Summary: "Run a recorded run again from its recorded answers, without any effect; 410 when the recording is no longer kept.",
		Request: typeOf[ReplayRequest](), Response: typeOf[Run](), Query: append(ofTenant, streamQuery...)},

	{Name: "functions", Method: "GET", Pattern: tenantPath + "/functions", Tenant: true, Summary: "Deployed functions.", Response: typeOf[FunctionList]()},
	{Name: "function-deploy", Method: "PUT", Pattern: functionPath, Tenant: true, Summary: "Deploy a function, in place of the one of that name.",
		Request: typeOf[FunctionRequest](), Response: typeOf[Function](),
		Query: []Query{{"replaces", "string", "Only if the code deployed now has this code_sha256; \"none\": only if there is none. Else 409."}}},
	{Name: "function-get", Method: "GET", Pattern: functionPath, Tenant: true, Summary: "One deployed function.", Response: typeOf[Function]()},
	{Name: "function-delete", Method: "DELETE", Pattern: functionPath, Tenant: true, Summary: "Delete a function; runs under way end as they would. Idempotent.", Status: 204},
	{Name: "function-invoke", Method: "POST", Pattern: functionPath + "/invoke", Tenant: true, Stream: true, Summary: "Run a deployed function once.",
		Request: typeOf[InvokeRequest](), Response: typeOf[Run](), Query: streamQuery},

	{Name: "jails", Method: "GET", Pattern: "/v1/jails", Summary: "Jails of the tenants that the caller may act for.", Response: typeOf[JailList]()},
	{Name: "jail-create", Method: "PUT", Pattern: jailPath, Tenant: true, Summary: "Create the jail or return the one there is.",
		Request: typeOf[JailRequest](), Response: typeOf[Jail]()},
	{Name: "jail-get", Method: "GET", Pattern: jailPath, Tenant: true, Summary: "The jail's state.", Response: typeOf[Jail]()},
	{Name: "jail-update", Method: "PATCH", Pattern: jailPath, Tenant: true, Summary: "Change limits, idle_timeout, max_lifetime and lease of the jail there is, up to what policy grants, all or nothing. Template, env and workspace need a new jail (409).",
		Request: typeOf[JailRequest](), Response: typeOf[Jail]()},
	{Name: "jail-delete", Method: "DELETE", Pattern: jailPath, Tenant: true, Summary: "End the jail and delete all it owns, the workspace too; idempotent.", Status: 204},
	{Name: "jail-touch", Method: "POST", Pattern: jailPath + "/touch", Tenant: true, Summary: "Count as activity.", Response: typeOf[Jail]()},
	{Name: "jail-freeze", Method: "POST", Pattern: jailPath + "/freeze", Tenant: true, Summary: "Stop its processes until the next request.", Response: typeOf[Jail]()},
	{Name: "jail-thaw", Method: "POST", Pattern: jailPath + "/thaw", Tenant: true, Summary: "Let its processes go on.", Response: typeOf[Jail]()},

	{Name: "exec", Method: "POST", Pattern: jailPath + "/exec", Tenant: true, Stream: true, Summary: "Run a command in the jail.",
		Request: typeOf[ExecRequest](), Response: typeOf[Process](), Query: streamQuery},
	{Name: "processes", Method: "GET", Pattern: jailPath + "/processes", Tenant: true, Summary: "Commands of the jail.", Response: typeOf[ProcessList]()},
	{Name: "process-get", Method: "GET", Pattern: processPath, Tenant: true, Summary: "One command.", Response: typeOf[Process]()},
	{Name: "process-events", Method: "GET", Pattern: processPath + "/events", Tenant: true, Stream: true, Summary: "A command's events.", Query: eventsQuery},
	{Name: "process-signal", Method: "POST", Pattern: processPath + "/signal", Tenant: true, Summary: "Signal it.", Request: typeOf[SignalRequest](), Status: 204},
	{Name: "process-stdin", Method: "POST", Pattern: processPath + "/stdin", Tenant: true, Summary: "Write to its standard input.",
		RawRequest: octets, Status: 204, Query: []Query{{"close", "boolean", "Close it afterwards; on a terminal: type the end-of-file character."}}},
	{Name: "process-resize", Method: "POST", Pattern: processPath + "/resize", Tenant: true, Summary: "Change the size of its terminal.", Request: typeOf[TTY](), Status: 204},
	{Name: "process-tty", Method: "GET", Pattern: processPath + "/tty", Tenant: true, Status: 101,
		Summary: "Its terminal as a WebSocket. Each frame that comes is one event, so that seq counts frames from after on: binary for output, text for the others, as JSON (Event). Each that is sent is input if binary, or a TerminalControl as JSON text. Any number may be open; one that breaks off continues with after.",
		Query:   []Query{{"after", "integer", "Only events with a higher seq."}}},
	{Name: "process-wait", Method: "POST", Pattern: processPath + "/wait", Tenant: true, Summary: "Wait for its port, its output or its end.",
		Request: typeOf[WaitRequest](), Response: typeOf[WaitAnswer]()},
	{Name: "process-delete", Method: "DELETE", Pattern: processPath, Tenant: true, Summary: "Kill its whole tree; idempotent.", Status: 204},

	{Name: "ports", Method: "GET", Pattern: jailPath + "/ports", Tenant: true, Summary: "Published ports.", Response: typeOf[PortList]()},
	{Name: "port-expose", Method: "POST", Pattern: jailPath + "/ports/{port}", Tenant: true, Summary: "Publish a port.", Request: typeOf[PortRequest](), Response: typeOf[Port]()},
	{Name: "port-get", Method: "GET", Pattern: jailPath + "/ports/{port}", Tenant: true, Summary: "One published port.", Response: typeOf[Port]()},
	{Name: "port-close", Method: "DELETE", Pattern: jailPath + "/ports/{port}", Tenant: true, Summary: "Stop publishing it; idempotent.", Status: 204},

	{Name: "file-get", Method: "GET", Pattern: jailPath + "/files/{path...}", Tenant: true, Summary: "Read a file, or with stat or list describe it (FileInfo, FileList).",
		RawResponse: octets, Response: typeOf[FileList](), Query: []Query{{"stat", "boolean", "Answer a FileInfo."}, {"list", "boolean", "Answer a FileList."}, {"depth", "integer", "Levels to list; 1 by default, 16 at most."}}},
	{Name: "file-put", Method: "PUT", Pattern: jailPath + "/files/{path...}", Tenant: true, Summary: "Write a file.", RawRequest: octets, Status: 204,
		Query: []Query{{"mode", "string", "Permission bits, octal; 0644 by default."}, {"append", "boolean", "Add to the end in place of replacing the file in one step."}}},
	{Name: "file-post", Method: "POST", Pattern: jailPath + "/files/{path...}", Tenant: true, Summary: "Change a file or folder: exactly one of mkdir, rename and chmod.", Status: 204,
		Query: []Query{{"mkdir", "boolean", "Make a folder and those above it; it may be there."}, {"rename", "boolean", "Move it to to."}, {"chmod", "boolean", "Set its permission bits to mode."},
			{"to", "string", "The new path."}, {"overwrite", "boolean", "Let a rename replace what is at to."}, {"mode", "string", "Permission bits, octal."}}},
	{Name: "file-delete", Method: "DELETE", Pattern: jailPath + "/files/{path...}", Tenant: true, Summary: "Delete a file or a tree; idempotent.", Status: 204},
	{Name: "archive-get", Method: "GET", Pattern: jailPath + "/archive", Tenant: true, Summary: "A folder's content, or a file, as a tar. An answer that breaks off is not complete.",
		RawResponse: tarType, Query: []Query{{"path", "string", "/workspace by default."}}},
	{Name: "archive-put", Method: "PUT", Pattern: jailPath + "/archive", Tenant: true, Summary: "Unpack a tar into a folder, as the tenant.",
		RawRequest: tarType, Response: typeOf[ArchiveReport](), Query: []Query{{"path", "string", "/workspace by default; made if it is not there."}}},
	{Name: "watch", Method: "GET", Pattern: jailPath + "/watch", Tenant: true, Stream: true, Summary: "Changes of a folder, until the connection or the jail ends: started, then file and overflow events.",
		Query: []Query{{"path", "string", "/workspace by default."}, {"recursive", "boolean", "Also the folders beneath; true by default."}}},
	{Name: "snapshots", Method: "GET", Pattern: jailPath + "/snapshots", Tenant: true, Summary: "Snapshots of the tenant's files, oldest first.", Response: typeOf[SnapshotList]()},
	{Name: "snapshot-create", Method: "POST", Pattern: jailPath + "/snapshots", Tenant: true, Summary: "Copy workspace and home as they are at one moment; the jail stands still meanwhile.",
		Request: typeOf[SnapshotRequest](), Response: typeOf[Snapshot](), Status: 201},
	{Name: "snapshot-delete", Method: "DELETE", Pattern: jailPath + "/snapshots/{snapshot}", Tenant: true, Summary: "Delete a snapshot, or give up one that is being made; idempotent.", Status: 204},
	{Name: "snapshot-restore", Method: "POST", Pattern: jailPath + "/snapshots/{snapshot}/restore", Tenant: true, Summary: "Put a snapshot in place of the files, all or nothing. The jail's commands end; it is made anew.",
		Response: typeOf[Snapshot]()},
	{Name: "export", Method: "GET", Pattern: jailPath + "/export", Tenant: true, Summary: "Workspace and home at one moment as a tar: a snapshot's, or as they are now.",
		RawResponse: tarType, Query: []Query{{"snapshot", "string", "Its id; without one the files as they are now."}}},
	{Name: "diff", Method: "GET", Pattern: jailPath + "/diff", Tenant: true, Summary: "Paths that have changed since the jail was created (what was deleted shows in its folder) or since a snapshot.", Response: typeOf[Diff](),
		Query: []Query{{"since", "string", "A snapshot's id."}}},
	{Name: "git", Method: "POST", Pattern: jailPath + "/git", Tenant: true, Stream: true, Summary: "Clone a repository with the jail's git.",
		Request: typeOf[GitRequest](), Response: typeOf[Process](), Query: streamQuery},

	{Name: "kv-list", Method: "GET", Pattern: tenantPath + "/kv", Tenant: true, Summary: "Keys.", Response: typeOf[KVList](),
		Query: []Query{{"prefix", "string", "Only keys that start so."}, {"after", "string", "Go on after this key."}, {"limit", "integer", "At most so many; 1000 at most."}}},
	{Name: "kv-get", Method: "GET", Pattern: tenantPath + "/kv/{key...}", Tenant: true, Summary: "A value.", RawResponse: "application/json"},
	{Name: "kv-put", Method: "PUT", Pattern: tenantPath + "/kv/{key...}", Tenant: true, Summary: "Store a JSON value.", RawRequest: "application/json", Status: 204},
	{Name: "kv-delete", Method: "DELETE", Pattern: tenantPath + "/kv/{key...}", Tenant: true, Summary: "Delete a value; idempotent.", Status: 204},
	{Name: "db-query", Method: "POST", Pattern: tenantPath + "/db/query", Tenant: true, Summary: "Read the tenant's database.", Request: typeOf[SQLRequest](), Response: typeOf[Rows]()},
	{Name: "db-exec", Method: "POST", Pattern: tenantPath + "/db/exec", Tenant: true, Summary: "Change the tenant's database.", Request: typeOf[SQLRequest](), Response: typeOf[Executed]()},

	{Name: "templates", Method: "GET", Pattern: "/v1/templates", Admin: true, Summary: "Imported root file systems.", Response: typeOf[TemplateList]()},
	{Name: "template-get", Method: "GET", Pattern: templatePath, Admin: true, Summary: "One of them.", Response: typeOf[Template]()},
	{Name: "template-import", Method: "PUT", Pattern: templatePath, Admin: true, Stream: true,
		Summary:    "Import a root file system, in place of the one of that name: a tar, an OCI layout or what docker save writes, plain or compressed with gzip or zstd. All or nothing.",
		RawRequest: octets, Response: typeOf[Template](), Status: 201,
		Query: append([]Query{{"path", "string", "A folder or archive on the daemon's host, in place of a body."}}, streamQuery...)},
	{Name: "template-delete", Method: "DELETE", Pattern: templatePath, Admin: true, Summary: "Remove a template; jails that have it keep it until they end. Idempotent.", Status: 204},
	{Name: "secrets", Method: "GET", Pattern: "/v1/secrets", Admin: true, Summary: "Credentials by name: where each comes from, when it changed, which rules send it. Never a value.", Response: typeOf[SecretList]()},
	{Name: "secret-set", Method: "PUT", Pattern: secretPath, Admin: true, Status: 101,
		Summary: "Store a credential or replace it; the next request that a rule gives it to has the new value. Ask with Upgrade: " + SecretProtocol + " and no body. After 101 send four bytes of length, most significant first, and the value: they go to the proxy process past the daemon. Then comes one line of JSON: Secret, or an error."},
	{Name: "secret-delete", Method: "DELETE", Pattern: secretPath, Admin: true, Summary: "Delete a stored credential; rules that name it refuse. Idempotent.", Status: 204},

	{Name: "tenant-delete", Method: "DELETE", Pattern: tenantPath, Admin: true, Tenant: true, Status: 204,
		Summary: "End and delete all there is of a tenant: runs, jail, files and snapshots, functions, recordings, KV and database. The audit log keeps its records; policy is not changed. Idempotent."},
	{Name: "policy", Method: "GET", Pattern: tenantPath + "/policy", Tenant: true, Summary: "What the tenant may do.", Response: typeOf[PolicyView]()},
	{Name: "policy-check", Method: "POST", Pattern: "/v1/policy/check", Summary: "Say what is wrong with a policy file.", Request: typeOf[PolicyCheckRequest](), Response: typeOf[PolicyCheck]()},
	{Name: "policy-reload", Method: "POST", Pattern: "/v1/policy/reload", Admin: true, Summary: "Read the policy file again and put it in force, all or nothing.", Response: typeOf[PolicyReload]()},
	{Name: "status", Method: "GET", Pattern: "/v1/status", Summary: "The daemon's state.", Response: typeOf[Status]()},
	{Name: "doctor", Method: "GET", Pattern: "/v1/doctor", Summary: "What this host offers and lacks.", Response: typeOf[Doctor]()},
	{Name: "audit-verify", Method: "GET", Pattern: "/v1/audit/verify", Admin: true, Summary: "Check the audit log's chain.", Response: typeOf[AuditVerdict]()},
	{Name: "openapi", Method: "GET", Pattern: "/v1/openapi.json", Summary: "This document.", RawResponse: "application/json"},
	{Name: "health", Method: "GET", Pattern: "/healthz", Summary: "200 when requests are served.", Response: typeOf[Health]()},
	{Name: "metrics", Method: "GET", Pattern: "/metrics", Summary: "Prometheus metrics.", RawResponse: "text/plain"},
}

// RouteByName finds a route; ok is false if there is none.
func RouteByName(name string) (r Route, ok bool) {
	for _, r := range Routes {
		if r.Name == name {
			return r, true
		}
	}
	return Route{}, false
}
