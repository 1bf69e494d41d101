package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"sandboxd/daemon/api"
)

func functionPath(tenant, name string, rest ...string) string {
	return tenantPath(tenant, append([]string{"/functions/", segment(name)}, rest...)...)
}

// Deploy deploys a function in place of the one of that name. With replaces not
// empty it does so only if the code deployed now has that hash, or with "none"
// only if there is none.
func (c *Client) Deploy(ctx context.Context, tenant, name, replaces string, r *api.FunctionRequest) (*api.Function, error) {
	q := url.Values{}
	if replaces != "" {
		q.Set("replaces", replaces)
	}
	return get[api.Function](ctx, c, call{method: http.MethodPut, path: functionPath(tenant, name), query: q, json: r})
}

// Function describes a deployed function.
func (c *Client) Function(ctx context.Context, tenant, name string) (*api.Function, error) {
	return get[api.Function](ctx, c, call{method: http.MethodGet, path: functionPath(tenant, name)})
}

// Functions lists the tenant's deployed functions.
func (c *Client) Functions(ctx context.Context, tenant string) (*api.FunctionList, error) {
	return get[api.FunctionList](ctx, c, call{method: http.MethodGet, path: tenantPath(tenant, "/functions")})
}

// DeleteFunction deletes a function; it is no error if there is none.
func (c *Client) DeleteFunction(ctx context.Context, tenant, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: functionPath(tenant, name)})
}

// Invoke runs a deployed function and waits; its answer is as Run's.
func (c *Client) Invoke(ctx context.Context, tenant, name string, r *api.InvokeRequest) (*api.Run, error) {
	return c.run(ctx, call{method: http.MethodPost, path: functionPath(tenant, name, "/invoke"), json: r})
}

// InvokeStream runs a deployed function and yields its events.
func (c *Client) InvokeStream(ctx context.Context, tenant, name string, r *api.InvokeRequest) iter.Seq2[api.Event, error] {
	return c.stream(ctx, call{method: http.MethodPost, path: functionPath(tenant, name, "/invoke"), json: r}, true)
}
