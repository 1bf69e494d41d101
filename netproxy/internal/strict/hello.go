package strict

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// maxHello bounds a ClientHello; real ones, post-quantum shares and all, stay
// under 8 KiB.
const maxHello = 32 << 10

// ErrHello says that the bytes are not one well-formed ClientHello.
var ErrHello = errors.New("not a TLS ClientHello")

// A Hello is what the proxy needs of a ClientHello.
type Hello struct {
	// ServerName is the one host name, "" if there is none.
	ServerName string
	// ECH says that an encrypted ClientHello is offered, whose real server
	// name cannot be seen.
	ECH bool
	// Raw are the bytes read, to be replayed to whoever speaks TLS.
	Raw []byte
}

// ReadHello reads TLS records until the ClientHello is complete. It reads no
// further than the record in which it ends.
func ReadHello(r io.Reader) (*Hello, error) {
	var raw, message []byte
	for {
		start := len(raw)
		raw = append(raw, make([]byte, 5)...)
		if _, err := io.ReadFull(r, raw[start:]); err != nil {
			return nil, err
		}
		head := raw[start:]
		size := int(binary.BigEndian.Uint16(head[3:]))
		if head[0] != 22 || head[1] != 3 || size == 0 || size > 1<<14 || len(message)+size > maxHello {
			return nil, ErrHello
		}
		body := len(raw)
		raw = append(raw, make([]byte, size)...)
		if _, err := io.ReadFull(r, raw[body:]); err != nil {
			return nil, err
		}
		message = append(message, raw[body:]...)
		if message[0] != 1 {
			return nil, ErrHello
		}
		if len(message) < 4 {
			continue
		}
		need := 4 + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
		if need > maxHello || len(message) > need {
			return nil, ErrHello // too large, or something rides behind it
		}
		if len(message) == need {
			h, err := parseHello(message[4:])
			if err != nil {
				return nil, err
			}
			h.Raw = raw
			return h, nil
		}
	}
}

// take cuts a vector with a length prefix of so many bytes off b.
func take(b []byte, prefix int) (vector, rest []byte, ok bool) {
	if len(b) < prefix {
		return nil, nil, false
	}
	n := 0
	for _, c := range b[:prefix] {
		n = n<<8 | int(c)
	}
	b = b[prefix:]
	if len(b) < n {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

func parseHello(b []byte) (*Hello, error) {
	if len(b) < 34 {
		return nil, ErrHello
	}
	b = b[34:] // version, random
	session, b, ok := take(b, 1)
	if !ok || len(session) > 32 {
		return nil, ErrHello
	}
	suites, b, ok := take(b, 2)
	if !ok || len(suites) < 2 || len(suites)%2 != 0 {
		return nil, ErrHello
	}
	compression, b, ok := take(b, 1)
	if !ok || len(compression) == 0 {
		return nil, ErrHello
	}
	h := &Hello{}
	if len(b) == 0 {
		return h, nil
	}
	extensions, rest, ok := take(b, 2)
	if !ok || len(rest) != 0 {
		return nil, ErrHello
	}
	return h, h.extensions(extensions)
}

func (h *Hello) extensions(b []byte) error {
	seen := map[uint16]bool{}
	for len(b) > 0 {
		if len(b) < 2 {
			return ErrHello
		}
		kind := binary.BigEndian.Uint16(b)
		data, rest, ok := take(b[2:], 2)
		if !ok || seen[kind] {
			return ErrHello // an extension that comes twice can be read twice
		}
		seen[kind], b = true, rest
		switch kind {
		case 0:
			name, err := serverName(data)
			if err != nil {
				return err
			}
			h.ServerName = name
		case 0xfe0d:
			h.ECH = true
		}
	}
	return nil
}

// serverName reads a list of exactly one entry of type host_name.
func serverName(data []byte) (string, error) {
	list, rest, ok := take(data, 2)
	if !ok || len(rest) != 0 || len(list) < 1 || list[0] != 0 {
		return "", ErrHello
	}
	name, rest, ok := take(list[1:], 2)
	if !ok || len(rest) != 0 || len(name) == 0 || len(name) > 253 || bytes.IndexByte(name, 0) >= 0 {
		return "", ErrHello
	}
	return string(name), nil
}
