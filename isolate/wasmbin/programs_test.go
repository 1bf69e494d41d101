package wasmbin

import "slices"

// A program is a module that exports run, with arguments worth trying.
type program struct {
	name string
	wasm []byte
	args [][]uint64
}

func one(args ...uint64) [][]uint64 {
	var out [][]uint64
	for _, a := range args {
		out = append(out, []uint64{a})
	}
	return out
}

func programs() []program {
	return []program{
		{"tight loop", tightLoop(), one(1, 2, 100000)},
		{"break loop", tightBreak(), one(0, 1, 100000)},
		{"mix loop", mixLoop(), one(1, 100000)},
		{"memory loop", memLoop(), one(1, 100000)},
		{"call loop", callLoop(), one(1, 50000)},
		{"fib", fib(), one(0, 1, 2, 20)},
		{"br_table", brTableLoop(), one(0, 1, 5, 20000)},
		{"br_table out of nested loops", brTableOut(), one(0, 1, 2, 3, 4, 5, 999)},
		{"if else", ifElse(), one(0, 1, 5000)},
		{"multi-value blocks", multiValue(), one(1, 3, 3000)},
		{"results out of loops", loopResults(), one(0, 1, 7, 5000)},
		{"many exits", manyExits(), one(0, 1, 2, 3, 4, 5, 6, 7, 8, 4000)},
		{"call_indirect", indirect(), one(0, 1, 2, 3, 5000)},
		{"imports", imports(), one(0, 1, 500)},
		{"bulk memory", bulkMemory(), one(0, 1, 300, 60000)},
		{"bulk tables", bulkTables(), one(0, 1, 5, 70)},
		{"grow", growMemory(), one(0, 1, 3, 20, 5000)},
		{"simd", simd(), one(0, 1, 7, 9000)},
		{"floats", floats(), one(0, 1, 1000)},
		{"dead code", deadCode(), one(0, 1, 50)},
		{"loops in a deep nest", deepLoops(), one(0, 1, 2)},
		{"globals and start", globalsAndStart(), one(0, 9)},
		{"return from loops", returns(), one(0, 1, 6, 1000)},
		{"many locals", manyLocals(), one(5, 1000)},
		{"uneven arms", unevenArms(), one(1, 2, 3000)},
		{"back over an inner loop", backOver(), one(1, 2, 3000)},
	}
}

// brTableLoop is an interpreter: a loop around a br_table whose cases differ
// in cost and one of which loops.
func brTableLoop() []byte {
	var a asm
	next := blk(opBlock, blockEmpty,
		blk(opBlock, blockEmpty,
			blk(opBlock, blockEmpty,
				blk(opBlock, blockEmpty,
					get(1), i32(3), op(i32And),
					op(opBrTable, 3, 0, 1, 2, 3)),
				get(1), i32(5), op(i32Add), set(1), br(2)),
			get(1), i32(3), op(i32Mul), i32(1), op(i32Add), set(1),
			get(2), get(1), op(i32Xor), set(2), br(1)),
		i32(5), set(3),
		blk(opLoop, blockEmpty,
			get(2), get(3), op(i32Add), i32(3), op(i32Rotl), set(2),
			get(3), i32(1), op(i32Sub), tee(3), brIf(0)),
		get(1), i32(1), op(i32ShrU), set(1), br(0))
	a.fn("run", types(I32), types(I32), types(I32, I32, I32),
		blk(opBlock, blockEmpty,
			blk(opLoop, blockEmpty,
				get(0), op(i32Eqz), brIf(1),
				get(0), i32(1), op(i32Sub), set(0),
				next,
				get(1), get(0), op(i32Add), set(1),
				br(0))),
		get(1), get(2), op(i32Add))
	return a.bytes()
}

// brTableOut leaves two nested loops for several places by br_table.
func brTableOut() []byte {
	var a asm
	inner := blk(opLoop, blockEmpty,
		get(1), i32(1), op(i32Add), tee(1), get(0), op(i32LtU), brIf(0),
		get(0), i32(7), op(i32And),
		op(opBrTable, 5, 0+1, 2, 3, 4, 2, 5))
	a.fn("run", types(I32), types(I32), types(I32),
		i32(1000),
		blk(opBlock, blockEmpty,
			blk(opBlock, blockEmpty,
				blk(opBlock, blockEmpty,
					blk(opBlock, blockEmpty,
						blk(opLoop, blockEmpty,
							get(0), i32(1), op(i32Add), set(0), inner))),
				get(1), i32(10), op(i32Add), set(1)),
			get(1), i32(100), op(i32Add), set(1)),
		get(1), op(i32Add))
	return a.bytes()
}

func ifElse() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opLoop, blockEmpty,
			get(0), i32(1), op(i32And),
			op(opIf, byte(I32)), get(1), i32(3), op(i32Mul), op(opElse), get(1), i32(7), op(i32Xor), op(opEnd),
			set(1),
			get(0), i32(2), op(i32And),
			blk(opIf, blockEmpty, get(1), get(0), op(i32Add), set(1)),
			get(0),
			op(opIf, blockEmpty), get(0), i32(1), op(i32Sub), set(0), br(1), op(opEnd)),
		get(1))
	return a.bytes()
}

// multiValue has loops and ifs that take and leave operands.
func multiValue() []byte {
	var a asm
	two := a.typ(types(I32, I32), types(I32, I32))
	sum := a.typ(types(I32, I32), types(I32))
	swap := a.fn("", types(I32, I32), types(I32, I32), nil, get(1), get(0))
	a.fn("run", types(I32), types(I32), types(I32),
		get(0), i32(1),
		blkT(opLoop, two, // counter, sum
			set(1), i32(1), op(i32Sub), get(1), i32(3), op(i32Add),
			call(swap), set(1),
			get(1), // sum, counter
			call(swap),
			get(1), brIf(0)),
		blkT(opBlock, sum, op(i32Add)),
		get(0), i32(2), op(i32And),
		append(append(appendS64([]byte{opIf}, int64(a.typ(types(I32), types(I32)))), append(i32(1), i32Add)...), opElse),
		i32(2), op(i32Mul), op(opEnd),
		// A loop with parameters that calls nothing.
		get(0),
		blkT(opLoop, two, set(1), i32(7), op(i32Xor), get(1), i32(1), op(i32Sub), tee(1), get(1), brIf(0)),
		op(i32Add))
	return a.bytes()
}

// loopResults branches out of loops with operands, conditionally and not.
func loopResults() []byte {
	var a asm
	pair := a.typ(nil, types(I32, I32))
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opBlock, byte(I32),
			blk(opLoop, byte(I32),
				get(1), get(1), get(0), op(i32Eq), brIf(1), op(opDrop),
				get(1), i32(1), op(i32Add), tee(1), i32(40), op(i32Eq),
				op(opIf, blockEmpty), i32(777), br(2), op(opEnd),
				br(0))),
		blkT(opBlock, pair,
			blkT(opLoop, pair,
				get(0), get(1), get(0), op(i32Eqz), brIf(1), op(opDrop), op(opDrop),
				get(0), i32(1), op(i32Sub), tee(0), brIf(0),
				i32(5), i32(6))),
		op(i32Add), op(i32Add))
	return a.bytes()
}

// manyExits has more targets out of one loop than a root keeps exits for.
func manyExits() []byte {
	var a asm
	var tests [][]byte
	for i := range 7 {
		tests = append(tests, get(1), i32(int32(i)+2), op(i32Eq), get(0), i32(int32(i)), op(i32Eq), op(i32And), brIf(uint32(i)+1))
	}
	body := blk(opLoop, blockEmpty, append(tests,
		blk(opLoop, blockEmpty, get(1), i32(1), op(i32And), brIf(4), get(0), i32(-1), op(i32Eq), brIf(0)),
		get(1), i32(2), op(i32Add), tee(1), i32(5000), op(i32LtU), brIf(0))...)
	for i := range 7 {
		body = blk(opBlock, blockEmpty, body, get(1), i32(int32(i)*1000), op(i32Add), set(1))
	}
	a.fn("run", types(I32), types(I32), types(I32), body, get(1))
	return a.bytes()
}

func funcElems(expr bool, funcs ...uint32) []byte {
	b := append(append([]byte{0}, i32(0)...), opEnd)
	if expr {
		b[0] = 4
	}
	b = appendU32(b, uint32(len(funcs)))
	for _, f := range funcs {
		if expr {
			b = append(ixTo(append(b, opRefFunc), f), opEnd)
		} else {
			b = appendU32(b, f)
		}
	}
	return b
}

func ixTo(b []byte, i uint32) []byte { return appendU32(b, i) }

// indirect calls through a table that both forms of segments fill, and takes
// references to functions by ref.func.
func indirect() []byte {
	var a asm
	note := a.importFunc("env", "note", types(I32), types(I32))
	typ := a.typ(types(I32), types(I32))
	inc := a.fn("", types(I32), types(I32), nil, get(0), i32(1), op(i32Add))
	mul := a.fn("", types(I32), types(I32), nil, get(0), i32(5), op(i32Mul))
	a.tables = []Table{{Type: FuncRef, Min: 4, Max: 4, HasMax: true}}
	a.elems = [][]byte{
		funcElems(false, inc, mul, note, inc),
		funcElems(true, mul, inc),
		append(append([]byte{3, 0}, appendU32(nil, 1)...), appendU32(nil, mul)...),
	}
	a.globals = [][]byte{append(ix(byte(FuncRef), 0)[:1], 0, opRefFunc, byte(inc), opEnd)}
	a.fn("run", types(I32), types(I32), types(I32),
		i32(3), ix(opRefFunc, mul), op(opTableSet, 0),
		i32(0), ix(opGlobalGet, 0), op(opTableSet, 0),
		blk(opLoop, blockEmpty,
			get(1), get(0), i32(3), op(i32And), append(ix(opCallIndirect, typ), 0), set(1),
			get(0), op(opIf, blockEmpty), get(0), i32(1), op(i32Sub), set(0), br(1), op(opEnd)),
		get(1))
	return a.bytes()
}

// imports calls the host from within and without a loop.
func imports() []byte {
	var a asm
	note := a.importFunc("env", "note", types(I32), types(I32))
	a.exports = append(a.exports, Export{"again", KindFunc, note})
	a.fn("run", types(I32), types(I32), nil,
		blk(opBlock, blockEmpty,
			blk(opLoop, blockEmpty, get(0), op(i32Eqz), brIf(1),
				get(0), call(note), i32(2), op(i32Sub), set(0), br(0))),
		get(0), call(note))
	return a.bytes()
}

// bulkMemory fills, copies and initialises, also within a loop that holds its
// fuel.
func bulkMemory() []byte {
	var a asm
	a.memory = &Memory{Min: 2, Max: 2, HasMax: true}
	a.count = true
	a.data = []asmData{{bytes: []byte("active data"), offset: 16}, {passive: true, bytes: []byte("passive segment")}}
	a.fn("run", types(I32), types(I32), types(I32),
		i32(64), i32(0x5a), get(0), fc(fcMemoryFill, 0),
		blk(opLoop, blockEmpty,
			get(1), i32(3), op(i32Add), get(1), get(0), i32(0x7fff), op(i32And), fc(fcMemoryCopy, 0, 0),
			i32(100), i32(2), i32(5), fc(fcMemoryInit, 1, 0),
			get(1), i32(1), op(i32Add), tee(1), i32(20), op(i32LtU), brIf(0)),
		fc(fcDataDrop, 1),
		i32(16), op(0x28, 2, 0), i32(101), op(0x28, 0, 0), op(i32Xor), i32(1000), op(0x28, 0, 0), op(i32Add))
	return a.bytes()
}

func bulkTables() []byte {
	var a asm
	typ := a.typ(nil, types(I32))
	f := a.fn("", nil, types(I32), nil, i32(11))
	g := a.fn("", nil, types(I32), nil, i32(22))
	a.tables = []Table{{Type: FuncRef, Min: 4, Max: 64, HasMax: true}, {Type: ExternRef, Min: 2}}
	a.elems = [][]byte{append([]byte{1, 0, 2}, byte(f), byte(g))}
	a.fn("run", types(I32), types(I32), types(I32),
		op(opRefNull, byte(FuncRef)), get(0), fc(fcTableGrow, 0), set(1),
		i32(0), i32(0), i32(2), fc(fcTableInit, 0, 0), fc(fcElemDrop, 0),
		i32(2), i32(0), i32(2), fc(fcTableCopy, 0, 0),
		i32(1), ix(opRefFunc, g), i32(2), fc(fcTableFill, 0),
		op(opRefNull, byte(ExternRef)), i32(9), fc(fcTableGrow, 1), op(opDrop),
		i32(0), op(opTableGet, 0), op(opRefIsNull),
		get(1), op(i32Add), fc(fcTableSize, 0), op(i32Add), fc(fcTableSize, 1), op(i32Add),
		i32(3), append(ix(opCallIndirect, typ), 0), op(i32Add))
	return a.bytes()
}

// growMemory grows by its argument, which may be refused, in a loop that
// calls nothing, and alone.
func growMemory() []byte {
	var a asm
	a.memory = &Memory{Min: 1, Max: 40, HasMax: true}
	a.fn("run", types(I32), types(I32), types(I32, I32),
		i32(3), set(1),
		blk(opLoop, blockEmpty,
			get(2), get(0), op(opMemoryGrow, 0), op(i32Add), set(2),
			get(1), i32(1), op(i32Sub), tee(1), brIf(0)),
		get(0), op(opMemoryGrow, 0), get(2), op(i32Add), op(opMemorySize, 0), op(i32Add))
	return a.bytes()
}

func simd() []byte {
	var a asm
	a.memory = &Memory{Min: 1, Max: 1, HasMax: true}
	fd := func(sub uint32, imms ...byte) []byte { return append(appendU32([]byte{opPrefixFD}, sub), imms...) }
	a.fn("run", types(I32), types(I32), types(I32, V128),
		get(0), fd(17), set(2), // i32x4.splat
		blk(opLoop, blockEmpty,
			get(2), fd(12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16), fd(174), // i32x4.add
			get(2), fd(13, 16, 1, 2, 3, 20, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), // shuffle
			get(2), fd(81), set(2), // v128.xor
			i32(32), get(2), fd(11, 4, 0), // v128.store
			i32(33), get(2), fd(84, 0, 0, 3), fd(128), set(2), // load8_lane, i16x8.abs
			get(1), i32(1), op(i32Add), tee(1), get(0), op(i32LtU), brIf(0)),
		get(2), fd(27, 2), get(2), fd(163), op(i32Add), // extract_lane, all_true
		get(2), fd(255), fd(248), fd(27, 0), op(i32Xor)) // f64x2.convert_low_i32x4_u, i32x4.trunc_sat_f32x4_s
	return a.bytes()
}

func floats() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), types(F64, F32, I64),
		blk(opLoop, blockEmpty,
			get(1), append([]byte{opF64Const}, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f), op(0xa0), op(0x9f), // add 1, sqrt
			append([]byte{opF64Const}, 0, 0, 0, 0, 0, 0, 0x08, 0x40), op(0xa3), set(1), // divide by 3
			get(2), append([]byte{opF32Const}, 0, 0, 0x80, 0x3f), op(0x92), set(2),
			get(3), i64(-0x123456789abcdef), op(i64Xor), i64(3), op(i64Rotl), set(3),
			get(3), op(0xc4), set(3), // extend32_s
			get(0), op(opIf, blockEmpty), get(0), i32(1), op(i32Sub), set(0), br(1), op(opEnd)),
		get(1), fc(6), get(3), op(0x7c), op(0xa7), // trunc_sat_f64_s, wrap
		get(2), op(0xa8), op(i32Add),
		i32(1), i32(2), get(0), op(opSelectT, 1, byte(I32)), op(i32Add))
	return a.bytes()
}

// deadCode branches and loops where nothing ever runs, past loops that are
// wrapped.
func deadCode() []byte {
	var a asm
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opBlock, blockEmpty,
			blk(opLoop, blockEmpty,
				blk(opBlock, blockEmpty,
					get(1), i32(1), op(i32Add), tee(1), get(0), op(i32LtU), brIf(1),
					br(2),
					blk(opLoop, blockEmpty, br(3), blk(opIf, blockEmpty, br(0), op(opElse), br(2)), brIf(3)),
					op(opBrTable, 2, 0, 1, 2), op(i32Add), op(opDrop)),
				op(opUnreachable),
				br(1), call(0), op(opMemoryGrow, 0), op(opDrop))),
		blk(opLoop, byte(I32), get(1), op(opReturn), br(0)), op(opUnreachable))
	a.memory = &Memory{Min: 1}
	return a.bytes()
}

// deepLoops nests loops deeper than they are wrapped, with a branch from the
// innermost over all.
func deepLoops() []byte {
	var a asm
	body := slices.Concat(get(1), i32(1), op(i32Add), tee(1), get(0), op(i32LtU), brIf(0),
		get(1), i32(2), op(i32And), brIf(20), get(1), i32(1), op(i32And), brIf(24))
	for range 24 {
		body = slices.Concat(blk(opLoop, blockEmpty, body), get(1), i32(9), op(i32Add), set(1))
	}
	a.fn("run", types(I32), types(I32), types(I32), blk(opBlock, blockEmpty, body), get(1))
	return a.bytes()
}

func globalsAndStart() []byte {
	var a asm
	a.globals = [][]byte{
		append([]byte{byte(I32), 1}, append(i32(5), opEnd)...),
		append([]byte{byte(I64), 0}, append(i64(1<<40), opEnd)...),
		append([]byte{byte(I64), 1}, append(i64(-3), opEnd)...),
	}
	a.start = 1 + int(a.fn("", nil, nil, nil,
		blk(opLoop, blockEmpty,
			ix(opGlobalGet, 0), i32(1), op(i32Add), ix(opGlobalSet, 0),
			ix(opGlobalGet, 0), i32(100000), op(i32LtU), brIf(0))))
	a.fn("run", types(I32), types(I32), nil,
		ix(opGlobalGet, 2), i64(7), op(i64Mul), ix(opGlobalSet, 2),
		ix(opGlobalGet, 2), ix(opGlobalGet, 1), op(i64Add), op(0xa7),
		ix(opGlobalGet, 0), get(0), op(i32Add), op(i32Add))
	return a.bytes()
}

// returns leaves loops by return, by branches to the function's own label and
// by br_if with operands.
func returns() []byte {
	var a asm
	f := a.fn("", types(I32), types(I32), types(I32),
		blk(opLoop, blockEmpty,
			blk(opLoop, blockEmpty,
				get(1), i32(3), op(i32Add), tee(1), get(0), op(i32Eq),
				op(opIf, blockEmpty), get(1), op(opReturn), op(opEnd),
				get(1), get(1), i32(30), op(i32Eq), brIf(2), op(opDrop),
				get(1), i32(7), op(i32And), brIf(0)),
			get(1), i32(40), op(i32LtU), brIf(0),
			get(1), i32(100), op(i32Add), br(1)),
		op(opUnreachable))
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opLoop, blockEmpty,
			get(0), call(f), get(1), op(i32Add), set(1),
			get(0), op(opIf, blockEmpty), get(0), i32(1), op(i32Sub), set(0), br(1), op(opEnd)),
		get(1))
	return a.bytes()
}

// manyLocals has locals of every type in front of what metering adds.
func manyLocals() []byte {
	var a asm
	ls := types(I64, F32, F64, V128, FuncRef, ExternRef, I32, I32)
	a.memory = &Memory{Min: 1, Max: 30, HasMax: true}
	a.fn("run", types(I32), types(I32), ls,
		blk(opLoop, blockEmpty,
			get(7), get(0), op(i32Add), set(7),
			i32(0), get(7), get(0), fc(fcMemoryFill, 0),
			get(8), i32(1), op(i32Add), tee(8), i32(50), op(i32LtU), brIf(0)),
		get(7), i32(0), op(0x28, 2, 0), op(i32Add))
	return a.bytes()
}

// unevenArms has a longer way to a label before a shorter one.
func unevenArms() []byte {
	var a asm
	long := slices.Concat(slices.Repeat(slices.Concat(get(1), i32(3), op(i32Mul), set(1)), 8))
	a.fn("run", types(I32), types(I32), types(I32),
		blk(opLoop, blockEmpty,
			blk(opBlock, blockEmpty,
				get(0), i32(-1), op(i32Eq),
				op(opIf, blockEmpty), br(1), op(opElse),
				get(0), op(opIf, blockEmpty), long, br(2), op(opElse), br(2), op(opEnd), op(opEnd)),
			get(0), i32(1), op(i32Sub), tee(0), brIf(0)),
		get(1))
	return a.bytes()
}

// backOver goes from a loop that holds its fuel straight back to the head of
// one that calls and takes an operand, so that neither is wrapped.
func backOver() []byte {
	var a asm
	note := a.importFunc("env", "note", types(I32), types(I32))
	typ := a.typ(types(I32), types(I32))
	a.fn("run", types(I32), types(I32), types(I32),
		get(0),
		blkT(opLoop, typ,
			set(0),
			i32(50), set(1),
			get(0), i32(1000), op(i32Eq), op(opIf, blockEmpty), get(0), call(note), op(opDrop), op(opEnd),
			blk(opLoop, blockEmpty,
				get(1), i32(1), op(i32Sub), tee(1), brIf(0),
				get(0), op(opIf, blockEmpty), get(0), i32(1), op(i32Sub), br(2), op(opEnd)),
			get(1)))
	return a.bytes()
}
