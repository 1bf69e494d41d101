package jail

import (
	"crypto/sha1" // the format is older than its weakness; nothing here relies on it
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf16"
)

// Java trusts a key store of its own and no bundle: on a Debian it is this file,
// to which every JDK's own links.
const (
	javaTrust = "ssl/certs/java/cacerts"
	javaHomes = "/usr/lib/jvm"
	// javaPassword is what Java's tools expect; it keeps nobody out.
	javaPassword = "changeit"
)

// writeJavaTrust puts the certificates of the bundle where Java looks, on a host
// that has one.
func writeJavaTrust(etc string, bundle []byte) error {
	if _, err := os.Stat(javaHomes); err != nil || len(bundle) == 0 {
		return nil
	}
	path := filepath.Join(etc, javaTrust)
	err := makeDir(filepath.Dir(path))
	if err == nil {
		err = makeFile(path, javaKeyStore(bundle))
	}
	if err != nil {
		return fmt.Errorf("jail: certificates for Java: %w", err)
	}
	return nil
}

// javaKeyStore writes certificates, PEM, in the format "JKS", which is a list
// with a checksum.
func javaKeyStore(bundle []byte) []byte {
	const magic, version, trusted = 0xfeedfeed, 2, 2
	out := binary.BigEndian.AppendUint32(nil, magic)
	out = binary.BigEndian.AppendUint32(out, version)
	out = binary.BigEndian.AppendUint32(out, 0) // how many, see below
	n := uint32(0)
	text := func(s string) {
		out = binary.BigEndian.AppendUint16(out, uint16(len(s)))
		out = append(out, s...)
	}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		n++
		out = binary.BigEndian.AppendUint32(out, trusted)
		text(fmt.Sprintf("ca%d", n))
		out = binary.BigEndian.AppendUint64(out, 0) // when it was added
		text("X.509")
		out = binary.BigEndian.AppendUint32(out, uint32(len(block.Bytes)))
		out = append(out, block.Bytes...)
	}
	binary.BigEndian.PutUint32(out[8:], n)
	h := sha1.New()
	for _, c := range utf16.Encode([]rune(javaPassword)) {
		h.Write([]byte{byte(c >> 8), byte(c)})
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(out)
	return h.Sum(out)
}
