package guests

import (
	"crypto/sha256"
	"crypto/sha512"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed guests.json
var manifest []byte

// A Guest is one file of one pinned npm package.
type Guest struct {
	Name      string `json:"name"`
	Package   string `json:"package"`
	Version   string `json:"version"`
	Integrity string `json:"integrity"` // of the package's tarball
	File      string `json:"file"`      // in the tarball
	Output    string `json:"output"`    // in the guest directory
	SHA256    string `json:"sha256"`    // of the file
	License   string `json:"license"`
}

// ErrUnknown says that the manifest has no such guest.
var ErrUnknown = errors.New("guests: not in the manifest")

// An Error says that a guest is missing or is not the pinned one.
type Error struct {
	Guest, Path, Reason string
	Err                 error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("guest %s (%s): %s", e.Guest, e.Path, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// All returns the manifest.
func All() ([]Guest, error) {
	var m struct {
		Guests []Guest `json:"guests"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("guests: manifest: %w", err)
	}
	return m.Guests, nil
}

// Find returns a guest by name.
func Find(name string) (Guest, error) {
	all, err := All()
	if err != nil {
		return Guest{}, err
	}
	for _, g := range all {
		if g.Name == name {
			return g, nil
		}
	}
	return Guest{}, fmt.Errorf("%w: %s", ErrUnknown, name)
}

// Load reads a guest from dir and checks it against the manifest.
func Load(dir, name string) ([]byte, error) {
	g, err := Find(name)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, g.Output)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &Error{Guest: name, Path: path, Reason: "cannot be read; `make guests` fetches it", Err: err}
	}
	if err := g.Check(b); err != nil {
		return nil, &Error{Guest: name, Path: path, Reason: "is not the pinned file", Err: err}
	}
	return b, nil
}

// Check compares the content of a guest by name with the manifest.
func Check(name string, content []byte) error {
	g, err := Find(name)
	if err != nil {
		return err
	}
	if err := g.Check(content); err != nil {
		return fmt.Errorf("guest %s: %w", name, err)
	}
	return nil
}

// Check compares a guest's content with the manifest.
func (g Guest) Check(content []byte) error {
	sum := sha256.Sum256(content)
	if got := hex.EncodeToString(sum[:]); got != g.SHA256 {
		return fmt.Errorf("sha256 is %s, pinned is %s", got, g.SHA256)
	}
	return nil
}

// CheckTarball compares a package's tarball with the manifest.
func (g Guest) CheckTarball(content []byte) error {
	want, ok := strings.CutPrefix(g.Integrity, "sha512-")
	if !ok {
		return fmt.Errorf("integrity %q is not a sha512", g.Integrity)
	}
	sum := sha512.Sum512(content)
	if got := base64.StdEncoding.EncodeToString(sum[:]); got != want {
		return fmt.Errorf("integrity is sha512-%s, pinned is %s", got, g.Integrity)
	}
	return nil
}
