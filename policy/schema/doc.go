// Package schema holds the JSON Schemas (draft 2020-12 unless $schema says
// another) that the arguments and results of tools are checked by.
//
// Package policy compiles those of the policy file, the daemon those of a
// request, and it checks what crosses. A schema is the operator's or the calling
// service's; a value is hostile. So what checking may cost is bounded by the
// value's size and by fuel, whatever schema and value are: patterns run in Go's
// regexp, which does not backtrack, and count.
//
// It may import nothing of ours. It must never load a schema from a file or the
// network: a $ref stays inside its document.
package schema
