package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"

	"sandboxd/daemon/api"
)

func secretPath(name string) string { return "/v1/secrets/" + segment(name) }

// Secrets lists credentials by name, for administrators.
func (c *Client) Secrets(ctx context.Context) (*api.SecretList, error) {
	return get[api.SecretList](ctx, c, call{method: http.MethodGet, path: "/v1/secrets"})
}

// DeleteSecret deletes a stored credential, for administrators.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: secretPath(name)})
}

// SetSecret stores a credential or replaces it, for administrators. The value
// is sent once the connection leads to the proxy process, not before.
func (c *Client) SetSecret(ctx context.Context, name string, value []byte) (*api.Secret, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, &UnreachableError{c.socket, err}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	out, err := setSecret(conn, name, value)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

func setSecret(conn net.Conn, name string, value []byte) (*api.Secret, error) {
	_, err := fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: sandboxd\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", secretPath(name), api.SecretProtocol)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodPut})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		return nil, failure(resp)
	}
	frame := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(value)), uint32(len(value))), value...)
	_, sent := conn.Write(frame)
	clear(frame)
	var answer struct {
		api.Secret
		Error *api.Error `json:"error"`
	}
	if err := json.NewDecoder(r).Decode(&answer); err != nil {
		return nil, errors.Join(errors.New("client: the daemon did not say whether the value was set"), sent, err)
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	return &answer.Secret, nil
}
