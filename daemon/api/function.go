package api

import (
	"encoding/json"
	"time"

	"sandboxd/policy"
)

// FunctionRequest deploys a function: code that is checked and prepared once and
// run many times. Each run of it begins as if it were the first.
type FunctionRequest struct {
	Language      string                    `json:"language" required:"true" enum:"js,ts,python,wasm" doc:"Language of the code."`
	Code          string                    `json:"code,omitempty" doc:"The code, when it is one file."`
	Modules       map[string]string         `json:"modules,omitempty" max:"1000" doc:"File names and their source, in place of code."`
	Main          string                    `json:"main,omitempty" max:"1024" doc:"The entry among modules."`
	Args          []string                  `json:"args,omitempty" max:"256" doc:"Arguments after the program's name (wasm)."`
	Env           map[string]string         `json:"env,omitempty" max:"256" doc:"Plain strings for the code of every call. Not for secrets: they are visible to it."`
	Bindings      map[string]BindingRequest `json:"bindings,omitempty" max:"64" doc:"The most that a call may hold; all that policy grants by default."`
	Outbound      *Outbound                 `json:"outbound,omitempty" doc:"Outgoing requests of every call; null, the default, means none."`
	Limits        *policy.Limits            `json:"limits,omitempty" doc:"The most that a call may use, at most what policy grants."`
	Deterministic *Deterministic            `json:"deterministic,omitempty" doc:"Fixed randomness and clock of every call that asks for no other."`
}

// InvokeRequest runs a deployed function once.
type InvokeRequest struct {
	Input         json.RawMessage           `json:"input,omitempty" doc:"Any JSON value: the function's first argument."`
	Env           map[string]string         `json:"env,omitempty" max:"256" doc:"Beside the deployment's, and in place of those with the same name."`
	Bindings      map[string]BindingRequest `json:"bindings,omitempty" max:"64" doc:"Fewer than the deployment's; those by default."`
	Outbound      *Outbound                 `json:"outbound,omitempty" doc:"Fewer hosts than the deployment's; those by default."`
	Limits        *policy.Limits            `json:"limits,omitempty" doc:"Lower limits than the deployment's and policy's."`
	Deterministic *Deterministic            `json:"deterministic,omitempty" doc:"Fixed randomness and clock."`
	Record        bool                      `json:"record,omitempty" doc:"Keep what a replay needs, as for a run."`
	RunID         string                    `json:"run_id,omitempty" max:"128" doc:"The caller's own; the same id again follows or returns, never runs twice."`
}

// Function is a deployed function.
type Function struct {
	Name           string    `json:"name" required:"true"`
	Language       string    `json:"language,omitempty"`
	CodeSHA256     string    `json:"code_sha256,omitempty"`
	Created        time.Time `json:"created,omitzero" doc:"When this code was deployed."`
	Size           int64     `json:"size,omitempty" doc:"Bytes that count against the tenant's bound."`
	Snapshot       bool      `json:"snapshot" doc:"Whether calls begin with the module evaluated already."`
	SnapshotReason string    `json:"snapshot_reason,omitempty" doc:"Why they do not."`
	Invocations    uint64    `json:"invocations" doc:"Calls since this code was deployed; those of up to a minute before a crash of the daemon may be missing (the audit log has all)."`
	LastUsed       time.Time `json:"last_used,omitzero"`
	Error          string    `json:"error,omitempty" doc:"Why this deployment cannot be used; deploy it again or delete it."`
}

// FunctionList are a tenant's functions by name.
type FunctionList struct {
	Functions []Function `json:"functions"`
}
