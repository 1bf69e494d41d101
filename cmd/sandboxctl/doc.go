// Command sandboxctl is the administrator's and the developer's way to a
// sandboxd: it calls the API over the socket and prints for people, or with
// --json for programs.
//
// It imports daemon/client for the calls and internal/kernel for a doctor
// without a daemon. It must never write text that came out of a sandbox to a
// terminal without escaping it, the output of exec excepted, and never take a
// secret as an argument.
package main
