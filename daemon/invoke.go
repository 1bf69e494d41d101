package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// handleInvoke is POST …/functions/{function}/invoke: a run of what was deployed.
func (d *Daemon) handleInvoke(q *request) error {
	var inv api.InvokeRequest
	if err := q.decode(&inv); err != nil {
		return err
	}
	if err := errors.Join(checkID("run_id", inv.RunID), checkEnv("env", inv.Env)); err != nil {
		return err
	}
	if bytes.Equal(inv.Input, []byte("null")) {
		inv.Input = nil
	}
	if err := d.granted(q.tenant); err != nil {
		return err
	}
	name, hash := q.path("function"), ""
	if inv.RunID != "" {
		hash = invocationHash(name, &inv)
	}
	f, err := d.functions.get(q.ctx(), q.tenant, name)
	if err != nil {
		// The call with this id may have been made while there was one.
		if old := d.runs.find(q.tenant, inv.RunID); old != nil {
			return d.joinRun(q, &run{id: inv.RunID, request: hash}, old)
		}
		return err
	}
	req := runRequest(f.request, &inv)
	r := d.newRun(q, req, hash, f.meta.CodeSHA256)
	r.record.Function = name
	return d.startRun(q, r, func() (*plan, error) {
		p, err := d.planInvoke(q.tenant, f, req, &inv)
		if err == nil {
			d.functions.used(q.ctx(), q.tenant, f)
		}
		return p, err
	})
}

// planInvoke holds a call against its deployment and against the policy as it
// is now: a deployment freezes nothing that was granted once.
func (d *Daemon) planInvoke(tenant string, f *deployed, req *api.RunRequest, inv *api.InvokeRequest) (*plan, error) {
	p := &plan{request: req, modules: f.code.Modules(), main: f.code.Main(), function: f, ceiling: f.request.Limits}
	var err error
	if inv.Bindings != nil {
		if req.Bindings, err = fewerBindings(f.request.Bindings, inv.Bindings); err != nil {
			return nil, err
		}
	}
	if inv.Outbound != nil {
		if err := fewerHosts(f.request.Outbound, inv.Outbound); err != nil {
			return nil, err
		}
		req.Outbound = inv.Outbound
	} else if o := f.request.Outbound; o != nil {
		// What checks it writes into it.
		req.Outbound = &api.Outbound{Allow: slices.Clone(o.Allow)}
	}
	err = d.choose(tenant, p)
	var field *policy.FieldError
	if errors.As(err, &field) && p.ceiling != nil && strings.HasPrefix(field.Field, "limits.") {
		field.Message = strings.Replace(field.Message, "the policy grants", "the deployment and the policy grant", 1)
	}
	return p, err
}

// fewerBindings is what a call asks for of what its deployment may hold. Policy
// decides about the rest.
func fewerBindings(deployed, asked map[string]api.BindingRequest) (map[string]api.BindingRequest, error) {
	if deployed == nil {
		return asked, nil
	}
	out := map[string]api.BindingRequest{}
	for name, want := range asked {
		field := fmt.Sprintf("bindings.%.64s", name)
		have, ok := bindingOf(deployed, name)
		if !ok {
			return nil, &api.Error{Code: api.CodeDenied, Field: field, Message: "the function was deployed without this binding",
				Allowed: strings.Join(slices.Sorted(maps.Keys(deployed)), ", "), Hint: "deploy it again with the binding"}
		}
		if want.Methods == nil {
			want.Methods = have.Methods
		} else if have.Methods != nil || want.Methods.Schemas != nil {
			var err error
			if want.Methods, err = fewerMethods(field+".methods", have.Methods, want.Methods); err != nil {
				return nil, err
			}
		}
		out[name] = want
	}
	return out, nil
}

// fewerMethods is a call's list of methods with the schemas of its deployment,
// which may be nil only where the call gives schemas.
func fewerMethods(field string, deployed, asked *api.Methods) (*api.Methods, error) {
	if asked.Schemas != nil {
		return nil, &api.Error{Code: api.CodeInvalidRequest, Field: field, Message: "schemas belong to the deployment; a call names methods", Allowed: "a list of names"}
	}
	out := &api.Methods{Names: asked.Names}
	if deployed.Schemas != nil {
		out.Schemas = map[string]api.MethodRequest{}
	}
	for i, m := range asked.Names {
		if !slices.Contains(deployed.Names, m) {
			return nil, &api.Error{Code: api.CodeDenied, Field: fmt.Sprintf("%s[%d]", field, i),
				Message: fmt.Sprintf("the function was deployed without the method %.64q", m), Allowed: strings.Join(deployed.Names, ", ")}
		}
		if out.Schemas != nil {
			out.Schemas[m] = deployed.Schemas[m]
		}
	}
	return out, nil
}

// bindingOf finds a binding by its name; names differ in more than case.
func bindingOf(all map[string]api.BindingRequest, name string) (api.BindingRequest, bool) {
	for real, b := range all {
		if strings.EqualFold(real, name) {
			return b, true
		}
	}
	return api.BindingRequest{}, false
}

// fewerHosts refuses hosts that the deployment does not have.
func fewerHosts(deployed, asked *api.Outbound) error {
	for i, host := range asked.Allow {
		field := fmt.Sprintf("outbound.allow[%d]", i)
		name, err := canonicalPattern(host)
		if err != nil {
			return api.Invalid(field, err.Error())
		}
		if deployed == nil || !slices.ContainsFunc(deployed.Allow, func(p string) bool {
			granted, err := canonicalPattern(p)
			return err == nil && covers(granted, name)
		}) {
			allowed := ""
			if deployed != nil {
				allowed = strings.Join(deployed.Allow, ", ")
			}
			return &api.Error{Code: api.CodeDenied, Field: field, Message: fmt.Sprintf("the function was deployed without requests to %.255s", name),
				Allowed: allowed, Hint: "deploy it again with the host in outbound"}
		}
	}
	return nil
}

// canonicalPattern is a host, exact or "*.suffix", as the policy writes it.
func canonicalPattern(host string) (string, error) {
	suffix, wild := strings.CutPrefix(host, "*.")
	name, err := policy.CanonicalHost(suffix)
	if err == nil && wild {
		name = "*." + name
	}
	return name, err
}
