package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"sandboxd/daemon/api"
)

func keyPath(tenant, key string) string { return tenantPath(tenant, "/kv/", segment(key)) }

// KVGet returns a value.
func (c *Client) KVGet(ctx context.Context, tenant, key string) (json.RawMessage, error) {
	raw, err := get[json.RawMessage](ctx, c, call{method: http.MethodGet, path: keyPath(tenant, key)})
	if err != nil {
		return nil, err
	}
	return *raw, nil
}

// KVPut stores a value.
func (c *Client) KVPut(ctx context.Context, tenant, key string, value json.RawMessage) error {
	return c.do(ctx, call{method: http.MethodPut, path: keyPath(tenant, key), body: bytes.NewReader(value), media: "application/json"})
}

// KVDelete deletes a value.
func (c *Client) KVDelete(ctx context.Context, tenant, key string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: keyPath(tenant, key)})
}

// KVList lists keys with a prefix, after a key.
func (c *Client) KVList(ctx context.Context, tenant, prefix, after string) (*api.KVList, error) {
	return get[api.KVList](ctx, c, call{method: http.MethodGet, path: tenantPath(tenant, "/kv"), query: url.Values{"prefix": {prefix}, "after": {after}}})
}

// Query reads the tenant's database.
func (c *Client) Query(ctx context.Context, tenant string, r *api.SQLRequest) (*api.Rows, error) {
	return get[api.Rows](ctx, c, call{method: http.MethodPost, path: tenantPath(tenant, "/db/query"), json: r})
}

// ExecSQL changes the tenant's database.
func (c *Client) ExecSQL(ctx context.Context, tenant string, r *api.SQLRequest) (*api.Executed, error) {
	return get[api.Executed](ctx, c, call{method: http.MethodPost, path: tenantPath(tenant, "/db/exec"), json: r})
}

// Policy returns what the tenant may do.
func (c *Client) Policy(ctx context.Context, tenant string) (*api.PolicyView, error) {
	return get[api.PolicyView](ctx, c, call{method: http.MethodGet, path: tenantPath(tenant, "/policy")})
}

// CheckPolicy says what is wrong with a policy file's content.
func (c *Client) CheckPolicy(ctx context.Context, r *api.PolicyCheckRequest) (*api.PolicyCheck, error) {
	return get[api.PolicyCheck](ctx, c, call{method: http.MethodPost, path: "/v1/policy/check", json: r})
}

// ReloadPolicy has the daemon read its policy file again. After an error the
// old policy is in force.
func (c *Client) ReloadPolicy(ctx context.Context) (*api.PolicyReload, error) {
	return get[api.PolicyReload](ctx, c, call{method: http.MethodPost, path: "/v1/policy/reload"})
}

// Status describes the daemon.
func (c *Client) Status(ctx context.Context) (*api.Status, error) {
	return get[api.Status](ctx, c, call{method: http.MethodGet, path: "/v1/status"})
}

// Doctor says what the daemon's host offers.
func (c *Client) Doctor(ctx context.Context) (*api.Doctor, error) {
	return get[api.Doctor](ctx, c, call{method: http.MethodGet, path: "/v1/doctor"})
}

// VerifyAudit checks the audit log.
func (c *Client) VerifyAudit(ctx context.Context) (*api.AuditVerdict, error) {
	return get[api.AuditVerdict](ctx, c, call{method: http.MethodGet, path: "/v1/audit/verify"})
}

// OpenAPI returns the document of the API.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	raw, err := get[json.RawMessage](ctx, c, call{method: http.MethodGet, path: "/v1/openapi.json"})
	if err != nil {
		return nil, err
	}
	return *raw, nil
}

// Health answers when the daemon serves; a call that does nothing else.
func (c *Client) Health(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: "/healthz"})
}

// Metrics returns the metrics as text.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: "/metrics"})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return "", failure(resp)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("client: metrics: %w", err)
	}
	return string(text), nil
}

// RemoveTenant ends and deletes all there is of a tenant; it is no error if that
// is nothing.
func (c *Client) RemoveTenant(ctx context.Context, tenant string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: tenantPath(tenant)})
}
