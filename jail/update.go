package jail

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sandboxd/jail/sys"
)

// Update changes the limits of a jail that lives, all of them or none: after an
// error the old ones hold. A field of 0 stays as it is, also IOBytes and IOOps.
//
// Memory, processors, I/O, the disk and the number of processes are held at
// once. Descriptors of a process, and where there is no pids controller the
// number of processes, hold for commands that start from then on. The memory file
// systems keep their size. Less than the jail has in use is a *SpecError, and so
// is what only a new jail can have: less disk or other inodes of an image.
func (j *Jail) Update(ctx context.Context, change Limits) error {
	j.updateMu.Lock()
	defer j.updateMu.Unlock()
	old := j.Limits()
	limits, err := change.over(old).withDefaults()
	if err == nil {
		err = limits.checkOwn()
	}
	if err != nil {
		return err
	}
	steps := []struct {
		changed bool
		apply   func(Limits) error
	}{
		{limits.Memory != old.Memory, j.updateMemory},
		{limits.Pids != old.Pids, func(l Limits) error { return j.holdLive("pids", l) }},
		{limits.CPUs != old.CPUs, func(l Limits) error { return j.holdLive("cpu", l) }},
		{limits.IOBytes != old.IOBytes || limits.IOOps != old.IOOps, j.limitIO},
		// Last: an image that has grown stays so.
		{limits.Disk != old.Disk || limits.Inodes != old.Inodes, j.updateDisk},
	}
	for i, step := range steps {
		if !step.changed {
			continue
		}
		if err = errors.Join(ctx.Err(), j.living()); err == nil {
			err = step.apply(limits)
		}
		if err == nil {
			continue
		}
		for ; i >= 0; i-- {
			if steps[i].changed {
				if back := steps[i].apply(old); back != nil && j.living() == nil {
					j.m.log.Error("a limit could not be taken back", "tenant", j.tenant, "error", back)
				}
			}
		}
		return err
	}
	return j.setLimits(limits)
}

// setLimits is the last step: commands that start from then on have them.
func (j *Jail) setLimits(l Limits) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state != StateRunning && j.state != StateFrozen {
		return ErrGone
	}
	j.limits = l
	return nil
}

// over returns l with what old has where l has nothing.
func (l Limits) over(old Limits) Limits {
	l.Memory, l.Disk, l.Inodes = ifZero(l.Memory, old.Memory), ifZero(l.Disk, old.Disk), ifZero(l.Inodes, old.Inodes)
	l.IOBytes, l.IOOps = ifZero(l.IOBytes, old.IOBytes), ifZero(l.IOOps, old.IOOps)
	l.Pids, l.OpenFiles = int(ifZero(int64(l.Pids), int64(old.Pids))), int(ifZero(int64(l.OpenFiles), int64(old.OpenFiles)))
	if l.CPUs == 0 {
		l.CPUs = old.CPUs
	}
	return l
}

// living is nil while the jail can be changed.
func (j *Jail) living() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state != StateRunning && j.state != StateFrozen {
		return ErrGone
	}
	return nil
}

// holdLive writes the limit of a controller, if this host has it.
func (j *Jail) holdLive(controller string, l Limits) error {
	for _, name := range j.m.host.controllers {
		if name == controller {
			return j.cgroup.hold(name, l)
		}
	}
	return nil
}

// updateMemory gives back what is cached before it lowers the limit: the kernel
// would end the jail for what is above it.
func (j *Jail) updateMemory(l Limits) error {
	if now := j.cgroup.number("memory.current"); now > l.Memory {
		// An error means that there is not so much, which is seen below.
		_ = j.cgroup.write("memory.reclaim", fmt.Sprint(now-l.Memory))
		if now = j.cgroup.number("memory.current"); now > l.Memory {
			return &SpecError{Field: "limits.memory", Message: fmt.Sprintf("is %d, and the jail uses %d: end some of its processes first", l.Memory, now)}
		}
	}
	return j.holdLive("memory", l)
}

func (j *Jail) updateDisk(l Limits) error {
	if bytes, inodes := j.diskUsage(); bytes > l.Disk {
		return &SpecError{Field: "limits.disk", Message: fmt.Sprintf("is %d, and the files take %d: delete some first", l.Disk, bytes)}
	} else if inodes > l.Inodes {
		return &SpecError{Field: "limits.inodes", Message: fmt.Sprintf("is %d, and there are %d files: delete some first", l.Inodes, inodes)}
	}
	j.rootMu.RLock()
	defer j.rootMu.RUnlock()
	if j.rootGone || j.files == nil {
		return ErrGone
	}
	fd, old := int(j.files.Fd()), j.Limits()
	switch {
	case j.m.host.disk == DiskProject:
		if err := sys.SetProjectQuota(fd, j.project, uint64(l.Disk), uint64(l.Inodes)); err != nil {
			return fmt.Errorf("jail: project quota: %w", err)
		}
	case j.m.host.disk == DiskImage && j.spec.Ephemeral:
		if err := sys.Reconfigure(fd, "size", fmt.Sprint(l.Disk), "nr_inodes", fmt.Sprint(l.Inodes)); err != nil {
			return fmt.Errorf("jail: disk: %w", err)
		}
	case j.m.host.disk == DiskImage && l.Inodes != old.Inodes:
		return &SpecError{Field: "limits.inodes", Message: "an image's are made with it, and grow with limits.disk: they need a new jail with its files deleted"}
	case j.m.host.disk == DiskImage && l.Disk < old.Disk:
		return &SpecError{Field: "limits.disk", Message: "an image becomes smaller only while it is not in use: this needs a new jail"}
	case j.m.host.disk == DiskImage && l.Disk > old.Disk:
		if err := j.growImage(l.Disk); errors.Is(err, unix.EPERM) {
			return &UnsupportedError{Feature: "growing an image in use", Found: err.Error(), Needed: "CAP_SYS_RESOURCE", Remedy: "end the jail first: the next one has the new limit"}
		} else if err != nil {
			return fmt.Errorf("jail: disk: %w", err)
		}
	}
	return nil
}
