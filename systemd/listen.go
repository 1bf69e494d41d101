package systemd

import (
	"fmt"
	"net"

	"github.com/coreos/go-systemd/v22/activation"
)

// Names of the inherited sockets: FileDescriptorName= in the socket units.
const (
	SocketAPI     = "api"
	SocketAdmin   = "admin"
	SocketPreview = "preview"
)

// Listeners returns the sockets that the service manager opened for this
// process, by name, and takes them out of the environment so that no child
// looks for them. Without socket activation the map is empty. A descriptor
// that is no stream listener is an error: it would otherwise be a socket that
// nobody serves.
func Listeners() (map[string][]net.Listener, error) {
	listeners := make(map[string][]net.Listener)
	var failed error
	for _, f := range activation.Files(true) {
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			failed = fmt.Errorf("systemd: inherited socket %q: %w", f.Name(), err)
			continue
		}
		listeners[f.Name()] = append(listeners[f.Name()], l)
	}
	if failed == nil {
		return listeners, nil
	}
	for _, group := range listeners {
		for _, l := range group {
			l.Close()
		}
	}
	return nil, failed
}
