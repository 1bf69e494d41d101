package jail

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"time"

	"sandboxd/internal/cgroup"
)

// reclaimChunk is how much of a frozen jail's memory is asked for at once: between
// two it may be thawed.
const reclaimChunk = 16 << 20

// Reclaim gives the memory of a frozen jail back to the host, as far as it is not
// its programs' own: there is no swap for that. It ends when there is no more, or
// the jail is thawed.
func (j *Jail) Reclaim() {
	for j.frozen() {
		now := j.cgroup.number("memory.current")
		if now <= 0 || j.cgroup.write("memory.reclaim", strconv.FormatInt(min(now, reclaimChunk), 10)) != nil {
			return
		}
	}
}

func (j *Jail) frozen() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state == StateFrozen
}

// A jail without swap whose programs need more than its limit ends by the
// kernel's OOM killer. But the kernel first tries again and again to find a page
// of a file that it could drop, which are the programs' own code; where each must
// be read anew that was seen to take minutes, in which the jail does nothing
// else. So it is ended here when it is out of memory by any measure:
const (
	// outOfMemory is the part of the limit, in hundredths, that can be given to
	// nobody else without swap,
	outOfMemory = 95
	// and stallShare the part of stallTime in which all of its processes waited
	// for memory.
	stallTime  = time.Second
	stallShare = 50
)

// watchMemory ends the jail with CauseOOM when it stalls at its memory limit.
func (j *Jail) watchMemory() {
	ctx, stop := j.untilEnd(context.Background())
	defer stop()
	var seen int64
	for {
		err := cgroup.Watch(ctx, string(j.cgroup), "memory.events", func(events []byte) bool {
			was := seen
			seen = valueOf(events, "max")
			return seen != was
		})
		if err != nil || ctx.Err() != nil || j.living() != nil {
			return
		}
		for j.outOfMemory() {
			before := j.stalled()
			select {
			case <-time.After(stallTime):
			case <-ctx.Done():
				return
			}
			if before >= 0 && j.stalled()-before >= stallTime*stallShare/100 && j.outOfMemory() {
				j.m.log.Info("a jail stalls at its memory limit; it ends", "tenant", j.tenant)
				go j.Destroy(context.WithoutCancel(ctx), CauseOOM)
				return
			}
		}
		select {
		case <-time.After(stallTime / 4): // the limit may be met a thousand times a second
		case <-ctx.Done():
			return
		}
	}
}

// outOfMemory reports whether what cannot be taken from the jail is nearly all
// that it may have.
func (j *Jail) outOfMemory() bool {
	stat, err := j.cgroup.read("memory.stat")
	if err != nil {
		return false
	}
	var fixed int64
	for _, key := range []string{"anon", "shmem", "kernel_stack", "pagetables", "slab_unreclaimable"} {
		fixed += max(valueOf(stat, key), 0)
	}
	return fixed >= j.Limits().Memory/100*outOfMemory
}

// stalled is for how long all of the jail's processes have waited for memory; -1
// if the kernel does not count that.
func (j *Jail) stalled() time.Duration {
	b, err := j.cgroup.read("memory.pressure")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "full "); ok {
			_, total, _ := strings.Cut(text, "total=")
			if v, err := strconv.ParseInt(strings.TrimSpace(total), 10, 64); err == nil {
				return time.Duration(v) * time.Microsecond
			}
		}
	}
	return -1
}

// valueOf reads one value of a "key value" file, -1 if there is none.
func valueOf(content []byte, key string) int64 {
	for line := range bytes.Lines(content) {
		if name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" ")); ok && string(name) == key {
			if v, err := strconv.ParseInt(string(value), 10, 64); err == nil {
				return v
			}
		}
	}
	return -1
}
