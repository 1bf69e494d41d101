package api

import (
	"encoding/json"
	"time"

	"sandboxd/policy"
)

// KVList lists keys.
type KVList struct {
	Keys []string `json:"keys"`
	// Cursor is passed as after to go on; empty at the end.
	Cursor string `json:"cursor,omitempty"`
}

// SQLRequest is one statement for the tenant's database.
type SQLRequest struct {
	SQL    string            `json:"sql" required:"true" min:"1" max:"1048576"`
	Params []json.RawMessage `json:"params,omitempty" max:"1000" doc:"Strings, numbers, booleans or null."`
}

// Rows is the answer of a query.
type Rows struct {
	Columns   []string `json:"columns"`
	Rows      [][]any  `json:"rows"`
	Truncated bool     `json:"truncated,omitempty"`
}

// Executed is the answer of a statement that writes.
type Executed struct {
	Changes      int64 `json:"changes"`
	LastInsertID int64 `json:"last_insert_id"`
}

// PolicyView is what a tenant may do.
type PolicyView struct {
	Tenant  string          `json:"tenant"`
	Profile *policy.Profile `json:"profile"`
	Grants  []policy.Grant  `json:"grants" doc:"Each value with the file and line that granted it."`
}

// PolicyCheckRequest is a policy to be checked.
type PolicyCheckRequest struct {
	Policy string `json:"policy" doc:"The file's content, YAML."`
	Name   string `json:"name,omitempty" doc:"The file's name."`
}

// PolicyCheck says what is wrong with it.
type PolicyCheck struct {
	OK       bool            `json:"ok"`
	Problems []PolicyProblem `json:"problems" doc:"All faults, in the file's order."`
}

// PolicyProblem is one fault. Line and Column are 0 when it has no place.
type PolicyProblem struct {
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Field   string `json:"field,omitempty" doc:"Path of the key, such as profiles.skill.egress[0].host."`
	Message string `json:"message" doc:"What is wrong and what to write instead."`
}

// PolicyReload says what a new policy came to.
type PolicyReload struct {
	File   string `json:"file"`
	Egress int    `json:"egress" doc:"Tenants whose rules for outgoing requests were held against it."`
	Runs   int    `json:"runs_ended" doc:"Runs in isolates that it does not grant."`
	Jails  int    `json:"jails_ended" doc:"Jails that it does not grant."`
}

// JailSpares are the jails that are kept ready for tenants that come.
type JailSpares struct {
	Size      int    `json:"size" doc:"How many there are to be."`
	Ready     int    `json:"ready"`
	Taken     uint64 `json:"taken"`
	Missed    uint64 `json:"missed" doc:"Jails that were made while somebody waited, for want of a ready one."`
	Failed    uint64 `json:"failed" doc:"How often one could not be made."`
	LastError string `json:"last_error,omitempty"`
}

// Egress tells how the egress proxy fares.
type Egress struct {
	Running  bool      `json:"running"`
	Pid      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since" doc:"When it began to run, or when the last one ended."`
	Restarts int       `json:"restarts" doc:"How often one took the place of one that died."`
	Problem  string    `json:"problem,omitempty" doc:"Why the last one ended or did not start."`
	Packages *Packages `json:"packages,omitempty" doc:"What rules with cache: packages have kept."`
}

// Packages is how much the package cache holds.
type Packages struct {
	Answers int         `json:"answers"`
	Bytes   policy.Size `json:"bytes"`
	Limit   policy.Size `json:"limit"`
}

// Status of the daemon. Who is no administrator is told of the tenants that he
// may act for alone: counts are of those, as far as their runs are kept, and what
// is the host's own is left out.
type Status struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	State    string    `json:"state" enum:"starting,ready,stopping"`
	Mode     string    `json:"mode" enum:"serve,dev"`
	Pid      int       `json:"pid,omitempty" doc:"For administrators, as are policy, sockets, preview, warnings, isolates, startup and errors."`
	Policy   string    `json:"policy,omitempty" doc:"File, or a word for the built-in one."`
	Sockets  []string  `json:"sockets"`
	Preview  string    `json:"preview,omitempty" doc:"Address of the preview listener."`
	Warnings []string  `json:"warnings,omitempty" doc:"Limits this host cannot enforce and the like."`
	// Limits is "enforced" or "best-effort".
	Limits   string         `json:"limits" enum:"enforced,best-effort"`
	Isolates *IsolatePool   `json:"isolates,omitempty"`
	Egress   *Egress        `json:"egress,omitempty" doc:"For administrators."`
	Jails    int            `json:"jails"`
	Spares   *JailSpares    `json:"spares,omitempty" doc:"For administrators: jails that are kept ready."`
	Runs     RunCounts      `json:"runs"`
	Audit    AuditState     `json:"audit"`
	Startup  []StartupStep  `json:"startup,omitempty"`
	Errors   map[string]int `json:"errors,omitempty" doc:"Error answers by code since the start."`
}

// IsolatePool tells what the pool holds.
type IsolatePool struct {
	Workers int    `json:"workers"`
	Tenants int    `json:"tenant_workers" doc:"Workers that belong to one tenant each (Wasm, isolation: strict)."`
	Running int    `json:"running"`
	Runs    uint64 `json:"runs"`
	Killed  uint64 `json:"killed"`
	// Preparing is empty once all languages are there.
	Preparing string `json:"preparing,omitempty" doc:"What is being done for a language that is not ready yet, and how far that is. Runs in it wait."`
}

// RunCounts counts runs and execs since the start.
type RunCounts struct {
	Running int    `json:"running"`
	Total   uint64 `json:"total"`
	Execs   uint64 `json:"execs"`
}

// AuditState is the end of the audit chain.
type AuditState struct {
	Seq   uint64 `json:"seq"`
	Hash  string `json:"hash,omitempty"`
	Error string `json:"error,omitempty" doc:"Why nothing new can be recorded, and so nothing new runs."`
}

// StartupStep is one part of the start and how long it took.
type StartupStep struct {
	Name     string          `json:"name"`
	Duration policy.Duration `json:"duration"`
}

// Doctor is what this host offers.
type Doctor struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// Check is one feature of the host.
type Check struct {
	Name        string `json:"name"`
	Status      string `json:"status" enum:"ok,warn,missing" doc:"warn: something is weaker for it; missing: sandboxd cannot do its job."`
	Found       string `json:"found"`
	Needed      string `json:"needed,omitempty"`
	Consequence string `json:"consequence,omitempty"`
	Remedy      string `json:"remedy,omitempty"`
}

// AuditVerdict says whether the audit log is whole.
type AuditVerdict struct {
	OK      bool          `json:"ok"`
	Records uint64        `json:"records"`
	Files   int           `json:"files"`
	Last    string        `json:"last,omitempty" doc:"Hash of the last record."`
	Problem *AuditProblem `json:"problem,omitempty"`
}

// AuditProblem is the first line that breaks the chain.
type AuditProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Kind    string `json:"kind" enum:"changed,missing,reordered,truncated"`
	Message string `json:"message"`
}

// Health is the answer of /healthz.
type Health struct {
	Status string `json:"status" enum:"ok,starting,stopping"`
}
