package egress

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

var errClosed = errors.New("egress: the network is closed")

// A thread is an operating-system thread that lives in the egress namespace
// and runs functions there. The thread ends with the goroutine: a namespace
// must never leak into the runtime's pool of threads.
type thread struct {
	jobs chan func()
	done chan struct{}
}

// newThread starts a thread in a new network namespace and returns a
// descriptor of it, the only thing that keeps the namespace.
func newThread() (*thread, *os.File, error) {
	t := &thread{jobs: make(chan func()), done: make(chan struct{})}
	type started struct {
		ns  *os.File
		err error
	}
	ready := make(chan started)
	go func() {
		defer close(t.done)
		runtime.LockOSThread() // and never unlocked
		ns, err := newNamespace()
		ready <- started{ns, err}
		if err != nil {
			return
		}
		for job := range t.jobs {
			job()
		}
	}()
	s := <-ready
	return t, s.ns, s.err
}

// do runs f on the thread and returns its error.
func (t *thread) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.jobs <- func() { result <- f() }:
	case <-t.done:
		return errClosed
	}
	select {
	case err := <-result:
		return err
	case <-t.done:
		return errClosed
	}
}

// stop ends the thread; do must not be called any more.
func (t *thread) stop() {
	close(t.jobs)
	<-t.done
}

// newNamespace puts the calling thread into a new network namespace, owned by
// the daemon's own user namespace, so that no one inside a jail has any right
// over it.
func newNamespace() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("egress: new network namespace: %w", err)
	}
	ns, err := os.OpenFile("/proc/thread-self/ns/net", os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("egress: network namespace: %w", err)
	}
	return ns, nil
}

// inNewNamespace runs f on the egress thread while it is in a new namespace,
// then returns to home. When it cannot return, the thread is of no use and
// every later call fails.
func (t *thread) inNewNamespace(home *os.File, f func(ns *os.File) error) (*os.File, error) {
	var ns *os.File
	err := t.do(func() error {
		var err error
		if ns, err = newNamespace(); err == nil {
			err = f(ns)
		}
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			runtime.Goexit() // ends the thread: it must not work elsewhere
		}
		return err
	})
	if err != nil && ns != nil {
		ns.Close()
		ns = nil
	}
	return ns, err
}

// inNamespace runs f on the egress thread while it is in ns, then returns to home,
// as inNewNamespace does.
func (t *thread) inNamespace(home, ns *os.File, f func() error) error {
	return t.do(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("egress: network namespace: %w", err)
		}
		err := f()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			runtime.Goexit() // ends the thread: it must not work elsewhere
		}
		return err
	})
}

// sysctl writes a setting of the thread's own network namespace.
func sysctl(path, value string) error {
	if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0); err != nil {
		return fmt.Errorf("egress: sysctl: %w", err)
	}
	return nil
}
