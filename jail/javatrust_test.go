package jail

import (
	"bytes"
	"encoding/binary"
	"encoding/pem"
	"testing"
)

func TestJavaKeyStore(t *testing.T) {
	var bundle bytes.Buffer
	for _, b := range []*pem.Block{{Type: "CERTIFICATE", Bytes: []byte("first")}, {Type: "PRIVATE KEY", Bytes: []byte("no")}, {Type: "CERTIFICATE", Bytes: []byte("second")}} {
		bundle.WriteString("text between\n")
		if err := pem.Encode(&bundle, b); err != nil {
			t.Fatal(err)
		}
	}
	out := javaKeyStore(bundle.Bytes())
	if n := binary.BigEndian.Uint32(out[8:]); n != 2 {
		t.Errorf("%d certificates", n)
	}
	if !bytes.Contains(out, []byte("\x00\x00\x00\x05first")) || !bytes.Contains(out, []byte("\x00\x00\x00\x06second")) || bytes.Contains(out, []byte("no")) {
		t.Errorf("%q", out)
	}
	if empty := javaKeyStore(nil); len(empty) != 12+20 {
		t.Errorf("an empty one has %d bytes", len(empty))
	}
}
