package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"sandboxd/isolate/guests"
	"sandboxd/isolate/js"
	"sandboxd/tests/internal/harness"
)

// What sandboxd's call is held against: a server whose every request
// instantiates QuickJS anew. It compiles the same interpreter once, with the
// same Wasm runtime and without metering, and does for a request what there is
// no way around: an instance with its data, the interpreter's initialisation,
// the code; at /web also the web interfaces that code in an isolate finds. It has
// no limits, bindings, record or second process.

// anewFlag makes this program that server.
const anewFlag = "serve-anew"

// startAnew starts it as a child.
func startAnew(ctx context.Context, dir string) (*harness.Client, func() error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	bin, err := harness.Bin()
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(dir, "anew.sock")
	cmd := exec.CommandContext(ctx, self, anewFlag, socket, filepath.Join(bin, "guests"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() error {
		_ = cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) {
			return err
		}
		return nil
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			return harness.NewClient(socket), stop, c.Close()
		}
		if time.Now().After(end) {
			return nil, nil, errors.Join(errors.New("the server for comparison did not start"), stop())
		}
	}
}

func serveAnew(ctx context.Context, socket, guestDir string) error {
	wasm, err := guests.Load(guestDir, "quickjs")
	if err != nil {
		return err
	}
	streams, err := guests.Load(guestDir, "streams")
	if err != nil {
		return err
	}
	a := &anew{prelude: "(" + js.Source(string(streams)) + ")(() => undefined)", runtime: wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())}
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, a.runtime); err != nil {
		return err
	}
	if a.module, err = a.runtime.CompileModule(ctx, wasm); err != nil {
		return err
	}
	// The trivial code calls nothing of the host.
	env := a.runtime.NewHostModuleBuilder("env")
	for _, f := range a.module.ImportedFunctions() {
		if module, name, _ := f.Import(); module == "env" {
			env.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(context.Context, []uint64) {}), f.ParamTypes(), f.ResultTypes()).Export(name)
		}
	}
	if _, err := env.Instantiate(ctx); err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	return http.Serve(l, a)
}

type anew struct {
	prelude string
	runtime wazero.Runtime
	module  wazero.CompiledModule
}

// ServeHTTP runs {"code", "input"}.
func (a *anew) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Code  string
		Input json.RawMessage
	}
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(text, &req)
	}
	var result string
	if err == nil {
		prelude := ""
		if r.URL.Path == "/web" {
			prelude = a.prelude
		}
		result, err = a.eval(r.Context(), prelude, fmt.Sprintf("JSON.stringify((%s)(%s))", req.Code, req.Input))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"result":%s}`+"\n", result)
}

func (a *anew) eval(ctx context.Context, prelude, source string) (result string, err error) {
	m, err := a.runtime.InstantiateModule(ctx, a.module, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return "", err
	}
	defer m.Close(ctx)
	call := func(name string, args ...uint64) uint64 {
		if err != nil {
			return 0
		}
		var out []uint64
		if out, err = m.ExportedFunction(name).Call(ctx, args...); err != nil || len(out) == 0 {
			return 0
		}
		return out[0]
	}
	str := func(s string) uint64 {
		p := call("wasm_malloc", uint64(len(s)+1))
		m.Memory().Write(uint32(p), append([]byte(s), 0))
		return p
	}
	call("_initialize")
	call("qjs_init")
	if prelude != "" {
		if p := call("qjs_eval", str(prelude), uint64(len(prelude)), str("prelude.js"), 0); call("qjs_is_exception", p) != 0 {
			return "", errors.New("the prelude threw")
		}
	}
	v := call("qjs_eval", str(source), uint64(len(source)), str("main.js"), 0)
	size := str("    ")
	p := call("qjs_get_string_len", v, size)
	if err != nil {
		return "", err
	}
	n, _ := m.Memory().ReadUint32Le(uint32(size))
	b, ok := m.Memory().Read(uint32(p), n)
	if !ok {
		return "", errors.New("the result is outside the memory")
	}
	return string(b), nil
}
