package isolate

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"maps"
	"slices"
	"sync/atomic"
)

// A Function is code of one tenant that runs many times: a Request names it in
// place of the code. It does not change, and may be used by many goroutines.
type Function struct {
	tenant, language, main string
	modules                map[string]string
	hash                   [sha256.Size]byte
	// anew: its module is known to be evaluated anew for each call.
	anew atomic.Bool
	// gone: it was deleted, and nothing of it is to be kept.
	gone atomic.Bool
	// worker is the one that ran it last, which knows it.
	worker atomic.Int32
}

// NewFunction checks the code as Request.Validate does; the error is a
// *RequestError. The map must not change any more.
func NewFunction(tenant, language string, modules map[string]string, main string) (*Function, error) {
	r := Request{Tenant: tenant, Language: language, Modules: modules, Main: main}
	if err := r.validateModules(); err != nil {
		return nil, err
	}
	f := &Function{tenant: tenant, language: language, main: main, modules: modules}
	h := sha256.New()
	for _, s := range []string{tenant, language, main} {
		addText(h, s)
	}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		addText(h, name)
		addText(h, modules[name])
	}
	h.Sum(f.hash[:0])
	return f, nil
}

// addText adds a text with its length, so that no two lists of texts look alike.
func addText(h hash.Hash, s string) {
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:]) // never fails
	h.Write([]byte(s))
}

// Same tells whether two functions are the same code of one tenant.
func (f *Function) Same(other *Function) bool { return f.hash == other.hash }

// EvaluateAnew says that the module cannot be evaluated once for all calls, as
// Prepared told when it was deployed. Calls do not try it again then.
func (f *Function) EvaluateAnew() { f.anew.Store(true) }

// Modules are the function's files and Main the entry among them. They must not
// be changed.
func (f *Function) Modules() map[string]string { return f.modules }

// Main is the entry among Modules.
func (f *Function) Main() string { return f.main }

// A functionKey is what a kept module depends on: the tenant, the code and what
// is granted to the call. It holds no name that a caller chose.
type functionKey string

// key of a request of f.
func (f *Function) key(r *Request) functionKey {
	h := sha256.New()
	h.Write(f.hash[:])
	if r.Fetch {
		addText(h, fetchBinding)
	}
	for _, b := range r.Bindings {
		addText(h, b.Name)
		for _, m := range b.Methods {
			addText(h, m)
		}
		addText(h, "")
	}
	return functionKey(h.Sum(nil))
}

// Prepared says what became of a function's module when it was evaluated for no
// call. Its text is hostile.
type Prepared struct {
	// Snapshot: calls begin after the evaluation. Else Reason says why they
	// evaluate the module themselves.
	Snapshot bool
	Reason   string
	// Bytes that the snapshot takes in the worker.
	Bytes int64
}
