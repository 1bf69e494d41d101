package jail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// Operations of a WatchEvent.
const (
	WatchCreate = "create"
	// WatchModify is a change of content, permissions or times.
	WatchModify = "modify"
	WatchDelete = "delete"
	WatchRename = "rename"
	// WatchOverflow says that events were lost, or that some folders are not
	// watched: look at the tree itself.
	WatchOverflow = "overflow"
)

// A WatchEvent tells of a change. Names are hostile bytes.
type WatchEvent struct {
	Seq  uint64 // from 1, without gaps
	Time time.Time
	Op   string
	Path string // absolute, as the watch was asked for
	From string // of a rename
	Dir  bool
	// Reason of an overflow.
	Reason string
}

const (
	// maxWatches is how many watches one jail has at once, maxAllWatches all:
	// the kernel counts them for the daemon's user (fs.inotify.max_user_instances).
	maxWatches    = 8
	maxAllWatches = 64
	// maxWatched is how many folders one watch follows.
	maxWatched    = 4096
	maxWatchDepth = 64

	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_EXCL_UNLINK
)

// Watch tells of changes in the file or folder at name and, with recursive, in
// the folders beneath, also those made later. When it returns the watch is in
// place; the returned sequence, which must be ranged over once, ends with ctx's
// error or ErrGone. It follows no link and neither wakes the jail nor waits for
// it. A change may be told twice when a folder is new. What the kernel cannot
// keep for a slow reader is an overflow event.
func (j *Jail) Watch(ctx context.Context, name string, recursive bool) (iter.Seq2[WatchEvent, error], error) {
	p, err := cleanPath(name)
	if err != nil {
		return nil, err
	}
	if err := j.claimWatch(); err != nil {
		return nil, err
	}
	w := &watcher{j: j, path: p, root: &watchNode{name: "/" + p}, recursive: recursive, byWD: map[int32]*watchNode{}}
	if p == "." {
		w.root.name = "/"
	}
	if err := w.open(); err != nil {
		w.close()
		return nil, err
	}
	return func(yield func(WatchEvent, error) bool) {
		defer w.close()
		w.run(ctx, yield)
	}, nil
}

// claimWatch counts a watch, of the jail and of the Manager.
func (j *Jail) claimWatch() error {
	if n := j.m.watches.Add(1); n > maxAllWatches {
		j.m.watches.Add(-1)
		return ErrBusy
	}
	if n := j.watches.Add(1); n > maxWatches {
		j.watches.Add(-1)
		j.m.watches.Add(-1)
		return ErrBusy
	}
	return nil
}

// watchNode is a watched folder.
type watchNode struct {
	name   string // of the root its whole path
	parent *watchNode
	subs   map[string]*watchNode
	wd     int32
}

func (n *watchNode) path(name string) string {
	for ; n != nil; n = n.parent {
		name = path.Join(n.name, name)
	}
	return name
}

func (n *watchNode) depth() (d int) {
	for ; n.parent != nil; n = n.parent {
		d++
	}
	return d
}

// watcher holds one inotify instance.
type watcher struct {
	j         *Jail
	recursive bool
	root      *watchNode
	path      string // of the root, as lookup takes it
	notify    *os.File
	byWD      map[int32]*watchNode
	folder    bool // the root is one
	full      bool // some folders are not watched, and it was said

	seq     uint64
	queue   []WatchEvent
	moving  *movedFrom
	stopped bool // the root is gone
}

// movedFrom is the first half of a rename.
type movedFrom struct {
	cookie uint32
	node   *watchNode // the folder
	name   string
	dir    bool
}

func (w *watcher) close() {
	if w.notify != nil {
		w.notify.Close()
	}
	w.j.watches.Add(-1)
	w.j.m.watches.Add(-1)
}

func (w *watcher) open() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return ErrBusy
	}
	if err != nil {
		return fmt.Errorf("jail: watch: %w", err)
	}
	w.notify = os.NewFile(uintptr(fd), "inotify")
	return w.j.asTenant(func(root int) error {
		// Not kept open: the kernel tells that a folder is gone when nobody has it.
		fd, err := lookup(root, w.path)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		item, err := openItem(fd, "")
		if err != nil {
			return err
		}
		if item.file == nil {
			return ErrNotRegular
		}
		defer item.file.Close()
		if err := w.add(w.root, int(item.file.Fd())); err != nil {
			return err
		}
		w.folder = item.st.Mode&unix.S_IFMT == unix.S_IFDIR
		if w.folder && w.recursive {
			w.scan(w.root, item.file, false)
		}
		return nil
	})
}

// add watches what fd is.
func (w *watcher) add(n *watchNode, fd int) error {
	raw, err := w.notify.SyscallConn()
	if err != nil {
		return ErrGone
	}
	wd := -1
	cerr := raw.Control(func(in uintptr) {
		wd, err = unix.InotifyAddWatch(int(in), fmt.Sprintf("/proc/self/fd/%d", fd), watchMask)
	})
	if cerr != nil {
		return ErrGone
	}
	if errors.Is(err, unix.ENOSPC) {
		return ErrBusy
	}
	if err != nil {
		return err
	}
	if old := w.byWD[int32(wd)]; old != nil && old != n {
		w.forget(old, false) // the same folder by its name before
	}
	n.wd = int32(wd)
	w.byWD[n.wd] = n
	if n.parent != nil {
		if n.parent.subs == nil {
			n.parent.subs = map[string]*watchNode{}
		}
		n.parent.subs[n.name] = n
	}
	return nil
}

// forget takes a node and those beneath out; remove also ends their watches.
func (w *watcher) forget(n *watchNode, remove bool) {
	if w.byWD[n.wd] == n {
		delete(w.byWD, n.wd)
		if remove {
			// It may have ended by itself.
			if raw, err := w.notify.SyscallConn(); err == nil {
				raw.Control(func(in uintptr) { unix.InotifyRmWatch(int(in), uint32(n.wd)) })
			}
		}
	}
	if n.parent != nil && n.parent.subs[n.name] == n {
		delete(n.parent.subs, n.name)
	}
	for _, sub := range n.subs {
		w.forget(sub, remove)
	}
}

// scan watches the folders in dir and beneath; with tell it also tells of what
// is there. It runs as the tenant.
func (w *watcher) scan(n *watchNode, dir *os.File, tell bool) {
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			folder := st.Mode&unix.S_IFMT == unix.S_IFDIR
			if tell {
				w.emit(WatchEvent{Op: WatchCreate, Path: n.path(name), Dir: folder})
				if len(w.queue) > maxWatched {
					w.lost("more is in a new folder than is told at once")
					return
				}
			}
			if folder {
				w.down(n, dir, name, tell)
			}
		}
		if err != nil {
			return
		}
	}
}

// down watches the folder name in dir. One that is not the tenant's to read is
// left out, as one that is not there any more.
func (w *watcher) down(n *watchNode, dir *os.File, name string, tell bool) {
	if len(w.byWD) >= maxWatched || n.depth() >= maxWatchDepth {
		w.lost(fmt.Sprintf("over %d folders, or over %d deep", maxWatched, maxWatchDepth))
		return
	}
	sub, err := openListed(int(dir.Fd()), name)
	if err != nil {
		return
	}
	defer sub.Close()
	node := n.subs[name]
	if node == nil {
		node = &watchNode{name: name, parent: n}
	}
	switch err := w.add(node, int(sub.Fd())); {
	case errors.Is(err, ErrBusy):
		w.lost("the host watches as many folders as it may (fs.inotify.max_user_watches)")
	case err == nil:
		w.scan(node, sub, tell)
	}
}

// lost says once that not all is watched.
func (w *watcher) lost(reason string) {
	if !w.full {
		w.full = true
		w.emit(WatchEvent{Op: WatchOverflow, Path: w.root.name, Dir: true, Reason: reason})
	}
}

// emit queues an event, unless it says what the last one said.
func (w *watcher) emit(e WatchEvent) {
	if n := len(w.queue); n > 0 {
		last := &w.queue[n-1]
		if last.Op == e.Op && last.Path == e.Path && e.Op == WatchModify {
			return
		}
	}
	e.Time = time.Now().UTC()
	w.queue = append(w.queue, e)
}

// halfRename is how long the second half of a rename may be behind the first;
// the kernel writes both in one go, but a read may end between them.
const halfRename = 10 * time.Millisecond

// run reads until ctx or the jail ends, the root goes, or yield has enough.
func (w *watcher) run(ctx context.Context, yield func(WatchEvent, error) bool) {
	ctx, cancel := w.j.untilEnd(ctx)
	defer cancel()
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { w.notify.SetReadDeadline(past) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		for _, e := range w.queue {
			w.seq++
			e.Seq = w.seq
			if !yield(e, nil) {
				return
			}
		}
		w.queue = w.queue[:0]
		if w.stopped {
			return
		}
		if w.moving != nil {
			w.notify.SetReadDeadline(time.Now().Add(halfRename))
		} else {
			w.notify.SetReadDeadline(time.Time{})
		}
		if ctx.Err() != nil { // it may have come before the deadline above
			yield(WatchEvent{}, context.Cause(ctx))
			return
		}
		n, err := w.notify.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
			w.settle()
			continue
		case ctx.Err() != nil:
			yield(WatchEvent{}, context.Cause(ctx))
			return
		case err != nil && !errors.Is(err, io.EOF):
			yield(WatchEvent{}, fmt.Errorf("jail: watch: %w", err))
			return
		}
		if err := w.handle(buf[:n]); err != nil {
			yield(WatchEvent{}, err)
			return
		}
	}
}
