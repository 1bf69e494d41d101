package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"

	"sandboxd/daemon/api"
)

// Templates lists the imported root file systems.
func (c *Client) Templates(ctx context.Context) (*api.TemplateList, error) {
	return get[api.TemplateList](ctx, c, call{method: http.MethodGet, path: "/v1/templates"})
}

// Template describes one.
func (c *Client) Template(ctx context.Context, name string) (*api.Template, error) {
	return get[api.Template](ctx, c, call{method: http.MethodGet, path: "/v1/templates/" + segment(name)})
}

// ImportTemplate imports a root file system from r: a tar, an OCI layout or what
// docker save writes, plain or compressed with gzip or zstd. progress, which may
// be nil, is told how far it is.
func (c *Client) ImportTemplate(ctx context.Context, name string, r io.Reader, progress func(*api.ImportProgress)) (*api.Template, error) {
	return c.importTemplate(ctx, call{method: http.MethodPut, path: "/v1/templates/" + segment(name), body: r, media: "application/octet-stream"}, progress)
}

// ImportTemplatePath is ImportTemplate of a folder or an archive on the daemon's
// host.
func (c *Client) ImportTemplatePath(ctx context.Context, name, path string, progress func(*api.ImportProgress)) (*api.Template, error) {
	return c.importTemplate(ctx, call{method: http.MethodPut, path: "/v1/templates/" + segment(name), query: url.Values{"path": {path}}}, progress)
}

func (c *Client) importTemplate(ctx context.Context, k call, progress func(*api.ImportProgress)) (*api.Template, error) {
	for e, err := range c.stream(ctx, k, true) {
		switch {
		case err != nil:
			return nil, err
		case e.Template != nil:
			return e.Template, nil
		case e.Progress != nil && progress != nil:
			progress(e.Progress)
		}
	}
	return nil, errors.New("client: the import ended without an answer")
}

// RemoveTemplate removes one; it is no error if there is none.
func (c *Client) RemoveTemplate(ctx context.Context, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/v1/templates/" + segment(name)})
}
