package wasm

import "encoding/binary"

// A small assembler: what hand-made hostile modules need.

type module struct {
	types   [][2]string // parameters and results, each a string of value types
	imports []string    // entries
	funcs   []function
	tables  []string
	memory  []byte // limits
	exports []string
	start   int // function index + 1
	elems   []string
	data    []string
	extra   string // sections at the end
}

type function struct {
	typ  uint32
	body string
}

const (
	vi32 = "\x7f"
	vi64 = "\x7e"
)

func num(n uint32) string { return string(binary.AppendUvarint(nil, uint64(n))) }

func signed(v int64) string {
	var b []byte
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return string(append(b, c))
		}
		b = append(b, c|0x80)
	}
}

func sized(s string) string { return num(uint32(len(s))) + s }

func (m *module) typ(params, results string) uint32 {
	for i, t := range m.types {
		if t == [2]string{params, results} {
			return uint32(i)
		}
	}
	m.types = append(m.types, [2]string{params, results})
	return uint32(len(m.types) - 1)
}

// imp imports a function and gives its index. Imports come before functions.
func (m *module) imp(mod, name, params, results string) uint32 {
	m.imports = append(m.imports, sized(mod)+sized(name)+"\x00"+num(m.typ(params, results)))
	return uint32(len(m.imports) - 1)
}

// wasi imports a function of WASI.
func (m *module) wasi(name, params, results string) uint32 {
	return m.imp("wasi_snapshot_preview1", name, params, results)
}

// fn adds a function whose locals is the encoded declaration ("" for none) and
// whose code lacks the final end.
func (m *module) fn(export, params, results, locals, code string) uint32 {
	if locals == "" {
		locals = "\x00"
	}
	m.funcs = append(m.funcs, function{m.typ(params, results), locals + code + "\x0b"})
	i := uint32(len(m.imports) + len(m.funcs) - 1)
	if export != "" {
		m.exports = append(m.exports, sized(export)+"\x00"+num(i))
	}
	return i
}

func section(id byte, entries []string) string {
	if len(entries) == 0 {
		return ""
	}
	s := num(uint32(len(entries)))
	for _, e := range entries {
		s += e
	}
	return string(id) + sized(s)
}

func (m *module) bytes() []byte {
	var types, funcs, code []string
	for _, t := range m.types {
		types = append(types, "\x60"+sized(t[0])+sized(t[1]))
	}
	for _, f := range m.funcs {
		funcs, code = append(funcs, num(f.typ)), append(code, sized(f.body))
	}
	s := "\x00asm\x01\x00\x00\x00" + section(1, types) + section(2, m.imports) + section(3, funcs) + section(4, m.tables)
	if m.memory != nil {
		s += section(5, []string{string(m.memory)})
	}
	s += section(7, m.exports)
	if m.start > 0 {
		s += "\x08" + sized(num(uint32(m.start-1)))
	}
	return []byte(s + section(9, m.elems) + section(10, code) + section(11, m.data) + m.extra)
}

func i32(v int32) string   { return "\x41" + signed(int64(v)) }
func i64(v int64) string   { return "\x42" + signed(v) }
func call(f uint32) string { return "\x10" + num(f) }

const (
	drop    = "\x1a"
	loop    = "\x03\x40"
	block   = "\x02\x40"
	end     = "\x0b"
	br0     = "\x0c\x00"
	grow    = "\x40\x00"
	trapNow = "\x00"
)
