package proxy

import "strings"

// checkPath says whether a request path may be matched (step 10). wellFormed
// is needed always; canonical, that no other spelling means the same, where
// rules look at paths: "/a/../b", "/%61", "//" and ";x" are then refused.
func checkPath(path string) (wellFormed, canonical bool) {
	if path == "" || path[0] != '/' || strings.HasPrefix(path, "//") {
		return false, false
	}
	canonical = !strings.Contains(path, "//")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			canonical = false
		}
	}
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c <= ' ' || c >= 0x7f:
			return false, false
		case c == '\\' || c == ';':
			canonical = false
		case c == '%':
			if i+2 >= len(path) {
				return false, false
			}
			hi, lo := unhex(path[i+1]), unhex(path[i+2])
			if hi < 0 || lo < 0 {
				return false, false
			}
			if !escapeNeeded(byte(hi<<4|lo)) || path[i+1] >= 'a' || path[i+2] >= 'a' {
				canonical = false
			}
			i += 2
		}
	}
	return true, canonical
}

// escapeNeeded reports whether a byte cannot stand in a path by itself, so that
// its escaped form is the only one. A slash, a backslash, a percent sign, a
// semicolon, a dot and a NUL are never taken in escaped form: servers differ.
func escapeNeeded(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return false
	case c < ' ' || c == 0x7f:
		return false
	}
	return !strings.ContainsRune("-._~/\\%;", rune(c))
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
