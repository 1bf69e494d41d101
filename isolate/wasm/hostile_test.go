package wasm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// reject is a module that must not be compiled, and what the answer says.
type reject struct {
	name string
	wasm []byte
	want string // in message or hint
}

func command(m *module, code string) []byte {
	m.fn("_start", "", "", "", code)
	return m.bytes()
}

func rejects() []reject {
	with := func(change func(m *module)) []byte {
		m := &module{memory: []byte{0, 1}}
		change(m)
		return command(m, "")
	}
	raw := func(sections string) []byte { return []byte("\x00asm\x01\x00\x00\x00" + sections) }
	body := func(code string) []byte { return command(&module{memory: []byte{0, 1}}, code) }
	many := &module{memory: []byte{0, 1}}
	for range 50_001 {
		many.fn("", "", "", "", "")
	}
	return []reject{
		{"nothing", nil, "not a WebAssembly binary"},
		{"text", []byte("(module)"), "not a WebAssembly binary"},
		{"a component", []byte("\x00asm\x0d\x00\x01\x00"), "component"},
		{"cut off", raw("\x01\x05\x01"), "announced"},
		{"an unknown import", with(func(m *module) { m.imp("env", "abort", vi32, "") }), `"env"."abort"`},
		{"what there is instead", with(func(m *module) { m.imp("env", "abort", vi32, "") }), "sandboxd.call"},
		{"an unknown function of WASI", with(func(m *module) { m.wasi("sock_open", vi32, vi32) }), `"sock_open"`},
		{"another signature", with(func(m *module) { m.wasi("fd_write", vi32, vi32) }), "(i32 i32 i32 i32) → (i32)"},
		{"our own fuel", with(func(m *module) { m.imp("isolate_fuel", "empty", "", "") }), `"isolate_fuel"."empty"`},
		{"an imported memory", raw(section(2, []string{sized("env") + sized("memory") + "\x02\x00\x01"})), `memory "env"."memory"`},
		{"no entry", (&module{memory: []byte{0, 1}}).bytes(), "neither _start nor run"},
		{"an entry with parameters", func() []byte { m := &module{}; m.fn("run", vi32, "", "", ""); return m.bytes() }(), "() → ()"},
		{"no memory to read from", func() []byte { m := &module{}; m.wasi("fd_close", vi32, vi32); return command(m, "") }(), "has none"},
		{"too many functions", command(many, ""), "functions"},
		{"too many locals", func() []byte {
			m := &module{}
			m.fn("_start", "", "", "\x01"+num(2001)+vi64, "")
			return m.bytes()
		}(), "locals of one function"},
		{"too deep", body(strings.Repeat(block, 2600) + strings.Repeat(end, 2600)), "nested blocks"},
		{"too many blocks", body(strings.Repeat(block+end, 10_001)), "blocks in one function"},
		{"a large br_table", body(block + i32(0) + "\x0e" + num(6000) + strings.Repeat("\x00", 6001) + end), "br_table"},
		{"a long function", body(strings.Repeat("\x01", 300<<10)), "bytes of one function"},
		{"locals times blocks", func() []byte {
			m := &module{}
			m.fn("_start", "", "", "\x01"+num(1900)+vi64, strings.Repeat(block+end, 200))
			return m.bytes()
		}(), "locals times blocks"},
		{"large tables", with(func(m *module) { m.tables = []string{"\x70\x00" + num(200_000)} }), "table entries"},
		{"many tables", with(func(m *module) {
			for range 5 {
				m.tables = append(m.tables, "\x70\x00\x01")
			}
		}), "tables"},
		{"type confusion", body(i32(0) + "\x42\x00" + "\x6a" + drop), "not valid"},
		{"threads", body("\xfe\x03\x00"), "threads"},
		{"shared memory", raw("\x05\x04\x01\x03\x01\x01"), "threads (shared memory)"},
		{"memory64", raw("\x05\x03\x01\x04\x01"), "memory64"},
		{"two memories", raw("\x05\x05\x02\x00\x01\x00\x01"), "multi-memory"},
		{"exceptions", raw("\x0d\x03\x01\x00\x00"), "exception handling"},
		{"try", body("\x06\x40" + end), "exception handling"},
		{"tail call", body("\x12\x00"), "tail calls"},
		{"a struct type", raw("\x01\x05\x01\x5f\x01\x7f\x00"), "garbage collection"},
		{"relaxed SIMD", body("\xfd\x80\x02" + drop), "relaxed SIMD"},
		{"a reference type", raw("\x01\x06\x01\x60\x01\x64\x70\x00"), "typed function references"},
	}
}

func TestAdmission(t *testing.T) {
	for _, x := range rejects() {
		t.Run(x.name, func(t *testing.T) {
			start := time.Now()
			_, err := Compile(context.Background(), x.wasm)
			var r *RejectedError
			if !errors.As(err, &r) {
				t.Fatalf("error %v", err)
			}
			if !strings.Contains(r.Message+" "+r.Hint, x.want) {
				t.Errorf("it says %q, hint %q; want in it %q", r.Message, r.Hint, x.want)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestImportsAreWhole: every function that may be imported links.
func TestImportsAreWhole(t *testing.T) {
	m := &module{memory: []byte{0, 1}}
	kinds := map[byte]string{0x7f: vi32, 0x7e: vi64}
	for name, f := range imports {
		mod, fn, _ := strings.Cut(name, ".")
		params, results := "", ""
		for _, p := range f.Params {
			params += kinds[byte(p)]
		}
		for _, p := range f.Results {
			results += kinds[byte(p)]
		}
		m.imp(mod, fn, params, results)
	}
	if len(imports) != 46+len(functions) {
		t.Errorf("%d functions", len(imports))
	}
	if status, err := do(t, compile(t, command(m, "")), &testWorld{}, Job{}); err != nil || status != 0 {
		t.Errorf("status %d, %v", status, err)
	}
}

// What must end by itself does, with the reason.
func TestHostileModules(t *testing.T) {
	const limit = 3000 // ticks
	tests := []struct {
		name string
		wasm func() []byte
		want func(status uint32, err error) bool
	}{
		{"calls without a loop", func() []byte {
			m := &module{}
			for i := range 60 {
				m.fn("", "", "", "", strings.Repeat(call(uint32(i+1)), 2))
			}
			m.fn("", "", "", "", "")
			m.fn("_start", "", "", "", call(0))
			return m.bytes()
		}, outOfTicks},
		{"a loop", func() []byte { return command(&module{}, loop+br0+end) }, outOfTicks},
		{"a start function that loops", func() []byte {
			m := &module{start: 1}
			m.fn("", "", "", "", loop+br0+end)
			return command(m, "")
		}, outOfTicks},
		{"recursion", func() []byte { return command(&module{}, call(0)) }, trapped("call stack exhausted")},
		{"recursion with many locals", func() []byte {
			m := &module{}
			m.fn("_start", "", "", "\x01"+num(1500)+vi64, call(0))
			return m.bytes()
		}, trapped("call stack exhausted")},
		{"recursion through a table", func() []byte {
			m := &module{tables: []string{"\x70\x00\x01"}, elems: []string{"\x00" + i32(0) + end + "\x01\x00"}}
			return command(m, i32(0)+"\x11\x00\x00")
		}, trapped("call stack exhausted")},
		{"memory.grow without end", func() []byte {
			return command(&module{memory: []byte{0, 1}}, loop+i32(1)+grow+drop+br0+end)
		}, overMemory},
		{"memory.grow at once", func() []byte { return command(&module{memory: []byte{0, 1}}, i32(30000)+grow+drop) }, overMemory},
		{"a large minimum", func() []byte { return command(&module{memory: []byte("\x00" + num(60000))}, "") }, overMemory},
		{"table.grow without end", func() []byte {
			// It is refused and goes on, until its time is over.
			return command(&module{tables: []string{"\x70\x00\x01"}}, loop+"\xd0\x70"+i32(100_000)+"\xfc\x0f\x00"+drop+br0+end)
		}, outOfTicks},
		{"memory.fill", func() []byte {
			return command(&module{memory: []byte("\x00" + num(500))}, loop+i32(0)+i32(1)+i32(500<<16)+"\xfc\x0b\x00"+br0+end)
		}, outOfTicks},
		{"unreachable", func() []byte { return command(&module{}, trapNow) }, trapped("unreachable")},
		{"division", func() []byte { return command(&module{}, i32(1)+i32(0)+"\x6d"+drop) }, trapped("integer divide by zero")},
		{"out of bounds", func() []byte { return command(&module{memory: []byte{0, 1}}, i32(-4)+"\x28\x02\x00"+drop) }, trapped("out of bounds memory access")},
		{"data out of range", func() []byte {
			return command(&module{memory: []byte{0, 1}, data: []string{"\x00" + i32(70000) + end + sized("x")}}, "")
		}, trapped("do not fit")},
		{"an empty table", func() []byte { return command(&module{tables: []string{"\x70\x00\x01"}}, i32(0)+"\x11\x00\x00") }, trapped("invalid table access")},
		{"proc_exit in start", func() []byte {
			m := &module{memory: []byte{0, 1}}
			exit := m.wasi("proc_exit", vi32, "")
			m.start = int(m.fn("", "", "", "", i32(5)+call(exit))) + 1
			return command(m, trapNow)
		}, func(status uint32, err error) bool { return err == nil && status == 5 }},
		{"proc_raise", func() []byte {
			m := &module{memory: []byte{0, 1}}
			raise := m.wasi("proc_raise", vi32, vi32)
			return command(m, i32(6)+call(raise)+drop+trapNow)
		}, func(status uint32, err error) bool { return err == nil && status == 134 }},
		{"a flood of results", func() []byte {
			m := &module{memory: []byte{0, 1}}
			result := m.imp("sandboxd", "result", vi32+vi32, "")
			return command(m, loop+i32(0)+i32(60000)+call(result)+br0+end)
		}, outOfTicks},
		{"text outside of memory", func() []byte {
			m := &module{memory: []byte{0, 1}}
			host := m.imp("sandboxd", "call", vi32+vi32, vi32)
			return command(m, i32(65530)+i32(100)+call(host)+drop)
		}, trapped("not inside the memory")},
		{"random numbers without end", func() []byte {
			m := &module{memory: []byte("\x00" + num(500))}
			random := m.wasi("random_get", vi32+vi32, vi32)
			return command(m, loop+i32(0)+i32(500<<16)+call(random)+drop+br0+end)
		}, outOfTicks},
		{"yields without end", func() []byte {
			m := &module{memory: []byte{0, 1}}
			yield := m.wasi("sched_yield", "", vi32)
			return command(m, loop+call(yield)+drop+br0+end)
		}, outOfTicks},
	}
	for _, x := range tests {
		t.Run(x.name, func(t *testing.T) {
			m := compile(t, x.wasm())
			start := time.Now()
			status, err := do(t, m, &testWorld{limit: limit}, Job{})
			if !x.want(status, err) {
				t.Errorf("status %d, error %v (%T)", status, err, err)
			}
			// 3000 quanta are half a second of work.
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestStretches: no instruction, and nothing that a host function does at once,
// keeps the thread for longer than the garbage collector may wait. The thread's own
// time does not depend on who else has the cores.
func TestStretches(t *testing.T) {
	const pages = 8000
	big := func() *module { return &module{memory: []byte("\x00" + num(pages))} }
	half := i32(pages << 15)
	tests := map[string][]byte{
		"memory.fill":          command(big(), loop+i32(0)+i32(1)+i32(pages<<16)+"\xfc\x0b\x00"+br0+end),
		"memory.copy":          command(big(), loop+i32(0)+half+half+"\xfc\x0a\x00\x00"+br0+end),
		"memory.copy, overlap": command(big(), loop+i32(1)+i32(0)+i32(pages<<16-1)+"\xfc\x0a\x00\x00"+br0+end),
		"memory.grow":          command(&module{memory: []byte{0, 1}}, loop+i32(64)+grow+drop+br0+end),
	}
	m := big()
	random := m.wasi("random_get", vi32+vi32, vi32)
	tests["random_get"] = command(m, loop+i32(0)+i32(pages<<16)+call(random)+drop+br0+end)
	for name, wasm := range tests {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			m := compile(t, wasm)
			// A busy machine counts something of others to a thread now and then;
			// what is the code's takes as long each time.
			var longest []time.Duration
			for range 5 {
				w := &testWorld{limit: 3000, timed: true}
				status, err := do(t, m, w, Job{Memory: 600 << 20})
				if !outOfTicks(status, err) && !overMemory(status, err) || w.ticks < 2 {
					t.Fatalf("status %d, %v, %d ticks", status, err, w.ticks)
				}
				longest = append(longest, w.longest)
				if w.longest <= 5*time.Millisecond {
					t.Logf("%v of work in one go", w.longest)
					return
				}
			}
			t.Errorf("work in one go: %v", longest)
		})
	}
}

func outOfTicks(_ uint32, err error) bool { return errors.Is(err, errTicks) }

func overMemory(_ uint32, err error) bool {
	var e *MemoryError
	return errors.As(err, &e) && e.Want > e.Limit
}

func trapped(reason string) func(uint32, error) bool {
	return func(_ uint32, err error) bool {
		var e *TrapError
		return errors.As(err, &e) && strings.Contains(e.Reason, reason)
	}
}

// A trap shows the functions by their names in the module.
func TestTrapNames(t *testing.T) {
	m := &module{}
	m.fn("", "", "", "", trapNow)
	m.fn("_start", "", "", "", call(0))
	names := "\x02" + "\x00" + sized("innermost") + "\x01" + sized("entry")
	m.extra = "\x00" + sized(sized("name")+"\x01"+sized(names))
	_, err := do(t, compile(t, m.bytes()), &testWorld{}, Job{})
	var e *TrapError
	if !errors.As(err, &e) || !strings.Contains(e.Stack, "innermost") || !strings.Contains(e.Stack, "entry") || strings.Contains(e.Stack, "isolate_fuel") {
		t.Errorf("%v: %+v", err, e)
	}
}

// A poll for ever waits for its clock, of whose end the host decides.
func TestPollForever(t *testing.T) {
	m := &module{memory: []byte{0, 1}, data: []string{
		"\x00" + i32(0) + end + sized(strings.Repeat("\x00", 24)+"\xff\xff\xff\xff\xff\xff\xff\xff"+strings.Repeat("\x00", 16))}}
	poll := m.wasi("poll_oneoff", vi32+vi32+vi32+vi32, vi32)
	w := &testWorld{limit: 10}
	_, err := do(t, compile(t, command(m, loop+i32(0)+i32(1024)+i32(1)+i32(4096)+call(poll)+drop+br0+end)), w, Job{})
	if err == nil || err.Error() != "slept too long" || w.slept < int64(time.Hour) {
		t.Errorf("%v after %v", err, time.Duration(w.slept))
	}
}

// What one run holds beside its memory counts, too.
func TestAnswerCounts(t *testing.T) {
	m := &module{memory: []byte{0, 1}, data: []string{"\x00" + i32(0) + end + sized("{}")}}
	host := m.imp("sandboxd", "call", vi32+vi32, vi32)
	w := &testWorld{answer: []byte(strings.Repeat("x", 9<<20))}
	_, err := do(t, compile(t, command(m, i32(0)+i32(2)+call(host)+drop)), w, Job{Memory: 8 << 20})
	if !overMemory(0, err) {
		t.Errorf("error %v", err)
	}
}

func TestNoMemory(t *testing.T) {
	if status, err := do(t, compile(t, command(&module{}, "")), &testWorld{}, Job{}); err != nil || status != 0 {
		t.Errorf("%d, %v", status, err)
	}
	m := &module{}
	m.fn("run", "", vi32, "", i32(12))
	if status, err := do(t, compile(t, m.bytes()), &testWorld{}, Job{}); err != nil || status != 12 {
		t.Errorf("%d, %v", status, err)
	}
}

// The time to a new instance and back.
func BenchmarkRun(b *testing.B) {
	empty := &module{memory: []byte{0, 1}}
	for name, m := range map[string]*Module{"empty": compile(b, command(empty, "")), "go": guest(b, "command")} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := m.NewRun(&testWorld{}, Job{Args: []string{"x"}, Memory: 64 << 20}).Do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What counting the stack and the fuel costs where calls are all there is.
func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		m := &module{memory: []byte{0, 1}}
		for range n {
			m.fn("", "", "", "", i32(1)+i32(2)+"\x6a"+drop)
		}
		wasm := command(m, "")
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				m, err := Compile(b.Context(), wasm)
				if err != nil {
					b.Fatal(err)
				}
				m.Close()
			}
		})
	}
}
