package main

import (
	"os"
	"path/filepath"
	"syscall"
)

// devCache is where a development daemon keeps compiled interpreters, beyond
// its state: to compile them takes some ten seconds. It is the user's cache
// folder if nobody but root and this user can change anything on the way there,
// for who can write to it chooses the machine code of the next start; else
// nothing, which means a folder of the state.
func devCache() string {
	base, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir := filepath.Join(base, "sandboxd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return ""
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil || !ours(dir) {
		return ""
	}
	return dir
}

// ours tells whether a folder and all above it can be changed by this user and
// root alone.
func ours(dir string) bool {
	for {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Mode()&0o022 != 0 {
			return false
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			return false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return true
		}
		dir = up
	}
}
