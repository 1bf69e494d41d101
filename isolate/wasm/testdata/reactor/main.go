// Command reactor uses the module sandboxd and no standard input. It is a guest of the tests.
package main

import (
	"encoding/json"
	"fmt"
	"unsafe"
)

//go:wasmimport sandboxd input
func hostInput(p unsafe.Pointer, n uint32) uint32

//go:wasmimport sandboxd call
func hostCall(p unsafe.Pointer, n uint32) uint32

//go:wasmimport sandboxd read
func hostRead(p unsafe.Pointer, n uint32) uint32

//go:wasmimport sandboxd result
func hostResult(p unsafe.Pointer, n uint32)

//go:wasmimport sandboxd log
func hostLog(level int32, p unsafe.Pointer, n uint32)

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func logf(level int32, format string, args ...any) {
	b := fmt.Appendf(nil, format, args...)
	hostLog(level, pointer(b), uint32(len(b)))
}

type call struct {
	Binding string `json:"binding"`
	Method  string `json:"method"`
	Args    []any  `json:"args"`
}

func do(c call) json.RawMessage {
	b, _ := json.Marshal(c)
	answer := make([]byte, hostCall(pointer(b), uint32(len(b))))
	hostRead(pointer(answer), uint32(len(answer)))
	return answer
}

//go:wasmexport run
func run() int32 {
	raw := make([]byte, hostInput(nil, 0))
	hostInput(pointer(raw), uint32(len(raw)))
	var calls []call
	if err := json.Unmarshal(raw, &calls); err != nil {
		logf(3, "input: %v", err)
		return 2
	}
	logf(1, "%d calls", len(calls))
	answers := []json.RawMessage{}
	for _, c := range calls {
		answers = append(answers, do(c))
	}
	b, _ := json.Marshal(answers)
	hostResult(pointer(b), uint32(len(b)))
	return 0
}

func main() {}
