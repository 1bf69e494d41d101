package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/daemon/data"
	"sandboxd/isolate"
	"sandboxd/jail"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

func TestErrorsBecomeCodes(t *testing.T) {
	tests := []struct {
		err    error
		code   string
		status int
		field  string
	}{
		{api.Invalid("x", "m"), api.CodeInvalidRequest, 400, "x"},
		{&auditError{unix.ENOSPC}, api.CodeInternal, 503, ""},
		{errStopping, api.CodeInternal, 503, ""},
		{&unavailableError{partJails, errors.New("why")}, api.CodeUnsupported, 501, ""},
		{&unavailableError{partJails, &jail.UnsupportedError{Feature: "landlock", Remedy: "r"}}, api.CodeUnsupported, 501, ""},
		{&policy.FieldError{Field: "limits.wall", Message: "m", Allowed: "5s"}, api.CodeInvalidRequest, 400, "limits.wall"},
		{&policy.DeniedError{What: "a jail", Why: "w", Remedy: "r"}, api.CodeDenied, 403, ""},
		{&policy.TenantError{Tenant: "t"}, api.CodeDenied, 403, ""},
		{&isolate.RequestError{Field: "modules", Message: "m"}, api.CodeInvalidRequest, 400, "modules"},
		{isolate.ErrBusy, api.CodeBusy, 429, ""},
		{isolate.ErrClosed, api.CodeInternal, 503, ""},
		{&isolate.WorkerError{Worker: 1, Reason: "killed"}, api.CodeInternal, 500, ""},
		{&isolate.GuestError{Guest: "quickjs"}, api.CodeUnsupported, 501, ""},
		{&jail.UnsupportedError{Feature: "f"}, api.CodeUnsupported, 501, ""},
		{&jail.SpecError{Field: "cwd", Message: "m"}, api.CodeInvalidRequest, 400, "cwd"},
		{&jail.StartError{Step: "exec", Errno: unix.ENOENT}, api.CodeInvalidRequest, 400, "argv[0]"},
		{&jail.StartError{Step: "cwd", Errno: unix.ENOENT}, api.CodeInvalidRequest, 400, "cwd"},
		{&jail.StartError{Step: "exec", Errno: unix.EACCES}, api.CodeInvalidRequest, 400, "argv[0]"},
		{&jail.StartError{Step: "exec", Errno: unix.E2BIG}, api.CodeInvalidRequest, 400, "argv"},
		{&jail.StartError{Step: "fork", Errno: unix.EAGAIN}, api.CodeLimit, 422, ""},
		{&jail.StartError{Step: "mount", Errno: unix.EPERM}, api.CodeDenied, 403, "path"},
		{jail.ErrExists, api.CodeConflict, 409, ""},
		{jail.ErrGone, api.CodeGone, 410, ""},
		{jail.ErrBusy, api.CodeBusy, 429, ""},
		{jail.ErrTooLarge, api.CodeTooLarge, 413, ""},
		{jail.ErrNotRegular, api.CodeConflict, 409, "path"},
		{jail.ErrOutside, api.CodeDenied, 403, "path"},
		{jail.ErrNoStdin, api.CodeConflict, 409, ""},
		{&jail.SelfCheckError{What: "w"}, api.CodeInternal, 500, ""},
		{&netproxy.DeniedError{Host: "h", Reason: "no_rule"}, api.CodeDenied, 403, ""},
		{&netproxy.UpstreamError{Host: "h", Reason: "timeout"}, api.CodeBinding, 422, ""},
		{netproxy.ErrClosed, api.CodeInternal, 503, ""},
		{netproxy.ErrAttached, api.CodeConflict, 409, ""},
		{netproxy.ErrNoPreview, api.CodeUnsupported, 501, ""},
		{netproxy.ErrNotExposed, api.CodeNotFound, 404, ""},
		{netproxy.ErrExhausted, api.CodeBusy, 429, ""},
		{&data.Error{Kind: data.KindSQL, Message: "m"}, api.CodeInvalidRequest, 400, "sql"},
		{&data.Error{Kind: data.KindParams, Message: "m"}, api.CodeInvalidRequest, 400, "params"},
		{&data.Error{Kind: data.KindDenied, Message: "m"}, api.CodeDenied, 403, ""},
		{&data.Error{Kind: data.KindLimit, Message: "m", Limit: "rows"}, api.CodeLimit, 422, ""},
		{&data.Error{Kind: data.KindBusy, Message: "m"}, api.CodeBusy, 429, ""},
		{data.ErrRemoving, api.CodeConflict, 409, ""},
		{data.ErrClosed, api.CodeInternal, 503, ""},
		{data.ErrNotFound, api.CodeNotFound, 404, ""},
		{os.ErrNotExist, api.CodeNotFound, 404, "path"},
		{unix.ENOTDIR, api.CodeConflict, 409, "path"},
		{unix.EAGAIN, api.CodeBusy, 429, "path"},
		{unix.EROFS, api.CodeDenied, 403, "path"},
		{unix.ENOSPC, api.CodeLimit, 422, ""},
		{context.DeadlineExceeded, api.CodeLimit, 422, ""},
		{context.Canceled, api.CodeCanceled, 409, ""},
		{errors.New("/root/secret is not what a caller should see"), api.CodeInternal, 500, ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%T %v", tt.err, tt.err), func(t *testing.T) {
			// Wrapped, as the layers between do it.
			e := toAPI(fmt.Errorf("somewhere: %w", tt.err))
			if e.Code != tt.code || e.Status() != tt.status || e.Field != tt.field {
				t.Fatalf("got %s %d field %q, want %s %d field %q", e.Code, e.Status(), e.Field, tt.code, tt.status, tt.field)
			}
			if e.Message == "" || strings.Contains(e.Message, "somewhere") || strings.Contains(e.Message, "/root/secret") {
				t.Errorf("the message %q is empty or says what only the log should", e.Message)
			}
			retry := e.Code == api.CodeBusy || e.Status() == 503
			if retry && !e.Retryable {
				t.Errorf("%s with %d is not marked retryable", e.Code, e.Status())
			}
		})
	}
}

func TestRunErrorsKeepTheirParts(t *testing.T) {
	e := fromRun(&isolate.Error{Kind: isolate.KindLimit, Message: "m", File: "main.js", Line: 3, Column: 7, Stack: "s", Limit: "cpu", Used: "2s", Allowed: "1s", Hint: "h"})
	want := api.Error{Code: api.CodeLimit, Message: "m", Stack: "s", Limit: "cpu", Used: "2s", Allowed: "1s", Hint: "h", Position: &api.Position{File: "main.js", Line: 3, Column: 7}}
	if *e.Position != *want.Position {
		t.Errorf("position is %+v", e.Position)
	}
	want.Position = e.Position
	if *e != want {
		t.Errorf("got %+v, want %+v", e, want)
	}
	if fromRun(nil) != nil {
		t.Error("no error became one")
	}
	if got := fromRun(&isolate.Error{Kind: "new kind"}); got.Code != api.CodeInternal {
		t.Errorf("an unknown kind became %q", got.Code)
	}
}
