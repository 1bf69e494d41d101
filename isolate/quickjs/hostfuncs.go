package quickjs

import (
	"context"

	"github.com/tetratelabs/wazero"

	"sandboxd/isolate/wasmvm"
)

// WASI error numbers.
const (
	wasiSuccess = 0
	wasiBadf    = 8
	wasiFault   = 21
	wasiInval   = 28
)

// Clock numbers of WASI.
const (
	clockRealtime  = 0
	clockMonotonic = 1
)

const wasiModule = "wasi_snapshot_preview1"

// imports are all the functions that the guest can call. There is no file, no
// argument and no environment variable behind any of them.
var imports = []wasmvm.Host[*VM]{
	{Module: "env", Name: "host_call", Params: "iiiii", Results: "i", Call: (*VM).hostCall},
	{Module: "env", Name: "host_interrupt", Results: "i", Call: answer(0)},
	{Module: "env", Name: "host_promise_rejection", Params: "iii", Call: (*VM).hostRejection},
	{Module: "env", Name: "host_module_normalize", Params: "ii", Results: "i", Call: (*VM).hostNormalize},
	{Module: "env", Name: "host_module_load", Params: "ii", Results: "i", Call: (*VM).hostLoad},
	// Seconds east of UTC: code sees no zone of the host's.
	{Module: "env", Name: "host_get_timezone_offset", Params: "ii", Results: "i", Call: answer(0)},
	{Module: wasiModule, Name: "clock_time_get", Params: "ili", Results: "i", Call: (*VM).clockTimeGet},
	{Module: wasiModule, Name: "fd_close", Params: "i", Results: "i", Call: answer(wasiBadf)},
	{Module: wasiModule, Name: "fd_fdstat_get", Params: "ii", Results: "i", Call: answer(wasiBadf)},
	{Module: wasiModule, Name: "fd_seek", Params: "ilii", Results: "i", Call: answer(wasiBadf)},
	{Module: wasiModule, Name: "fd_write", Params: "iiii", Results: "i", Call: answer(wasiBadf)},
	{Module: wasiModule, Name: "random_get", Params: "ii", Results: "i", Call: (*VM).randomGet},
}

func answer(v uint64) func(*VM, []uint64) {
	return func(_ *VM, s []uint64) { s[0] = v }
}

func hostModules(ctx context.Context, r wazero.Runtime) error {
	return wasmvm.Export(ctx, r, imports, (*VM).outOfFuel)
}

func (vm *VM) clockTimeGet(stack []uint64) {
	id, out := uint32(stack[0]), uint32(stack[2])
	var ns int64
	switch id {
	case clockRealtime:
		ns, _ = vm.hooks.Now()
	case clockMonotonic:
		_, ns = vm.hooks.Now()
	default:
		stack[0] = wasiInval
		return
	}
	if !vm.mod.Memory().WriteUint64Le(out, uint64(ns)) {
		stack[0] = wasiFault
		return
	}
	stack[0] = wasiSuccess
}

func (vm *VM) randomGet(stack []uint64) {
	b, ok := vm.mod.Memory().Read(uint32(stack[0]), uint32(stack[1]))
	if !ok {
		stack[0] = wasiFault
		return
	}
	vm.hooks.Random(b)
	stack[0] = wasiSuccess
}

// hostCall is every call of the one function that the prelude was given.
// The parameters are name, its length, this, argc and argv.
func (vm *VM) hostCall(stack []uint64) {
	argc, argv := uint32(stack[3]), uint32(stack[4])
	var args Args
	if argc > uint32(len(args.ptr)) {
		argc = uint32(len(args.ptr))
	}
	args.vm, args.N = vm, int(argc)
	for i := range argc {
		p, ok := vm.mod.Memory().ReadUint32Le(argv + 4*i)
		if !ok {
			vm.abort(errGuest("arguments outside its memory"))
		}
		args.ptr[i] = p
	}
	v, err := vm.hooks.Call(&args)
	if err != nil {
		vm.abort(err)
	}
	if v == 0 {
		v = Value(vm.must(fnDupValue, uint64(vm.eng.boot.undefPtr)))
	}
	stack[0] = uint64(v)
}

func (vm *VM) hostRejection(stack []uint64) {
	promise, reason, handled := uint64(uint32(stack[0])), uint64(uint32(stack[1])), uint32(stack[2]) != 0
	vm.hooks.Rejected(Value(vm.must(fnValuePtr, promise)), Value(reason), handled)
	vm.must0(fnFreeValue, promise)
	vm.must0(fnFreeValue, reason)
}

func (vm *VM) hostNormalize(stack []uint64) {
	base, spec := vm.cString(uint32(stack[0])), vm.cString(uint32(stack[1]))
	name, err := vm.hooks.Normalize(base, spec)
	if err != nil {
		stack[0] = 0
		vm.throw(err.Error())
		return
	}
	stack[0] = uint64(vm.mustString(name))
}

func (vm *VM) hostLoad(stack []uint64) {
	src, err := vm.hooks.Load(vm.cString(uint32(stack[0])))
	if err != nil {
		stack[0] = 0
		vm.throw(err.Error())
		return
	}
	p := vm.mustString(src)
	if !vm.mod.Memory().WriteUint32Le(uint32(stack[1]), uint32(len(src))) {
		vm.abort(errGuest("length outside its memory"))
	}
	stack[0] = uint64(p)
}
