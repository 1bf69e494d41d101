package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coder/websocket"
)

// maxFrame bounds one event of a terminal.
const maxFrame = 1 << 20

// Terminal opens a command's terminal. Each frame that is read is one event,
// which has the number after the one before: binary is output, text an Event.
// What is written is input if binary, or a TerminalControl as text. The caller
// closes it; ctx bounds opening it alone.
func (c *Client) Terminal(ctx context.Context, tenant, exec string, after uint64) (*websocket.Conn, error) {
	target := "http://sandboxd" + processPath(tenant, exec, "/tty") + "?" + url.Values{"after": {strconv.FormatUint(after, 10)}}.Encode()
	conn, resp, err := websocket.Dial(ctx, target, &websocket.DialOptions{HTTPClient: c.http})
	if err == nil {
		conn.SetReadLimit(maxFrame)
		return conn, nil
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case resp == nil:
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, &UnreachableError{c.socket, err}
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return nil, fmt.Errorf("client: terminal: %w", err)
	}
	return nil, failure(resp)
}
