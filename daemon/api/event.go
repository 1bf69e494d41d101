package api

import (
	"encoding/base64"
	"fmt"
	"time"
	"unicode/utf8"
)

// Types of an Event.
const (
	EventStarted = "started"
	EventStdout  = "stdout"
	EventStderr  = "stderr"
	EventLog     = "log"
	EventCall    = "call"
	EventDenied  = "denied"
	EventResult  = "result"
	// EventFile and EventOverflow are a watch's.
	EventFile     = "file"
	EventOverflow = "overflow"
	// EventProgress is an import's.
	EventProgress = "progress"
	// EventError ends a stream that broke: history lost, daemon stopping.
	EventError = "error"
)

// An Event is one line of a stream. A stream that ends without "result" has
// not finished.
type Event struct {
	Seq    uint64    `json:"seq" doc:"From 1, in order."`
	Time   time.Time `json:"time"`
	Type   string    `json:"type" required:"true" enum:"started,stdout,stderr,log,call,denied,file,overflow,progress,result,error"`
	RunID  string    `json:"run_id,omitempty"`
	ExecID string    `json:"exec_id,omitempty"`
	// Data is output. Bytes that are not UTF-8 are sent as base64.
	Data     string          `json:"data,omitempty" doc:"Output; hostile."`
	Encoding string          `json:"encoding,omitempty" enum:"base64" doc:"Set when data is base64 because it is not UTF-8."`
	Log      *LogEntry       `json:"log,omitempty"`
	Call     *ToolCall       `json:"call,omitempty"`
	Denial   *Denial         `json:"denial,omitempty"`
	File     *FileEvent      `json:"file,omitempty" doc:"A change that a watch saw."`
	Run      *Run            `json:"run,omitempty" doc:"Result of a run."`
	Exec     *Process        `json:"exec,omitempty" doc:"Result of an exec."`
	Progress *ImportProgress `json:"progress,omitempty"`
	Template *Template       `json:"template,omitempty" doc:"Result of an import."`
	Error    *Error          `json:"error,omitempty"`
}

// SetData stores output bytes without losing any.
func (e *Event) SetData(b []byte) {
	if utf8.Valid(b) {
		e.Data = string(b)
		return
	}
	e.Data, e.Encoding = base64.StdEncoding.EncodeToString(b), "base64"
}

// Bytes returns the output bytes of a stdout or stderr event.
func (e *Event) Bytes() ([]byte, error) {
	switch e.Encoding {
	case "":
		return []byte(e.Data), nil
	case "base64":
		b, err := base64.StdEncoding.DecodeString(e.Data)
		if err != nil {
			return nil, fmt.Errorf("api: event %d: %w", e.Seq, err)
		}
		return b, nil
	default:
		return nil, fmt.Errorf("api: event %d has unknown encoding %q", e.Seq, e.Encoding)
	}
}
