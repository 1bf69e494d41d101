package cpython

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

var errEnds = errors.New("the host ends the run")

// endingHooks end the VM at a tick, a call or a sleep, if they are to.
type endingHooks struct {
	fakeHooks
	atCall, atSleep bool
}

func (h *endingHooks) Message(b []byte) ([]byte, error) {
	if h.atCall && len(b) > 0 && b[0] == 'C' {
		return nil, errEnds
	}
	return h.fakeHooks.Message(b)
}

func (h *endingHooks) Sleep(int64) error {
	if h.atSleep {
		return errEnds
	}
	return nil
}

// leave puts the mark wherever code can.
const leave = `
import sys, os, io, json, re, builtins, types, gc, random, collections, tempfile, logging, array, weakref, decimal
MARK = 'ZQMARK-' + 'global'
keep = ['ZQMARK-%d' % i * 5 for i in range(3000)]
wide = 'ZQMARK-\u4e00' * 50 + 'ZQMARK-\U0001f600' * 50
raw = bytearray(b'ZQMARK-' * 20000)
numbers = array.array('d', [float(i) for i in range(100)]); numbers.frombytes(b'ZQMARK-!' * 100)
interned = sys.intern('ZQMARK-interned')
sys.modules['ZQMARK_module'] = types.ModuleType('ZQMARK_module', 'ZQMARK-doc')
json.ZQMARK = re.ZQMARK = 'ZQMARK-module'
builtins.ZQMARK = builtins.print = lambda *a: 'ZQMARK-builtin'
str_cache = re.compile('ZQMARK-(?P<ZQMARK>.)').match('ZQMARK-x')
os.environ['ZQMARK_env'] = 'ZQMARK-env'
os.makedirs('/tmp/ZQMARK-dir')
with open('/tmp/ZQMARK-file', 'w') as f: f.write('ZQMARK-content' * 1000)
left_open = open('/tmp/ZQMARK-dir/open', 'w'); left_open.write('ZQMARK-buffered')
random.seed('ZQMARK-seed'); random.random()
collections.UserDict.ZQMARK = 'ZQMARK-class'
class ZQMARKclass:
    def __del__(self): keep.append('ZQMARK-finalizer')
cycle = ZQMARKclass(); cycle.me = cycle; cycle.mark = 'ZQMARK-cycle'
watched = weakref.WeakValueDictionary({'ZQMARK-weak': cycle})
def generate():
    m = 'ZQMARK-generator'
    yield m
started = generate(); next(started)
logging.getLogger('ZQMARK-logger').setLevel(10)
decimal.getcontext().prec = 77
big = int.from_bytes(b'ZQMARK-' * 500, 'little')
exec('ZQMARK_evaluated = "ZQMARK-eval"')
sys.path.append('/ZQMARK-path'); sys.argv.append('ZQMARK-argument')
sys.settrace(None); gc.unfreeze(); gc.collect()
sys.stdout.write('ZQMARK-output\n'); sys.stderr.write('ZQMARK-unflushed')
`

// marks are the ways in which the mark can stand in memory.
func marks() (out [][]byte) {
	for _, width := range []int{1, 2, 4} {
		var m []byte
		for _, c := range []byte("ZQMARK") {
			m = append(append(m, c), make([]byte, width-1)...)
		}
		out = append(out, m)
	}
	return out
}

// allClean takes every VM that there is, and a new one, and looks at all of them.
func allClean(t *testing.T, e *Engine, image []byte) {
	t.Helper()
	var out []*VM
	for range e.Stats().Idle + 1 {
		vm, err := e.Get(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, vm)
		now, _ := vm.mod.Memory().Read(0, vm.mod.Memory().Size())
		for _, m := range marks() {
			if at := bytes.Index(now, m); at >= 0 {
				t.Errorf("%q stands at %d", m, at)
			}
		}
		if !bytes.Equal(now, image) {
			t.Error("the memory is not the image's")
		}
		for i, v := range vm.inst.Values() {
			if v != e.state.Globals[i].Value {
				t.Errorf("global %d is %d", i, v)
			}
		}
		if !vm.sys.Clean() || vm.hooks != nil || vm.Fuel() != 0 {
			t.Error("there is something left of the run")
		}
	}
	for _, vm := range out {
		e.Put(vm)
	}
}

// TestNothingIsLeft: whatever a run leaves and however it ends, no VM that is
// given out afterwards has anything of it.
func TestNothingIsLeft(t *testing.T) {
	e := newEngine(t, func(_ context.Context, vm *VM) error { return vm.Run(&fakeHooks{}, job("def main(): return 1")) })
	image := make([]byte, e.img.Size())
	if _, err := e.img.File().ReadAt(image, 0); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		src    string
		ends   endingHooks
		memory uint64
		dead   bool // it must not be used again
	}{
		"returns":   {src: `def main(): return 'ZQMARK-value'`},
		"raises":    {src: `raise ValueError('ZQMARK-raised')`},
		"exits":     {src: `sys.exit('ZQMARK-exit')`},
		"overflows": {src: "def f(a): return f('ZQMARK-' + a)\nf('ZQMARK-argument')"},
		"grows":     {src: `more = bytearray(b'ZQMARK-' * 3000000)`},
		"cpu":       {src: `while True: keep[0] = 'ZQMARK-%d' % len(keep)`, ends: endingHooks{fakeHooks: fakeHooks{ticks: 300}}, dead: true},
		"wall":      {src: `re.match('(a+)+$', 'a' * 40 + 'ZQMARK-')`, ends: endingHooks{fakeHooks: fakeHooks{ticks: 300}}, dead: true},
		"sleep":     {src: "import time\ntime.sleep(100)", ends: endingHooks{atSleep: true}, dead: true},
		"call":      {src: "def main(input, env): env.T.call('ZQMARK-sent')", ends: endingHooks{atCall: true}, dead: true},
		"memory":    {src: `while True: keep.append(bytearray(b'ZQMARK-' * 200000))`, memory: 48 << 20, dead: true},
		"quits":     {src: `os._exit(3)`, dead: true},
		"trap":      {src: "import _testcapi\n_testcapi.crash_no_current_thread()", dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			vm, err := e.Get(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			j := jobWith(leave+c.src, `[{"name": "T", "methods": ["call"]}]`)
			if c.memory != 0 {
				j.Memory = c.memory
			}
			h := c.ends
			if err := vm.Run(&h, j); (err != nil) != c.dead {
				t.Errorf("it ends with %v, %.600q", err, h.messages)
			}
			now, _ := vm.mod.Memory().Read(0, vm.mod.Memory().Size())
			if !bytes.Contains(now, []byte("ZQMARK-global")) {
				t.Error("the mark was not left")
			}
			e.Put(vm)
			allClean(t, e, image)
		})
	}
}
