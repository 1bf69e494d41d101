// Command testrun runs one stage of `make test`, shows its progress, and keeps
// what really happened, so that the summary at the end counts results instead
// of believing exit codes.
//
//	testrun run -stage unit -out DIR [-where TEXT] [-timeout D] -- go test -json ./...
//	testrun check -stage lint -name vet -out DIR -- go vet ./...
//	testrun summary -out DIR STAGE...
//
// run reads the events of `go test -json` (or of test2json) from its command;
// check counts its command as one test. A stage without any result, and a
// command that fails without a failed test, count as failures. The Makefile
// calls it; it imports nothing of this module and must never turn a failure
// into something milder.
package main
