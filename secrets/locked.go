package secrets

import "golang.org/x/sys/unix"

// keep copies a value to memory of its own: left out of core dumps, and not
// swapped where the limit on locked memory allows that. It is never given back:
// whoever holds the value may still read it, and values are few and small. What
// is made from a value (a header field, the forms that answers are searched
// for) is ordinary memory of the proxy process, which nobody may trace and
// which leaves no core.
func keep(b []byte) []byte {
	size := (len(b) + unix.Getpagesize() - 1) / unix.Getpagesize() * unix.Getpagesize()
	page, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		page = make([]byte, size)
	} else {
		_ = unix.Madvise(page, unix.MADV_DONTDUMP)
		_ = unix.Mlock(page)
	}
	copy(page, b)
	return page[:len(b):len(b)]
}
