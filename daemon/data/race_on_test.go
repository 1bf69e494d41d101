//go:build race

package data

// raceEnabled says that the race detector slows SQLite ten times and more.
const raceEnabled = true
