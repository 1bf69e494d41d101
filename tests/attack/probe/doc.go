// Command probe runs inside a jail and attacks it. It prints one JSON line for
// each attempt: its id and what the attempt got, an errno's name or a short
// fact. It judges nothing; tests/attack holds what each id must get.
//
// Ids begin with the line of the threat table that the attempt belongs to. Each
// attempt is a process of its own, so one that is killed for it (SIGSYS) or
// that breaks its process does no harm to the others.
//
// It is started by tests/attack alone, is built without cgo, and imports the
// standard library and golang.org/x/sys/unix only.
package main
