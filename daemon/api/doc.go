// Package api is the surface of sandboxd as Go types: requests, answers, events
// and errors of the HTTP interface, the table of its routes, the strict decoder
// for request bodies and the OpenAPI document made from all of these.
//
// Who uses it: daemon (serves it), daemon/client (calls it) and, through the
// client, cmd/sandboxctl and the tests. It imports policy for the units
// (durations, sizes, limits) and nothing else of this repository.
//
// It must never reach the network, read a file or know how anything is run: it
// is data and checks on data. Every byte that the decoder sees is hostile.
//
// The struct tags are the single source of the checks and of the document:
//
//	json:"name"          the field's name
//	doc:"…"              its description
//	enum:"a,b"           the only values allowed
//	min:"1" max:"9"      bounds of a number, of a string's bytes or of the
//	                     number of elements
//	required:"true"      must be present
package api
