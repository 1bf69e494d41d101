package quickjs

import (
	"context"
	"errors"
	"fmt"

	"sandboxd/isolate/memimage"
)

// stripSource leaves the sources of functions out of bytecode, each of which
// else has its own text and those of the functions in it once more.
const stripSource = 1 << 4

// precompile makes bytecode of the prelude in an instance of its own, so that
// what the compiler leaves behind is in no image.
func (e *Engine) precompile(ctx context.Context, data []byte) ([]byte, error) {
	vm, err := e.over(ctx, memimage.NewMemory(nil, e.opts.MaxMemory))
	if err != nil {
		return nil, err
	}
	defer vm.close()
	vm.hooks = bootHooks{}
	if !vm.mod.Memory().Write(0, data) {
		return nil, errors.New("quickjs: the data does not fit the memory")
	}
	if err := vm.initialize(); err != nil {
		return nil, err
	}
	return vm.compile(PreludeFile, e.opts.Prelude)
}

// compile makes bytecode of a script.
func (vm *VM) compile(name, source string) (code []byte, err error) {
	length, err := vm.get(fnMalloc, 4)
	if err != nil {
		return nil, err
	}
	err = with(vm, source, func(p, n uint64) error {
		return with(vm, name, func(np, _ uint64) error {
			buf, err := vm.get(fnCompile, p, n, np, evalGlobal, stripSource, length)
			if err != nil {
				return err
			}
			if buf == 0 {
				e, err := vm.get(fnGetException)
				return vm.thrown("compile "+name, Value(e), true, err)
			}
			var size [1]uint32
			if err := vm.words(uint32(length), size[:]); err != nil {
				return err
			}
			b, ok := vm.mod.Memory().Read(uint32(buf), size[0])
			if !ok {
				return errGuest("bytecode outside its memory")
			}
			code = append(code, b...)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("quickjs: %w", err)
	}
	return code, nil
}

// evalBytecode runs what compile made.
func (vm *VM) evalBytecode(code []byte) (v Value, threw bool, err error) {
	err = with(vm, string(code), func(p, n uint64) error {
		r, err := vm.get(fnEvalBytecode, p, n)
		v = Value(r)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return vm.check(v)
}
