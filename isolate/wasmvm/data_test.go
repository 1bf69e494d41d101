package wasmvm

import "testing"

func TestSplitDataRefuses(t *testing.T) {
	header := "\x00asm\x01\x00\x00\x00"
	for name, s := range map[string]string{
		"short":       "\x00asm",
		"cut section": header + "\x0b\x10\x01",
		"passive":     header + "\x0b\x04\x01\x01\x01x",
		"not const":   header + "\x0b\x07\x01\x00\x23\x00\x0b\x01x",
		"cut segment": header + "\x0b\x06\x01\x00\x41\x00\x0b\x09",
	} {
		if _, _, err := SplitData([]byte(s)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	rest, memory, err := SplitData([]byte(header + "\x0b\x08\x01\x00\x41\x02\x0b\x02hi" + "\x0c\x01\x01" + "\x00\x02\x01x"))
	if err != nil || string(memory) != "\x00\x00hi" || string(rest) != header+"\x00\x02\x01x" {
		t.Errorf("%q, %q, %v", rest, memory, err)
	}
}

// FuzzSplitData takes any binary: it may refuse it, and no more.
func FuzzSplitData(f *testing.F) {
	header := "\x00asm\x01\x00\x00\x00"
	f.Add([]byte(header + "\x0b\x08\x01\x00\x41\x02\x0b\x02hi" + "\x0c\x01\x01" + "\x00\x02\x01x"))
	f.Add([]byte(header + "\x0b\x06\x01\x00\x41\x00\x0b\x09"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rest, memory, err := SplitData(b)
		if err == nil && (len(rest) > len(b) || len(memory) > maxInitial) {
			t.Errorf("%d bytes and %d of memory from %d", len(rest), len(memory), len(b))
		}
	})
}
