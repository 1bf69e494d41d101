package quickjs

import (
	"bytes"
	"math"
	"strings"
)

// Args are the arguments of a call of the host function. What reads them ends
// the VM if it fails, so the methods return no error.
type Args struct {
	vm  *VM
	ptr [6]uint32
	// N is the number of arguments, at most 6.
	N int
}

// Abort ends the VM with err from within the host function, and does not return.
func (a *Args) Abort(err error) { a.vm.abort(err) }

// VM is the caller.
func (a *Args) VM() *VM { return a.vm }

// Int reads a number; 0 if it is none.
func (a *Args) Int(i int) int64 {
	f := a.Number(i)
	if math.IsNaN(f) || math.Abs(f) > 1<<53 {
		return 0
	}
	return int64(f)
}

// Number reads a number.
func (a *Args) Number(i int) float64 {
	if i >= a.N {
		return math.NaN()
	}
	bits, err := a.vm.invoke(fnNumber, uint64(a.ptr[i]))
	if err != nil {
		a.vm.abort(err)
	}
	return math.Float64frombits(bits)
}

// Text reads a string. Its encoding is UTF-8, but lone surrogates have three
// bytes each.
func (a *Args) Text(i int) string {
	if i >= a.N {
		return ""
	}
	s, err := a.vm.Text(Value(a.ptr[i]))
	if err != nil {
		a.vm.abort(err)
	}
	return s
}

// IsText tells whether argument i is a string.
func (a *Args) IsText(i int) bool {
	return i < a.N && a.vm.must(fnIsString, uint64(a.ptr[i])) != 0
}

// Peek gives the content of an Uint8Array where it lies: it is to be read, and
// before anything else is asked of the VM.
func (a *Args) Peek(i int) []byte {
	p, n := a.view(i)
	b, ok := a.vm.mod.Memory().Read(p, n)
	if !ok {
		a.vm.abort(errGuest("view outside its memory"))
	}
	return b
}

// view is where the content of an Uint8Array lies.
func (a *Args) view(i int) (p, n uint32) {
	if i >= a.N {
		return 0, 0
	}
	vm, s := a.vm, vm32(a.vm.eng.boot.scratch)
	ab := vm.must(fnTyped, uint64(a.ptr[i]), s, s+4, s+8)
	var out [4]uint32
	if vm.must(fnIsException, ab) == 0 {
		data := uint32(vm.must(fnBuffer, ab, s+12))
		if err := vm.words(uint32(s), out[:]); err != nil {
			vm.abort(err)
		}
		p, n = data+out[0], out[1]
		if out[0]+out[1] < out[0] || out[0]+out[1] > out[3] {
			vm.abort(errGuest("view outside its buffer"))
		}
	} else {
		vm.must0(fnFreeValue, vm.must(fnGetException))
	}
	vm.must0(fnFreeValue, ab)
	return p, n
}

func vm32(p uint32) uint64 { return uint64(p) }

// Bool tells whether argument i is the number or truth value 1.
func (a *Args) Bool(i int) bool { return a.Int(i) == 1 }

// Text reads a string value.
func (vm *VM) Text(v Value) (string, error) {
	s := vm32(vm.eng.boot.scratch)
	p, err := vm.get(fnText, uint64(v), s)
	if err != nil {
		return "", err
	}
	if p == 0 {
		// The conversion threw; the exception is not ours to show.
		e, err := vm.get(fnGetException)
		if err != nil {
			return "", err
		}
		return "", vm.Free(Value(e))
	}
	var n [1]uint32
	if err := vm.words(uint32(s), n[:]); err != nil {
		return "", err
	}
	b, ok := vm.mod.Memory().Read(uint32(p), n[0])
	if !ok {
		return "", vm.fail(errGuest("string outside its memory"))
	}
	vm.large(len(b))
	var text strings.Builder
	text.Grow(len(b))
	for ; len(b) > piece; b = b[piece:] {
		text.Write(b[:piece])
	}
	text.Write(b)
	_, err = vm.get(fnFreeText, p)
	return text.String(), err
}

// piece is what is copied at once: Go stops no copy in the middle of it, for the
// garbage collector neither.
const piece = 1 << 20

// large tells hooks of bytes that are moved next.
func (vm *VM) large(n int) {
	if n > LargeCopy && vm.hooks != nil {
		vm.hooks.Large()
	}
}

func appendPieces[T string | []byte](to []byte, b T) []byte {
	for ; len(b) > piece; b = b[piece:] {
		to = append(to, b[:piece]...)
	}
	return append(to, b...)
}

// alloc copies b and a zero byte into guest memory.
func alloc[T string | []byte](vm *VM, b T) (uint32, error) {
	vm.large(len(b))
	p, err := vm.get(fnMalloc, uint64(len(b))+1)
	if err != nil {
		return 0, err
	}
	if p == 0 {
		return 0, vm.fail(&MemoryError{Want: vm.mem.Size() + uint64(len(b)), Limit: vm.mem.Limit()})
	}
	to, ok := vm.mod.Memory().Read(uint32(p), uint32(len(b))+1)
	if !ok {
		return 0, vm.fail(errGuest("allocation outside its memory"))
	}
	appendPieces(to[:0], b)
	to[len(b)] = 0
	return uint32(p), nil
}

func (vm *VM) mustString(s string) uint32 {
	p, err := alloc(vm, s)
	if err != nil {
		vm.abort(err)
	}
	return p
}

// cString reads a zero-terminated string that the interpreter passes.
func (vm *VM) cString(p uint32) string {
	const most = 4096 // module names; longer ones are refused by Hooks
	m := vm.mod.Memory()
	n := min(most, m.Size()-min(p, m.Size()))
	b, _ := m.Read(p, n)
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// with calls f with s in guest memory and frees it.
func with[T string | []byte](vm *VM, s T, f func(p, n uint64) error) error {
	p, err := alloc(vm, s)
	if err != nil {
		return err
	}
	if err := f(uint64(p), uint64(len(s))); err != nil {
		return err
	}
	_, err = vm.get(fnFree, uint64(p))
	return err
}

// String makes a string value.
func (vm *VM) String(s string) (v Value, err error) {
	err = with(vm, s, func(p, n uint64) error {
		r, err := vm.get(fnNewString, p, n)
		v = Value(r)
		return err
	})
	return v, err
}

// Bytes makes an Uint8Array.
func (vm *VM) Bytes(b []byte) (v Value, err error) {
	err = with(vm, b, func(p, n uint64) error {
		r, err := vm.get(fnNewBytes, p, n)
		v = Value(r)
		return err
	})
	return v, err
}

// Number makes a number value.
func (vm *VM) Number(f float64) (Value, error) {
	v, err := vm.get(fnNewNumber, math.Float64bits(f))
	return Value(v), err
}

// Undefined makes an undefined value.
func (vm *VM) Undefined() (Value, error) {
	v, err := vm.get(fnDupValue, uint64(vm.eng.boot.undefPtr))
	return Value(v), err
}

// Dup makes a second reference to a value.
func (vm *VM) Dup(v Value) (Value, error) {
	d, err := vm.get(fnDupValue, uint64(v))
	return Value(d), err
}

// Free gives a value back.
func (vm *VM) Free(v Value) error {
	_, err := vm.get(fnFreeValue, uint64(v))
	return err
}

// throw makes message the pending exception, from within a host function.
func (vm *VM) throw(message string) {
	e := vm.must(fnNewError)
	v, err := vm.String(message)
	if err != nil {
		vm.abort(err)
	}
	name := vm.mustString("message")
	vm.must0(fnSetProp, e, uint64(name), uint64(v))
	vm.must0(fnFree, uint64(name))
	vm.must0(fnFreeValue, uint64(v))
	vm.must0(fnFreeValue, vm.must(fnThrow, e))
	vm.must0(fnFreeValue, e)
}

// Flags of qjs_eval.
const (
	evalGlobal = 0
	evalModule = 1
)

// EvalModule compiles, links and starts a module. v is the promise of its
// evaluation, or the exception if it could not be compiled or linked.
func (vm *VM) EvalModule(name, source string) (v Value, threw bool, err error) {
	return vm.eval(name, source, evalModule)
}

func (vm *VM) eval(name, source string, flags uint64) (v Value, threw bool, err error) {
	err = with(vm, source, func(p, n uint64) error {
		return with(vm, name, func(np, _ uint64) error {
			r, err := vm.get(fnEval, p, n, np, flags)
			v = Value(r)
			return err
		})
	})
	if err != nil {
		return 0, false, err
	}
	return vm.check(v)
}

// check exchanges an exception result for the pending exception.
func (vm *VM) check(v Value) (Value, bool, error) {
	bad, err := vm.get(fnIsException, uint64(v))
	if err != nil || bad == 0 {
		return v, false, err
	}
	if err := vm.Free(v); err != nil {
		return 0, false, err
	}
	e, err := vm.get(fnGetException)
	return Value(e), true, err
}

// CallEntry calls a function of the prelude and frees the arguments.
func (vm *VM) CallEntry(i int, args ...Value) (v Value, threw bool, err error) {
	argv, err := vm.get(fnMalloc, uint64(4*len(args)+4))
	if err != nil {
		return 0, false, err
	}
	for j, a := range args {
		if !vm.mod.Memory().WriteUint32Le(uint32(argv)+uint32(4*j), uint32(a)) {
			return 0, false, vm.fail(errGuest("allocation outside its memory"))
		}
	}
	b := &vm.eng.boot
	r, err := vm.get(fnCall, uint64(b.entries[i]), uint64(b.undefPtr), uint64(len(args)), argv)
	if err != nil {
		return 0, false, err
	}
	if _, err := vm.get(fnFree, argv); err != nil {
		return 0, false, err
	}
	for _, a := range args {
		if err := vm.Free(a); err != nil {
			return 0, false, err
		}
	}
	return vm.check(Value(r))
}

// RunJob runs one pending job (a promise reaction). It tells whether there was
// one; thrown is the exception of one that cannot be caught, else 0.
func (vm *VM) RunJob() (ran bool, thrown Value, err error) {
	r, err := vm.get(fnRunJob)
	if err != nil {
		return false, 0, err
	}
	switch n := int32(uint32(r)); {
	case n == 0:
		return false, 0, nil
	case n > 0:
		return true, 0, nil
	}
	e, err := vm.get(fnGetException)
	return true, Value(e), err
}
