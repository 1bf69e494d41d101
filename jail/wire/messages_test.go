package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

type message interface{ Marshal() []byte }

var samples = []message{
	&Prepare{
		Version: Version, Opt: true, MaskFiles: []string{"kcore"}, MaskDirs: []string{"acpi", "scsi"}, ReadOnly: []string{},
		InitFilter: []byte{1, 2}, ExecFilter: []byte{3},
	},
	&Config{Hostname: "alice", TmpBytes: 1 << 40, TmpInodes: 7, Loopback: true},
	&Exec{ID: 9, Argv: []string{"sh", "-c", ""}, Env: []string{"A=b"}, Cwd: "/", Paths: []string{"/bin/sh"}, Terminal: true, FileBytes: 7, OpenFiles: 8, Pids: 9, UID: 33, GID: 34},
	&Signal{ID: 1, Signal: 15},
	&Root{},
	&Ready{Version: Version, LandlockABI: 7},
	&Failed{ID: 3, Step: "exec", Errno: 2, Text: "no\x00such"},
	&Started{ID: 1, Pid: 1 << 31},
	&Exited{ID: 1, Code: -1, Signal: 9},
}

func TestRoundTrip(t *testing.T) {
	for _, m := range samples {
		got, err := Unmarshal(m.Marshal())
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%T: got %+v, %v; want %+v", m, got, err, m)
		}
	}
}

func TestMalformed(t *testing.T) {
	for _, m := range samples {
		b := m.Marshal()
		for n := range b {
			if n == 0 && len(b) == 1 {
				continue
			}
			if got, err := Unmarshal(b[:n]); !errors.Is(err, ErrMalformed) {
				t.Errorf("%T cut to %d bytes: %+v, %v", m, n, got, err)
			}
		}
		if got, err := Unmarshal(append(bytes.Clone(b), 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%T with a byte too many: %+v, %v", m, got, err)
		}
	}
	for name, b := range map[string][]byte{
		"empty": nil, "unknown kind": {99}, "other version": (&Prepare{Version: Version + 1}).Marshal(),
		"huge list":   {kindExec, 1, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"huge string": {kindFailed, 1, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"endless int": bytes.Repeat([]byte{kindStarted, 0xff}, 20),
	} {
		if got, err := Unmarshal(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, m := range samples {
		f.Add(m.Marshal())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Unmarshal(b)
		if err != nil {
			return
		}
		// What was understood says the same again.
		again, err := Unmarshal(m.(message).Marshal())
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
