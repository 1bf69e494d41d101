package api

import (
	"encoding/json"
	"time"

	"sandboxd/policy"
)

// RunRequest runs code once.
type RunRequest struct {
	Language      string                    `json:"language" required:"true" enum:"js,ts,python,wasm,shell" doc:"Language of the code."`
	Code          string                    `json:"code,omitempty" doc:"The code, when it is one file; a Wasm module in base64."`
	Modules       map[string]string         `json:"modules,omitempty" max:"1000" doc:"File names and their source, in place of code. For wasm the main and .wasm files are base64, and so is what begins with base64: ; the others are text. Files beside main are in the file system that the module sees."`
	Main          string                    `json:"main,omitempty" max:"1024" doc:"The entry among modules."`
	Args          []string                  `json:"args,omitempty" max:"256" doc:"Arguments after the program's name (wasm)."`
	Input         json.RawMessage           `json:"input,omitempty" doc:"Any JSON value: the function's first argument; in a jail, the program's standard input."`
	Env           map[string]string         `json:"env,omitempty" max:"256" doc:"Plain strings for the code. Not for secrets: they are visible to it."`
	Needs         []string                  `json:"needs,omitempty" max:"8" enum:"filesystem,process,packages" doc:"What of Linux the step needs; empty means an isolate."`
	Bindings      map[string]BindingRequest `json:"bindings,omitempty" max:"64" doc:"Bindings to hold, by the names that policy grants; none by default."`
	Outbound      *Outbound                 `json:"outbound,omitempty" doc:"Outgoing requests; null, the default, means none."`
	Limits        *policy.Limits            `json:"limits,omitempty" doc:"Lower limits than policy grants."`
	Deterministic *Deterministic            `json:"deterministic,omitempty" doc:"Fixed randomness and clock; what is not given is chosen. Time stands still but when the code waits for its next timer and for no call; cpu is counted in work done."`
	Record        bool                      `json:"record,omitempty" doc:"Keep what a replay needs, which makes the run deterministic."`
	Environment   string                    `json:"environment,omitempty" enum:"isolate,jail" doc:"Forces one; an error says why when it is the wrong one."`
	RunID         string                    `json:"run_id,omitempty" max:"128" doc:"The caller's own; the same id again follows or returns, never runs twice."`
}

// BindingRequest asks for one binding.
type BindingRequest struct {
	Methods *Methods `json:"methods,omitempty" doc:"Fewer methods than policy grants: names, or names with JSON Schemas that hold beside the policy's (tools)."`
}

// Outbound asks for outgoing requests.
type Outbound struct {
	Allow []string `json:"allow" required:"true" max:"256" doc:"Hosts, exact or \"*.suffix\", at most what policy grants."`
}

// Deterministic fixes what a run sees of randomness and time.
type Deterministic struct {
	Seed  *uint64    `json:"seed,omitempty"`
	Clock *time.Time `json:"clock,omitempty"`
}

// Status of a run.
const (
	StatusRunning = "running"
	StatusOK      = "ok"
	StatusError   = "error"
	StatusRefused = "refused"
	StatusKilled  = "killed"
)

// Environments.
const (
	EnvironmentIsolate = "isolate"
	EnvironmentJail    = "jail"
)

// Run is the answer of a run, the payload of its last event and its record.
type Run struct {
	RunID       string          `json:"run_id" required:"true"`
	Tenant      string          `json:"tenant" required:"true"`
	Environment string          `json:"environment,omitempty" enum:"isolate,jail"`
	Language    string          `json:"language,omitempty"`
	Function    string          `json:"function,omitempty" doc:"The deployed function that ran."`
	Status      string          `json:"status" required:"true" enum:"running,ok,error,refused,killed"`
	Result      json.RawMessage `json:"result,omitempty" doc:"What the function returned. Of a Wasm program: what it gave to sandboxd.result, else its standard output if that is one JSON value."`
	ExitCode    *int            `json:"exit_code,omitempty" doc:"Of a run in a jail, from waitid; of a Wasm program that ended by itself."`
	Signal      string          `json:"signal,omitempty"`
	Stdout      string          `json:"stdout,omitempty" doc:"Hostile text; bytes that are not UTF-8 are replaced here and exact in the events."`
	Stderr      string          `json:"stderr,omitempty"`
	Truncated   bool            `json:"truncated,omitempty" doc:"Output beyond the limit was dropped."`
	Logs        []LogEntry      `json:"logs,omitempty"`
	Error       *Error          `json:"error,omitempty"`
	Phase       string          `json:"phase" required:"true" enum:"not_started,started,effects_possible,finished" doc:"How far it came, so that a caller knows whether to retry."`
	Usage       Usage           `json:"usage"`
	Denials     []Denial        `json:"denials,omitempty"`
	Calls       []CallRecord    `json:"calls,omitempty"`
	CodeSHA256  string          `json:"code_sha256,omitempty"`
	// Deterministic is what the run was given, chosen or asked for.
	Deterministic *Deterministic `json:"deterministic,omitempty"`
	Recording     *Recording     `json:"recording,omitempty"`
	Replay        *Replay        `json:"replay,omitempty" doc:"Set when the run is a replay."`
	Receipt       *Receipt       `json:"receipt,omitempty" doc:"The run's line in the audit log."`
	Started       time.Time      `json:"started"`
	Ended         time.Time      `json:"ended,omitzero"`
}

// Usage of a run or an exec, each with its limit.
type Usage struct {
	Wall       DurationUse `json:"wall"`
	CPU        DurationUse `json:"cpu"`
	MemoryPeak CountUse    `json:"memory_peak"`
	Requests   CountUse    `json:"requests"`
	Output     CountUse    `json:"output"`
	BytesOut   CountUse    `json:"bytes_out"`
	BytesIn    CountUse    `json:"bytes_in"`
}

// DurationUse is time used; a missing "used" means this host cannot tell, a
// missing "limit" that there is none.
type DurationUse struct {
	Used  *policy.Duration `json:"used,omitempty"`
	Limit policy.Duration  `json:"limit,omitempty"`
}

// CountUse is an amount used, of bytes or of things.
type CountUse struct {
	Used  *int64 `json:"used,omitempty"`
	Limit int64  `json:"limit,omitempty"`
}

// UsedDuration is a known DurationUse.
func UsedDuration(used, limit time.Duration) DurationUse {
	u := policy.Duration(used)
	return DurationUse{Used: &u, Limit: policy.Duration(limit)}
}

// UsedCount is a known CountUse.
func UsedCount(used, limit int64) CountUse { return CountUse{Used: &used, Limit: limit} }

// LogEntry is one line that the code logged. Message and Data are hostile.
type LogEntry struct {
	Time    time.Time       `json:"time"`
	Level   string          `json:"level"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// A Denial is something that the sandbox wanted and did not get.
type Denial struct {
	Kind string    `json:"kind" enum:"network,path,syscall,limit,binding"`
	What string    `json:"what"`
	Rule string    `json:"rule,omitempty" doc:"Why, or by which rule."`
	Time time.Time `json:"time"`
	// Count is how often it happened, when that was more than once; Time is the
	// first.
	Count int64 `json:"count,omitempty"`
	// Scope tells whether the denial is known to be this run's, or only to be
	// of its jail while the run was under way.
	Scope string `json:"scope,omitempty" enum:"run,jail"`
}

// A CallRecord is one host call that a run made.
type CallRecord struct {
	Binding  string          `json:"binding"`
	Method   string          `json:"method"`
	Status   string          `json:"status" doc:"\"ok\", \"error\", \"denied\", \"canceled\" (the code or its end gave it up; it may have had its effect), \"invalid_args\" or \"invalid_result\" (a schema was broken), or an HTTP status."`
	Bytes    int64           `json:"bytes" doc:"Of the answer."`
	Duration policy.Duration `json:"duration"`
	Error    string          `json:"error,omitempty" doc:"What the code was told, shortened; hostile."`
}

// Receipt names a line of the audit log.
type Receipt struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// RunList is a page of run records, newest first, without output.
type RunList struct {
	Runs []Run `json:"runs"`
}

// ToolCall is a call of one of the caller's own tools.
type ToolCall struct {
	CallID  string          `json:"call_id"`
	Binding string          `json:"binding"`
	Method  string          `json:"method"`
	Args    json.RawMessage `json:"args" doc:"A JSON array; hostile. Binary data is {\"$bytes\": \"base64\"}."`
}

// ToolAnswer answers a ToolCall: a result or an error.
type ToolAnswer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *ToolError      `json:"error,omitempty"`
}

// ToolError is thrown inside the code that called the tool.
type ToolError struct {
	Message string `json:"message" required:"true" min:"1" max:"65536"`
}
