package secrets

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"
)

// ErrKey says that the store's key is not usable; the error never holds it.
var ErrKey = errors.New("secrets: unusable store key")

// ErrSealed says that a stored value cannot be opened: another key, another
// name, or changed bytes.
var ErrSealed = errors.New("secrets: the stored value cannot be opened with this key")

const (
	// keyHeader is the first word of a key file.
	keyHeader = "sandboxd-store-key-1"
	// sealContext binds what is sealed to its place and this format.
	sealContext = "sandboxd sealed secret v1\x00"
	// padTo hides a value's length in the file.
	padTo = 1 << 10
)

// A Key seals and opens stored values (XChaCha20-Poly1305). It exists in the
// proxy process alone.
type Key struct{ aead cipher.AEAD }

// String keeps a Key out of every way of printing.
func (Key) String() string { return hidden }

// Format implements fmt.Formatter and hides the key.
func (Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// ReadKey reads a key file: the header and 32 bytes in base64, or these alone.
// An empty file that was opened for writing gets a new key, which is on the
// disk when ReadKey returns. The file stays open, its offset where it was.
func ReadKey(f *os.File) (*Key, error) {
	buf := make([]byte, 512)
	defer clear(buf)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: it cannot be read", ErrKey)
	}
	if n == 0 {
		return newKey(f)
	}
	text := strings.TrimSpace(strings.TrimPrefix(string(buf[:n]), keyHeader))
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != chacha20poly1305.KeySize {
		return nil, fmt.Errorf("%w: want %q and 32 bytes in base64", ErrKey, keyHeader)
	}
	defer clear(raw)
	return keyOf(raw)
}

func newKey(f *os.File) (*Key, error) {
	raw := make([]byte, chacha20poly1305.KeySize)
	defer clear(raw)
	_, _ = rand.Read(raw) // never fails
	line := base64.StdEncoding.AppendEncode([]byte(keyHeader+" "), raw)
	defer clear(line)
	if _, err := f.WriteAt(append(line, '\n'), 0); err != nil {
		return nil, fmt.Errorf("%w: a new one cannot be written", ErrKey)
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("%w: a new one cannot be written", ErrKey)
	}
	return keyOf(raw)
}

func keyOf(raw []byte) (*Key, error) {
	aead, err := chacha20poly1305.NewX(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return &Key{aead}, nil
}

// Seal encrypts a value for the store. What comes out says nothing of the
// value but a rough upper bound of its length, and opens under this name only.
func (k *Key) Seal(name string, v Value) ([]byte, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	b := v.bytes()
	if len(b) == 0 || len(b) > MaxLength {
		return nil, ErrValue
	}
	plain := make([]byte, (4+len(b)+padTo-1)/padTo*padTo)
	defer clear(plain)
	binary.BigEndian.PutUint32(plain, uint32(len(b)))
	copy(plain[4:], b)
	nonce := make([]byte, k.aead.NonceSize(), k.aead.NonceSize()+len(plain)+k.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails; 24 bytes do not meet by chance
	return k.aead.Seal(nonce, nonce, plain, []byte(sealContext+name)), nil
}

// Open decrypts a stored value.
func (k *Key) Open(name string, sealed []byte) (Value, error) {
	n := k.aead.NonceSize()
	if len(sealed) < n {
		return Value{}, ErrSealed
	}
	plain, err := k.aead.Open(nil, sealed[:n], sealed[n:], []byte(sealContext+name))
	if err != nil || len(plain) < 4 {
		return Value{}, ErrSealed
	}
	defer clear(plain)
	size := binary.BigEndian.Uint32(plain)
	if uint64(size) > uint64(len(plain)-4) {
		return Value{}, ErrSealed
	}
	return NewValue(plain[4 : 4+size])
}
