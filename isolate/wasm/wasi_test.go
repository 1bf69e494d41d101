package wasm

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd/isolate/wasi"
)

// wild calls every function of WASI and of ours with numbers out of data, again
// and again, over memory that begins with data as well.
func wild(data []byte, order []byte) []byte {
	m := &module{memory: []byte{0, 2}}
	type host struct {
		index  uint32
		params string
		void   bool
	}
	var all []host
	kinds := map[rune]string{'i': vi32, 'l': vi64}
	add := func(mod, name, params string, void bool) {
		if name == "proc_exit" || name == "proc_raise" {
			return
		}
		encoded, result := "", vi32
		for _, p := range params {
			encoded += kinds[p]
		}
		if void {
			result = ""
		}
		all = append(all, host{m.imp(mod, name, encoded, result), params, void})
	}
	for _, f := range wasi.Functions {
		add(wasi.Module, f.Name, f.Params, f.Void)
	}
	for _, f := range functions {
		add(hostModule, f.name, f.params, f.void)
	}
	next := func() (v uint32) {
		if len(order) == 0 {
			return 0
		}
		c := order[0]
		order = order[1:]
		// What is near the edges and what is small finds more than noise does.
		switch c % 8 {
		case 0:
			return uint32(c)
		case 1:
			return 0xffffffff - uint32(c)
		case 2:
			return 2<<16 - uint32(c)
		case 3:
			return 1 << (c % 32)
		case 4:
			return uint32(c) * 97
		}
		return uint32(c % 16)
	}
	code := ""
	for len(order) > 0 && len(code) < 10_000 {
		f := all[int(next())%len(all)]
		for _, p := range f.params {
			if p == 'l' {
				code += i64(int64(int32(next())) << (next() % 40))
			} else {
				code += i32(int32(next()))
			}
		}
		if code += call(f.index); !f.void {
			code += drop
		}
	}
	m.data = []string{"\x00" + i32(0) + end + sized(string(data[:min(len(data), 1<<16)]))}
	return command(m, code)
}

// FuzzWild: whatever a guest gives to the host's functions, the run ends in one
// of the ways that there are, nothing is held beyond its limit, and no host
// function fails itself.
func FuzzWild(f *testing.F) {
	path := make([]byte, 0, 4096)
	for _, p := range []string{"tmp/a", "..", "../../etc/passwd", "tmp/l", "/", "tmp/a/../../x", "tmp", "f.txt"} {
		path = append(path, p...)
		path = append(path, 0, 0, 0)
	}
	for i := range uint32(64) { // vectors that overlap, wrap and end at the edge
		path = binary.LittleEndian.AppendUint32(path, i*i*977)
		path = binary.LittleEndian.AppendUint32(path, 1<<(i%32))
	}
	order := make([]byte, 600)
	for i := range order {
		order[i] = byte(i * 7)
	}
	f.Add(path, order)
	f.Add(path, slices.Repeat([]byte{27, 3, 5, 8, 13, 21, 34, 55, 89}, 50))
	f.Add([]byte{}, []byte(strings.Repeat("\x05\x0a\x0f\x14", 100)))
	f.Fuzz(func(t *testing.T, data, order []byte) {
		m, err := Compile(t.Context(), wild(data, order))
		if err != nil {
			var r *RejectedError
			if !errors.As(err, &r) {
				t.Fatal(err)
			}
			return
		}
		defer m.Close()
		w := &testWorld{limit: 20_000, answer: []byte(`{"value":1}`)}
		start := time.Now()
		r := m.NewRun(w, Job{Args: []string{"a", "b"}, Env: []string{"A=B"}, Input: []byte("{}"), Files: map[string]string{"f.txt": "text"}, Memory: 4 << 20})
		_, err = r.Do()
		var trap *TrapError
		var mem *MemoryError
		switch {
		case err == nil, errors.Is(err, errTicks), errors.As(err, &mem):
		case errors.As(err, &trap):
			if strings.Contains(trap.Reason, "runtime error") || strings.Contains(trap.Reason, "recovered") {
				t.Errorf("a host function failed: %s", trap.Reason)
			}
		case strings.Contains(err.Error(), "too much output"), strings.Contains(err.Error(), "slept too long"):
		default:
			t.Errorf("%v (%T)", err, err)
		}
		if r.sys.Bytes() > 4<<20 {
			t.Errorf("%d bytes of files", r.sys.Bytes())
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
