package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxPending is the number of code files that may wait to be made durable.
const maxPending = 64

// PutCode keeps code by its content and returns its hex SHA-256, for
// Record.Code. Code that is there already costs a look at its size. It is made
// durable together with the records.
func (l *Log) PutCode(ctx context.Context, code []byte) (string, error) {
	sum := sha256.Sum256(code)
	name := hex.EncodeToString(sum[:])
	path := filepath.Join(l.dir, codeDir, name)
	st, err := os.Lstat(path)
	if err == nil && st.Mode().IsRegular() && st.Size() == int64(len(code)) {
		return name, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("audit: keep code: %w", err)
	}
	f, err := keepCode(path, code)
	if err != nil {
		return "", l.refuse(err)
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		f.Close()
		return "", ErrClosed
	}
	l.codes = append(l.codes, f)
	many := len(l.codes) >= maxPending
	l.mu.Unlock()
	if many {
		if err := l.Sync(ctx); err != nil {
			return "", err
		}
	}
	return name, nil
}

// keepCode writes beside and renames, so that a name never has half of its
// content. The open file is returned for a later sync.
func keepCode(path string, code []byte) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), tmpName)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(code); err == nil {
		if err = f.Chmod(0o400); err == nil {
			err = os.Rename(f.Name(), path)
		}
	}
	if err != nil {
		_ = os.Remove(f.Name())
		f.Close()
		return nil, err
	}
	return f, nil
}

// refuse makes the log unhealthy because code could not be kept: it would run
// without being on record.
func (l *Log) refuse(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	err = l.fail(err)
	l.refused()
	return err
}

func syncFiles(files []*os.File) error {
	var all error
	for _, f := range files {
		all = errors.Join(all, f.Sync(), f.Close())
	}
	return all
}
