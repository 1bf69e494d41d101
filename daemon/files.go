package daemon

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"
	"unicode/utf8"

	"sandboxd/daemon/api"
	"sandboxd/jail"
)

const (
	// maxFile is the largest file that the API writes.
	maxFile  = 1 << 30
	maxDepth = 16
)

// withJail runs f with the tenant's jail, made on first use and awake.
func (d *Daemon) withJail(q *request, f func(*tenantJail) error) (err error) {
	j, _, err := d.tenants.acquire(q.ctx(), q.tenant, q.caller(), nil)
	if err != nil {
		return err
	}
	defer func() { j.releaseAfter(err) }()
	return f(j)
}

func filePath(q *request) string { return "/" + q.path("path") }

func (d *Daemon) handleFileGet(q *request) error {
	depth, err := q.integer("depth", 1, maxDepth)
	if err != nil {
		return err
	}
	return d.withJail(q, func(j *tenantJail) error {
		switch {
		case q.flag("list"):
			files, err := j.jail.List(q.ctx(), filePath(q), depth)
			if err != nil {
				return err
			}
			list := api.FileList{Path: filePath(q), Files: []api.FileInfo{}}
			for i := range files {
				list.Files = append(list.Files, fileInfo(&files[i]))
			}
			return q.reply(http.StatusOK, list)
		case q.flag("stat"):
			st, err := j.jail.Stat(q.ctx(), filePath(q))
			if err != nil {
				return err
			}
			return q.reply(http.StatusOK, fileInfo(&st))
		default:
			return sendFile(q, j)
		}
	})
}

// sendFile answers with a file's bytes; net/http does the ranges. The bytes are
// the tenant's: they are never given a type that a browser would run.
func sendFile(q *request, j *tenantJail) error {
	f, info, err := j.jail.OpenFile(q.ctx(), filePath(q))
	if err != nil {
		return err
	}
	defer f.Close()
	q.w.Header().Set("Content-Type", "application/octet-stream")
	q.w.Header().Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(q.w, q.http, "", info.MTime, f)
	return nil
}

func fileInfo(f *jail.FileInfo) api.FileInfo {
	return api.FileInfo{Name: validText([]byte(f.Name)), NameBase64: base64IfOdd(f.Name), Type: f.Type, Size: f.Size, Mode: fmt.Sprintf("%04o", f.Mode), MTime: f.MTime, Target: validText([]byte(f.Target))}
}

func (d *Daemon) handleFilePut(q *request) error {
	mode, err := fileMode(q, 0o644)
	if err != nil {
		return err
	}
	if q.http.ContentLength > maxFile {
		return api.TooLarge("the file", maxFile)
	}
	return d.withJail(q, func(j *tenantJail) error {
		write := j.jail.WriteFile
		if q.flag("append") {
			write = j.jail.AppendFile
		}
		if _, err := write(q.ctx(), filePath(q), &patientReader{q}, mode, maxFile); err != nil {
			return err
		}
		if err := q.readDeadline(time.Time{}); err != nil {
			return err
		}
		return q.noContent()
	})
}

// fileMode reads the permission bits of a request.
func fileMode(q *request, fallback uint32) (uint32, error) {
	text := q.query("mode")
	if text == "" {
		return fallback, nil
	}
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || mode > 0o777 {
		e := api.Invalid("mode", fmt.Sprintf("%.20q are not permission bits", text))
		e.Allowed = "0000 to 0777"
		return 0, e
	}
	return uint32(mode), nil
}

// base64IfOdd is the bytes of a name that JSON cannot show.
func base64IfOdd(name string) string {
	if utf8.ValidString(name) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(name))
}

// patientReader lets an upload last as long as it goes on.
type patientReader struct{ q *request }

func (p *patientReader) Read(b []byte) (int, error) {
	if err := p.q.readDeadline(time.Now().Add(slowReader)); err != nil {
		return 0, err
	}
	return p.q.http.Body.Read(b)
}

func (d *Daemon) handleFileDelete(q *request) error {
	return d.withJail(q, func(j *tenantJail) error {
		if err := j.jail.Remove(q.ctx(), filePath(q), true); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return q.noContent()
	})
}
