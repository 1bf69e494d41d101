package isolate

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandboxd/isolate/cpython"
	"sandboxd/isolate/guests"
)

const trivialPython = "def main(input, env):\n    return input\n"

func BenchmarkPythonWorker(b *testing.B) { benchRuns(b, newWorkers(b, 1), python(trivialPython)) }

func BenchmarkPythonInProcess(b *testing.B) {
	p := newPool(b)
	run1(b, p, python(trivialPython), nil) // boots
	benchRuns(b, p, python(trivialPython))
}

// BenchmarkPythonFresh makes an instance for each call, where the others reset
// one.
func BenchmarkPythonFresh(b *testing.B) {
	e, err := loadPython(context.Background(), guestDir, workersCache)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	job := &jobMessage{Request: python(trivialPython)}
	for b.Loop() {
		vm, err := e.New(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if res := executePython(context.Background(), vm, job, &fakeHost{}); res.Status != StatusOK {
			b.Fatal(res)
		}
		e.Discard(vm)
	}
}

// BenchmarkPythonReset is a call in a VM that is reset afterwards, with that.
func BenchmarkPythonReset(b *testing.B) {
	e, err := loadPython(context.Background(), guestDir, workersCache)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	job := &jobMessage{Request: python(trivialPython)}
	for b.Loop() {
		vm, err := e.Get(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		if res := executePython(context.Background(), vm, job, &fakeHost{}); res.Status != StatusOK {
			b.Fatal(res)
		}
		e.Put(vm)
	}
}

// BenchmarkPythonBoot is what a call would cost without a snapshot.
func BenchmarkPythonBoot(b *testing.B) {
	wasm, err := guests.Load(guestDir, pythonGuest)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		cache, err := codeCache(workersCache)
		if err != nil {
			b.Fatal(err)
		}
		s, err := cpython.Boot(context.Background(), cpython.BootOptions{Wasm: wasm, Cache: cache, MaxMemory: MaxMemory})
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkPythonMetering compares work in a metered and an unmetered build.
func BenchmarkPythonMetering(b *testing.B) {
	wasm, err := guests.Load(guestDir, pythonGuest)
	if err != nil {
		b.Fatal(err)
	}
	r := python(`import json, re
def main(input, env):
    n, words = 0, {}
    for i in range(60000):
        n = (n * 31 + i) % 1000003
        words[n % 997] = words.get(n % 997, 0) + 1
    text = json.dumps(sorted(words.items()))
    for k in range(20):
        n += len(re.findall(r'\d+, (\d)', text)) + len(json.loads(text))
    return n`)
	r.Limits.CPU, r.Limits.Wall = time.Minute, time.Minute
	for _, unmetered := range []bool{false, true} {
		name, dir := "metered", workersCache
		if unmetered {
			name, dir = "unmetered", filepath.Join(testCache, "unmetered")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(name, func(b *testing.B) {
			cache, err := codeCache(dir)
			if err != nil {
				b.Fatal(err)
			}
			s, err := cpython.Boot(context.Background(), cpython.BootOptions{Wasm: wasm, Cache: cache, MaxMemory: MaxMemory, Unmetered: unmetered})
			if err != nil {
				b.Fatal(err)
			}
			e, err := newPython(context.Background(), s, dir)
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			defer s.Close()
			for b.Loop() {
				vm, err := e.Get(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				if res := executePython(context.Background(), vm, &jobMessage{Request: r}, &fakeHost{}); res.Status != StatusOK {
					b.Fatal(res)
				}
				e.Put(vm)
			}
		})
	}
}
