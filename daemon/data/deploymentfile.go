package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A deployment's file is three parts: a line with the sums of the two others
// and the length of the last, a line of meta data, and the body.
const deploymentHead = "sandboxd-function 1 %s %s %d\n"

// maxHead bounds the first line.
const maxHead = 256

func encodeDeployment(dep *Deployment) ([]byte, error) {
	switch {
	case len(dep.Meta) > MaxMeta || !json.Valid(dep.Meta):
		return nil, fmt.Errorf("data: meta data of %d bytes that cannot be kept", len(dep.Meta))
	case !json.Valid(dep.Body):
		return nil, errors.New("data: the body is not JSON")
	}
	meta, err := oneLine(dep.Meta)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf(deploymentHead, sum(meta), sum(dep.Body), len(dep.Body))
	out := make([]byte, 0, len(head)+len(meta)+1+len(dep.Body))
	out = append(append(append(out, head...), meta...), '\n')
	return append(out, dep.Body...), nil
}

// oneLine is JSON without the line breaks that it may be written with.
func oneLine(raw json.RawMessage) ([]byte, error) {
	b, err := json.Marshal(raw)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return b, nil
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// stampOf needs the change time, which nobody can set, beside what a new file
// may have in common with one that was deleted.
func stampOf(info fs.FileInfo) Stamp {
	s := Stamp{size: uint64(info.Size())}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.seconds, s.fraction = st.Ino, st.Ctim.Sec, st.Ctim.Nsec
	}
	return s
}

// readDeployment reads and checks a file; without whole only its first two
// parts and its length.
func readDeployment(path, name string, whole bool) (*Deployment, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	damaged := func(reason string) error { return &CorruptError{name, reason} }
	if !st.Mode().IsRegular() {
		return nil, damaged("it is not a file")
	}
	r := bufio.NewReaderSize(f, maxHead+MaxMeta)
	head, err := r.ReadString('\n')
	if err != nil || len(head) > maxHead {
		return nil, damaged("its first line")
	}
	var metaSum, bodySum string
	var size int64
	if n, err := fmt.Sscanf(head, deploymentHead, &metaSum, &bodySum, &size); n != 3 || err != nil {
		return nil, damaged("its first line")
	}
	meta, err := r.ReadSlice('\n')
	if err != nil || len(meta) > MaxMeta+1 || sum(meta[:len(meta)-1]) != metaSum {
		return nil, damaged("its description")
	}
	d := &Deployment{Name: name, Meta: append(json.RawMessage(nil), meta[:len(meta)-1]...), Size: st.Size(), Stamp: stampOf(st)}
	if st.Size() != int64(len(head)+len(meta))+size {
		return nil, damaged(fmt.Sprintf("it has %d bytes, not %d", st.Size(), int64(len(head)+len(meta))+size))
	}
	if !whole {
		return d, nil
	}
	d.Body = make([]byte, size)
	if _, err := io.ReadFull(r, d.Body); err != nil || sum(d.Body) != bodySum {
		return nil, damaged("its code")
	}
	return d, nil
}

// writeDurably replaces path by content: after a crash one or the other is
// there, and after its return the new one.
func writeDurably(dir, path string, content []byte) (err error) {
	if err := makeDir(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, tempPrefix)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the next look at the folder would do it, too
			err = fmt.Errorf("data: %w", err)
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// makeDir makes a folder of a tenant's, and its name durable.
func makeDir(dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return errors.Join(syncDir(filepath.Dir(dir)), syncDir(filepath.Dir(filepath.Dir(dir))))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}
