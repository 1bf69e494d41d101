package jail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Kinds of a Change.
const (
	ChangeAdded    = "added"
	ChangeModified = "modified"
	ChangeDeleted  = "deleted"
)

// A Change is a path that is not as it was. Path is hostile bytes; it is the
// jail's, absolute.
type Change struct {
	Path string
	Kind string
	Type string // as FileInfo.Type
	Size int64
}

// maxChanges bounds a Diff, maxDiffNames the entries of one folder.
const (
	maxChanges   = 100_000
	maxDiffNames = 200_000
)

// A DiffResult lists changes, sorted by path.
type DiffResult struct {
	Changes []Change
	// Truncated says that there are more than are listed.
	Truncated bool
}

// Diff compares the workspace and the home with a snapshot. With since "" it
// lists what has changed since the jail was created: from its own times, so
// that it costs nothing before; what was deleted then shows as a change of its
// folder. The jail goes on meanwhile.
func (j *Jail) Diff(ctx context.Context, since string) (*DiffResult, error) {
	d := &differ{stamp: j.born, most: maxChanges}
	if since == "" {
		return d.run(ctx, j, "")
	}
	s, err := j.m.snapshot(j.tenant, since)
	if err != nil {
		return nil, err
	}
	d.stamp = s.Stamp
	return d.run(ctx, j, filepath.Join(j.m.snapshotsDir(j.tenant), since, "files"))
}

// A Moment is a time of the file system that a tenant's files are on.
type Moment struct{ stamp unix.Timespec }

// Now is the present Moment.
func (j *Jail) Now() (Moment, error) {
	j.rootMu.RLock()
	defer j.rootMu.RUnlock()
	if j.rootGone {
		return Moment{}, ErrGone
	}
	stamp, err := stampOf(j.filesDir())
	if err != nil {
		return Moment{}, fmt.Errorf("jail: time: %w", err)
	}
	return Moment{stamp}, nil
}

// ChangedSince lists at most so many changes of the workspace and the home since
// a moment, as Diff lists those since the jail was created. What ctx leaves no
// time for is left out: Truncated.
func (j *Jail) ChangedSince(ctx context.Context, since Moment, most int) (*DiffResult, error) {
	d := &differ{stamp: since.stamp, most: most}
	out, err := d.run(ctx, j, "")
	if err != nil && ctx.Err() != nil {
		d.out.Truncated = true
		return &d.out, nil
	}
	return out, err
}

// run compares with the snapshot in base, or by the stamp alone.
func (d *differ) run(ctx context.Context, j *Jail, base string) (*DiffResult, error) {
	ctx, cancel := j.untilEnd(ctx)
	defer cancel()
	d.ctx = ctx
	j.rootMu.RLock()
	defer j.rootMu.RUnlock()
	if j.rootGone || j.root == nil {
		return nil, ErrGone
	}
	for _, part := range []struct{ dir, path string }{{"home", homeDir}, {"workspace", workspacePath}} {
		old := (*os.File)(nil)
		if base != "" {
			var err error
			if old, err = os.Open(filepath.Join(base, part.dir)); err != nil {
				return nil, fmt.Errorf("jail: diff: %w", err)
			}
		}
		now, err := os.Open(filepath.Join(j.filesDir(), part.dir))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("jail: diff: %w", err), closeFile(old))
		}
		err = d.folders(old, now, part.path, 0)
		if errors.Is(err, errEnough) {
			d.out.Truncated = true
			break
		}
		if err != nil {
			return nil, err
		}
	}
	return &d.out, nil
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

var errEnough = errors.New("jail: enough")

type differ struct {
	ctx   context.Context
	stamp unix.Timespec
	most  int // changes
	out   DiffResult
}

func (d *differ) add(kind, path string, st *unix.Stat_t) error {
	if len(d.out.Changes) >= d.most {
		return errEnough
	}
	info := fileInfo("", st, "")
	d.out.Changes = append(d.out.Changes, Change{Path: path, Kind: kind, Type: info.Type, Size: info.Size})
	return nil
}

// folders compares two folders, which it closes. Without old there is no
// snapshot: what is newer than the stamp has changed.
func (d *differ) folders(old, now *os.File, path string, depth int) error {
	defer now.Close()
	if old != nil {
		defer old.Close()
	}
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	if depth > maxTreeDepth {
		return fmt.Errorf("%w: folders over %d deep", ErrTooLarge, maxTreeDepth)
	}
	names, err := sortedNames(now)
	if err != nil {
		return err
	}
	var before []string
	if old != nil {
		if before, err = sortedNames(old); err != nil {
			return err
		}
	}
	for len(names) > 0 || len(before) > 0 {
		switch {
		case len(names) == 0 || len(before) > 0 && before[0] < names[0]:
			if err := d.deleted(old, before[0], path); err != nil {
				return err
			}
			before = before[1:]
		case len(before) == 0 || names[0] < before[0]:
			if err := d.one(nil, now, names[0], path, old == nil, depth); err != nil {
				return err
			}
			names = names[1:]
		default:
			if err := d.one(old, now, names[0], path, false, depth); err != nil {
				return err
			}
			names, before = names[1:], before[1:]
		}
	}
	return nil
}

func sortedNames(dir *os.File) ([]string, error) {
	var names []string
	for {
		more, err := dir.Readdirnames(4096)
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, fmt.Errorf("jail: diff: %w", err)
		}
		if names = append(names, more...); len(names) > maxDiffNames {
			return nil, fmt.Errorf("%w: a folder with over %d entries", ErrTooLarge, maxDiffNames)
		}
	}
}

func (d *differ) deleted(old *os.File, name, path string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(old.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil // the snapshot is being deleted
	}
	return d.add(ChangeDeleted, path+"/"+name, &st)
}

// one compares an entry with its old self; without old it is new, or byTime is
// what tells.
func (d *differ) one(old, now *os.File, name, path string, byTime bool, depth int) error {
	item, err := openEntry(int(now.Fd()), name)
	if err != nil {
		return nil // gone meanwhile, or becoming something else
	}
	full := path + "/" + name
	folder := item.st.Mode&unix.S_IFMT == unix.S_IFDIR
	was := packItem{}
	if old != nil {
		if was, err = openEntry(int(old.Fd()), name); err != nil {
			was = packItem{}
		}
	}
	kind := ""
	switch {
	case byTime:
		kind = d.byTime(int(now.Fd()), name, &item.st)
	case was.st.Mode == 0:
		kind = ChangeAdded
	default:
		var same bool
		if same, err = d.same(&was, &item); !same {
			kind = ChangeModified
		}
	}
	if err == nil && kind != "" {
		err = d.add(kind, full, &item.st)
	}
	if !folder || err != nil {
		return errors.Join(err, closeFile(item.file), closeFile(was.file))
	}
	if was.file != nil && was.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		was.file.Close()
		was.file = nil
	}
	if was.file == nil && !byTime {
		// All beneath it is new; an empty folder to compare with says so.
		return d.allNew(item.file, full, depth+1)
	}
	return d.folders(was.file, item.file, full, depth+1)
}

// allNew lists a new folder's content, and closes it.
func (d *differ) allNew(dir *os.File, path string, depth int) error {
	defer dir.Close()
	if depth > maxTreeDepth {
		return fmt.Errorf("%w: folders over %d deep", ErrTooLarge, maxTreeDepth)
	}
	names, err := sortedNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := d.one(nil, dir, name, path, false, depth); err != nil {
			return err
		}
	}
	return nil
}

// byTime says whether an entry is newer than the stamp. Its times are the
// kernel's: a tenant can set the time of change, but not these.
func (d *differ) byTime(dir int, name string, st *unix.Stat_t) string {
	if before(st.Ctim, d.stamp) {
		return ""
	}
	var x unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &x)
	if err == nil && x.Mask&unix.STATX_BTIME != 0 && before(unix.Timespec{Sec: x.Btime.Sec, Nsec: int64(x.Btime.Nsec)}, d.stamp) {
		return ChangeModified
	}
	return ChangeAdded
}

func before(a, b unix.Timespec) bool { return a.Sec < b.Sec || a.Sec == b.Sec && a.Nsec < b.Nsec }

// same compares an entry with its copy. What was not touched since the copy was
// taken is as it was; else content is compared, for a tenant can set times.
func (d *differ) same(was, is *packItem) (bool, error) {
	const kept = unix.S_IFMT | permBits
	if was.st.Mode&kept != is.st.Mode&kept || was.target != is.target {
		return false, nil
	}
	if is.st.Mode&unix.S_IFMT != unix.S_IFREG {
		return true, nil
	}
	if was.st.Size != is.st.Size || was.st.Mtim != is.st.Mtim {
		return false, nil
	}
	if before(is.st.Ctim, d.stamp) {
		return true, nil
	}
	return d.sameContent(was.file, is.file)
}

func (d *differ) sameContent(a, b *os.File) (bool, error) {
	pa, pb := pieces.Get().(*[]byte), pieces.Get().(*[]byte)
	defer pieces.Put(pa)
	defer pieces.Put(pb)
	for {
		if d.ctx.Err() != nil {
			return false, context.Cause(d.ctx)
		}
		n, errA := fill(a, *pa)
		m, errB := fill(b, *pb)
		if !bytes.Equal((*pa)[:n], (*pb)[:m]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			return errors.Is(errA, io.EOF) && errors.Is(errB, io.EOF), nil
		}
	}
}
