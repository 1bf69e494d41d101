package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/daemon/audit"
	"sandboxd/jail"
	"sandboxd/netproxy"
	"sandboxd/policy"
)

// describe is the jail as the API shows it.
func (j *tenantJail) describe() api.Jail {
	info := j.jail.Info()
	j.mu.Lock()
	defer j.mu.Unlock()
	out := api.Jail{Tenant: j.tenant, State: info.State, Template: j.template, Workspace: "persistent", Created: j.created, Deadline: j.deadline, DeadlineCause: "lifetime",
		IdleTimeout: j.limits.Idle, IdleAt: j.idleAt, Cause: info.Cause, Processes: info.Processes, Limits: j.limits,
		Enforced: append([]string{}, info.Enforced...), Usage: jailUsage(&info.Usage), Denials: append([]api.Denial(nil), j.denials...)}
	if out.Root = policy.RootReadOnly; j.writable {
		out.Root = policy.RootWritable
	}
	if j.ephemeral {
		out.Workspace = "ephemeral"
	}
	out.Usage.BytesOut, out.Usage.BytesIn, out.Usage.Requests = j.bytesOut, j.bytesIn, j.requests
	if j.link != nil {
		out.Enforced = append(out.Enforced, "bandwidth")
	}
	if j.d.net != nil {
		for _, p := range j.d.net.Ports(j.tenant) {
			out.Ports = append(out.Ports, port(p))
		}
	}
	return out
}

func jailUsage(u *jail.Usage) api.JailUsage {
	return api.JailUsage{CPU: knownDuration(u.CPU), MemoryNow: known(u.MemoryNow), MemoryPeak: known(u.MemoryPeak), PidsPeak: known(u.PidsPeak), Disk: known(u.Disk), Inodes: known(u.Inodes)}
}

func port(p netproxy.Preview) api.Port {
	return api.Port{Port: int(p.Port), URL: p.URL, Token: p.Token, Expires: p.Expires}
}

// portNumber reads the port of the path.
func portNumber(q *request) (uint16, error) {
	n, err := strconv.ParseUint(q.path("port"), 10, 16)
	if err != nil || n == 0 {
		e := api.Invalid("port", fmt.Sprintf("%.20q is not a port", q.path("port")))
		e.Allowed = "1 to 65535"
		return 0, e
	}
	return uint16(n), nil
}

func (d *Daemon) handlePorts(q *request) error {
	list := api.PortList{Ports: []api.Port{}}
	if d.net != nil && d.tenants.find(q.tenant) != nil {
		for _, p := range d.net.Ports(q.tenant) {
			list.Ports = append(list.Ports, port(p))
		}
	}
	return q.reply(http.StatusOK, list)
}

func (d *Daemon) handlePortGet(q *request) error {
	n, err := portNumber(q)
	if err != nil {
		return err
	}
	if d.net != nil && d.tenants.find(q.tenant) != nil {
		for _, p := range d.net.Ports(q.tenant) {
			if p.Port == n {
				return q.reply(http.StatusOK, port(p))
			}
		}
	}
	return netproxy.ErrNotExposed
}

// handleExpose publishes a port of the jail there is.
func (d *Daemon) handleExpose(q *request) (err error) {
	n, err := portNumber(q)
	if err != nil {
		return err
	}
	var req api.PortRequest
	if err := q.decode(&req); err != nil {
		return err
	}
	if err := d.need(partEgress); err != nil {
		return err
	}
	j, err := d.tenants.existing(q.ctx(), q.tenant)
	if err != nil {
		return err
	}
	defer func() { j.releaseAfter(err) }()
	denied := &api.Error{Code: api.CodeDenied, Field: "port", Message: "the policy does not let the tenant publish ports", Hint: "an operator can set jail.preview of the profile"}
	if !d.mayPublish(q.tenant) {
		return denied
	}
	left := time.Until(j.ends())
	ttl := req.TTL.Std()
	if ttl == 0 {
		ttl = left
	}
	if ttl > left {
		e := api.Invalid("ttl", "is longer than the jail lives")
		e.Allowed = left.Round(time.Second).String()
		return e
	}
	if _, err := d.record(q.ctx(), audit.Record{Kind: audit.KindAdmin, Tenant: q.tenant, Caller: q.caller(),
		Fields: map[string]any{"event": "expose", "port": n, "ttl": ttl.String()}}); err != nil {
		return err
	}
	p, err := d.net.Expose(q.ctx(), q.tenant, n, ttl)
	if err != nil {
		return err
	}
	if !d.mayPublish(q.tenant) { // it came too late for endJails to see it
		if err := d.net.Unexpose(q.ctx(), q.tenant, n); err != nil && !errors.Is(err, netproxy.ErrNotExposed) {
			return err
		}
		return denied
	}
	return q.reply(http.StatusOK, port(p))
}

func (d *Daemon) handlePortClose(q *request) error {
	n, err := portNumber(q)
	if err != nil {
		return err
	}
	if d.net != nil {
		if err := d.net.Unexpose(q.ctx(), q.tenant, n); err != nil && !errors.Is(err, netproxy.ErrNotExposed) {
			return err
		}
	}
	return q.noContent()
}
