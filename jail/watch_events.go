package jail

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// handle takes what one read of the inotify descriptor gave.
func (w *watcher) handle(buf []byte) error {
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf))
		mask := binary.NativeEndian.Uint32(buf[4:])
		cookie := binary.NativeEndian.Uint32(buf[8:])
		size := int(binary.NativeEndian.Uint32(buf[12:]))
		end := unix.SizeofInotifyEvent + size
		if end > len(buf) {
			return ErrGone // the kernel does not do this
		}
		name := string(bytes.TrimRight(buf[unix.SizeofInotifyEvent:end], "\x00"))
		buf = buf[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			w.settle()
			w.overflow()
			continue
		}
		if n := w.byWD[wd]; n != nil {
			w.event(n, mask, cookie, name)
		}
	}
	return nil
}

// overflow says that events were lost, and watches folders that may have come
// with them.
func (w *watcher) overflow() {
	w.emit(WatchEvent{Op: WatchOverflow, Path: w.root.name, Dir: true, Reason: "events came faster than they were read"})
	if !w.recursive {
		return
	}
	w.j.asTenant(func(root int) error {
		top, err := w.reach(root, w.root)
		if err != nil {
			return err
		}
		defer top.Close()
		w.scan(w.root, top, false)
		return nil
	})
}

// settle gives up on the second half of a rename: it went out of the tree.
func (w *watcher) settle() {
	m := w.moving
	if m == nil {
		return
	}
	w.moving = nil
	if sub := m.node.subs[m.name]; sub != nil {
		w.forget(sub, true)
	}
	w.emit(WatchEvent{Op: WatchDelete, Path: m.node.path(m.name), Dir: m.dir})
}

func (w *watcher) event(n *watchNode, mask, cookie uint32, name string) {
	dir := mask&unix.IN_ISDIR != 0
	if w.moving != nil && (mask&unix.IN_MOVED_TO == 0 || cookie != w.moving.cookie) {
		w.settle()
	}
	switch {
	case mask&unix.IN_IGNORED != 0:
		w.forget(n, false)
	case name == "" && n != w.root:
		// The folder in it says the same by name.
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0:
		w.emit(WatchEvent{Op: WatchDelete, Path: n.path(""), Dir: w.folder})
		w.stopped = true
	case mask&unix.IN_CREATE != 0:
		w.emit(WatchEvent{Op: WatchCreate, Path: n.path(name), Dir: dir})
		w.enter(n, name, dir)
	case mask&unix.IN_DELETE != 0:
		w.emit(WatchEvent{Op: WatchDelete, Path: n.path(name), Dir: dir})
	case mask&unix.IN_MOVED_FROM != 0:
		w.moving = &movedFrom{cookie, n, name, dir}
	case mask&unix.IN_MOVED_TO != 0:
		w.arrived(n, name, dir)
	case mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0:
		w.emit(WatchEvent{Op: WatchModify, Path: n.path(name), Dir: dir})
	}
}

// arrived takes the second half of a rename, or what came from outside.
func (w *watcher) arrived(n *watchNode, name string, dir bool) {
	m := w.moving
	if m == nil {
		w.emit(WatchEvent{Op: WatchCreate, Path: n.path(name), Dir: dir})
		w.enter(n, name, dir)
		return
	}
	w.moving = nil
	w.emit(WatchEvent{Op: WatchRename, Path: n.path(name), From: m.node.path(m.name), Dir: dir})
	if old := n.subs[name]; old != nil {
		w.forget(old, true) // replaced
	}
	sub := m.node.subs[m.name]
	if sub == nil {
		w.enter(n, name, dir)
		return
	}
	delete(m.node.subs, m.name)
	sub.name, sub.parent = name, n
	if n.subs == nil {
		n.subs = map[string]*watchNode{}
	}
	n.subs[name] = sub
}

// enter watches a folder that is new, and tells of what came into it before it
// was watched.
func (w *watcher) enter(n *watchNode, name string, dir bool) {
	if !dir || !w.recursive {
		return
	}
	w.j.asTenant(func(root int) error {
		parent, err := w.reach(root, n)
		if err != nil {
			return err
		}
		defer parent.Close()
		w.down(n, parent, name, true)
		return nil
	})
}

// reach opens the folder of a node by its names; if somebody put something else
// there meanwhile the kernel's next events tell of it.
func (w *watcher) reach(root int, n *watchNode) (*os.File, error) {
	top, err := lookup(root, w.path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(top)
	rel := strings.TrimPrefix(strings.TrimPrefix(n.path(""), w.root.name), "/")
	if rel == "" {
		rel = "."
	}
	return openListed(top, rel)
}
