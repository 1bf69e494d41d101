package isolate

import (
	"bytes"
	"log/slog"
	"strings"
)

// lines logs what a worker writes to its standard error, line by line and not
// without end: the worker may be hostile.
type lines struct {
	log    *slog.Logger
	worker int
	rest   []byte
	count  int
}

const (
	maxStderrLine  = 1 << 10
	maxStderrLines = 200
)

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			l.keep(b)
			break
		}
		l.keep(b[:i])
		b = b[i+1:]
		if l.count++; l.count <= maxStderrLines {
			l.log.Warn("isolate worker", "worker", l.worker, "line", strings.ToValidUTF8(string(l.rest), "\uFFFD"))
		}
		l.rest = l.rest[:0]
	}
	return n, nil
}

func (l *lines) keep(b []byte) {
	l.rest = append(l.rest, b[:min(len(b), maxStderrLine-len(l.rest))]...)
}
