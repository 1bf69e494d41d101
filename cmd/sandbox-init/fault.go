//go:build !faults

package main

// faulty makes no step fail.
func faulty(string) error { return nil }
