package daemon

import (
	"io"
	"iter"
	"net/http"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/jail"
)

// handleFilePost is POST …/files/{path}?mkdir|rename|chmod.
func (d *Daemon) handleFilePost(q *request) error {
	mode, err := fileMode(q, 0)
	if err != nil {
		return err
	}
	do := ""
	for _, name := range []string{"mkdir", "rename", "chmod"} {
		if !q.flag(name) {
			continue
		}
		if do != "" {
			return api.Invalid(name, "comes with "+do+"; one request makes one change")
		}
		do = name
	}
	switch {
	case do == "":
		e := api.Invalid("query", "says not what to do")
		e.Allowed = "mkdir, rename or chmod"
		return e
	case do == "rename" && q.query("to") == "":
		return api.Invalid("to", "is missing; the new path")
	case do == "chmod" && q.query("mode") == "":
		return api.Invalid("mode", "is missing; permission bits, octal")
	}
	return d.withJail(q, func(j *tenantJail) error {
		switch do {
		case "mkdir":
			err = j.jail.Mkdir(q.ctx(), filePath(q), mode)
		case "rename":
			err = j.jail.Rename(q.ctx(), filePath(q), q.query("to"), q.flag("overwrite"))
		default:
			err = j.jail.Chmod(q.ctx(), filePath(q), mode)
		}
		if err != nil {
			return err
		}
		return q.noContent()
	})
}

// treePath is the path of operations on whole folders.
func treePath(q *request) string {
	if p := q.query("path"); p != "" {
		return p
	}
	return "/workspace"
}

// handleArchiveGet sends a tar. Once it has begun an error can only cut the
// answer off, which clients see.
func (d *Daemon) handleArchiveGet(q *request) error {
	return d.withJail(q, func(j *tenantJail) error {
		return d.sendTar(q, func(w io.Writer, ready func()) error {
			_, err := j.jail.WriteArchive(q.ctx(), treePath(q), w, maxFile, ready)
			return err
		})
	})
}

// sendTar answers with what write writes after it has called ready.
func (d *Daemon) sendTar(q *request, write func(w io.Writer, ready func()) error) error {
	begun := false
	ready := func() {
		begun = true
		q.w.Header().Set("Content-Type", "application/x-tar")
		q.w.Header().Set("X-Content-Type-Options", "nosniff")
		q.w.WriteHeader(http.StatusOK)
	}
	err := write(&patientWriter{q}, ready)
	if err == nil {
		return q.writeDeadline(time.Time{})
	}
	if !begun {
		return err
	}
	d.log.Debug("an archive was cut off", "route", q.route.Name, "tenant", q.tenant, "error", err)
	panic(http.ErrAbortHandler)
}

// patientWriter lets a download last as long as it goes on.
type patientWriter struct{ q *request }

func (p *patientWriter) Write(b []byte) (int, error) {
	if err := p.q.writeDeadline(time.Now().Add(slowReader)); err != nil {
		return 0, err
	}
	return p.q.w.Write(b)
}

func (d *Daemon) handleArchivePut(q *request) error {
	return d.withJail(q, func(j *tenantJail) error {
		stats, err := j.jail.ReadArchive(q.ctx(), treePath(q), &patientReader{q}, maxFile)
		if err != nil {
			return err
		}
		if err := q.readDeadline(time.Time{}); err != nil {
			return err
		}
		return q.reply(http.StatusOK, api.ArchiveReport{Entries: stats.Entries, Bytes: stats.Bytes})
	})
}

// handleWatch follows changes of files. It needs a jail, but does not count as
// activity: who only looks keeps nothing alive.
func (d *Daemon) handleWatch(q *request) error {
	j := d.tenants.find(q.tenant)
	if j == nil {
		return d.noJail(q.tenant)
	}
	recursive := true
	if q.query("recursive") == "false" {
		recursive = false
	}
	changes, err := j.jail.Watch(q.ctx(), treePath(q), recursive)
	if err != nil {
		return err
	}
	return d.stream(q, fileEvents(changes))
}

// fileEvents are a watch's events as the API shows them; the first says that
// it is in place.
func fileEvents(changes iter.Seq2[jail.WatchEvent, error]) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		more := yield(api.Event{Seq: 1, Time: time.Now().UTC(), Type: api.EventStarted}, nil)
		for c, err := range changes {
			if !more || err != nil {
				if more {
					yield(api.Event{}, err)
				}
				return
			}
			e := api.Event{Seq: c.Seq + 1, Time: c.Time, Type: api.EventFile, File: &api.FileEvent{Op: c.Op, Dir: c.Dir, Reason: c.Reason,
				Path: validText([]byte(c.Path)), PathBase64: base64IfOdd(c.Path), From: validText([]byte(c.From)), FromBase64: base64IfOdd(c.From)}}
			if c.Op == jail.WatchOverflow {
				e.Type = api.EventOverflow
			}
			more = yield(e, nil)
		}
	}
}
