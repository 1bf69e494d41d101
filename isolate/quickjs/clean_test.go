package quickjs

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf16"
)

// Ways in which a host ends a run.
var errEnds = errors.New("the host ends the run")

// endingHooks end the VM at a tick or at a call, if they are to.
type endingHooks struct {
	bootHooks
	ticks  int // 0: never
	atCall bool
}

func (h *endingHooks) Call(*Args) (Value, error) {
	if h.atCall {
		return 0, errEnds
	}
	return 0, nil
}

func (h *endingHooks) Tick() error {
	if h.ticks--; h.ticks == 0 {
		return errEnds
	}
	return nil
}

// leave puts the mark wherever code can.
const leave = `
globalThis.mark = 'ZQMARK-' + 'globals';
globalThis['ZQMARK-name'] = Symbol('ZQMARK-symbol');
Symbol.for('ZQMARK-registered');
Object.prototype.mark = 'ZQMARK-prototype';
Array.prototype.push = function () { return 'ZQMARK-patched'; };
String.prototype.trim = () => 'ZQMARK-trim';
JSON.stringify = Math.random = Date.now = () => 'ZQMARK-builtin';
Math.max.mark = Promise.mark = 'ZQMARK-function';
globalThis.wide = 'ZQMARK-\u4e00\u{1f600}'.repeat(50);
globalThis.keep = [];
for (let i = 0; i < 3000; i++) keep[i] = ('ZQMARK-' + i).padEnd(40, 'ZQMARK-');
globalThis.bytes = new Uint8Array(200000).map((_, i) => 'ZQMARK-'.charCodeAt(i % 7));
globalThis.words = new Float64Array(new Uint8Array(8000).map((_, i) => 'ZQMARK-!'.charCodeAt(i % 8)).buffer);
globalThis.shared = new Map([['ZQMARK-key', new Set(['ZQMARK-member'])]]);
globalThis.weak = new WeakRef({ mark: 'ZQMARK-weak' });
new FinalizationRegistry(() => {}).register({}, 'ZQMARK-registry');
globalThis.big = BigInt('0x' + Array.from('ZQMARK-', c => c.charCodeAt(0).toString(16)).reverse().join('').repeat(200));
globalThis.re = /ZQMARK-(?<ZQMARK>.)/;
globalThis.make = function* () { let m = 'ZQMARK-generator'; yield m; };
globalThis.open = make(); open.next();
globalThis.later = Promise.resolve().then(() => 'ZQMARK-job');
(async () => { await new Promise(() => {}); return 'ZQMARK-pending'; })();
Promise.reject(new Error('ZQMARK-rejected'));
setTimeout(() => 'ZQMARK-timer', 1); setInterval(() => 'ZQMARK-interval', 1);
eval('var ZQMARKevaluated = "ZQMARK-eval"');
new Function('return "ZQMARK-compiled"')();
console.log('ZQMARK-log');
`

// marks are the ways in which the mark can stand in memory.
func marks() [][]byte {
	wide := []byte{}
	for _, c := range utf16.Encode([]rune("ZQMARK-")) {
		wide = append(wide, byte(c), byte(c>>8))
	}
	return [][]byte{[]byte("ZQMARK"), wide}
}

// allClean takes every VM that there is, and new ones, and looks at all of them.
func allClean(t *testing.T, e *Engine) {
	t.Helper()
	var out []*VM
	for range e.Stats().Idle + 2 {
		vm, err := e.Get(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, vm)
		for _, m := range marks() {
			if at := bytes.Index(vm.memory(), m); at >= 0 {
				t.Errorf("%q stands at %d", m, at)
			}
		}
		equalsImage(t, e, vm)
	}
	for _, vm := range out {
		e.Put(vm)
	}
}

// TestNothingIsLeft: whatever a run leaves and however it ends, no VM that is
// given out afterwards has anything of it.
func TestNothingIsLeft(t *testing.T) {
	e := newEngine(t)
	ends := map[string]struct {
		src    string
		hooks  endingHooks
		memory uint64
		trap   bool
		dead   bool // it must not be used again
	}{
		"returns":   {src: `'ZQMARK-value'`},
		"throws":    {src: `throw new TypeError('ZQMARK-thrown')`},
		"overflows": {src: `(function f(a) { f('ZQMARK-' + a); })('ZQMARK-argument')`},
		"grows":     {src: `globalThis.more = new Uint8Array(2e7).fill(77)`},
		"cpu":       {src: `for (;;) keep[0] = 'ZQMARK-' + Math.sqrt(2)`, hooks: endingHooks{ticks: 40}, dead: true},
		"wall":      {src: `'ZQMARK-'.repeat(1e5).split('').sort().join('ZQMARK-')`, hooks: endingHooks{ticks: 30}, dead: true},
		"cancelled": {src: `/^(a+)+$/.test('a'.repeat(40) + 'ZQMARK-')`, hooks: endingHooks{ticks: 50}, dead: true},
		"call":      {src: `console.log('ZQMARK-last')`, hooks: endingHooks{atCall: true}, dead: true},
		"memory":    {src: `for (;;) keep[keep.length] = new Uint8Array(1e6).fill(77)`, memory: 24 << 20, dead: true},
		"trap":      {src: `'ZQMARK-before'`, trap: true, dead: true},
	}
	for round := range 3 {
		for name, c := range ends {
			vm, err := e.Get(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			h, limit := c.hooks, uint64(64<<20)
			if c.memory != 0 {
				limit = c.memory
			}
			if err := vm.Begin(&h, limit, 0x2d52454b52414d21); err != nil {
				t.Fatal(err)
			}
			src := leave + c.src
			if c.hooks.atCall {
				src = strings.ReplaceAll(leave, "console.log('ZQMARK-log')", "") + c.src
			}
			_, _, err = vm.eval("ZQMARK-file.js", src, evalGlobal)
			if c.trap && err == nil {
				_, err = vm.get(fnFreeValue, 0xfffffff0)
			}
			if (err != nil) != c.dead {
				t.Errorf("round %d, %s: %v", round, name, err)
			}
			if !bytes.Contains(vm.memory(), []byte("ZQMARK-globals")) {
				t.Errorf("round %d, %s: the mark was not left", round, name)
			}
			e.Put(vm)
			allClean(t, e)
		}
	}
}
