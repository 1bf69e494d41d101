package api

import "net/http"

// Codes of an Error.
const (
	CodeInvalidRequest = "invalid_request"
	CodeDenied         = "denied"
	CodeNotFound       = "not_found"
	CodeConflict       = "conflict"
	CodeGone           = "gone"
	CodeTooLarge       = "too_large"
	CodeBusy           = "busy"
	CodeRejected       = "code_rejected"
	CodeError          = "code_error"
	CodeLimit          = "limit_exceeded"
	CodeBinding        = "binding_error"
	CodeCanceled       = "canceled"
	CodeUnsupported    = "unsupported"
	CodeInternal       = "internal"
)

// An Error says what happened, where, and what is allowed instead. It is meant
// for the person or model that must mend the request or the code.
type Error struct {
	Code       string    `json:"code" required:"true" enum:"invalid_request,denied,not_found,conflict,gone,too_large,busy,code_rejected,code_error,limit_exceeded,binding_error,canceled,unsupported,internal" doc:"Kind of error; decides the HTTP status."`
	Message    string    `json:"message" required:"true" doc:"What happened and what to do about it."`
	Field      string    `json:"field,omitempty" doc:"Full path of the request's field that is at fault."`
	Limit      string    `json:"limit,omitempty" doc:"Which limit was exceeded: wall, cpu, memory, output, lines, timers, requests, calls, answers, result, code, compile, pids, disk, snapshots."`
	Used       string    `json:"used,omitempty" doc:"What was used of the limit, or given in the field."`
	Allowed    string    `json:"allowed,omitempty" doc:"What is allowed."`
	Position   *Position `json:"position,omitempty" doc:"Place in the caller's own source."`
	SourceLine string    `json:"source_line,omitempty" doc:"Text of that line, shortened; hostile."`
	Stack      string    `json:"stack,omitempty" doc:"Stack of the code that failed; hostile text."`
	Retryable  bool      `json:"retryable,omitempty" doc:"The same request may succeed later."`
	Hint       string    `json:"hint,omitempty" doc:"How to mend it."`

	// HTTPStatus overrides the status of the code when set.
	HTTPStatus int `json:"-"`
}

// Position is a place in source code.
type Position struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// ErrorBody is the body of every answer that is only an error.
type ErrorBody struct {
	Error *Error `json:"error" required:"true"`
}

func (e *Error) Error() string {
	s := e.Code + ": " + e.Message
	if e.Field != "" {
		s += " (field " + e.Field + ")"
	}
	return s
}

// Status is the HTTP status of the error.
func (e *Error) Status() int {
	if e.HTTPStatus != 0 {
		return e.HTTPStatus
	}
	switch e.Code {
	case CodeInvalidRequest:
		return http.StatusBadRequest
	case CodeDenied:
		return http.StatusForbidden
	case CodeNotFound:
		return http.StatusNotFound
	case CodeConflict, CodeCanceled:
		return http.StatusConflict
	case CodeGone:
		return http.StatusGone
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeBusy:
		return http.StatusTooManyRequests
	case CodeRejected, CodeError, CodeLimit, CodeBinding:
		return http.StatusUnprocessableEntity
	case CodeUnsupported:
		return http.StatusNotImplemented
	default:
		return http.StatusInternalServerError
	}
}

// Invalid is an invalid_request error about one field.
func Invalid(field, message string) *Error {
	return &Error{Code: CodeInvalidRequest, Field: field, Message: message}
}
