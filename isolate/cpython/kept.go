package cpython

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
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

// keptName is where a snapshot of a guest is kept between starts: under a
// checksum of the guest, and of the build that rewrites, compiles and boots it.
// It is empty if dir is, or if the build has no identity.
func keptName(dir string, wasm []byte) string {
	build := buildID()
	if dir == "" || len(build) == 0 {
		return ""
	}
	h := sha256.New()
	// Length first, so that nothing can pass from one to the next.
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(build))))
	h.Write(build)
	h.Write(wasm)
	return filepath.Join(dir, keptPrefix+hex.EncodeToString(h.Sum(nil)[:16])+keptSuffix)
}

const (
	keptPrefix = "python-"
	keptSuffix = ".snapshot"
)

// buildID is what the linker wrote into this program: a checksum of all that it
// was made of.
func buildID() []byte {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil
	}
	defer f.Close()
	s := f.Section(".note.go.buildid")
	if s == nil {
		return nil
	}
	b, err := s.Data()
	if err != nil {
		return nil
	}
	return b
}

// A keptHeader is the first line of a kept snapshot; the module and the memory
// follow.
type keptHeader struct {
	State  State
	Module int // bytes
	SHA256 string
}

var errKept = errors.New("cpython: the kept snapshot is not whole")

// loadKept reads a kept snapshot into sealed memfds.
func loadKept(path string) (*Snapshot, error) {
	if path == "" {
		return nil, os.ErrNotExist
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cpython: kept snapshot: %w", err)
	}
	defer f.Close()
	b, err := mapped(f)
	if err != nil {
		return nil, fmt.Errorf("cpython: kept snapshot: %w", err)
	}
	defer unix.Munmap(b)
	line, content, ok := bytes.Cut(b, []byte("\n"))
	var h keptHeader
	if !ok || json.Unmarshal(line, &h) != nil || h.Module < 0 || h.Module > len(content) || checksum(content) != h.SHA256 {
		return nil, errKept
	}
	return seal(content[:h.Module], content[h.Module:], h.State)
}

// seal makes a Snapshot of its parts.
func seal(module, memory []byte, state State) (*Snapshot, error) {
	m, err := memimage.Seal("isolate-module", module)
	if err != nil {
		return nil, err
	}
	image, err := memimage.Seal("isolate-image", memory)
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Snapshot{Module: m, Image: image, State: state}, nil
}

func mapped(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
}

// keep writes a snapshot in one step, and removes those of other builds.
func keep(path string, s *Snapshot) error {
	if path == "" {
		return nil
	}
	module, err := mapped(s.Module)
	if err != nil {
		return fmt.Errorf("cpython: keep the snapshot: %w", err)
	}
	defer unix.Munmap(module)
	memory, err := mapped(s.Image)
	if err != nil {
		return fmt.Errorf("cpython: keep the snapshot: %w", err)
	}
	defer unix.Munmap(memory)
	header, err := json.Marshal(keptHeader{State: s.State, Module: len(module), SHA256: checksum(module, memory)})
	if err == nil {
		err = replace(path, append(header, '\n'), module, memory)
	}
	if err != nil {
		return fmt.Errorf("cpython: keep the snapshot: %w", err)
	}
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(path), keptPrefix+"*"+keptSuffix))
	for _, other := range others {
		if other != path {
			_ = os.Remove(other) // it is only in the way
		}
	}
	return nil
}

// replace puts a file in place in one step.
func replace(path string, parts ...[]byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".python-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	for _, b := range parts {
		if err == nil {
			_, err = f.Write(b)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func checksum(parts ...[]byte) string {
	h := sha256.New()
	for _, b := range parts {
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}
