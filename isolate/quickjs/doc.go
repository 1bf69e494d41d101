// Package quickjs drives QuickJS-ng, compiled to WebAssembly, under wazero.
//
// An Engine boots the interpreter once, loads a prelude into it, and keeps its
// linear memory as an image (isolate/memimage). A VM is an instance whose memory
// is a private, copy-on-write mapping of that image: as clean as the first one
// for the price of a page map. The code is metered by isolate/wasmbin: when its
// fuel runs out the Hooks of the VM are asked whether it may go on. What it shares
// with other interpreters is in isolate/wasmvm.
//
// Package isolate calls it. It may import isolate/memimage, isolate/wasmvm,
// isolate/wasmbin and wazero; it knows nothing of tenants, requests or limits.
//
// It must never hand the guest anything but what Hooks answers, trust a
// pointer or length that the guest gives, or reuse an instance that is not
// provably as new (see wasmvm.Instance.Restore).
package quickjs
