package wasi

// An Errno is WASI's error number.
type Errno = uint64

// The error numbers that are answered.
const (
	Success     Errno = 0
	Again       Errno = 6
	Badf        Errno = 8
	Exist       Errno = 20
	Fault       Errno = 21
	Inval       Errno = 28
	Isdir       Errno = 31
	Loop        Errno = 32
	Mfile       Errno = 33
	Nametoolong Errno = 37
	Noent       Errno = 44
	Nospc       Errno = 51
	Nosys       Errno = 52
	Notdir      Errno = 54
	Notempty    Errno = 55
	Notsup      Errno = 58
	Perm        Errno = 63
	Spipe       Errno = 70
	Notcapable  Errno = 76
)
