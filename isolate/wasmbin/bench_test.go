package wasmbin

import "testing"

// tightLoop counts its argument down to zero: the fewest instructions that a
// useful loop can have.
func tightLoop() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), nil,
		blk(opLoop, blockEmpty, get(0), i32(1), op(i32Sub), tee(0), brIf(0)),
		get(0))
	return a.bytes()
}

// tightBreak is the other common shape: leave in the middle, branch back at
// the end.
func tightBreak() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), nil,
		blk(opBlock, blockEmpty, blk(opLoop, blockEmpty,
			get(0), op(i32Eqz), brIf(1),
			get(0), i32(1), op(i32Sub), set(0), br(0))),
		get(0))
	return a.bytes()
}

// mixLoop hashes: a loop of a dozen dependent operations.
func mixLoop() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opLoop, blockEmpty,
			get(1), get(0), op(i32Xor), i32(-1640531527), op(i32Mul), i32(13), op(i32Rotl), set(1),
			get(1), get(1), i32(15), op(i32ShrU), op(i32Xor), set(1),
			get(0), i32(1), op(i32Sub), tee(0), brIf(0)),
		get(1))
	return a.bytes()
}

// memLoop sums a buffer of 64 KiB over and over: n words in all.
func memLoop() []byte {
	var a asm
	a.memory = &Memory{Min: 1, Max: 1, HasMax: true}
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opLoop, blockEmpty,
			get(0), i32(2), op(0x74), i32(0xffff), op(i32And), op(0x28, 2, 0),
			get(1), op(i32Add), set(1),
			get(0), i32(1), op(i32Sub), tee(0), brIf(0)),
		get(1))
	return a.bytes()
}

// callLoop calls a function that is too large for a tiny leaf.
func callLoop() []byte {
	var a asm
	leaf := a.fn("", types(I32), types(I32), nil,
		get(0), i32(3), op(i32Mul), i32(7), op(i32Rotl), get(0), op(i32Xor), i32(5), op(i32Add),
		get(0), op(i32Xor), i32(9), op(i32Rotl), i32(11), op(i32Mul), get(0), op(i32Sub))
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opLoop, blockEmpty, get(1), call(leaf), get(0), op(i32Add), set(1),
			get(0), i32(1), op(i32Sub), tee(0), brIf(0)),
		get(1))
	return a.bytes()
}

// fib is the naive recursion; run(n) computes fib(n).
func fib() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), nil,
		get(0), i32(2), op(i32LtS),
		append(append([]byte{opIf, byte(I32)}, get(0)...), opElse),
		get(0), i32(1), op(i32Sub), call(0),
		get(0), i32(2), op(i32Sub), call(0), op(i32Add), op(opEnd))
	return a.bytes()
}

func BenchmarkLoops(b *testing.B) {
	for _, x := range []struct {
		name string
		wasm []byte
		arg  uint64
	}{
		{"tight", tightLoop(), 1e8},
		{"break", tightBreak(), 1e8},
		{"mix", mixLoop(), 3e7},
		{"memory", memLoop(), 5e7},
		{"call", callLoop(), 3e7},
		{"fib", fib(), 32},
	} {
		for _, with := range []bool{false, true} {
			name, wasm := x.name+"/plain", x.wasm
			if with {
				name, wasm = x.name+"/metered", metered(b, x.wasm)
			}
			b.Run(name, func(b *testing.B) {
				h := newHost(b)
				h.quantum = 300_000
				m := h.instantiate(wasm)
				f := m.ExportedFunction("run")
				for b.Loop() {
					if _, err := f.Call(h.ctx, x.arg); err != nil {
						b.Fatal(err)
					}
				}
				if with {
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(h.used(m)), "ns/unit")
					b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(h.refills), "us/refill")
				}
			})
		}
	}
}

// BenchmarkRefill measures one call to the host, by asking at every iteration
// of the tightest loop.
func BenchmarkRefill(b *testing.B) {
	h := newHost(b)
	h.quantum = 1
	m := h.instantiate(metered(b, tightLoop()))
	f := m.ExportedFunction("run")
	h.refills = 0
	for b.Loop() {
		if _, err := f.Call(h.ctx, 100_000); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(h.refills), "ns/refill")
}

func BenchmarkRewrite(b *testing.B) {
	wasm := quickjs(b)
	b.SetBytes(int64(len(wasm)))
	for b.Loop() {
		if _, _, err := Rewrite(wasm, testOptions); err != nil {
			b.Fatal(err)
		}
	}
}
