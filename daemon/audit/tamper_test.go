package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// report adds quantiles to a benchmark.
func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-µs")
}

// filled makes a log of 30 records in several files and returns their names.
func filled(t *testing.T) (dir string, files []string) {
	t.Helper()
	dir = t.TempDir()
	l := mustOpen(t, dir, Options{MaxFile: 3000})
	sum, err := l.PutCode(context.Background(), []byte("the code"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		mustAppend(t, l, Record{Kind: KindRun, Tenant: "alice", Code: sum, Fields: map[string]int{"n": i}})
	}
	mustClose(t, l)
	list, err := listFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		files = append(files, f.name)
	}
	if len(files) < 4 {
		t.Fatalf("only %d files", len(files))
	}
	return dir, files
}

func linesOf(t *testing.T, path string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.SplitAfter(b, []byte("\n"))[:bytes.Count(b, []byte("\n"))]
}

func write(t *testing.T, path string, lines ...[]byte) {
	t.Helper()
	if err := os.WriteFile(path, bytes.Join(lines, nil), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reseal gives a changed line a hash that fits it again.
func reseal(line []byte) []byte {
	var e map[string]json.RawMessage
	if err := json.Unmarshal(line, &e); err != nil {
		panic(err)
	}
	body := line[bytes.Index(line, []byte(`"time"`)) : len(line)-1-tailLen]
	var seq uint64
	var prev string
	if json.Unmarshal(e["seq"], &seq) != nil || json.Unmarshal(e["prev"], &prev) != nil {
		panic("no seq or prev")
	}
	out, _ := seal(nil, body, seq, prev)
	return append(out, '\n')
}

func TestTampering(t *testing.T) {
	for _, tc := range []struct {
		name string
		// do changes the file at path, which has the given lines; it is the
		// second of four or more, or the last one where last is set.
		last bool
		do   func(t *testing.T, path string, lines [][]byte)
		kind string
		file string // "" is the changed file
		line int
	}{
		{name: "a byte changed", kind: Changed, line: 3, do: func(t *testing.T, path string, l [][]byte) {
			l[2] = bytes.Replace(l[2], []byte("alice"), []byte("mally"), 1)
			write(t, path, l...)
		}},
		{name: "a byte changed and sealed again", kind: Changed, line: 4, do: func(t *testing.T, path string, l [][]byte) {
			l[2] = reseal(bytes.Replace(l[2], []byte("alice"), []byte("mally"), 1))
			write(t, path, l...)
		}},
		{name: "a hash changed", kind: Changed, line: 2, do: func(t *testing.T, path string, l [][]byte) {
			l[1] = append(l[1][:len(l[1])-6], []byte("0000\"}\n")[1:]...)
			write(t, path, l...)
		}},
		{name: "a line emptied", kind: Changed, line: 2, do: func(t *testing.T, path string, l [][]byte) {
			l[1] = []byte("\n")
			write(t, path, l...)
		}},
		{name: "a line added", kind: Changed, line: 2, do: func(t *testing.T, path string, l [][]byte) {
			write(t, path, slices.Insert(l, 1, []byte("{}\n"))...)
		}},
		{name: "a line removed", kind: Missing, line: 3, do: func(t *testing.T, path string, l [][]byte) {
			write(t, path, slices.Delete(l, 2, 3)...)
		}},
		{name: "the first line removed", kind: Missing, line: 1, do: func(t *testing.T, path string, l [][]byte) {
			write(t, path, l[1:]...)
		}},
		{name: "two lines swapped", kind: Reordered, line: 2, do: func(t *testing.T, path string, l [][]byte) {
			l[1], l[2] = l[2], l[1]
			write(t, path, l...)
		}},
		{name: "a line repeated", kind: Reordered, line: 3, do: func(t *testing.T, path string, l [][]byte) {
			write(t, path, slices.Insert(l, 2, l[1])...)
		}},
		{name: "the end of an inner file cut off", kind: Missing, file: "next", do: func(t *testing.T, path string, l [][]byte) {
			write(t, path, l[:len(l)-1]...)
		}},
		{name: "an inner file's last line cut", kind: Truncated, line: -1, do: func(t *testing.T, path string, l [][]byte) {
			l[len(l)-1] = l[len(l)-1][:20]
			write(t, path, l...)
		}},
		{name: "an inner file's last newline cut", kind: Truncated, line: -1, do: func(t *testing.T, path string, l [][]byte) {
			l[len(l)-1] = bytes.TrimSpace(l[len(l)-1])
			write(t, path, l...)
		}},
		{name: "an inner file removed", kind: Missing, file: "next", do: func(t *testing.T, path string, l [][]byte) {
			remove(t, path)
		}},
		{name: "an inner file emptied", kind: Truncated, do: func(t *testing.T, path string, l [][]byte) {
			write(t, path)
		}},
		{name: "the last line removed", last: true, kind: Truncated, do: func(t *testing.T, path string, l [][]byte) {
			write(t, path, l[:len(l)-1]...)
		}},
		{name: "the last line cut", last: true, kind: Truncated, line: -1, do: func(t *testing.T, path string, l [][]byte) {
			l[len(l)-1] = l[len(l)-1][:30]
			write(t, path, l...)
		}},
		{name: "the last line changed", last: true, kind: Changed, line: -1, do: func(t *testing.T, path string, l [][]byte) {
			l[len(l)-1] = bytes.Replace(l[len(l)-1], []byte("alice"), []byte("mally"), 1)
			write(t, path, l...)
		}},
		{name: "the last line changed and sealed again", last: true, kind: Changed, file: headName, do: func(t *testing.T, path string, l [][]byte) {
			l[len(l)-1] = reseal(bytes.Replace(l[len(l)-1], []byte("alice"), []byte("mally"), 1))
			write(t, path, l...)
		}},
		{name: "the last file removed", last: true, kind: Truncated, file: "before", do: func(t *testing.T, path string, l [][]byte) {
			remove(t, path)
		}},
		{name: "the last file emptied", last: true, kind: Truncated, do: func(t *testing.T, path string, l [][]byte) {
			write(t, path)
		}},
		{name: "the head removed", kind: Missing, file: headName, do: func(t *testing.T, path string, l [][]byte) {
			remove(t, filepath.Join(filepath.Dir(path), headName))
		}},
		{name: "the head broken", kind: Changed, file: headName, do: func(t *testing.T, path string, l [][]byte) {
			write(t, filepath.Join(filepath.Dir(path), headName), []byte(`{"seq":30,"hash":""}`))
		}},
		{name: "the head of another log", kind: Changed, file: headName, do: func(t *testing.T, path string, l [][]byte) {
			write(t, filepath.Join(filepath.Dir(path), headName), fmt.Appendf(nil, `{"seq":30,"hash":"%064d"}`, 1))
		}},
		{name: "code changed", kind: Changed, file: codeDir, do: func(t *testing.T, path string, l [][]byte) {
			write(t, codeFile(t, path), []byte("evil code"))
		}},
		{name: "code removed", kind: Missing, file: codeDir, do: func(t *testing.T, path string, l [][]byte) {
			remove(t, codeFile(t, path))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, files := filled(t)
			at := 1
			if tc.last {
				at = len(files) - 1
			}
			path := filepath.Join(dir, files[at])
			lines := linesOf(t, path)
			if tc.line == -1 {
				tc.line = len(lines)
			}
			want := tc.file
			switch want {
			case "":
				want = files[at]
			case "next":
				want, tc.line = files[at+1], 0
			case "before":
				want = files[at-1]
			}
			tc.do(t, path, lines)
			_, err := Verify(dir)
			var ce *CorruptError
			if !errors.As(err, &ce) {
				t.Fatalf("got %v, want a CorruptError", err)
			}
			if ce.Kind != tc.kind || !strings.HasPrefix(ce.File, want) || ce.Line != tc.line || ce.Detail == "" {
				t.Errorf("got %+v, want %s in %s line %d", *ce, tc.kind, want, tc.line)
			}
			// What concerns the end of the log stops the daemon from going on.
			if tc.last || tc.file == headName {
				if l, err := Open(dir, quiet()); !errors.As(err, &ce) {
					t.Errorf("Open gives %v, want a CorruptError", err)
					if err == nil {
						l.Close()
					}
				}
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func codeFile(t *testing.T, path string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(filepath.Dir(path), codeDir, "*"))
	if err != nil || len(all) != 1 {
		t.Fatalf("code files: %v, %v", all, err)
	}
	if err := os.Chmod(all[0], 0o600); err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// crashed makes a log as a kill leaves it: the head is behind the records.
func crashed(t *testing.T, tail string) string {
	t.Helper()
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{})
	mustAppend(t, l, Record{Kind: KindRun})
	mustClose(t, l)
	appendTo(t, filepath.Join(dir, fileName(1)), tail)
	return dir
}

func appendTo(t *testing.T, path, s string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

func TestTornLine(t *testing.T) {
	for _, tail := range []string{
		"{", `{"seq":2,"prev":"`, strings.Repeat("\x00", 4096), "garbage\nmore garbage", "\n", "a line\n",
	} {
		dir := crashed(t, tail)
		if s, err := Verify(dir); err != nil || s.TornTail != int64(len(tail)) {
			t.Errorf("%.20q before: %+v, %v", tail, s, err)
		}
		for range 2 { // the second restart finds nothing more
			l := mustOpen(t, dir, Options{})
			mustAppend(t, l, Record{Kind: KindStart})
			mustClose(t, l)
		}
		s, err := Verify(dir)
		if err != nil || s.Records != 4 || s.Recoveries != 1 || s.TornTail != 0 {
			t.Errorf("%.20q after: %+v, %v", tail, s, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, fileName(1)))
		if err != nil || !bytes.Contains(b, []byte(tail)) {
			t.Errorf("%.20q is hidden", tail)
		}
		// The torn bytes are under the chain's protection now.
		write(t, filepath.Join(dir, fileName(1)), bytes.Replace(b, []byte(tail), []byte(strings.Repeat("!", len(tail))), 1))
		var ce *CorruptError
		if _, err := Verify(dir); !errors.As(err, &ce) {
			t.Errorf("%.20q changed later: %v", tail, err)
		}
	}
}

// A record that lacks only its newline is a record.
func TestTornNewline(t *testing.T) {
	dir := crashed(t, "")
	path := filepath.Join(dir, fileName(1))
	line, _ := seal(nil, encodeBody(Record{Kind: KindRun, Tenant: "late"}), 2, lastHash(t, path))
	appendTo(t, path, string(line))
	if s, err := Verify(dir); err != nil || s.Records != 2 {
		t.Errorf("before: %+v, %v", s, err)
	}
	l := mustOpen(t, dir, Options{})
	mustAppend(t, l, Record{Kind: KindStart})
	mustClose(t, l)
	if s, err := Verify(dir); err != nil || s.Records != 4 || s.Recoveries != 1 {
		t.Errorf("after: %+v, %v", s, err)
	}
}

func lastHash(t *testing.T, path string) string {
	t.Helper()
	lines := linesOf(t, path)
	e, err := decode(bytes.TrimSpace(lines[len(lines)-1]))
	if err != nil {
		t.Fatal(err)
	}
	return e.Hash
}

// smallDisk mounts a tmpfs of the given size for the test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("audit-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all the space that is left and returns how to give it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	return func() { remove(t, path) }
}

func TestFullDisk(t *testing.T) {
	disk := smallDisk(t, "512k")
	dir := filepath.Join(disk, "audit")
	// No group sync of its own: the test decides when the log tries again.
	l := mustOpen(t, dir, Options{Sync: time.Hour, Retry: time.Hour})
	mustAppend(t, l, Record{Kind: KindStart})
	free := fill(t, disk)

	var refused uint64
	var err error
	for range 1000 { // what is left of the last page still takes some
		if _, err = l.Append(context.Background(), Record{Kind: KindRun, Fields: strings.Repeat("x", 300)}); err != nil {
			refused++
			break
		}
	}
	var ue *UnavailableError
	if !errors.As(err, &ue) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("on a full disk: %v, want an UnavailableError for ENOSPC", err)
	}
	for range 5 {
		if _, err := l.Append(context.Background(), Record{Kind: KindRun}); !errors.As(err, &ue) {
			t.Fatalf("still full: %v", err)
		}
		refused++
	}
	if _, err := l.PutCode(context.Background(), []byte("new code")); !errors.As(err, &ue) {
		t.Errorf("code on a full disk: %v", err)
	}
	refused++
	if err := l.Healthy(); !errors.As(err, &ue) || ue.Since.IsZero() {
		t.Errorf("Healthy: %v", err)
	}
	if s, err := Verify(dir); err != nil {
		t.Errorf("while full: %+v, %v", s, err)
	}

	free()
	if _, err := l.Append(context.Background(), Record{Kind: KindRun}); err != nil {
		t.Fatalf("with space again: %v", err)
	}
	if err := l.Healthy(); err != nil {
		t.Errorf("with space again: %v", err)
	}
	mustClose(t, l)
	s, err := Verify(dir)
	if err != nil || s.Recoveries != 1 {
		t.Fatalf("at the end: %+v, %v", s, err)
	}
	for _, e := range readAll(t, dir, 0) {
		var rec recovery
		if e.Kind != KindRecovery {
			continue
		}
		if err := json.Unmarshal(e.Fields, &rec); err != nil || rec.Cause != "write_failed" || rec.Refused != refused || rec.Error == "" {
			t.Errorf("the recovery record says %s, want %d refused", e.Fields, refused)
		}
	}
}

// A log that nobody writes to becomes healthy by itself.
func TestFullDiskHealsItself(t *testing.T) {
	disk := smallDisk(t, "256k")
	l := mustOpen(t, filepath.Join(disk, "audit"), Options{Sync: time.Millisecond, Retry: time.Millisecond})
	free := fill(t, disk)
	for l.Healthy() == nil {
		_, _ = l.Append(context.Background(), Record{Kind: KindRun, Fields: strings.Repeat("x", 300)})
	}
	free()
	deadline := time.Now().Add(10 * time.Second)
	for l.Healthy() != nil {
		if time.Now().After(deadline) {
			t.Fatalf("still %v", l.Healthy())
		}
		time.Sleep(time.Millisecond)
	}
	mustAppend(t, l, Record{Kind: KindRun})
	mustClose(t, l)
	if s, err := Verify(l.Dir()); err != nil || s.Recoveries == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// A failed write of a recovery record that lacks only its newline must not make
// the next one look out of order.
func TestRecoveryTornToo(t *testing.T) {
	for _, cut := range []int{1, 2, 40} {
		dir := t.TempDir()
		l := mustOpen(t, dir, Options{Sync: time.Hour, Retry: time.Hour})
		mustAppend(t, l, Record{Kind: KindStart})
		path := filepath.Join(dir, fileName(1))
		const torn = `{"seq":2,"pre`
		sum, err := hashRegion(strings.NewReader(torn), 0, int64(len(torn)))
		if err != nil {
			t.Fatal(err)
		}
		rec, _ := seal(nil, encodeBody(Record{Kind: KindRecovery, Fields: recovery{
			Cause: "write_failed", TornBytes: int64(len(torn)), TornHash: sum,
		}}), 2, l.Last().Hash)
		appendTo(t, path, torn+"\n"+string(rec[:len(rec)+1-cut]))
		l.mu.Lock()
		_ = l.fail(errors.New("made up"))
		l.mu.Unlock()
		mustAppend(t, l, Record{Kind: KindRun})
		mustClose(t, l)
		if s, err := Verify(dir); err != nil || s.TornTail != 0 {
			t.Errorf("cut %d: %+v, %v", cut, s, err)
		}
	}
}

func TestAppendOnlyFlag(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{AppendOnly: true})
	path := filepath.Join(dir, fileName(1))
	t.Cleanup(func() {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0); err != nil && !errors.Is(err, unix.ENOTTY) {
			t.Error(err)
		}
	})
	mustAppend(t, l, Record{Kind: KindStart})
	mustClose(t, l)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	f.Close()
	if err == nil && flags&0x20 != 0 { // this file system has the flag
		if err := os.Truncate(path, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("an append-only file was cut: %v", err)
		}
	}
	l = mustOpen(t, dir, Options{AppendOnly: true})
	mustAppend(t, l, Record{Kind: KindStart})
	mustClose(t, l)
	if s, err := Verify(dir); err != nil || s.Records != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

func FuzzVerify(f *testing.F) {
	good, _ := seal(nil, encodeBody(Record{Kind: KindRun}), 1, genesis)
	f.Add(append(good, '\n'), uint64(1))
	f.Add([]byte("{}\n\n"), uint64(0))
	f.Add([]byte(`,"hash":"`+strings.Repeat("0", 64)+`"}`), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, seq uint64) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, codeDir), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, fileName(1)), b)
		write(t, filepath.Join(dir, headName), fmt.Appendf(nil, `{"seq":%d,"hash":"%s"}`, seq, genesis))
		before, err := Verify(dir)
		if err == nil && before.Records < seq {
			t.Errorf("%d records pass for %d", before.Records, seq)
		}
		l, oerr := Open(dir, quiet())
		if oerr != nil {
			return
		}
		if _, err := l.Append(context.Background(), Record{Kind: KindRun}); err != nil {
			t.Fatal(err)
		}
		mustClose(t, l)
		if after, verr := Verify(dir); err == nil && (verr != nil || after.Records <= before.Records) {
			t.Errorf("a good log became %+v, %v", after, verr)
		}
	})
}

// A batch that fits in part is in the log as far as its lines are whole, and the
// rest is refused.
func TestBatchOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, "512k")
	dir := filepath.Join(disk, "audit")
	l := mustOpen(t, dir, Options{Sync: time.Hour, Retry: time.Hour})
	mustAppend(t, l, Record{Kind: KindStart})
	free := fill(t, disk)
	list := make([]Record, 100)
	for i := range list {
		list[i] = Record{Kind: KindEgress, Fields: strings.Repeat("x", 300)}
	}
	n, err := l.AppendAll(context.Background(), list)
	var ue *UnavailableError
	if n >= len(list) || !errors.As(err, &ue) {
		t.Fatalf("%d of %d, %v", n, len(list), err)
	}
	if s, err := Verify(dir); err != nil || s.Records != uint64(n)+1 {
		t.Errorf("while full: %+v, %v; want %d records", s, err, n+1)
	}
	if again, err := l.AppendAll(context.Background(), list[:1]); again != 0 || !errors.As(err, &ue) {
		t.Errorf("still full: %d, %v", again, err)
	}
	free()
	if again, err := l.AppendAll(context.Background(), list[n:]); again != len(list)-n || err != nil {
		t.Errorf("with space again: %d, %v", again, err)
	}
	mustClose(t, l)
	if s, err := Verify(dir); err != nil || s.Recoveries != 1 || s.Records != uint64(len(list))+2 {
		t.Errorf("at the end: %+v, %v", s, err)
	}
}
