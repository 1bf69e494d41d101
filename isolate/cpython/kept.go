package cpython

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandboxd/isolate/memimage"
)

// keptName is where the image of a module is kept between starts: under the
// checksum of all that it is made of. It is empty if dir is.
func keptName(dir string, module, data []byte) string {
	if dir == "" {
		return ""
	}
	h := sha256.New()
	for _, b := range [][]byte{module, data, []byte(bootScript)} {
		// Length first, so that nothing can pass from one to the next.
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	return filepath.Join(dir, "python-"+hex.EncodeToString(h.Sum(nil))+".image")
}

// A keptHeader is the first line of a kept image; the memory follows.
type keptHeader struct {
	State  State
	SHA256 string
}

var errKept = errors.New("cpython: the kept image is not whole")

// loadKept reads a kept image into a sealed memfd.
func loadKept(path string) (*os.File, State, error) {
	if path == "" {
		return nil, State{}, os.ErrNotExist
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, State{}, fmt.Errorf("cpython: kept image: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return nil, State{}, errors.Join(errKept, err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, State{}, fmt.Errorf("cpython: kept image: %w", err)
	}
	defer unix.Munmap(b)
	line, memory, ok := bytes.Cut(b, []byte("\n"))
	var h keptHeader
	if !ok || json.Unmarshal(line, &h) != nil || checksum(memory) != h.SHA256 {
		return nil, State{}, errKept
	}
	image, err := memimage.Seal("isolate-image", memory)
	return image, h.State, err
}

// keep writes an image in one step.
func keep(path string, s *Snapshot) error {
	if path == "" {
		return nil
	}
	st, err := s.Image.Stat()
	if err != nil {
		return fmt.Errorf("cpython: keep the image: %w", err)
	}
	memory, err := unix.Mmap(int(s.Image.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("cpython: keep the image: %w", err)
	}
	defer unix.Munmap(memory)
	header, err := json.Marshal(keptHeader{State: s.State, SHA256: checksum(memory)})
	if err != nil {
		return fmt.Errorf("cpython: keep the image: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".python-*")
	if err != nil {
		return fmt.Errorf("cpython: keep the image: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(header, '\n'))
	if err == nil {
		_, err = f.Write(memory)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cpython: keep the image: %w", err)
	}
	return nil
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
