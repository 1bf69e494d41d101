package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Names in the log's folder.
const (
	headName = "head"
	lockName = "lock"
	codeDir  = "code"
	tmpName  = ".tmp-*" // files that are renamed when they are whole
)

// A head says how far the log had come when it was last made durable. Without
// it, lines cut off at the end would leave a chain that is whole.
type head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// writeHead replaces the head file atomically. The data it speaks of must be
// on the disk already: a head behind the data is normal, one ahead is a fault.
func writeHead(dir string, h head) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, headName), append(b, '\n'))
}

func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), tmpName)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// readHead returns a *CorruptError when there is none or it cannot be read.
func readHead(dir string) (head, error) {
	var h head
	b, err := os.ReadFile(filepath.Join(dir, headName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return h, &CorruptError{File: headName, Kind: Missing, Detail: "the log's head file is not there"}
	case err != nil:
		return h, fmt.Errorf("audit: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&h); err != nil || len(h.Hash) != hashLen {
		return head{}, &CorruptError{File: headName, Kind: Changed, Detail: "the head file is not as it was written"}
	}
	return h, nil
}

// A logFile is one file of the log; its name tells its first record.
type logFile struct {
	name  string
	first uint64
}

const fileForm = "audit-%020d.jsonl"

func fileName(first uint64) string { return fmt.Sprintf(fileForm, first) }

// listFiles returns the log's files in order.
func listFiles(dir string) ([]logFile, error) {
	entries, err := os.ReadDir(dir) // sorted by name, and names are as numbers
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	var files []logFile
	for _, e := range entries {
		var first uint64
		if !strings.HasPrefix(e.Name(), "audit-") {
			continue
		}
		if _, err := fmt.Sscanf(e.Name(), fileForm, &first); err != nil || fileName(first) != e.Name() {
			continue
		}
		files = append(files, logFile{e.Name(), first})
	}
	return files, nil
}

// removeTemps deletes what a killed process did not come to rename.
func removeTemps(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, codeDir)} {
		left, err := filepath.Glob(filepath.Join(d, tmpName))
		if err != nil {
			return err
		}
		for _, path := range left {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("audit: %w", err)
			}
		}
	}
	return nil
}

// lockDir makes sure that one process writes the log.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (%s)", ErrInUse, dir)
		}
		return nil, fmt.Errorf("audit: lock %s: %w", dir, err)
	}
	return f, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// setAppendOnly asks the file system to refuse everything but appending, also
// to root. Not every file system can, and it takes CAP_LINUX_IMMUTABLE: it is
// a hurdle beside the chain, not a condition.
func setAppendOnly(f *os.File) error {
	const appendFlag = 0x20 // FS_APPEND_FL
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags|appendFlag))
}
