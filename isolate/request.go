package isolate

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a request may hold. They keep what is parsed outside the
// guest's own limits small.
const (
	// MaxCode is the largest source of all modules together, in bytes.
	MaxCode = 1 << 20
	// MaxWasm is the same for a WebAssembly module and its files.
	MaxWasm = 16 << 20
	// MaxModules is the largest number of modules.
	MaxModules = 256
	// MaxInput is the largest input, in bytes of JSON.
	MaxInput = 16 << 20
	// MinMemory and MaxMemory bound Limits.Memory. The least is what the
	// interpreter's image needs.
	MinMemory = 4 << 20
	MaxMemory = 1 << 30
	// MinPythonMemory is the least for Python, whose image is larger.
	MinPythonMemory = 32 << 20
	// MaxArgs is the largest JSON of one host call's arguments, MaxAnswer of
	// its answer.
	MaxArgs   = 8 << 20
	MaxAnswer = 32 << 20

	maxResult      = 32 << 20
	maxOutput      = 64 << 20
	maxConcurrency = 1024
	maxBindings    = 64
	maxMethods     = 256
	maxEnv         = 256 << 10
	maxArgs        = 64 << 10
	maxWall        = time.Hour
)

var (
	moduleName  = regexp.MustCompile(`^[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*(/[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*)*$`)
	bindingName = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]{0,63}$`)
)

func requestError(field, format string, args ...any) error {
	return &RequestError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// resolve is a valid request with the code of its function. The error is
// *RequestError.
func (r *Request) resolve() (*Request, error) {
	if r == nil || r.Function == nil {
		if r != nil && r.Prepare {
			return nil, requestError("prepare", "needs a function")
		}
		return r, r.Validate()
	}
	f := r.Function
	switch {
	case f.tenant != r.Tenant:
		return nil, requestError("function", "belongs to another tenant")
	case r.Language != "" || r.Main != "" || r.Modules != nil:
		return nil, requestError("function", "stands for language, modules and main")
	}
	whole := *r
	whole.Language, whole.Main, whole.Modules = f.language, f.main, f.modules
	return &whole, whole.Validate()
}

// Validate checks a request. The error is *RequestError.
func (r *Request) Validate() error {
	if r == nil {
		return requestError("request", "is missing")
	}
	switch r.Language {
	case "js", "ts", languageWasm:
	case languagePython:
		if r.Limits.Memory > 0 && r.Limits.Memory < MinPythonMemory {
			return requestError("limits.memory", "is %d, python needs at least %d", r.Limits.Memory, MinPythonMemory)
		}
	default:
		return requestError("language", "is %q; js, ts, python and wasm run in an isolate", r.Language)
	}
	if err := r.validateModules(); err != nil {
		return err
	}
	if len(r.Input) > MaxInput {
		return requestError("input", "has %d bytes, at most %d are taken", len(r.Input), MaxInput)
	}
	if len(r.Input) > 0 && !json.Valid(r.Input) {
		return requestError("input", "is not JSON")
	}
	if at, err := checkBytes(r.Input, "input"); err != nil {
		return requestError(at, "is not base64 (with padding): %v", err)
	}
	if err := r.validateArgs(); err != nil {
		return err
	}
	if err := r.validateGrants(); err != nil {
		return err
	}
	return r.Limits.validate()
}

func (r *Request) validateModules() error {
	if r.Function != nil {
		return nil // NewFunction has checked them
	}
	if len(r.Modules) == 0 || len(r.Modules) > MaxModules {
		return requestError("modules", "has %d files, 1 to %d are taken", len(r.Modules), MaxModules)
	}
	if _, ok := r.Modules[r.Main]; !ok {
		return requestError("main", "names %q, which is not among the modules", r.Main)
	}
	size, most := 0, MaxCode
	if r.Language == languageWasm {
		if most = MaxWasm; r.Modules[r.Main] == "" {
			return requestError(fmt.Sprintf("modules[%.80q]", r.Main), "is empty; it has to be a WebAssembly module")
		}
	}
	for name, src := range r.Modules {
		if len(name) > 255 || !moduleName.MatchString(name) {
			return requestError(fmt.Sprintf("modules[%.80q]", name), "is not a file name that is taken: letters, digits and ._@+- with / between folders, not beginning with a dot")
		}
		size += len(src)
		if r.Language != languageWasm && strings.IndexByte(src, 0) >= 0 {
			return requestError("modules."+name, "holds a zero byte")
		}
	}
	if size > most {
		return &RequestError{Field: "modules", Message: fmt.Sprintf("have %d bytes together, at most %d are taken", size, most),
			Limit: "code", Used: strconv.Itoa(size), Allowed: strconv.Itoa(most)}
	}
	return nil
}

func (r *Request) validateArgs() error {
	size := 0
	for i, a := range r.Args {
		if size += len(a) + 1; strings.IndexByte(a, 0) >= 0 {
			return requestError(fmt.Sprintf("args[%d]", i), "holds a zero byte")
		}
	}
	switch {
	case size > maxArgs:
		return requestError("args", "have %d bytes, at most %d are taken", size, maxArgs)
	case size > 0 && r.Language != languageWasm:
		return requestError("args", "are for wasm; other code has its input")
	}
	return nil
}

func (r *Request) validateGrants() error {
	size := 0
	for k, v := range r.Env {
		size += len(k) + len(v)
	}
	if size > maxEnv {
		return requestError("env", "has %d bytes, at most %d are taken", size, maxEnv)
	}
	if len(r.Bindings) > maxBindings {
		return requestError("bindings", "are %d, at most %d are taken", len(r.Bindings), maxBindings)
	}
	seen := map[string]bool{}
	for _, b := range r.Bindings {
		if !bindingName.MatchString(b.Name) || b.Name == fetchBinding {
			return requestError("bindings", "%q is not a name that a binding may have", b.Name)
		}
		if seen[b.Name] {
			return requestError("bindings."+b.Name, "is there twice")
		}
		if _, ok := r.Env[b.Name]; ok {
			return requestError("env."+b.Name, "is also the name of a binding of this run; name the variable otherwise, or leave the binding out")
		}
		seen[b.Name] = true
		if len(b.Methods) > maxMethods {
			return requestError("bindings."+b.Name, "has %d methods, at most %d are taken", len(b.Methods), maxMethods)
		}
		for _, m := range b.Methods {
			if !bindingName.MatchString(m) {
				return requestError("bindings."+b.Name, "%q is not a name that a method may have", m)
			}
		}
	}
	return nil
}

func (l *Limits) validate() error {
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"wall", l.Wall}, {"cpu", l.CPU}} {
		if d.v <= 0 || d.v > maxWall {
			return requestError("limits."+d.name, "is %v, it must be more than 0 and at most %v", d.v, maxWall)
		}
	}
	for _, n := range []struct {
		name           string
		v, least, most int64
	}{
		{"memory", l.Memory, MinMemory, MaxMemory},
		{"output", l.Output, 0, maxOutput},
		{"result", l.Result, 0, maxResult},
		{"calls", int64(l.Calls), 0, 1 << 30},
		{"requests", int64(l.Requests), 0, 1 << 30},
		{"concurrency", int64(l.Concurrency), 1, maxConcurrency},
	} {
		if n.v < n.least || n.v > n.most {
			return requestError("limits."+n.name, "is %d, it must be %d to %d", n.v, n.least, n.most)
		}
	}
	return nil
}

// granted tells whether the run may make this call.
func (r *Request) granted(binding, method string) bool {
	if binding == fetchBinding {
		return r.Fetch && method == fetchBinding
	}
	for _, b := range r.Bindings {
		if b.Name == binding && b.Name != logBinding {
			for _, m := range b.Methods {
				if m == method {
					return true
				}
			}
		}
	}
	return false
}

const (
	// fetchBinding is the binding and method of Host.Call for fetch.
	fetchBinding = "fetch"
	// logBinding is answered inside, as Events.
	logBinding = "LOG"
)
