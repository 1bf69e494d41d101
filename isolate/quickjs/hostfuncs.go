package quickjs

import (
	"context"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// WASI error numbers.
const (
	wasiSuccess = 0
	wasiBadf    = 8
	wasiFault   = 21
	wasiInval   = 28
	wasiNosys   = 52
)

// Clock numbers of WASI.
const (
	clockRealtime  = 0
	clockMonotonic = 1
)

type hostFunc struct {
	module, name    string
	params, results []api.ValueType
	call            func(vm *VM, stack []uint64)
}

var (
	i32x1 = []api.ValueType{api.ValueTypeI32}
	i32x2 = []api.ValueType{api.ValueTypeI32, api.ValueTypeI32}
	i32x3 = []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}
	i32x4 = []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}
	i32x5 = []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}
)

// imports are all the functions that the guest can call. There is no file, no
// argument and no environment variable behind any of them.
var imports = []hostFunc{
	{"env", "host_call", i32x5, i32x1, (*VM).hostCall},
	{"env", "host_interrupt", nil, i32x1, func(_ *VM, s []uint64) { s[0] = 0 }},
	{"env", "host_promise_rejection", i32x3, nil, (*VM).hostRejection},
	{"env", "host_module_normalize", i32x2, i32x1, (*VM).hostNormalize},
	{"env", "host_module_load", i32x2, i32x1, (*VM).hostLoad},
	// Seconds east of UTC: code sees no zone of the host's.
	{"env", "host_get_timezone_offset", i32x2, i32x1, func(_ *VM, s []uint64) { s[0] = 0 }},
	{"wasi_snapshot_preview1", "clock_time_get", []api.ValueType{api.ValueTypeI32, api.ValueTypeI64, api.ValueTypeI32}, i32x1, (*VM).clockTimeGet},
	{"wasi_snapshot_preview1", "fd_close", i32x1, i32x1, func(_ *VM, s []uint64) { s[0] = wasiBadf }},
	{"wasi_snapshot_preview1", "fd_fdstat_get", i32x2, i32x1, func(_ *VM, s []uint64) { s[0] = wasiBadf }},
	{"wasi_snapshot_preview1", "fd_seek", []api.ValueType{api.ValueTypeI32, api.ValueTypeI64, api.ValueTypeI32, api.ValueTypeI32}, i32x1, func(_ *VM, s []uint64) { s[0] = wasiBadf }},
	{"wasi_snapshot_preview1", "fd_write", i32x4, i32x1, func(_ *VM, s []uint64) { s[0] = wasiBadf }},
	{"wasi_snapshot_preview1", "random_get", i32x2, i32x1, (*VM).randomGet},
	{fuelModule, fuelName, nil, nil, func(vm *VM, _ []uint64) { vm.outOfFuel() }},
}

func hostModules(ctx context.Context, r wazero.Runtime) error {
	builders := map[string]wazero.HostModuleBuilder{}
	for _, f := range imports {
		b := builders[f.module]
		if b == nil {
			b = r.NewHostModuleBuilder(f.module)
			builders[f.module] = b
		}
		call := f.call
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, _ api.Module, stack []uint64) {
			call(vmOf(ctx), stack)
		}), f.params, f.results).Export(f.name)
	}
	for _, b := range builders {
		if _, err := b.Instantiate(ctx); err != nil {
			return err
		}
	}
	return nil
}

// vmKey is the key under which a vmContext answers itself.
type vmKey struct{}

// A vmContext is the context of every call into a VM, so that a host function
// finds it without a look-up.
type vmContext struct {
	context.Context
	vm *VM
}

func (c *vmContext) Value(key any) any {
	if key == (vmKey{}) {
		return c.vm
	}
	return c.Context.Value(key)
}

func vmOf(ctx context.Context) *VM {
	if c, ok := ctx.(*vmContext); ok {
		return c.vm
	}
	return ctx.Value(vmKey{}).(*VM)
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
		v = Value(vm.must(vm.fn.dupValue, uint64(vm.eng.boot.undefPtr)))
	}
	stack[0] = uint64(v)
}

func (vm *VM) hostRejection(stack []uint64) {
	promise, reason, handled := uint64(uint32(stack[0])), uint64(uint32(stack[1])), uint32(stack[2]) != 0
	vm.hooks.Rejected(Value(vm.must(vm.fn.valuePtr, promise)), Value(reason), handled)
	vm.must0(vm.fn.freeValue, promise)
	vm.must0(vm.fn.freeValue, reason)
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
