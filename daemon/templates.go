package daemon

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/jail/rootfs"
)

func templateView(t *rootfs.Template) *api.Template {
	return &api.Template{Name: t.Name, ID: t.ID, Kind: t.Kind, Created: t.Created, Layers: t.Layers, Bytes: t.Bytes, Entries: t.Entries,
		LeftOut: t.LeftOut, Env: t.Env, WorkingDir: t.WorkingDir, User: t.User}
}

// templates is the store, which the jails have.
func (d *Daemon) templates() (*rootfs.Store, error) {
	if err := d.need(partJails); err != nil {
		return nil, err
	}
	return d.jails.Templates(), nil
}

func (d *Daemon) handleTemplates(q *request) error {
	store, err := d.templates()
	if err != nil {
		return err
	}
	all, err := store.List()
	if err != nil {
		return err
	}
	list := api.TemplateList{Templates: []api.Template{}}
	for i := range all {
		list.Templates = append(list.Templates, *templateView(&all[i]))
	}
	return q.reply(http.StatusOK, list)
}

func (d *Daemon) handleTemplateGet(q *request) error {
	store, err := d.templates()
	if err != nil {
		return err
	}
	t, err := store.Get(q.path("template"))
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, templateView(t))
}

func (d *Daemon) handleTemplateDelete(q *request) error {
	store, err := d.templates()
	if err != nil {
		return err
	}
	if err := d.recordTemplate(q, "template_delete", nil); err != nil {
		return err
	}
	if err := store.Remove(q.path("template")); err != nil && !errors.Is(err, rootfs.ErrNotFound) {
		return err
	}
	return q.noContent()
}

// recordTemplate puts on record what becomes of a template.
func (d *Daemon) recordTemplate(q *request, event string, t *rootfs.Template) error {
	fields := map[string]any{"event": event, "template": clip(q.path("template"), 64)}
	if path := q.query("path"); path != "" {
		fields["path"] = clip(validText([]byte(path)), 500)
	}
	if t != nil {
		fields["id"], fields["bytes"], fields["entries"] = t.ID, t.Bytes, t.Entries
	}
	_, err := d.record(q.ctx(), audit.Record{Kind: audit.KindAdmin, Caller: q.caller(), Fields: fields})
	return err
}

// handleTemplateImport imports what the body is, or what is at a path of the
// host. A caller that goes away gives the import up.
func (d *Daemon) handleTemplateImport(q *request) error {
	store, err := d.templates()
	if err != nil {
		return err
	}
	if err := d.recordTemplate(q, "template_import", nil); err != nil {
		return err
	}
	run := func(ctx context.Context, report func(rootfs.Progress)) (t *rootfs.Template, err error) {
		if path := q.query("path"); path != "" {
			t, err = store.ImportPath(ctx, q.path("template"), path, report)
		} else {
			t, err = store.Import(ctx, q.path("template"), &patientReader{q}, report)
			// What follows an archive's end is not read: the connection ends here.
			if err == nil {
				err = q.readDeadline(time.Time{})
			}
		}
		if err != nil {
			return nil, err
		}
		return t, d.recordTemplate(q, "template_imported", t)
	}
	if q.wantsStream() {
		// The answer begins while the body still comes.
		if err := http.NewResponseController(q.w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return d.stream(q, importEvents(q.ctx(), run))
	}
	t, err := run(q.ctx(), nil)
	if err != nil {
		return err
	}
	return q.reply(http.StatusCreated, templateView(t))
}

// importEvents runs an import and shows how far it is; who stops looking ends it.
func importEvents(ctx context.Context, run func(context.Context, func(rootfs.Progress)) (*rootfs.Template, error)) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		seq, on := uint64(0), true
		event := func(kind string) api.Event {
			seq++
			return api.Event{Seq: seq, Time: time.Now().UTC(), Type: kind}
		}
		// Reports come from the calling goroutine: the import itself sends them.
		t, err := run(ctx, func(p rootfs.Progress) {
			e := event(api.EventProgress)
			e.Progress = &api.ImportProgress{Stage: p.Stage, Layer: p.Layer, Layers: p.Layers, Bytes: p.Bytes, Entries: p.Entries}
			if on = on && yield(e, nil); !on {
				cancel()
			}
		})
		switch {
		case !on:
		case err != nil:
			yield(api.Event{}, err)
		default:
			e := event(api.EventResult)
			e.Template = templateView(t)
			yield(e, nil)
		}
	}
}
