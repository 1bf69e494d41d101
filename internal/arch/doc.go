// Package arch holds the tests of the tree's shape: which package may import
// which, and that every package says what it is for. It has no code of its own
// and nothing may import it.
package arch
