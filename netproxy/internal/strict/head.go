package strict

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits of a request head (step 3).
const (
	MaxHead   = 64 << 10
	MaxFields = 256
)

var (
	// ErrSyntax says that a message is not canonical HTTP/1.1. Errors that
	// wrap it are fixed texts without bytes of the message.
	ErrSyntax = errors.New("malformed HTTP request")
	// ErrTooLarge says that a head exceeds MaxHead or MaxFields.
	ErrTooLarge = errors.New("HTTP request head too large")
	// ErrVersion says that the request is not HTTP/1.1.
	ErrVersion = errors.New("only HTTP/1.1 is spoken here")
)

func syntax(what string) error { return fmt.Errorf("%w: %s", ErrSyntax, what) }

// A Field is one header field as it was sent; Name keeps its case.
type Field struct{ Name, Value string }

// A Head is a request head that can be read in one way only.
type Head struct {
	Method string
	Target string
	// Proto10 is set for HTTP/1.0, which is taken for CONNECT alone: Python
	// before 3.12 opens its tunnels so.
	Proto10 bool
	// Host is the value of the one Host field, "" if there is none (CONNECT).
	Host   string
	Fields []Field
	// Length of the body, -1 when it is chunked.
	Length int64
	// Close says that the client will send no further request.
	Close bool
	// Continue says that the client waits for 100 Continue.
	Continue bool
}

// ReadHead reads one head from r. io.EOF means that the peer closed before the
// first byte.
func ReadHead(r *bufio.Reader) (*Head, error) {
	raw, err := readRaw(r)
	if err != nil {
		return nil, err
	}
	return parseHead(raw)
}

// readRaw takes the bytes up to and with the empty line.
func readRaw(r *bufio.Reader) ([]byte, error) {
	var raw []byte
	for start := 0; ; {
		part, err := r.ReadSlice('\n')
		raw = append(raw, part...)
		switch {
		case len(raw) > MaxHead:
			return nil, ErrTooLarge
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(raw) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
		line := raw[start:]
		if len(line) < 2 || line[len(line)-2] != '\r' {
			return nil, syntax("line feed without carriage return")
		}
		if len(line) == 2 {
			if start == 0 {
				return nil, syntax("empty request line")
			}
			return raw, nil
		}
		start = len(raw)
	}
}

func parseHead(raw []byte) (*Head, error) {
	for i, c := range raw {
		switch {
		case c == '\n' && (i == 0 || raw[i-1] != '\r'):
			return nil, syntax("line feed without carriage return")
		case c == '\r' && (i+1 >= len(raw) || raw[i+1] != '\n'):
			return nil, syntax("carriage return without line feed")
		case c < ' ' && c != '\t' && c != '\r' && c != '\n' || c == 0x7f:
			return nil, syntax("control character")
		}
	}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\r\n\r\n"), "\r\n")
	if len(lines)-1 > MaxFields {
		return nil, ErrTooLarge
	}
	h := &Head{}
	if err := h.requestLine(lines[0]); err != nil {
		return nil, err
	}
	h.Fields = make([]Field, 0, len(lines)-1)
	for _, line := range lines[1:] {
		f, err := parseField(line)
		if err != nil {
			return nil, err
		}
		h.Fields = append(h.Fields, f)
	}
	return h, h.interpret()
}

func (h *Head) requestLine(line string) error {
	parts := strings.Split(line, " ")
	if len(parts) != 3 {
		return syntax("request line")
	}
	h.Method, h.Target = parts[0], parts[1]
	if !token(h.Method) || len(h.Method) > 32 {
		return syntax("method")
	}
	for i := 0; i < len(h.Target); i++ {
		if c := h.Target[i]; c <= ' ' || c >= 0x7f {
			return syntax("request target")
		}
	}
	if h.Target == "" || strings.Contains(h.Target, "#") {
		return syntax("request target")
	}
	switch parts[2] {
	case "HTTP/1.1":
	case "HTTP/1.0":
		if h.Method != "CONNECT" {
			return ErrVersion
		}
		h.Proto10 = true
	default:
		return ErrVersion
	}
	return nil
}

func parseField(line string) (Field, error) {
	if line == "" || line[0] == ' ' || line[0] == '\t' {
		return Field{}, syntax("folded header line")
	}
	name, value, ok := strings.Cut(line, ":")
	if !ok || !token(name) {
		return Field{}, syntax("header field name")
	}
	return Field{Name: name, Value: strings.Trim(value, " \t")}, nil
}

// interpret reads the fields that frame the message.
func (h *Head) interpret() error {
	hosts, lengths, codings := 0, 0, 0
	for _, f := range h.Fields {
		switch strings.ToLower(f.Name) {
		case "host":
			hosts++
			h.Host = f.Value
		case "content-length":
			lengths++
			n, ok := decimal(f.Value)
			if !ok {
				return syntax("Content-Length")
			}
			h.Length = n
		case "transfer-encoding":
			codings++
			if f.Value != "chunked" {
				return syntax("Transfer-Encoding other than chunked")
			}
		case "connection", "proxy-connection":
			for t := range strings.SplitSeq(f.Value, ",") {
				h.Close = h.Close || strings.EqualFold(strings.Trim(t, " \t"), "close")
			}
		case "expect":
			if !strings.EqualFold(f.Value, "100-continue") {
				return syntax("Expect other than 100-continue")
			}
			h.Continue = true
		}
	}
	connect := h.Method == "CONNECT"
	switch {
	case hosts > 1 || hosts == 0 && !connect:
		return syntax("exactly one Host is needed")
	case hosts == 1 && h.Host == "" && !connect:
		return syntax("empty Host")
	case lengths > 1:
		return syntax("more than one Content-Length")
	case codings > 1:
		return syntax("more than one Transfer-Encoding")
	case codings == 1 && lengths == 1:
		return syntax("Content-Length with Transfer-Encoding")
	case connect && (codings > 0 || h.Length > 0):
		return syntax("CONNECT with a body")
	}
	if codings == 1 {
		h.Length = -1
	}
	return nil
}

// Get returns the first field of that name, in any case.
func (h *Head) Get(name string) string {
	for _, f := range h.Fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// decimal reads digits only, of a size that cannot overflow.
func decimal(s string) (int64, bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	var n int64
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}

func token(s string) bool {
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return true
}

var tokenByte = func() (t [256]bool) {
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = true, true
	}
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()
