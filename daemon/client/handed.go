package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
)

// ExecWith is ExecStream of a command that gets the caller's own descriptors for
// stdin, stdout and stderr (nil: none). They stay the caller's, who may close
// them as soon as the first event is there. Nothing that is written to them
// comes as an event.
func (c *Client) ExecWith(ctx context.Context, tenant string, r *api.ExecRequest, files [3]*os.File) iter.Seq2[api.Event, error] {
	req := *r
	send, named := distinct(files)
	req.FDs = named
	return func(yield func(api.Event, error) bool) {
		one, err := c.handing(send)
		if err != nil {
			yield(api.Event{}, err)
			return
		}
		defer one.Close()
		for e, err := range one.ExecStream(ctx, tenant, &req) {
			if !yield(e, err) {
				return
			}
		}
	}
}

// distinct lists each file once and says where each stream's is.
func distinct(files [3]*os.File) ([]*os.File, *api.Descriptors) {
	var send []*os.File
	index := [3]*int{}
	for i, f := range files {
		if f == nil {
			continue
		}
		at := slices.Index(send, f)
		if at < 0 {
			at = len(send)
			send = append(send, f)
		}
		index[i] = &at
	}
	if len(send) == 0 {
		return nil, nil
	}
	return send, &api.Descriptors{Stdin: index[0], Stdout: index[1], Stderr: index[2]}
}

// handing is a client for one request, which brings the files: they belong to
// its connection, and no other request may come on it.
func (c *Client) handing(files []*os.File) (*Client, error) {
	rights, err := rightsOf(files)
	if err != nil {
		return nil, err
	}
	used := false
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if used {
			return nil, errors.New("client: a request that brings descriptors is not made twice")
		}
		used = true
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
		if err != nil {
			return nil, err
		}
		return &handingConn{UnixConn: conn.(*net.UnixConn), rights: rights, files: files}, nil
	}
	return &Client{socket: c.socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true}}}, nil
}

// rightsOf is the control message for files.
func rightsOf(files []*os.File) ([]byte, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn() // not Fd, which would make it blocking
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return nil, fmt.Errorf("client: descriptor %s: %w", f.Name(), err)
		}
	}
	if len(fds) == 0 {
		return nil, nil
	}
	return unix.UnixRights(fds...), nil
}

// handingConn sends the descriptors with its first byte.
type handingConn struct {
	*net.UnixConn
	rights []byte
	files  []*os.File // kept open until they are sent
}

func (c *handingConn) Write(b []byte) (int, error) {
	if c.rights == nil || len(b) == 0 {
		return c.UnixConn.Write(b)
	}
	n, _, err := c.WriteMsgUnix(b, c.rights, nil)
	runtime.KeepAlive(c.files)
	if err != nil {
		return n, err
	}
	c.rights, c.files = nil, nil
	if n == len(b) {
		return n, nil
	}
	rest, err := c.UnixConn.Write(b[n:])
	return n + rest, err
}
