// Package browser tests previews with what they are for: a real Vite project in
// a jail, shown by a headless Chromium, and the package cache with what such a
// project installs. It needs root, the programs that `make
// build` makes, npm with its registry, and Debian's chromium; `make
// test-browser` installs what is missing. Screenshots are kept in
// build/artifacts. It leaves nothing behind, which its last check holds.
package browser
