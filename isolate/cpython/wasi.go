package cpython

import (
	"context"
	"encoding/binary"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

const wasiModule = "wasi_snapshot_preview1"

// WASI error numbers.
const (
	wasiSuccess     = 0
	wasiBadf        = 8
	wasiExist       = 20
	wasiFault       = 21
	wasiInval       = 28
	wasiIsdir       = 31
	wasiMfile       = 33
	wasiNametoolong = 37
	wasiNoent       = 44
	wasiNospc       = 51
	wasiNosys       = 52
	wasiNotdir      = 54
	wasiNotempty    = 55
	wasiNotsup      = 58
	wasiPerm        = 63
	wasiSpipe       = 70
)

// Clock numbers of WASI.
const (
	clockRealtime = 0
)

// clockResolution is what code is told, in nanoseconds.
const clockResolution = 1000

type hostFunc struct {
	name   string
	params string // i for i32, l for i64
	void   bool
	call   func(vm *VM, stack []uint64)
}

func answer(errno uint64) func(*VM, []uint64) {
	return func(_ *VM, s []uint64) { s[0] = errno }
}

// imports are all the functions that the guest can call. What the guest's own
// file system, which has the standard library, does not answer comes here.
var imports = []hostFunc{
	{name: "args_get", params: "ii", call: (*VM).argsGet},
	{name: "args_sizes_get", params: "ii", call: (*VM).argsSizesGet},
	{name: "environ_get", params: "ii", call: answer(wasiSuccess)},
	{name: "environ_sizes_get", params: "ii", call: (*VM).environSizesGet},
	{name: "clock_res_get", params: "ii", call: (*VM).clockResGet},
	{name: "clock_time_get", params: "ili", call: (*VM).clockTimeGet},
	{name: "fd_advise", params: "illi", call: (*VM).touch},
	{name: "fd_allocate", params: "ill", call: (*VM).fdAllocate},
	{name: "fd_close", params: "i", call: (*VM).fdClose},
	{name: "fd_datasync", params: "i", call: (*VM).touch},
	{name: "fd_fdstat_get", params: "ii", call: (*VM).fdStat},
	{name: "fd_fdstat_set_flags", params: "ii", call: (*VM).fdStatSetFlags},
	{name: "fd_filestat_get", params: "ii", call: (*VM).fileStat},
	{name: "fd_filestat_set_size", params: "il", call: (*VM).fdSetSize},
	{name: "fd_filestat_set_times", params: "illi", call: (*VM).touch},
	{name: "fd_pread", params: "iiili", call: (*VM).fdPread},
	{name: "fd_prestat_get", params: "ii", call: (*VM).prestatGet},
	{name: "fd_prestat_dir_name", params: "iii", call: (*VM).prestatDirName},
	{name: "fd_pwrite", params: "iiili", call: (*VM).fdPwrite},
	{name: "fd_read", params: "iiii", call: (*VM).fdRead},
	{name: "fd_readdir", params: "iiili", call: (*VM).fdReaddir},
	{name: "fd_seek", params: "ilii", call: (*VM).fdSeek},
	{name: "fd_sync", params: "i", call: (*VM).touch},
	{name: "fd_tell", params: "ii", call: (*VM).fdTell},
	{name: "fd_write", params: "iiii", call: (*VM).fdWrite},
	{name: "path_create_directory", params: "iii", call: (*VM).pathCreateDirectory},
	{name: "path_filestat_get", params: "iiiii", call: (*VM).pathStat},
	{name: "path_filestat_set_times", params: "iiiilli", call: (*VM).pathSetTimes},
	{name: "path_link", params: "iiiiiii", call: answer(wasiNotsup)},
	{name: "path_open", params: "iiiiillii", call: (*VM).pathOpen},
	{name: "path_readlink", params: "iiiiii", call: answer(wasiInval)},
	{name: "path_remove_directory", params: "iii", call: (*VM).pathRemoveDirectory},
	{name: "path_rename", params: "iiiiii", call: (*VM).pathRename},
	{name: "path_symlink", params: "iiiii", call: answer(wasiNotsup)},
	{name: "path_unlink_file", params: "iii", call: (*VM).pathUnlink},
	{name: "poll_oneoff", params: "iiii", call: (*VM).pollOneoff},
	{name: "proc_exit", params: "i", void: true, call: func(vm *VM, s []uint64) { vm.abort(&ExitError{uint32(s[0])}) }},
	{name: "sched_yield", call: answer(wasiSuccess)},
	{name: "random_get", params: "ii", call: (*VM).randomGet},
	{name: "sock_accept", params: "iii", call: answer(wasiBadf)},
	{name: "sock_recv", params: "iiiiii", call: answer(wasiBadf)},
	{name: "sock_send", params: "iiiii", call: answer(wasiBadf)},
	{name: "sock_shutdown", params: "ii", call: answer(wasiBadf)},
}

func hostModules(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(wasiModule)
	for _, f := range imports {
		var params, results []api.ValueType
		for _, p := range f.params {
			if p == 'l' {
				params = append(params, api.ValueTypeI64)
			} else {
				params = append(params, api.ValueTypeI32)
			}
		}
		if !f.void {
			results = []api.ValueType{api.ValueTypeI32}
		}
		export(b, f.name, f.call, params, results)
	}
	if _, err := b.Instantiate(ctx); err != nil {
		return err
	}
	b = r.NewHostModuleBuilder(fuelModule)
	export(b, fuelName, func(vm *VM, _ []uint64) { vm.outOfFuel() }, nil, nil)
	_, err := b.Instantiate(ctx)
	return err
}

func export(b wazero.HostModuleBuilder, name string, call func(*VM, []uint64), params, results []api.ValueType) {
	b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, _ api.Module, stack []uint64) {
		call(vmOf(ctx), stack)
	}), params, results).Export(name)
}

// vmKey is the key under which a vmContext answers itself.
type vmKey struct{}

// A vmContext is the context of every call into a VM, so that a host function
// finds it without a look-up.
type vmContext struct {
	context.Context
	vm *VM
}

// Value implements context.Context.
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

// put writes b at p and answers how that went.
func (vm *VM) put(stack []uint64, p uint64, b []byte) {
	stack[0] = wasiSuccess
	if !vm.mod.Memory().Write(uint32(p), b) {
		stack[0] = wasiFault
	}
}

func word(v uint32) []byte       { return binary.LittleEndian.AppendUint32(nil, v) }
func doubleWord(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// arguments of the interpreter: isolated from environment variables and
// directories, no site packages, no byte code files, UTF-8 everywhere.
var arguments = [...]string{"python", "-I", "-S", "-B", "-X", "utf8", "-c", bootScript}

func (vm *VM) argsSizesGet(stack []uint64) {
	n := 0
	for _, a := range arguments {
		n += len(a) + 1
	}
	size := stack[1]
	vm.put(stack, stack[0], word(uint32(len(arguments))))
	if stack[0] == wasiSuccess {
		vm.put(stack, size, word(uint32(n)))
	}
}

func (vm *VM) argsGet(stack []uint64) {
	at, text := stack[0], stack[1]
	for _, a := range arguments {
		vm.put(stack, at, word(uint32(text)))
		if stack[0] == wasiSuccess {
			vm.put(stack, text, append([]byte(a), 0))
		}
		if stack[0] != wasiSuccess {
			return
		}
		at, text = at+4, text+uint64(len(a))+1
	}
	stack[0] = wasiSuccess
}

func (vm *VM) environSizesGet(stack []uint64) {
	size := stack[1]
	vm.put(stack, stack[0], word(0))
	if stack[0] == wasiSuccess {
		vm.put(stack, size, word(0))
	}
}

func (vm *VM) clockResGet(stack []uint64) { vm.put(stack, stack[1], doubleWord(clockResolution)) }

func (vm *VM) clockTimeGet(stack []uint64) {
	real, mono, err := vm.hooks.Now()
	if err != nil {
		vm.abort(err)
	}
	switch uint32(stack[0]) {
	case clockRealtime:
		vm.put(stack, stack[2], doubleWord(uint64(real)))
	default: // processor time would tell about the machine
		vm.put(stack, stack[2], doubleWord(uint64(mono)))
	}
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

// The descriptors of a guest: 0 for messages, 1 and 2 for output.
const (
	fdMessage = 0
	fdLast    = 2
)

// maxVectors bounds the parts of one read or write.
const maxVectors = 1024

// vectors gives the parts of the guest's memory that an array of n pairs of
// address and length names; nil if any is outside.
func (vm *VM) vectors(at, n uint32) [][]byte {
	list, ok := vm.mod.Memory().Read(at, 8*min(n, maxVectors))
	if !ok || n > maxVectors {
		return nil
	}
	out := make([][]byte, 0, n)
	for ; len(list) > 0; list = list[8:] {
		b, ok := vm.mod.Memory().Read(binary.LittleEndian.Uint32(list), binary.LittleEndian.Uint32(list[4:]))
		if !ok {
			return nil
		}
		out = append(out, b)
	}
	return out
}

func (vm *VM) fdWrite(stack []uint64) {
	fd, done := uint32(stack[0]), stack[3]
	if fd > fdLast {
		f := vm.open(stack[0])
		if f == nil {
			stack[0] = wasiBadf
			return
		}
		if f.append {
			f.offset = int64(len(f.node.content))
		}
		vm.transfer(stack, f, &f.offset, true, done)
		return
	}
	parts := vm.vectors(uint32(stack[1]), uint32(stack[2]))
	if parts == nil {
		stack[0] = wasiFault
		return
	}
	n := 0
	for _, b := range parts {
		if n += len(b); len(b) > 0 {
			vm.output(fd, b)
		}
	}
	vm.put(stack, done, word(uint32(n)))
}

func (vm *VM) output(fd uint32, b []byte) {
	if fd != fdMessage {
		if err := vm.hooks.Write(int(fd), b); err != nil {
			vm.abort(err)
		}
		return
	}
	answer, err := vm.hooks.Message(b)
	if err != nil {
		vm.abort(err)
	}
	vm.inbox = framed(answer)
}

func (vm *VM) fdRead(stack []uint64) {
	fd, done := uint32(stack[0]), stack[3]
	if fd > fdLast {
		f := vm.open(stack[0])
		if f == nil {
			stack[0] = wasiBadf
			return
		}
		vm.transfer(stack, f, &f.offset, false, done)
		return
	}
	if fd != fdMessage {
		stack[0] = wasiBadf
		return
	}
	parts := vm.vectors(uint32(stack[1]), uint32(stack[2]))
	if parts == nil {
		stack[0] = wasiFault
		return
	}
	n := 0
	for _, b := range parts {
		c := copy(b, vm.inbox)
		vm.inbox = vm.inbox[c:]
		n += c
	}
	vm.put(stack, done, word(uint32(n)))
}

// Offsets and sizes of WASI's subscriptions and events.
const (
	subscriptionSize = 48
	subscriptionTag  = 8
	clockID          = 16
	clockTimeout     = 24
	clockFlags       = 40
	eventSize        = 32
	tagClock         = 0
	clockAbsolute    = 1
)

// pollOneoff waits for a clock, which is what sleeping is. Descriptors are not
// waited for: they never block.
func (vm *VM) pollOneoff(stack []uint64) {
	in, out, n, done := uint32(stack[0]), stack[1], uint32(stack[2]), stack[3]
	if n != 1 {
		stack[0] = wasiNosys
		return
	}
	b, ok := vm.mod.Memory().Read(in, subscriptionSize)
	if !ok {
		stack[0] = wasiFault
		return
	}
	if b[subscriptionTag] != tagClock {
		stack[0] = wasiNosys
		return
	}
	left := int64(binary.LittleEndian.Uint64(b[clockTimeout:]))
	if binary.LittleEndian.Uint16(b[clockFlags:])&clockAbsolute != 0 {
		real, mono, err := vm.hooks.Now()
		if err != nil {
			vm.abort(err)
		}
		if binary.LittleEndian.Uint32(b[clockID:]) == clockRealtime {
			mono = real
		}
		left -= mono
	}
	event := make([]byte, eventSize)
	copy(event, b[:8]) // the user's data
	if err := vm.hooks.Sleep(max(left, 0)); err != nil {
		vm.abort(err)
	}
	if vm.put(stack, out, event); stack[0] == wasiSuccess {
		vm.put(stack, done, word(1))
	}
}
