package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	pathpkg "path"
	"strconv"
	"strings"
	"time"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

func tenantPath(tenant string, rest ...string) string {
	return "/v1/tenants/" + segment(tenant) + strings.Join(rest, "")
}

func jailPath(tenant string, rest ...string) string {
	return tenantPath(tenant, append([]string{"/jail"}, rest...)...)
}

// Run runs code and waits. A run that was refused comes back as a *api.Run with
// its error, too; the error is for calls that came to no run.
func (c *Client) Run(ctx context.Context, tenant string, r *api.RunRequest) (*api.Run, error) {
	return c.run(ctx, call{method: http.MethodPost, path: tenantPath(tenant, "/run"), json: r})
}

// Replay runs a recorded run again from its recorded answers and waits; r may be
// nil. tenant may be empty where only one has a run with this id. As with Run
// the error is for calls that came to no run.
func (c *Client) Replay(ctx context.Context, run, tenant string, r *api.ReplayRequest) (*api.Run, error) {
	return c.run(ctx, replayCall(run, tenant, r))
}

// ReplayStream replays a recorded run and yields the replay's events.
func (c *Client) ReplayStream(ctx context.Context, run, tenant string, r *api.ReplayRequest) iter.Seq2[api.Event, error] {
	return c.stream(ctx, replayCall(run, tenant, r), true)
}

func replayCall(run, tenant string, r *api.ReplayRequest) call {
	if r == nil {
		r = &api.ReplayRequest{}
	}
	k := call{method: http.MethodPost, path: "/v1/runs/" + segment(run) + "/replay", json: r}
	if tenant != "" {
		k.query = url.Values{"tenant": {tenant}}
	}
	return k
}

// run makes a call that is answered with a run.
func (c *Client) run(ctx context.Context, k call) (*api.Run, error) {
	resp, err := c.send(ctx, k)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("client: the answer of a run: %w", err)
	}
	var body struct {
		api.Run
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return nil, fmt.Errorf("client: the daemon answered %s with something else than a run: %w", resp.Status, err)
	}
	if body.RunID == "" {
		if body.Error != nil {
			return nil, body.Error
		}
		return nil, fmt.Errorf("client: the daemon answered %s without saying why", resp.Status)
	}
	return &body.Run, nil
}

// RunStream runs code and yields its events.
func (c *Client) RunStream(ctx context.Context, tenant string, r *api.RunRequest) iter.Seq2[api.Event, error] {
	return c.stream(ctx, call{method: http.MethodPost, path: tenantPath(tenant, "/run"), json: r}, true)
}

// GetRun returns a run's record.
func (c *Client) GetRun(ctx context.Context, run string) (*api.Run, error) {
	return get[api.Run](ctx, c, call{method: http.MethodGet, path: "/v1/runs/" + segment(run)})
}

// Runs lists runs, newest first. Empty strings and the zero time mean any.
func (c *Client) Runs(ctx context.Context, tenant, status string, since time.Time, limit int) (*api.RunList, error) {
	q := url.Values{}
	for name, value := range map[string]string{"tenant": tenant, "status": status} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if !since.IsZero() {
		q.Set("since", since.Format(time.RFC3339))
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return get[api.RunList](ctx, c, call{method: http.MethodGet, path: "/v1/runs", query: q})
}

func eventsQuery(after uint64, follow bool) url.Values {
	return url.Values{"after": {strconv.FormatUint(after, 10)}, "follow": {strconv.FormatBool(follow)}}
}

// RunEvents yields a run's events after seq.
func (c *Client) RunEvents(ctx context.Context, run string, after uint64, follow bool) iter.Seq2[api.Event, error] {
	return c.stream(ctx, call{method: http.MethodGet, path: "/v1/runs/" + segment(run) + "/events", query: eventsQuery(after, follow)}, follow)
}

// CancelRun ends a run and returns how it ended.
func (c *Client) CancelRun(ctx context.Context, run string) (*api.Run, error) {
	return get[api.Run](ctx, c, call{method: http.MethodDelete, path: "/v1/runs/" + segment(run)})
}

// AnswerCall answers a call of the caller's own tool.
func (c *Client) AnswerCall(ctx context.Context, run, id string, a *api.ToolAnswer) error {
	return c.do(ctx, call{method: http.MethodPost, path: "/v1/runs/" + segment(run) + "/calls/" + segment(id), json: a})
}

// Jails lists the jails that the caller may see.
func (c *Client) Jails(ctx context.Context) (*api.JailList, error) {
	return get[api.JailList](ctx, c, call{method: http.MethodGet, path: "/v1/jails"})
}

// CreateJail creates the tenant's jail or returns the one there is.
func (c *Client) CreateJail(ctx context.Context, tenant string, r *api.JailRequest) (*api.Jail, error) {
	return get[api.Jail](ctx, c, call{method: http.MethodPut, path: jailPath(tenant), json: r})
}

// UpdateJail changes limits, IdleTimeout, MaxLifetime and Lease of the jail there
// is, all or nothing; other fields must be as they are.
func (c *Client) UpdateJail(ctx context.Context, tenant string, r *api.JailRequest) (*api.Jail, error) {
	return get[api.Jail](ctx, c, call{method: http.MethodPatch, path: jailPath(tenant), json: r})
}

// Jail describes the tenant's jail.
func (c *Client) Jail(ctx context.Context, tenant string) (*api.Jail, error) {
	return get[api.Jail](ctx, c, call{method: http.MethodGet, path: jailPath(tenant)})
}

// DestroyJail ends the jail; everything it owned, its workspace too, is gone
// when it returns.
func (c *Client) DestroyJail(ctx context.Context, tenant string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: jailPath(tenant)})
}

// TouchJail counts as activity.
func (c *Client) TouchJail(ctx context.Context, tenant string) (*api.Jail, error) {
	return c.jailAction(ctx, tenant, "/touch")
}

// FreezeJail stops the jail's processes until the next request.
func (c *Client) FreezeJail(ctx context.Context, tenant string) (*api.Jail, error) {
	return c.jailAction(ctx, tenant, "/freeze")
}

// ThawJail lets the jail's processes go on.
func (c *Client) ThawJail(ctx context.Context, tenant string) (*api.Jail, error) {
	return c.jailAction(ctx, tenant, "/thaw")
}

func (c *Client) jailAction(ctx context.Context, tenant, action string) (*api.Jail, error) {
	return get[api.Jail](ctx, c, call{method: http.MethodPost, path: jailPath(tenant, action)})
}

// Exec runs a command in the jail and waits; with Background it returns as soon
// as the command has started.
func (c *Client) Exec(ctx context.Context, tenant string, r *api.ExecRequest) (*api.Process, error) {
	return get[api.Process](ctx, c, call{method: http.MethodPost, path: jailPath(tenant, "/exec"), json: r})
}

// ExecStream runs a command in the jail and yields its events.
func (c *Client) ExecStream(ctx context.Context, tenant string, r *api.ExecRequest) iter.Seq2[api.Event, error] {
	return c.stream(ctx, call{method: http.MethodPost, path: jailPath(tenant, "/exec"), json: r}, true)
}

// Processes lists the jail's commands.
func (c *Client) Processes(ctx context.Context, tenant string) (*api.ProcessList, error) {
	return get[api.ProcessList](ctx, c, call{method: http.MethodGet, path: jailPath(tenant, "/processes")})
}

func processPath(tenant, exec string, rest ...string) string {
	return jailPath(tenant, append([]string{"/processes/", segment(exec)}, rest...)...)
}

// Process describes one command.
func (c *Client) Process(ctx context.Context, tenant, exec string) (*api.Process, error) {
	return get[api.Process](ctx, c, call{method: http.MethodGet, path: processPath(tenant, exec)})
}

// ProcessEvents yields a command's events after seq; after 0, from the oldest
// that is kept.
func (c *Client) ProcessEvents(ctx context.Context, tenant, exec string, after uint64, follow bool) iter.Seq2[api.Event, error] {
	query := eventsQuery(after, follow)
	if after == 0 {
		query.Del("after")
	}
	return c.stream(ctx, call{method: http.MethodGet, path: processPath(tenant, exec, "/events"), query: query}, follow)
}

// Signal signals a command; signal has no SIG in front.
func (c *Client) Signal(ctx context.Context, tenant, exec, signal string) error {
	return c.do(ctx, call{method: http.MethodPost, path: processPath(tenant, exec, "/signal"), json: api.SignalRequest{Signal: signal}})
}

// Stdin writes to a command's standard input, and closes it afterwards if asked.
func (c *Client) Stdin(ctx context.Context, tenant, exec string, r io.Reader, close bool) error {
	return c.do(ctx, call{method: http.MethodPost, path: processPath(tenant, exec, "/stdin"), query: url.Values{"close": {strconv.FormatBool(close)}},
		body: r, media: "application/octet-stream"})
}

// Resize changes the size of a command's terminal.
func (c *Client) Resize(ctx context.Context, tenant, exec string, size api.TTY) error {
	return c.do(ctx, call{method: http.MethodPost, path: processPath(tenant, exec, "/resize"), json: size})
}

// Wait waits for a command's port, output or end.
func (c *Client) Wait(ctx context.Context, tenant, exec string, r *api.WaitRequest) (*api.WaitAnswer, error) {
	return get[api.WaitAnswer](ctx, c, call{method: http.MethodPost, path: processPath(tenant, exec, "/wait"), json: r})
}

// Kill kills a command's whole tree.
func (c *Client) Kill(ctx context.Context, tenant, exec string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: processPath(tenant, exec)})
}

// Ports lists the published ports.
func (c *Client) Ports(ctx context.Context, tenant string) (*api.PortList, error) {
	return get[api.PortList](ctx, c, call{method: http.MethodGet, path: jailPath(tenant, "/ports")})
}

func portPath(tenant string, port int) string { return jailPath(tenant, "/ports/", strconv.Itoa(port)) }

// Expose publishes a port; a ttl of 0 means as long as the jail lives.
func (c *Client) Expose(ctx context.Context, tenant string, port int, ttl time.Duration) (*api.Port, error) {
	return get[api.Port](ctx, c, call{method: http.MethodPost, path: portPath(tenant, port), json: api.PortRequest{TTL: policy.Duration(ttl)}})
}

// ClosePort stops publishing a port.
func (c *Client) ClosePort(ctx context.Context, tenant string, port int) error {
	return c.do(ctx, call{method: http.MethodDelete, path: portPath(tenant, port)})
}

func filePath(tenant, path string) string {
	parts := strings.Split(strings.TrimPrefix(pathpkg.Clean("/"+path), "/"), "/")
	for i := range parts {
		parts[i] = segment(parts[i])
	}
	return jailPath(tenant, "/files/", strings.Join(parts, "/"))
}

// ReadFile returns a file of the jail; the caller closes it.
func (c *Client) ReadFile(ctx context.Context, tenant, path string) (io.ReadCloser, error) {
	return c.bytes(ctx, call{method: http.MethodGet, path: filePath(tenant, path)})
}

// bytes makes a call that answers with bytes.
func (c *Client) bytes(ctx context.Context, k call) (io.ReadCloser, error) {
	resp, err := c.send(ctx, k)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, failure(resp)
	}
	return resp.Body, nil
}

// WriteFile writes a file of the jail.
func (c *Client) WriteFile(ctx context.Context, tenant, path string, r io.Reader, mode uint32) error {
	return c.do(ctx, call{method: http.MethodPut, path: filePath(tenant, path), body: r, media: "application/octet-stream",
		query: url.Values{"mode": {fmt.Sprintf("%04o", mode)}}})
}

// AppendFile adds to the end of a file of the jail.
func (c *Client) AppendFile(ctx context.Context, tenant, path string, r io.Reader) error {
	return c.do(ctx, call{method: http.MethodPut, path: filePath(tenant, path), body: r, media: "application/octet-stream", query: url.Values{"append": {"true"}}})
}

func (c *Client) changeFile(ctx context.Context, tenant, path string, query url.Values) error {
	return c.do(ctx, call{method: http.MethodPost, path: filePath(tenant, path), query: query})
}

// Mkdir makes a folder of the jail and those above it.
func (c *Client) Mkdir(ctx context.Context, tenant, path string, mode uint32) error {
	return c.changeFile(ctx, tenant, path, url.Values{"mkdir": {"true"}, "mode": {fmt.Sprintf("%04o", mode)}})
}

// RenameFile moves a file or folder of the jail.
func (c *Client) RenameFile(ctx context.Context, tenant, from, to string, overwrite bool) error {
	return c.changeFile(ctx, tenant, from, url.Values{"rename": {"true"}, "to": {to}, "overwrite": {strconv.FormatBool(overwrite)}})
}

// ChmodFile sets permission bits in the jail.
func (c *Client) ChmodFile(ctx context.Context, tenant, path string, mode uint32) error {
	return c.changeFile(ctx, tenant, path, url.Values{"chmod": {"true"}, "mode": {fmt.Sprintf("%04o", mode)}})
}

// ReadArchive returns a folder's content as a tar; the caller closes it. If it
// was cut off, reading it ends with an error.
func (c *Client) ReadArchive(ctx context.Context, tenant, path string) (io.ReadCloser, error) {
	return c.bytes(ctx, call{method: http.MethodGet, path: jailPath(tenant, "/archive"), query: url.Values{"path": {path}}})
}

// WriteArchive unpacks a tar into a folder of the jail.
func (c *Client) WriteArchive(ctx context.Context, tenant, path string, r io.Reader) (*api.ArchiveReport, error) {
	return get[api.ArchiveReport](ctx, c, call{method: http.MethodPut, path: jailPath(tenant, "/archive"), query: url.Values{"path": {path}}, body: r, media: "application/x-tar"})
}

// Watch yields changes of a folder of the jail. The first event says that the
// watch is in place.
func (c *Client) Watch(ctx context.Context, tenant, path string, recursive bool) iter.Seq2[api.Event, error] {
	return c.stream(ctx, call{method: http.MethodGet, path: jailPath(tenant, "/watch"), query: url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}}, false)
}

func snapshotPath(tenant, id string, rest ...string) string {
	return jailPath(tenant, append([]string{"/snapshots/", segment(id)}, rest...)...)
}

// Snapshot copies the tenant's files as they are now.
func (c *Client) Snapshot(ctx context.Context, tenant, label string) (*api.Snapshot, error) {
	return get[api.Snapshot](ctx, c, call{method: http.MethodPost, path: jailPath(tenant, "/snapshots"), json: api.SnapshotRequest{Label: label}})
}

// Snapshots lists the tenant's snapshots, oldest first.
func (c *Client) Snapshots(ctx context.Context, tenant string) (*api.SnapshotList, error) {
	return get[api.SnapshotList](ctx, c, call{method: http.MethodGet, path: jailPath(tenant, "/snapshots")})
}

// RestoreSnapshot puts a snapshot in place of the tenant's files. The commands
// of its jail end.
func (c *Client) RestoreSnapshot(ctx context.Context, tenant, id string) (*api.Snapshot, error) {
	return get[api.Snapshot](ctx, c, call{method: http.MethodPost, path: snapshotPath(tenant, id, "/restore")})
}

// DeleteSnapshot deletes a snapshot, or gives up one that is being made.
func (c *Client) DeleteSnapshot(ctx context.Context, tenant, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: snapshotPath(tenant, id)})
}

// Export returns the tenant's files as a tar: a snapshot's, or with id "" as
// they are now. The caller closes it.
func (c *Client) Export(ctx context.Context, tenant, id string) (io.ReadCloser, error) {
	k := call{method: http.MethodGet, path: jailPath(tenant, "/export"), query: url.Values{}}
	if id != "" {
		k.query.Set("snapshot", id)
	}
	return c.bytes(ctx, k)
}

// Diff lists what has changed since a snapshot, or with since "" since the jail
// was created.
func (c *Client) Diff(ctx context.Context, tenant, since string) (*api.Diff, error) {
	k := call{method: http.MethodGet, path: jailPath(tenant, "/diff"), query: url.Values{}}
	if since != "" {
		k.query.Set("since", since)
	}
	return get[api.Diff](ctx, c, k)
}

// DeleteFile deletes a file or a tree of the jail.
func (c *Client) DeleteFile(ctx context.Context, tenant, path string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: filePath(tenant, path)})
}

// ListFiles lists a folder of the jail, depth levels deep.
func (c *Client) ListFiles(ctx context.Context, tenant, path string, depth int) (*api.FileList, error) {
	return get[api.FileList](ctx, c, call{method: http.MethodGet, path: filePath(tenant, path), query: url.Values{"list": {"true"}, "depth": {strconv.Itoa(depth)}}})
}

// StatFile describes a file of the jail.
func (c *Client) StatFile(ctx context.Context, tenant, path string) (*api.FileInfo, error) {
	return get[api.FileInfo](ctx, c, call{method: http.MethodGet, path: filePath(tenant, path), query: url.Values{"stat": {"true"}}})
}

// GitClone clones a repository with the jail's git and waits.
func (c *Client) GitClone(ctx context.Context, tenant string, g *api.GitClone) (*api.Process, error) {
	return get[api.Process](ctx, c, call{method: http.MethodPost, path: jailPath(tenant, "/git"), json: api.GitRequest{Clone: g}})
}
