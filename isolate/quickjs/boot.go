package quickjs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"sandboxd/isolate/memimage"
)

// takeImage boots an interpreter over the module's data and keeps its memory.
func (e *Engine) takeImage(ctx context.Context, data []byte) error {
	prelude, err := e.precompile(ctx, data)
	if err != nil {
		return err
	}
	vm, err := e.over(ctx, memimage.NewMemory(nil, e.opts.MaxMemory))
	if err != nil {
		return err
	}
	defer vm.close()
	vm.hooks = bootHooks{}
	if !vm.mod.Memory().Write(0, data) {
		return errors.New("quickjs: the data does not fit the memory")
	}
	if err := vm.bootUp(prelude); err != nil {
		return fmt.Errorf("quickjs: boot: %w", err)
	}
	for i, v := range vm.inst.Values() {
		e.state.Globals[i].Value = v
	}
	all, ok := vm.mod.Memory().Read(0, vm.mod.Memory().Size())
	if !ok {
		return errors.New("quickjs: the memory cannot be read")
	}
	image, err := memimage.Seal("isolate-image", all)
	if err != nil {
		return fmt.Errorf("quickjs: image: %w", err)
	}
	if e.img, err = memimage.Open(image); err != nil {
		return fmt.Errorf("quickjs: image: %w", err)
	}
	return nil
}

// initialize makes the interpreter's context.
func (vm *VM) initialize() error {
	if _, err := vm.get(fnInitialize); err != nil {
		return err
	}
	if r, err := vm.get(fnQjsInit); err != nil || r != 0 {
		return fmt.Errorf("init answers %d: %w", int32(uint32(r)), err)
	}
	for _, s := range []struct {
		f function
		v uint64
	}{{fnSetMaxStack, maxStack}, {fnSetLoader, 1}, {fnSetRejection, 1}, {fnSetGC, gcThreshold}} {
		if _, err := vm.get(s.f, s.v); err != nil {
			return err
		}
	}
	return nil
}

func (vm *VM) bootUp(prelude []byte) error {
	if err := vm.initialize(); err != nil {
		return err
	}
	b := &vm.eng.boot
	p, err := vm.get(fnMalloc, scratchSize)
	if err != nil || p == 0 {
		return fmt.Errorf("no memory: %w", err)
	}
	b.scratch = uint32(p)
	u, err := vm.get(fnUndef)
	if err != nil {
		return err
	}
	b.undefPtr = uint32(u)
	if err := vm.loadPrelude(prelude); err != nil {
		return err
	}
	if err := vm.findRandom(); err != nil {
		return err
	}
	if _, err := vm.get(fnRunGC); err != nil {
		return err
	}
	h, err := vm.get(fnMalloc, headroom)
	if err != nil || h == 0 {
		return fmt.Errorf("no memory: %w", err)
	}
	if err := vm.plug(h); err != nil {
		return err
	}
	_, err = vm.get(fnFree, h)
	return err
}

// plug takes the holes in the heap below top, for good, so that a call's
// allocations stand side by side behind it: a page that is written is a page
// that the VM holds and resets.
func (vm *VM) plug(top uint64) error {
	const largest, step = 4 << 10, 8
	for size := uint64(largest); size > 0; size -= step {
		for {
			p, err := vm.get(fnMalloc, size)
			if err != nil || p == 0 {
				return fmt.Errorf("no memory: %w", err)
			}
			if p > top {
				if _, err := vm.get(fnFree, p); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// PreludeFile is the prelude's name in stack traces.
const PreludeFile = "isolate:prelude"

func (vm *VM) loadPrelude(code []byte) error {
	f, threw, err := vm.evalBytecode(code)
	if err != nil || threw {
		return vm.thrown("prelude", f, threw, err)
	}
	var host uint64
	err = with(vm, "host", func(p, n uint64) (err error) {
		host, err = vm.get(fnNewHostFunction, p, n, 0)
		return err
	})
	if err != nil {
		return err
	}
	vm.eng.boot.entries = []uint32{uint32(f)}
	list, threw, err := vm.CallEntry(0, Value(host))
	if err != nil || threw {
		return vm.thrown("prelude", list, threw, err)
	}
	vm.eng.boot.entries = nil
	for i := range uint64(maxEntries) {
		v, err := vm.get(fnPropIndex, uint64(list), i)
		if err != nil {
			return err
		}
		vm.eng.boot.entries = append(vm.eng.boot.entries, uint32(v))
	}
	return nil
}

// maxEntries is the number of functions that a prelude may return.
const maxEntries = 6

func (vm *VM) thrown(what string, v Value, threw bool, err error) error {
	if err != nil || !threw {
		return err
	}
	text, err := vm.Text(v)
	return errors.Join(fmt.Errorf("%s: %s", what, text), err)
}

// findRandom finds the state of Math.random in the context, so that each call
// gets a seed of its own: an image has only one. It is the word that changes
// with Math.random as the generator (xorshift64*) says; if there is not exactly
// one, this is another interpreter than the one we know.
func (vm *VM) findRandom() error {
	ctxPtr, err := vm.get(fnContextPtr)
	if err != nil {
		return err
	}
	const size = 4096
	before, ok := vm.mod.Memory().Read(uint32(ctxPtr), size)
	if !ok {
		return errGuest("context outside its memory")
	}
	old := append([]byte(nil), before...)
	v, threw, err := vm.eval("isolate:random", "Math.random()", evalGlobal)
	if err != nil || threw {
		return vm.thrown("random", v, threw, err)
	}
	if err := vm.Free(v); err != nil {
		return err
	}
	now, ok := vm.mod.Memory().Read(uint32(ctxPtr), size)
	if !ok {
		return errGuest("context outside its memory")
	}
	found := 0
	for i := 0; i+8 <= size; i += 8 {
		x, y := binary.LittleEndian.Uint64(old[i:]), binary.LittleEndian.Uint64(now[i:])
		if x != y && xorshift(x) == y {
			vm.eng.boot.random = uint32(ctxPtr) + uint32(i)
			found++
		}
	}
	if found != 1 {
		return fmt.Errorf("found %d random states, not one", found)
	}
	return nil
}

func xorshift(x uint64) uint64 {
	x ^= x >> 12
	x ^= x << 25
	x ^= x >> 27
	return x
}

// bootHooks answer while the image is made: a clock that stands at zero, no
// randomness, no modules.
type bootHooks struct{}

var errBoot = errors.New("not while the image is made")

func (bootHooks) Call(*Args) (Value, error)                { return 0, errBoot }
func (bootHooks) Tick() error                              { return nil }
func (bootHooks) Normalize(string, string) (string, error) { return "", errBoot }
func (bootHooks) Load(string) (string, error)              { return "", errBoot }
func (bootHooks) Rejected(Value, Value, bool)              {}
func (bootHooks) Now() (int64, int64)                      { return 0, 0 }
func (bootHooks) Random(b []byte)                          { clear(b) }
func (bootHooks) Large()                                   {}

// warmUp sees which pages calls write.
func (e *Engine) warmUp(ctx context.Context) error {
	for _, warm := range e.opts.Warm {
		vm, err := e.New(ctx)
		if err != nil {
			return err
		}
		err = warm(ctx, vm)
		if err == nil {
			err = e.img.Learn(vm.mem)
		}
		e.Discard(vm)
		if err != nil {
			return fmt.Errorf("quickjs: warm up: %w", err)
		}
	}
	return nil
}
