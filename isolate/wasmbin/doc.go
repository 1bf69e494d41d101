// Package wasmbin reads and rewrites WebAssembly binaries: it puts metering
// into modules, prepares them for instances that start from a memory image,
// and finds out what a tenant's module asks for before it is compiled.
//
// It is called by package isolate and its engines, in the worker that compiles
// the module. It imports the standard library only. It never runs code, opens
// files or validates a module: the engine validates what Rewrite returns.
//
// # Input
//
// The binary is hostile. The decoder knows Wasm 2.0 and refuses everything
// else with an *Error that names section, function and offset; it does not
// panic, recurse, or keep more than a bounded amount per byte of input (a
// tenant's module goes through Inspect and Admit before Rewrite all the same).
// It checks every index, because Rewrite appends to the index spaces: an index
// just beyond the end of the globals would become the fuel. And it refuses
// what the engine might read differently, as padded opcodes, since code that
// means one thing here and another there could escape the metering.
//
// # Metering
//
// A global of type i64 holds the fuel. Every function and every iteration of a
// loop is paid from it, and when it is negative an imported function is
// called, which adds fuel or ends the run by a panic. wazero's own check
// leaves compiled code at each iteration (27 times slower in a tight loop) and
// does not see calls; this one is a subtraction and a branch.
//
// What is charged, in units of about one simple instruction:
//
//   - A function when it is entered, with the longest path through it. If it
//     calls anything the fuel is checked there: nothing recurses, and no tree
//     of calls unfolds, past that. Functions of at most a dozen instructions
//     that call nothing are free; their callers have paid.
//   - A loop where it branches back, with the longest path to that branch, and
//     checked. So an interpreter's loop pays for the instruction that it has
//     run and not for the most expensive one. A path that leaves the loop is
//     paid in the parent.
//   - A straight run of at least 64 units where it stands, if it runs: it does
//     not lengthen the path of those who take another.
//   - In functions that call, whatever makes a path longer than 256 units, in
//     between and with a check. Otherwise a deep recursion with work after the
//     call would do all that work unchecked on its way back, paid though it is.
//   - memory.fill, copy, init and table.fill, copy, init by their length
//     before they run, memory.grow and table.grow after they have succeeded,
//     so that asking for too much costs nothing. All are checked.
//
// Thus what a run is charged is never less than what its instructions cost,
// except for a path that ends in a trap, and does not depend on when the host
// refills: it is the same for every run with the same input. Loops that call
// nothing hold the fuel in a local; a trap in one leaves the global as it was
// when the fuel was last asked for. An instance that has trapped should be
// dropped.
//
// Loops are wrapped so that the call to the host stands behind them (see
// wrap.go): the compiler lays blocks out in the order of the text, and an
// iteration would have to jump over it.
//
// # What it costs
//
// Measured with wazero 1.12, 2 cores, processor time of the thread:
//
//	tightest loop (4 instructions)     1.0 times the plain time
//	loop that sums memory              1.5
//	loop of a dozen dependent steps    1.0
//	loop that calls a small function   1.0
//	naive fib                          1.1 to 1.2
//	QuickJS, ten scripts               1.03 to 1.2, 1.12 on average
//	CPython, start and six functions   1.0 to 1.05
//	size of the code                   1.3 to 1.5
//	compiling QuickJS, CPython         1.0 to 1.1
//	compiling nests of small loops     up to 4
//
// # Quantum and time
//
// One call to the host costs 70 to 120 ns, so at 100 µs it is a tenth of a
// percent. A unit takes 0.03 to 0.1 ns in arithmetic, 0.04 to 0.07 in QuickJS (ten
// scripts), 0.07 in CPython, 0.1 to 0.3 in bulk operations, and 14 to 20 ns
// where every load misses the cache. So a quantum of
// 1,000,000 units is 30 to 100 µs of ordinary work and 20 ms at worst, which
// bounds how long a collection or a cancellation waits for one isolate.
//
// The host should therefore measure: read the thread's clock when it refills,
// add what has passed to the run's processor time, compare that with the limit,
// and give less (a tenth) after a quantum that took over a millisecond. Fuel
// alone, at 10,000 units a microsecond, is the limit of runs that must end at
// the same instruction each time, as in a replay; for those the time measured
// is only a backstop. No instruction takes longer than a quantum: memory.fill and
// memory.copy of more than a mebibyte are done in pieces, with a call of the host
// between two (see pieces.go), and tables and data segments are small.
//
// # Names
//
// Rewrite keeps the names of the module and its functions, for stack traces,
// and drops all other custom sections: debug information would point to the
// wrong places.
package wasmbin
