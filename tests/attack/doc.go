// Package attack holds the attempts to break out of a jail or an isolate.
//
// A probe program (folder probe) runs in a real jail and tries each line of the
// threat table, and the tests here compare what it got with what it must get,
// exactly. An attempt that gets something else fails the test, also when it is a
// milder refusal: then the table is wrong, or a second wall has fallen.
//
// It imports jail, isolate and the kernel probes, needs root and the guests that
// make fetches, and leaves nothing behind.
package attack
