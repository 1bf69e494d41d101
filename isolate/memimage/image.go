package memimage

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	hostPage = 4 << 10
	// gap is the largest run of zero bytes within one extent: more extents are
	// more mappings in each instance.
	gap = 256 << 10
)

// An Image is the content of a linear memory, kept in a sealed memfd.
type Image struct {
	file *os.File
	// all is a read-only mapping of the memfd.
	all []byte
	// size is that of the linear memory. extents are the parts of it that the
	// memfd holds, in order, each at its own address; the rest is zero and is
	// mapped anonymously, because a write to a hole of a memfd costs two page
	// allocations.
	size    uint64
	extents []span
	// hot are the pages that every call writes, used those that some use; see
	// Learn.
	hot, used []span
	learnt    bool
	// pagemap tells which pages a memory has written; nil if there is no /proc.
	pagemap *os.File
}

// A span is a range of page-aligned addresses.
type span struct{ from, to uint64 }

func (s span) of(b []byte) []byte { return b[s.from:s.to:s.to] }

// Seal copies b, whose pages of zeros it leaves out, into a memfd that nobody
// can change.
func Seal(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memimage: memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := fill(f, b); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func fill(f *os.File, b []byte) error {
	fd := int(f.Fd())
	if err := unix.Ftruncate(fd, int64(len(b))); err != nil {
		return fmt.Errorf("memimage: size: %w", err)
	}
	for p := 0; p < len(b); p += hostPage {
		page := b[p:min(p+hostPage, len(b))]
		if zero(page) {
			continue
		}
		if _, err := f.WriteAt(page, int64(p)); err != nil {
			return fmt.Errorf("memimage: write: %w", err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("memimage: seal: %w", err)
	}
	return nil
}

const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// ErrNotSealed says that a file is not the sealed memfd of an image.
var ErrNotSealed = errors.New("memimage: the file is not sealed")

// Open makes an Image of a sealed linear memory, and takes the file over. It is
// closed if that fails.
func Open(f *os.File) (*Image, error) {
	img, err := open(f)
	if err != nil {
		f.Close()
	}
	return img, err
}

func open(f *os.File) (*Image, error) {
	have, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || have&seals != seals {
		return nil, errors.Join(ErrNotSealed, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("memimage: size: %w", err)
	}
	if st.Size <= 0 || st.Size%PageSize != 0 {
		return nil, fmt.Errorf("memimage: %d bytes are not a linear memory", st.Size)
	}
	all, err := unix.Mmap(int(f.Fd()), 0, int(st.Size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("memimage: map: %w", err)
	}
	img := &Image{file: f, all: all, size: uint64(st.Size)}
	// It must be opened before the process gives up its rights; without it Reset
	// is slower.
	img.pagemap, _ = os.Open("/proc/self/pagemap")
	for p := uint64(0); p < img.size; p += hostPage {
		if zero(all[p : p+hostPage]) {
			continue
		}
		img.extents = extend(img.extents, p, gap)
	}
	return img, nil
}

// extend appends the page at p to spans, to the last one if it is near enough.
func extend(spans []span, p, near uint64) []span {
	if n := len(spans); n > 0 && p-spans[n-1].to <= near {
		spans[n-1].to = p + hostPage
		return spans
	}
	return append(spans, span{p, p + hostPage})
}

// File is the sealed memfd, which belongs to the Image.
func (img *Image) File() *os.File { return img.file }

// Size is that of the linear memory.
func (img *Image) Size() uint64 { return img.size }

// Stored is what of it is not zero, in bytes.
func (img *Image) Stored() uint64 { return total(img.extents) }

// Hot is what a memory keeps of its own between calls, in bytes.
func (img *Image) Hot() uint64 { return total(img.hot) }

func total(spans []span) (n uint64) {
	for _, s := range spans {
		n += s.to - s.from
	}
	return n
}

// Close gives the memfd back. Memories that were made from it live on.
func (img *Image) Close() error {
	err := errors.Join(unix.Munmap(img.all), img.file.Close())
	if img.pagemap != nil {
		err = errors.Join(err, img.pagemap.Close())
	}
	return err
}

func zero(b []byte) bool {
	for len(b) >= 8 {
		if *(*uint64)(unsafe.Pointer(&b[0])) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
