package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandboxd/isolate/guests"
	prelude "sandboxd/isolate/js"
	"sandboxd/isolate/quickjs"
)

// quickjsGuest is the interpreter's name in the manifest.
const quickjsGuest = "quickjs"

// streamsGuest is the polyfill of the streams.
const streamsGuest = "streams"

// A jsGuest is what the JavaScript engine is made of, checked against the
// manifest.
type jsGuest struct {
	wasm    []byte
	streams string
}

func loadJS(dir string) (jsGuest, error) {
	wasm, err := guests.Load(dir, quickjsGuest)
	if err != nil {
		return jsGuest{}, err
	}
	streams, err := guests.Load(dir, streamsGuest)
	return jsGuest{wasm, string(streams)}, err
}

// engineOptions are those of every engine.
func engineOptions(g jsGuest, cacheDir string) quickjs.Options {
	return quickjs.Options{
		Wasm: g.wasm, CacheDir: cacheDir, Prelude: prelude.Source(g.streams), MaxMemory: MaxMemory,
		Warm: []func(context.Context, *quickjs.VM) error{warm(warmRequest), warm(plainRequest)},
	}
}

// loadEngine reads and checks the guest and boots an engine.
func loadEngine(ctx context.Context, guestDir, cacheDir string) (*quickjs.Engine, error) {
	g, err := loadJS(guestDir)
	if err != nil {
		return nil, err
	}
	return quickjs.New(ctx, engineOptions(g, cacheDir))
}

// warmRequest uses what most runs use, plainRequest what all use, so that the
// pages that these write are known.
var (
	warmRequest = &Request{
		Language: "js",
		Main:     "main.js",
		Modules: map[string]string{"main.js": `export default async function (input, env) {
	console.log('warm', input);
	const { rows } = await env.DB.query('select 1', []);
	return { rows, text: new TextDecoder().decode(new TextEncoder().encode('warm')) };
}`},
		Input:    json.RawMessage(`{"a":[1,2,{"b":"c"}]}`),
		Bindings: []Binding{{Name: "DB", Methods: []string{"query"}}, {Name: logBinding, Methods: []string{"info"}}},
		Limits:   warmLimits,
	}
	plainRequest = &Request{
		Language: "js",
		Main:     "main.js",
		Modules:  map[string]string{"main.js": `export default async function (input) { return input; }`},
		Limits:   warmLimits,
	}
	warmLimits = Limits{Wall: 10 * time.Second, CPU: 10 * time.Second, Memory: 64 << 20,
		Output: 1 << 20, Result: 1 << 20, Calls: 10, Requests: 10, Concurrency: 4}
)

type warmHost struct{}

func (warmHost) Call(context.Context, Call) (json.RawMessage, error) {
	return json.RawMessage(`{"rows":[{"id":1,"name":"x"}]}`), nil
}

func (warmHost) Event(Event) {}

func warm(r *Request) func(context.Context, *quickjs.VM) error {
	return func(ctx context.Context, vm *quickjs.VM) error {
		if r := execute(ctx, vm, &jobMessage{Request: r}, warmHost{}); r.Status != StatusOK {
			return fmt.Errorf("isolate: warm up: %w", errors.Join(r.Error, vm.Err()))
		}
		return nil
	}
}

// runOn runs a job in a clean VM of e. The VM is taken back after finish,
// because what that costs is nobody's wait.
func runOn(ctx context.Context, e *engines, job *jobMessage, host Host, finish func(*Result, error)) {
	e.quiet.begin()
	if job.kept != nil {
		e.runKept(ctx, job, host, finish)
		return
	}
	switch job.Request.Language {
	case languagePython:
		e.runPython(ctx, job, host, finish)
		return
	case languageWasm:
		e.runWasm(ctx, job, host, finish)
		return
	}
	vm, err := e.js.Get(ctx)
	if err != nil {
		finish(nil, err)
		return
	}
	finish(execute(ctx, vm, job, host), nil)
	e.js.Put(vm)
}
