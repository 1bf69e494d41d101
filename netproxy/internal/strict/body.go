package strict

import (
	"bufio"
	"io"
	"sync"
)

const maxChunkLine = 256

// A Body reads a request's body from the connection that its head came from.
// It never reads past the body's end. Read and Done may be called from
// different goroutines: a client's transport may still read the body when the
// answer is there already.
type Body struct {
	mu      sync.Mutex
	r       *bufio.Reader
	left    int64 // of the body, or of the chunk
	chunked bool
	first   bool
	err     error
	n       int64
}

// NewBody reads the body that h announces.
func NewBody(r *bufio.Reader, h *Head) *Body {
	b := &Body{r: r, left: h.Length, chunked: h.Length < 0, first: true}
	if b.chunked {
		b.left = 0
	} else if b.left == 0 {
		b.err = io.EOF
	}
	return b
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	if b.left == 0 {
		if b.err = b.nextChunk(); b.err != nil {
			return 0, b.err
		}
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	b.n += int64(n)
	switch {
	case err == io.EOF:
		b.err = io.ErrUnexpectedEOF
	case err != nil:
		b.err = err
	case b.left == 0 && !b.chunked:
		b.err = io.EOF
	case b.left == 0:
		b.err = b.crlf()
	}
	if b.err != nil && b.err != io.EOF {
		return n, b.err
	}
	return n, nil
}

// nextChunk reads a chunk's size line: hexadecimal digits and nothing else. No
// extension: some servers read a line feed in one as the line's end.
func (b *Body) nextChunk() error {
	line, err := readLine(b.r)
	if err != nil {
		return err
	}
	if line == "" || len(line) > 15 {
		return syntax("chunk size")
	}
	var n int64
	for i := 0; i < len(line); i++ {
		d := hexDigit(line[i])
		if d < 0 {
			return syntax("chunk size")
		}
		n = n<<4 | int64(d)
	}
	if n > 0 {
		b.left = n
		return nil
	}
	return b.trailers()
}

// trailers are read, checked and dropped: nothing after the head may add to
// what was decided on.
func (b *Body) trailers() error {
	for range MaxFields {
		line, err := readLine(b.r)
		if err != nil {
			return err
		}
		if line == "" {
			return io.EOF
		}
		if _, err := parseField(line); err != nil {
			return err
		}
	}
	return ErrTooLarge
}

func (b *Body) crlf() error {
	line, err := readLine(b.r)
	if err != nil {
		return err
	}
	if line != "" {
		return syntax("chunk end")
	}
	return nil
}

// Close implements io.Closer; the connection is not the body's to close.
func (b *Body) Close() error { return nil }

// Done reports whether the body was read to its proper end, so that the next
// head may follow on the connection, and the bytes read so far.
func (b *Body) Done() (bool, int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err == io.EOF, b.n
}

// readLine reads a short line that ends in CRLF.
func readLine(r *bufio.Reader) (string, error) {
	line := make([]byte, 0, 16)
	for len(line) < maxChunkLine {
		c, err := r.ReadByte()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		switch {
		case c == '\n':
			if len(line) == 0 || line[len(line)-1] != '\r' {
				return "", syntax("line feed without carriage return")
			}
			return string(line[:len(line)-1]), nil
		case len(line) > 0 && line[len(line)-1] == '\r':
			return "", syntax("carriage return without line feed")
		case c < ' ' && c != '\t' && c != '\r' || c == 0x7f:
			return "", syntax("control character")
		}
		line = append(line, c)
	}
	return "", ErrTooLarge
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
