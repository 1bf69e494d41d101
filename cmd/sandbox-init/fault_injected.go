//go:build faults

package main

import (
	"bytes"
	"errors"
	"os"
)

// This is built for tests alone. Such a program has the name of the step that is
// to fail behind its end, where nothing that is executed looks.

const faultMark = "\x00fails at "

var fault = func() string {
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return ""
	}
	_, step, _ := bytes.Cut(b[max(len(b)-100, 0):], []byte(faultMark))
	return string(step)
}()

// faulty fails at the step that the program's end names.
func faulty(step string) error {
	if step == fault {
		return errors.New("on purpose")
	}
	return nil
}
