package daemon

import (
	"context"
	"io"
	"net/http"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/jail"
	"sandboxd/policy"
)

func snapshotView(s *jail.Snapshot) api.Snapshot {
	out := api.Snapshot{ID: s.ID, Label: s.Label, State: "complete", Created: s.Created, Bytes: s.Bytes, Entries: s.Entries, Frozen: policy.Duration(s.Frozen)}
	if !s.Complete {
		out.State = "making"
	}
	return out
}

func (d *Daemon) handleSnapshots(q *request) error {
	if err := d.need(partJails); err != nil {
		return err
	}
	all, err := d.jails.Snapshots(q.tenant)
	if err != nil {
		return err
	}
	list := api.SnapshotList{Snapshots: []api.Snapshot{}}
	for i := range all {
		list.Snapshots = append(list.Snapshots, snapshotView(&all[i]))
	}
	return q.reply(http.StatusOK, list)
}

// recordFiles puts on record what became of a tenant's files as a whole.
func (d *Daemon) recordFiles(q *request, event, snapshot string) error {
	_, err := d.record(q.ctx(), audit.Record{Kind: audit.KindJail, Tenant: q.tenant, Caller: q.caller(), Fields: map[string]any{"event": event, "snapshot": clip(snapshot, 64)}})
	return err
}

// handleSnapshotCreate needs a jail, since its processes are what is held still;
// a caller that goes away gives the snapshot up.
func (d *Daemon) handleSnapshotCreate(q *request) error {
	var req api.SnapshotRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	return d.withJail(q, func(j *tenantJail) error {
		s, err := j.jail.Snapshot(q.ctx(), req.Label)
		if err != nil {
			return err
		}
		if err := d.recordFiles(q, "snapshot", s.ID); err != nil {
			return err
		}
		return q.reply(http.StatusCreated, snapshotView(&s))
	})
}

func (d *Daemon) handleSnapshotDelete(q *request) error {
	if err := d.need(partJails); err != nil {
		return err
	}
	if err := d.recordFiles(q, "snapshot_delete", q.path("snapshot")); err != nil {
		return err
	}
	if err := d.jails.RemoveSnapshot(q.tenant, q.path("snapshot")); err != nil {
		return err
	}
	return q.noContent()
}

// handleSnapshotRestore copies the snapshot while the jail goes on, and ends it
// only when nothing can be in the way any more.
func (d *Daemon) handleSnapshotRestore(q *request) error {
	if err := d.need(partJails); err != nil {
		return err
	}
	// Who may not have a jail now may not have one made anew either.
	if _, _, err := d.planJail(q.tenant, &api.JailRequest{}); err != nil {
		return err
	}
	id := q.path("snapshot")
	staged, err := d.jails.StageRestore(q.ctx(), q.tenant, id)
	if err != nil {
		return err
	}
	defer func() {
		if err := staged.Abort(); err != nil {
			d.log.Warn("files before a restore could not be deleted", "tenant", q.tenant, "error", err)
		}
	}()
	if err := d.recordFiles(q, "restore", id); err != nil {
		return err
	}
	// What has begun comes to its end, whoever waits for it.
	ctx := context.WithoutCancel(q.ctx())
	if err := d.tenants.replace(ctx, q.tenant, q.caller(), "restored", staged.Commit); err != nil {
		return err
	}
	s := staged.Snapshot()
	return q.reply(http.StatusOK, snapshotView(&s))
}

// handleExport sends a snapshot, or one that is made for it and deleted again:
// so that a slow reader gets one moment and the jail does not wait for it.
func (d *Daemon) handleExport(q *request) error {
	if err := d.need(partJails); err != nil {
		return err
	}
	id := q.query("snapshot")
	if id == "" {
		err := d.withJail(q, func(j *tenantJail) error {
			s, err := j.jail.Snapshot(q.ctx(), "export")
			id = s.ID
			return err
		})
		if err != nil {
			return err
		}
		defer func() {
			if err := d.jails.RemoveSnapshot(q.tenant, id); err != nil {
				d.log.Warn("the snapshot of an export could not be deleted", "tenant", q.tenant, "snapshot", id, "error", err)
			}
		}()
	}
	return d.sendTar(q, func(w io.Writer, ready func()) error {
		_, err := d.jails.Export(q.ctx(), q.tenant, id, w, ready)
		return err
	})
}

func (d *Daemon) handleDiff(q *request) error {
	j := d.tenants.find(q.tenant)
	if j == nil {
		return d.noJail(q.tenant)
	}
	// Its processes are not needed: a frozen jail stays so.
	diff, err := j.jail.Diff(q.ctx(), q.query("since"))
	if err != nil {
		return err
	}
	out := changes(diff)
	out.Since = q.query("since")
	return q.reply(http.StatusOK, out)
}

func changes(diff *jail.DiffResult) *api.Diff {
	out := &api.Diff{Changes: []api.Change{}, Truncated: diff.Truncated}
	for _, c := range diff.Changes {
		out.Changes = append(out.Changes, api.Change{Path: validText([]byte(c.Path)), PathBase64: base64IfOdd(c.Path), Kind: c.Kind, Type: c.Type, Size: c.Size})
	}
	return out
}
