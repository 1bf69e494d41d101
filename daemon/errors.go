package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/daemon/data"
	"sandboxd/isolate"
	"sandboxd/jail"
	"sandboxd/jail/rootfs"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// This file is the only place that turns the errors of the packages below into
// codes of the API.

// unavailableError says that a part of the daemon did not start on this host.
type unavailableError struct {
	part string
	err  error
}

func (e *unavailableError) Error() string {
	return e.part + " are not available on this host: " + e.err.Error()
}
func (e *unavailableError) Unwrap() error { return e.err }

// auditError says that a record could not be written, so nothing may run.
type auditError struct{ err error }

func (e *auditError) Error() string { return "the audit record could not be written: " + e.err.Error() }
func (e *auditError) Unwrap() error { return e.err }

// errStopping says that the daemon takes no more work.
var errStopping = errors.New("the daemon is stopping")

// toAPI maps any error. What it does not know is internal: the text stays in
// the daemon's log, since it may hold what a caller should not see.
func toAPI(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	for _, m := range []func(error) *api.Error{fromDaemon, fromPolicy, fromIsolate, fromJail, fromTemplates, fromEgress, fromData, fromSystem} {
		if e := m(err); e != nil {
			return e
		}
	}
	return &api.Error{Code: api.CodeInternal, Message: "internal error; the daemon's log says more"}
}

func fromDaemon(err error) *api.Error {
	var audit *auditError
	if errors.As(err, &audit) {
		return &api.Error{Code: api.CodeInternal, HTTPStatus: http.StatusServiceUnavailable, Retryable: true,
			Message: "nothing new runs, because the audit log cannot be written",
			Hint:    "free space on the state folder's file system or mend it; sandboxctl status shows the reason"}
	}
	if errors.Is(err, errStopping) {
		return &api.Error{Code: api.CodeInternal, HTTPStatus: http.StatusServiceUnavailable, Retryable: true, Message: errStopping.Error()}
	}
	var part *unavailableError
	if errors.As(err, &part) {
		e := &api.Error{Code: api.CodeUnsupported, Message: part.part + " are not available on this host", Hint: "sandboxctl doctor says what is missing"}
		var lacks *jail.UnsupportedError
		if errors.As(err, &lacks) {
			e.Message = fmt.Sprintf("%s: this host lacks %s (found %s, needed %s)", e.Message, lacks.Feature, lacks.Found, lacks.Needed)
			e.Hint = lacks.Remedy
		}
		return e
	}
	return nil
}

func fromPolicy(err error) *api.Error {
	var field *policy.FieldError
	if errors.As(err, &field) {
		return &api.Error{Code: api.CodeInvalidRequest, Field: field.Field, Message: field.Message, Allowed: field.Allowed}
	}
	var denied *policy.DeniedError
	if errors.As(err, &denied) {
		return &api.Error{Code: api.CodeDenied, Message: denied.What + " is denied: " + denied.Why, Hint: denied.Remedy}
	}
	var tenant *policy.TenantError
	if errors.As(err, &tenant) {
		return &api.Error{Code: api.CodeDenied, Message: tenant.Error(), Hint: "name the tenant under tenants: in the policy file"}
	}
	return nil
}

func fromIsolate(err error) *api.Error {
	var request *isolate.RequestError
	var worker *isolate.WorkerError
	var guest *isolate.GuestError
	switch {
	case errors.As(err, &request):
		return fromRequest(request)
	case errors.Is(err, isolate.ErrBusy):
		return &api.Error{Code: api.CodeBusy, Message: "as many isolates run as this daemon allows", Retryable: true}
	case errors.Is(err, isolate.ErrClosed):
		return toAPI(errStopping)
	case errors.As(err, &worker):
		return &api.Error{Code: api.CodeInternal, Message: "the isolate worker that held the run ended: " + worker.Reason,
			Hint: "effects of the run until then are possible; look at phase before running it again"}
	case errors.As(err, &guest):
		return &api.Error{Code: api.CodeUnsupported, Message: "the interpreter image " + guest.Guest + " is not usable: " + guest.Reason, Hint: "make guests fetches and checks it"}
	}
	return nil
}

// fromRequest says what is wrong with a request, or that its code is too large.
func fromRequest(err *isolate.RequestError) *api.Error {
	e := api.Invalid(err.Field, err.Message)
	if err.Limit != "" {
		e.Code, e.Limit, e.Used, e.Allowed = api.CodeLimit, err.Limit, err.Used, err.Allowed
	}
	return e
}

func fromJail(err error) *api.Error {
	var lacks *jail.UnsupportedError
	var spec *jail.SpecError
	var start *jail.StartError
	var archive *jail.ArchiveError
	switch {
	case errors.As(err, &archive):
		return &api.Error{Code: api.CodeInvalidRequest, Field: "archive", Message: archive.Reason, Used: clip(validText([]byte(archive.Entry)), 200),
			Hint: "what came before this entry is unpacked; an archive brings files, folders and links beneath its folder"}
	case errors.As(err, &lacks):
		return &api.Error{Code: api.CodeUnsupported, Message: fmt.Sprintf("this host lacks %s (found %s, needed %s)", lacks.Feature, lacks.Found, lacks.Needed), Hint: lacks.Remedy}
	case errors.As(err, &spec):
		return api.Invalid(spec.Field, spec.Message)
	case errors.As(err, &start):
		return fromStart(start)
	case errors.Is(err, jail.ErrNoRoot):
		return &api.Error{Code: api.CodeDenied, Field: "user", Message: "a command may run as user 0 only where the policy makes the root writable", Hint: "an operator can set root: writable in jail: of the tenant's profile, with an imported template"}
	case errors.Is(err, jail.ErrExists):
		return &api.Error{Code: api.CodeConflict, Message: "it exists already"}
	case errors.Is(err, jail.ErrGone):
		return &api.Error{Code: api.CodeGone, Message: "the jail or the history asked for is gone"}
	case errors.Is(err, jail.ErrBusy):
		return &api.Error{Code: api.CodeBusy, Message: "the jail runs as many commands, or has as many watches, as it may, or a snapshot is being made", Retryable: true}
	case errors.Is(err, jail.ErrTerminals):
		return &api.Error{Code: api.CodeLimit, Limit: "terminals", Message: "the jail has as many terminals as it may have", Hint: "end commands that have one, or leave tty out", Retryable: true}
	case errors.Is(err, jail.ErrNotFound):
		return &api.Error{Code: api.CodeNotFound, Field: "snapshot", Message: "the tenant has no such snapshot"}
	case errors.Is(err, jail.ErrSnapshotLimit):
		return &api.Error{Code: api.CodeLimit, Limit: "snapshots", Message: "the tenant has as many snapshots, or as many bytes in them, as it may", Hint: "delete some: DELETE …/jail/snapshots/{id}"}
	case errors.Is(err, jail.ErrTooLarge):
		return &api.Error{Code: api.CodeTooLarge, Message: "the file or listing is over the limit"}
	case errors.Is(err, jail.ErrNotRegular):
		return &api.Error{Code: api.CodeConflict, Field: "path", Message: "this is not a regular file (or not a folder where one is needed)"}
	case errors.Is(err, jail.ErrOutside):
		return &api.Error{Code: api.CodeDenied, Field: "path", Message: "the path leaves the jail's root"}
	case errors.Is(err, jail.ErrNoStdin):
		return &api.Error{Code: api.CodeConflict, Message: "standard input is not open", Hint: "start the command with \"stdin\": true"}
	}
	return nil
}

func fromTemplates(err error) *api.Error {
	var bad *rootfs.ImportError
	var root *jail.RootError
	switch {
	case errors.As(err, &root):
		return &api.Error{Code: api.CodeConflict, Field: "template", Message: fmt.Sprintf("what the tenant has written to its root was made on the template %s; it is of no use on %s", clip(root.Has, 80), root.Wants),
			Hint: "create the jail with \"reset_root\": true to throw it away (the workspace stays), or import and ask for the template it was made on"}
	case errors.As(err, &bad):
		return &api.Error{Code: api.CodeInvalidRequest, Field: "template", Message: "this cannot be imported: " + clip(validText([]byte(bad.Reason)), 500), Used: clip(validText([]byte(bad.Entry)), 200)}
	case errors.Is(err, rootfs.ErrTooLarge):
		return &api.Error{Code: api.CodeTooLarge, Field: "template", Message: err.Error()}
	case errors.Is(err, rootfs.ErrNotFound):
		return &api.Error{Code: api.CodeNotFound, Field: "template", Message: "there is no such template"}
	case errors.Is(err, rootfs.ErrBusy):
		return &api.Error{Code: api.CodeBusy, Message: "as many imports are under way as may be", Retryable: true}
	}
	return nil
}

// fromStart tells a command that cannot be started from a jail that cannot.
func fromStart(e *jail.StartError) *api.Error {
	if e.Jail {
		return nil
	}
	if e.Step == "cwd" {
		return &api.Error{Code: api.CodeInvalidRequest, Field: "cwd", Message: "the folder cannot be entered: " + e.Errno.Error()}
	}
	switch e.Errno {
	case unix.ENOENT:
		return &api.Error{Code: api.CodeInvalidRequest, Field: "argv[0]", Message: "there is no such program in the jail"}
	case unix.EACCES, unix.ENOEXEC, unix.ENOTDIR, unix.ELOOP:
		return &api.Error{Code: api.CodeInvalidRequest, Field: "argv[0]", Message: "this cannot be executed: " + e.Errno.Error() + " (" + e.Step + ")"}
	case unix.E2BIG:
		return &api.Error{Code: api.CodeInvalidRequest, Field: "argv", Message: "arguments and environment are too long together"}
	case unix.EAGAIN:
		return &api.Error{Code: api.CodeLimit, Limit: "pids", Message: "the jail has as many processes as it may have", Retryable: true}
	}
	return nil
}

func fromEgress(err error) *api.Error {
	var denied *netproxy.DeniedError
	var upstream *netproxy.UpstreamError
	switch {
	case errors.As(err, &denied):
		return &api.Error{Code: api.CodeDenied, Message: denied.Error(), Hint: "the policy's egress rules say what is granted"}
	case errors.As(err, &upstream):
		return &api.Error{Code: api.CodeBinding, Message: upstream.Error(), Retryable: true}
	case errors.Is(err, netproxy.ErrClosed):
		return &api.Error{Code: api.CodeInternal, HTTPStatus: http.StatusServiceUnavailable, Message: netproxy.ErrClosed.Error(), Retryable: true}
	case errors.Is(err, netproxy.ErrAttached):
		return &api.Error{Code: api.CodeConflict, Message: netproxy.ErrAttached.Error(), Retryable: true}
	case errors.Is(err, netproxy.ErrNoPreview):
		return &api.Error{Code: api.CodeUnsupported, Message: netproxy.ErrNoPreview.Error(), Hint: "start the daemon with --preview ADDRESS"}
	case errors.Is(err, netproxy.ErrTooMany):
		return &api.Error{Code: api.CodeLimit, Limit: "ports", Message: err.Error()}
	case errors.Is(err, netproxy.ErrNotExposed):
		return &api.Error{Code: api.CodeNotFound, Message: netproxy.ErrNotExposed.Error()}
	case errors.Is(err, netproxy.ErrExhausted):
		return &api.Error{Code: api.CodeBusy, Message: "the egress network has " + netproxy.ErrExhausted.Error(), Retryable: true}
	}
	return nil
}

func fromData(err error) *api.Error {
	var e *data.Error
	if errors.As(err, &e) {
		return fromStatement(e)
	}
	if errors.Is(err, data.ErrRemoving) {
		return &api.Error{Code: api.CodeConflict, Message: "the tenant's data is being deleted"}
	}
	if errors.Is(err, data.ErrClosed) {
		return toAPI(errStopping)
	}
	if errors.Is(err, data.ErrNotFound) {
		return &api.Error{Code: api.CodeNotFound, Message: "there is no such key"}
	}
	return nil
}

// fromStatement maps a fault of a statement, a key or a value.
func fromStatement(e *data.Error) *api.Error {
	out := &api.Error{Code: api.CodeInvalidRequest, Message: e.Message, Limit: e.Limit, Allowed: e.Allowed}
	switch e.Kind {
	case data.KindSQL:
		out.Field = "sql"
		if e.Offset >= 0 {
			out.Hint = fmt.Sprintf("the fault is at byte %d of the SQL", e.Offset)
		}
	case data.KindParams:
		out.Field = "params"
	case data.KindDenied:
		out.Code = api.CodeDenied
	case data.KindLimit:
		out.Code = api.CodeLimit
	case data.KindBusy:
		out.Code, out.Retryable = api.CodeBusy, true
	}
	return out
}

func fromSystem(err error) *api.Error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &api.Error{Code: api.CodeNotFound, Field: "path", Message: "there is no such file or folder"}
	case errors.Is(err, os.ErrExist):
		return &api.Error{Code: api.CodeConflict, Message: "it exists already"}
	case errors.Is(err, unix.EAGAIN):
		return &api.Error{Code: api.CodeBusy, Field: "path", Message: "the path changed while it was looked up", Retryable: true}
	case errors.Is(err, unix.EROFS):
		return &api.Error{Code: api.CodeDenied, Field: "path", Message: "this part of the jail is read-only"}
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return &api.Error{Code: api.CodeDenied, Field: "path", Message: "the path may not be used"}
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.ENAMETOOLONG):
		return &api.Error{Code: api.CodeConflict, Field: "path", Message: "the path is not of the kind that this needs"}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &api.Error{Code: api.CodeLimit, Limit: "disk", Message: "there is no space left"}
	case errors.Is(err, unix.EPIPE), errors.Is(err, os.ErrClosed):
		return &api.Error{Code: api.CodeConflict, Message: "the other end is closed"}
	case errors.Is(err, context.DeadlineExceeded):
		return &api.Error{Code: api.CodeLimit, Limit: "wall", Message: "it took longer than its time limit"}
	case errors.Is(err, context.Canceled):
		return &api.Error{Code: api.CodeCanceled, Message: "it was canceled"}
	}
	return nil
}

// fromRun maps the error of a run that happened.
func fromRun(e *isolate.Error) *api.Error {
	if e == nil {
		return nil
	}
	codes := map[string]string{
		isolate.KindRejected: api.CodeRejected, isolate.KindThrown: api.CodeError, isolate.KindLimit: api.CodeLimit,
		isolate.KindBinding: api.CodeBinding, isolate.KindCanceled: api.CodeCanceled,
	}
	out := &api.Error{Code: codes[e.Kind], Message: e.Message, SourceLine: e.Source, Stack: e.Stack, Limit: e.Limit, Used: e.Used, Allowed: e.Allowed, Hint: e.Hint}
	if out.Code == "" {
		out.Code = api.CodeInternal
	}
	if e.File != "" || e.Line > 0 {
		out.Position = &api.Position{File: e.File, Line: e.Line, Column: e.Column}
	}
	return out
}
