package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/daemon/data"
)

const (
	maxKeys  = 1000
	maxValue = 4 << 20
)

// granted refuses data of tenants that policy does not know.
func (d *Daemon) granted(tenant string) error {
	_, err := d.policy.For(tenant)
	return err
}

func (d *Daemon) handleKVList(q *request) error {
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	limit, err := q.integer("limit", maxKeys, maxKeys)
	if err != nil {
		return err
	}
	keys, err := d.data.KV(q.tenant).List(q.ctx(), q.query("prefix"), q.query("after"), limit)
	if err != nil {
		return err
	}
	list := api.KVList{Keys: append([]string{}, keys...)}
	if len(keys) == limit && limit > 0 {
		list.Cursor = keys[limit-1]
	}
	return q.reply(http.StatusOK, list)
}

func (d *Daemon) handleKVGet(q *request) error {
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	value, err := d.data.KV(q.tenant).Get(q.ctx(), q.path("key"))
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, value)
}

// handleKVPut stores a JSON value.
func (d *Daemon) handleKVPut(q *request) error {
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	q.keepBody()
	value, err := io.ReadAll(io.LimitReader(&patientReader{q}, maxValue+1))
	if err != nil {
		return err
	}
	if err := q.readDeadline(time.Time{}); err != nil {
		return err
	}
	if len(value) > maxValue {
		return api.TooLarge("the value", maxValue)
	}
	if !json.Valid(value) {
		return api.Invalid("", "the body is not one JSON value")
	}
	if err := d.recordData(q, "kv_put", clip(q.path("key"), 200)); err != nil {
		return err
	}
	if err := d.data.KV(q.tenant).Put(q.ctx(), q.path("key"), value); err != nil {
		return err
	}
	return q.noContent()
}

func (d *Daemon) handleKVDelete(q *request) error {
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	if err := d.recordData(q, "kv_delete", clip(q.path("key"), 200)); err != nil {
		return err
	}
	if _, err := d.data.KV(q.tenant).Delete(q.ctx(), q.path("key")); err != nil {
		return err
	}
	return q.noContent()
}

func (d *Daemon) recordData(q *request, event, what string) error {
	_, err := d.record(q.ctx(), audit.Record{Kind: audit.KindData, Tenant: q.tenant, Caller: q.caller(), Fields: map[string]any{"event": event, "what": what}})
	return err
}

// sqlRequest reads a statement with its parameters.
func sqlRequest(q *request) (*api.SQLRequest, json.RawMessage, error) {
	var req api.SQLRequest
	if err := q.decode(&req); err != nil {
		return nil, nil, err
	}
	for i, p := range req.Params {
		if s := string(p); strings.HasPrefix(s, "{") || strings.HasPrefix(s, "[") {
			return nil, nil, api.Invalid(fmt.Sprintf("params[%d]", i), "must be a string, a number, a boolean or null")
		}
	}
	if req.Params == nil {
		return &req, nil, nil
	}
	params, err := json.Marshal(req.Params)
	return &req, params, err
}

func (d *Daemon) handleQuery(q *request) error {
	req, params, err := sqlRequest(q)
	if err != nil {
		return err
	}
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	rows, err := d.data.Query(q.ctx(), q.tenant, req.SQL, params, data.QueryLimits{})
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, rows)
}

func (d *Daemon) handleDBExec(q *request) error {
	req, params, err := sqlRequest(q)
	if err != nil {
		return err
	}
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	if err := d.recordData(q, "db_exec", clip(req.SQL, 500)); err != nil {
		return err
	}
	result, err := d.data.Exec(q.ctx(), q.tenant, req.SQL, params)
	if err != nil {
		return err
	}
	return q.reply(http.StatusOK, api.Executed{Changes: result.Changes, LastInsertID: result.LastInsertID})
}
