package wasmvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"sandboxd/isolate/memimage"
	"sandboxd/isolate/wasmbin"
)

// Names in a rewritten module.
const (
	FuelExport   = "isolate_fuel"
	fuelModule   = "isolate_fuel"
	fuelName     = "empty"
	globalPrefix = "isolate_global_"
	dispatcher   = "isolate_call"
)

// Rewriting says how a module is made ready for Compile: it counts down, exports
// its globals, and has one entry for Instance.Call to the exports named.
func Rewriting(metered bool, exports ...string) wasmbin.Options {
	o := wasmbin.Options{
		Meter:           metered,
		FuelExport:      FuelExport,
		OutOfFuelModule: fuelModule,
		OutOfFuelName:   fuelName,
		ExportGlobals:   globalPrefix,
	}
	if len(exports) > 0 {
		o.Dispatch, o.DispatchTo = dispatcher, exports
	}
	return o
}

// Resettable says no to a module whose instances hold state that neither the
// memory nor the exported globals have: they could not be made clean again.
func Resettable(info *wasmbin.Info) error {
	switch {
	case info.MutatesTable:
		return errors.New("the module changes its table: instances cannot be reset")
	case info.DropsData || info.InitsMemory || info.PassiveData > 0:
		return errors.New("the module uses passive data: instances cannot be reset")
	case info.HasStart:
		return errors.New("the module has a start function")
	case len(info.Memories) != 1 || info.Memories[0].Shared:
		return errors.New("the module must have one memory of its own")
	}
	for _, imp := range info.Imports {
		if imp.Kind != wasmbin.KindFunc {
			return fmt.Errorf("the module imports a %s: instances would share it", imp.Kind)
		}
	}
	return nil
}

// Code is a compiled module, with what it imports.
type Code struct {
	runtime wazero.Runtime
	module  wazero.CompiledModule
	cache   wazero.CompilationCache
}

// Compile compiles a module, or takes the code from cache, which may be nil and
// which it takes over. hosts adds what the module imports.
func Compile(ctx context.Context, module []byte, cache wazero.CompilationCache, hosts func(context.Context, wazero.Runtime) error) (*Code, error) {
	config := wazero.NewRuntimeConfigCompiler()
	if cache != nil {
		config = config.WithCompilationCache(cache)
	}
	c := &Code{runtime: wazero.NewRuntimeWithConfig(ctx, config), cache: cache}
	err := hosts(ctx, c.runtime)
	if err == nil {
		c.module, err = c.runtime.CompileModule(experimental.WithCompilationWorkers(ctx, runtime.GOMAXPROCS(0)), module)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("compile: %w", err), c.Close())
	}
	return c, nil
}

// Instantiate makes an instance over mem. Nothing of it has run.
func (c *Code) Instantiate(ctx context.Context, mem *memimage.Memory) (api.Module, error) {
	ctx = experimental.WithMemoryAllocator(ctx, mem)
	mod, err := c.runtime.InstantiateModule(ctx, c.module, wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(noRandom{}))
	if err == nil {
		err = mem.Err()
	}
	if err != nil {
		if mod != nil {
			mod.Close(ctx)
		}
		mem.Free()
		return nil, fmt.Errorf("instantiate: %w", err)
	}
	return mod, nil
}

// Close ends all instances. It may be called on nil.
func (c *Code) Close() error {
	if c == nil {
		return nil
	}
	err := c.runtime.Close(context.Background())
	if c.cache != nil {
		err = errors.Join(err, c.cache.Close(context.Background()))
	}
	return err
}

// noRandom is what wazero's own WASI would draw from, which nothing here uses.
// Without it each instance seeds a generator of its own.
type noRandom struct{}

// Read implements io.Reader.
func (noRandom) Read([]byte) (int, error) { return 0, io.EOF }
