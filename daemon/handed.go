package daemon

import (
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/jail"
)

// Descriptors come with the first byte of the request that names them, as the
// kernel's ancillary data (SCM_RIGHTS). A connection holds at most maxHanded of
// them; those that a request does not claim are closed with it. Two requests on
// their way at once on one connection would mix theirs: a caller uses a
// connection of its own, as daemon/client does.

// maxHanded is how many descriptors a request may bring.
const maxHanded = 3

// handedSpace is room for maxHanded descriptors: the kernel keeps what does not
// fit, and says that it did.
var handedSpace = unix.CmsgSpace(maxHanded * 4)

// handed are the descriptors that a connection has brought.
type handed struct {
	mu      sync.Mutex
	files   []*os.File // guarded by mu
	tooMany bool       // guarded by mu
	closed  bool       // guarded by mu
	oob     []byte     // of the one who reads
}

// read is Read of the connection, which takes descriptors as well.
func (h *handed) read(c *net.UnixConn, b []byte) (int, error) {
	if len(b) == 0 {
		return c.Read(b)
	}
	if h.oob == nil {
		h.oob = make([]byte, handedSpace)
	}
	n, oobn, flags, _, err := c.ReadMsgUnix(b, h.oob)
	if oobn > 0 || flags&unix.MSG_CTRUNC != 0 {
		h.take(h.oob[:oobn], flags&unix.MSG_CTRUNC != 0)
	}
	return max(n, 0), err // with an error it is -1, which no reader may say
}

func (h *handed) take(oob []byte, cut bool) {
	var files []*os.File
	// Whatever is in the messages must be closed, also when they make no sense.
	messages, _ := unix.ParseSocketControlMessage(oob)
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "handed"))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if room := maxHanded - len(h.files); h.closed || len(files) > room {
		closeFiles(files)
		files, cut = nil, true
	}
	h.files, h.tooMany = append(h.files, files...), h.tooMany || cut
}

// claim takes what has come so far.
func (h *handed) claim() (files []*os.File, tooMany bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	files, tooMany = h.files, h.tooMany
	h.files, h.tooMany = nil, false
	return files, tooMany
}

// drop closes what nobody has claimed; finally, also what is yet to come.
func (h *handed) drop(finally bool) {
	h.mu.Lock()
	closeFiles(h.files)
	h.files, h.tooMany, h.closed = nil, false, h.closed || finally
	h.mu.Unlock()
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// claimFiles takes the descriptors that the request names; the caller closes all
// of them.
func (q *request) claimFiles(named *api.Descriptors) (all []*os.File, byStream [3]*os.File, err error) {
	if named == nil {
		return nil, byStream, nil
	}
	files, tooMany := q.peer.handed.claim()
	defer func() {
		if err != nil {
			closeFiles(files)
		}
	}()
	if tooMany {
		e := api.Invalid("fds", "more descriptors came with the request than it may bring")
		e.Allowed = fmt.Sprint(maxHanded)
		return nil, byStream, e
	}
	for i, s := range []struct {
		name  string
		index *int
	}{{"stdin", named.Stdin}, {"stdout", named.Stdout}, {"stderr", named.Stderr}} {
		if s.index == nil {
			continue
		}
		if *s.index >= len(files) {
			e := api.Invalid("fds."+s.name, fmt.Sprintf("descriptor %d did not come with the request, which brought %d", *s.index, len(files)))
			e.Hint = "send them with the request's first byte (SCM_RIGHTS), on a connection of its own"
			return nil, byStream, e
		}
		if err := jail.CheckDescriptor(i, files[*s.index]); err != nil {
			return nil, byStream, err
		}
		byStream[i] = files[*s.index]
	}
	return files, byStream, nil
}
