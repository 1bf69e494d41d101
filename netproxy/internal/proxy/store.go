package proxy

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"time"

	"sandboxd/netproxy/internal/control"
	"sandboxd/secrets"
)

// sealTime is how long the caller of `secret set` has to send the value.
const sealTime = time.Minute

var errNoStore = &control.RemoteError{Code: control.CodeNoStore}

// stored opens values of the store and uses them from the next request on.
// Names whose value the key does not open come back; the others are in use.
func (p *process) stored(body json.RawMessage) (out control.Unopened, err error) {
	in, err := decode[control.Stored](body)
	if err != nil {
		return out, err
	}
	if p.key == nil {
		return out, errNoStore
	}
	for _, e := range in.Secrets {
		v, err := p.key.Open(e.Name, e.Data)
		if err == nil {
			err = p.set.Put(e.Name, v)
		}
		if err != nil {
			out.Names = append(out.Names, e.Name)
		}
	}
	return out, nil
}

// seal reads a value from the connection of whoever set it, which no other
// process has read from, and returns it sealed.
func (p *process) seal(body json.RawMessage, files []*os.File) (control.Sealed, error) {
	in, err := decode[control.Seal](body)
	if err != nil || len(files) != 1 {
		return control.Sealed{}, errors.Join(err, errOrder)
	}
	if p.key == nil {
		return control.Sealed{}, errNoStore
	}
	conn, err := net.FileConn(files[0])
	if err != nil {
		return control.Sealed{}, err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(sealTime)); err != nil {
		return control.Sealed{}, err
	}
	v, err := secrets.ReadFrame(conn)
	if err != nil {
		return control.Sealed{}, &control.RemoteError{Code: control.CodeValue, Message: err.Error()}
	}
	data, err := p.key.Seal(in.Name, v)
	return control.Sealed{Data: data}, err
}
