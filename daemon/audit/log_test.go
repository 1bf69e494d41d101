package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const writerEnv = "AUDIT_TEST_WRITER"

// TestMain also is the process that TestKilled kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		if err := writeForEver(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func mustOpen(t testing.TB, dir string, o Options) *Log {
	t.Helper()
	l, err := OpenWith(dir, quiet(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mustAppend(t testing.TB, l *Log, r Record) Receipt {
	t.Helper()
	rc, err := l.Append(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return rc
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func readAll(t testing.TB, dir string, after uint64) []Entry {
	t.Helper()
	var all []Entry
	for e, err := range Read(context.Background(), dir, after) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func TestAppendAndRead(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{MaxFile: 2000})
	sum, err := l.PutCode(context.Background(), []byte("export default 1"))
	if err != nil {
		t.Fatal(err)
	}
	var receipts []Receipt
	for i := range 20 {
		receipts = append(receipts, mustAppend(t, l, Record{
			Kind: KindRun, Tenant: "alice", RunID: fmt.Sprint("r", i), Code: sum,
			Caller: map[string]int{"uid": 7}, Fields: map[string]any{"n": i},
		}))
	}
	if l.Last() != receipts[19] {
		t.Errorf("Last is %v, want %v", l.Last(), receipts[19])
	}
	// A log in use can be verified, too.
	if _, err := Verify(dir); err != nil {
		t.Error(err)
	}
	mustClose(t, l)
	if err := l.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if _, err := l.Append(context.Background(), Record{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Append after Close: %v", err)
	}
	if _, err := l.PutCode(context.Background(), []byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("PutCode after Close: %v", err)
	}

	s, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s.Records != 20 || s.Files < 3 || s.Codes != 1 || s.Last != receipts[19].Hash || s.TornTail != 0 || s.Recoveries != 0 {
		t.Errorf("summary %+v", s)
	}
	for i, e := range readAll(t, dir, 7) {
		if want := receipts[i+7]; e.Seq != want.Seq || e.Hash != want.Hash || e.RunID != fmt.Sprint("r", i+7) ||
			e.Tenant != "alice" || e.Code != sum || string(e.Caller) != `{"uid":7}` || e.Time.IsZero() {
			t.Errorf("entry %d is %+v, want receipt %+v", i, e, want)
		}
	}
	if n := len(readAll(t, dir, 0)); n != 20 {
		t.Errorf("read %d records, want 20", n)
	}
	for range Read(context.Background(), dir, 0) {
		break // an iteration may end early
	}

	// The chain goes on after a restart.
	l = mustOpen(t, dir, Options{MaxFile: 2000})
	if rc := mustAppend(t, l, Record{Kind: KindStart}); rc.Seq != 21 {
		t.Errorf("after a restart the number is %d, want 21", rc.Seq)
	}
	mustClose(t, l)
	if s, err := Verify(dir); err != nil || s.Records != 21 {
		t.Errorf("after a restart: %+v, %v", s, err)
	}
}

func TestRestartAtFileEdge(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{MaxFile: 1})
	for range 3 {
		mustAppend(t, l, Record{Kind: KindRun})
	}
	mustClose(t, l)
	// A crash between the making of a file and its first record.
	if err := os.WriteFile(filepath.Join(dir, fileName(4)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(dir); err != nil {
		t.Errorf("with an empty last file: %v", err)
	}
	l = mustOpen(t, dir, Options{MaxFile: 1})
	mustAppend(t, l, Record{Kind: KindRun})
	mustClose(t, l)
	// A crash in the middle of a file's first record.
	torn := []byte(`{"seq":5,"prev":"`)
	if err := os.WriteFile(filepath.Join(dir, fileName(5)), torn, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Verify(dir); err != nil || s.TornTail != int64(len(torn)) {
		t.Errorf("with a torn first line: %+v, %v", s, err)
	}
	l = mustOpen(t, dir, Options{MaxFile: 1 << 20})
	mustAppend(t, l, Record{Kind: KindRun})
	mustClose(t, l)
	if s, err := Verify(dir); err != nil || s.Records != 6 || s.Recoveries != 1 {
		t.Errorf("at the end: %+v, %v", s, err)
	}
}

func TestSecondDaemon(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{})
	if _, err := Open(dir, quiet()); !errors.Is(err, ErrInUse) {
		t.Errorf("a second Open: %v, want ErrInUse", err)
	}
	mustClose(t, l)
	mustOpen(t, dir, Options{})
}

func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{MaxFile: 20_000, Sync: time.Millisecond})
	const writers, each = 8, 100
	var wg sync.WaitGroup
	seen := make(chan Receipt, writers*each)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				sum, err := l.PutCode(context.Background(), fmt.Appendf(nil, "code %d", i%5))
				if err != nil {
					t.Error(err)
					return
				}
				rc, err := l.Append(context.Background(), Record{Kind: KindExec, Code: sum, Fields: w})
				if err != nil {
					t.Error(err)
					return
				}
				seen <- rc
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			if _, err := Verify(dir); err != nil {
				t.Errorf("while in use: %v", err)
			}
		}
	})
	wg.Wait()
	close(seen)
	mustClose(t, l)
	byHash := make(map[string]uint64)
	for _, e := range readAll(t, dir, 0) {
		byHash[e.Hash] = e.Seq
	}
	for rc := range seen {
		if byHash[rc.Hash] != rc.Seq {
			t.Errorf("receipt %+v is not in the log", rc)
		}
	}
	if s, err := Verify(dir); err != nil || s.Records != writers*each || s.Codes != 5 {
		t.Errorf("%+v, %v", s, err)
	}
}

// Hostile text must stay in its line and must not reach a terminal as control.
func TestHostileStrings(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{})
	hostile := []string{
		"a\nb", "a\r\n{\"seq\":1}", "\x1b[2J\x1b]0;x\x07", "\x00", "\x7f", "\u0085", "\u009b31m", "\u2028\u2029",
		"\u202edrowssap", "\ufeff", "\U000e0041", "\xff\xfe", "\xc3", "ünïcødé 日本 🙂", `","hash":"` + strings.Repeat("0", 64) + `"}`,
	}
	for _, s := range hostile {
		mustAppend(t, l, Record{Kind: KindRun, Tenant: s, RunID: s, Caller: s, Fields: map[string]any{s: s}})
		mustAppend(t, l, Record{Kind: KindRun, Fields: json.RawMessage("{\n\"x\":\t\"" + strings.NewReplacer(`"`, ``, "\n", "", "\r", "", "\x1b", "", "\x00", "", "\a", "").Replace(s) + "\"\n}")})
	}
	mustClose(t, l)
	if s, err := Verify(dir); err != nil || s.Records != uint64(2*len(hostile)) {
		t.Fatalf("%+v, %v", s, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, fileName(1)))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b, []byte("\n")); n != 2*len(hostile) {
		t.Errorf("%d lines, want %d", n, 2*len(hostile))
	}
	for _, r := range string(bytes.ReplaceAll(b, []byte("\n"), nil)) {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e' || r == '\u2028' || r == '\ufeff' || r == '\ufffd' || r == '\U000e0041' {
			t.Errorf("the log holds %U as it is", r)
		}
	}
	// What is text stays readable, and reads back as it was.
	if !bytes.Contains(b, []byte("ünïcødé 日本 🙂")) {
		t.Error("plain text was escaped")
	}
	for i, e := range readAll(t, dir, 0) {
		if want := strings.ToValidUTF8(hostile[i/2], "\ufffd"); i%2 == 0 && e.Tenant != want && hostile[i/2] != "\xff\xfe" {
			t.Errorf("%q reads back as %q", want, e.Tenant)
		}
	}
}

// What cannot be encoded or is too large is on record all the same.
func TestOddRecords(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{})
	big := strings.Repeat("x", MaxLine+1)
	mustAppend(t, l, Record{Kind: KindRun, Tenant: "a", Fields: func() {}})
	mustAppend(t, l, Record{Kind: KindRun, Tenant: "a", Fields: json.RawMessage("{")})
	mustAppend(t, l, Record{Kind: KindRun, Tenant: "a", RunID: big, Fields: big})
	mustAppend(t, l, Record{Kind: KindRun, Time: time.Date(99999, 1, 1, 0, 0, 0, 0, time.UTC)})
	mustAppend(t, l, Record{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Append(ctx, Record{Kind: KindRun}); err != nil {
		t.Errorf("a cancelled context kept a record out: %v", err)
	}
	mustClose(t, l)
	if s, err := Verify(dir); err != nil || s.Records != 6 {
		t.Errorf("%+v, %v", s, err)
	}
	all := readAll(t, dir, 0)
	for i, want := range []string{"unencodable", "unencodable", "too_large", "unencodable"} {
		if !strings.Contains(string(all[i].Fields), want) {
			t.Errorf("record %d has the fields %s, want %s", i+1, all[i].Fields, want)
		}
	}
	if all[2].Tenant != "a" || len(all[2].RunID) != 256 {
		t.Errorf("the large record lost what it is about: %q", all[2].Tenant)
	}
}

type mirror struct {
	mu    sync.Mutex
	lines []string
}

func (m *mirror) Record(r Record, seq uint64, line []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, fmt.Sprintf("%d %s %s", seq, r.Kind, line))
}

func TestMirror(t *testing.T) {
	dir, m := t.TempDir(), &mirror{}
	l := mustOpen(t, dir, Options{Mirror: m})
	mustAppend(t, l, Record{Kind: KindStart})
	mustAppend(t, l, Record{Kind: KindStop})
	mustClose(t, l)
	b, err := os.ReadFile(filepath.Join(dir, fileName(1)))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		want = append(want, fmt.Sprintf("%d %s %s", i+1, []string{KindStart, KindStop}[i], line))
	}
	if strings.Join(m.lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("the mirror got\n%s\nwant\n%s", m.lines, want)
	}
}

func TestCodeStore(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{})
	ctx := context.Background()
	for i := range maxPending + 10 { // more than may wait
		if _, err := l.PutCode(ctx, fmt.Appendf(nil, "code %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := l.PutCode(ctx, []byte("twice"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, codeDir, sum)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if before.Mode().Perm() != 0o400 {
		t.Errorf("mode %v", before.Mode())
	}
	if _, err := l.PutCode(ctx, []byte("twice")); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("code that is there was written again: %v", err)
	}
	// Code that a loss of power left empty is written anew.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := l.PutCode(ctx, []byte("twice")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "twice" {
		t.Errorf("mended code is %q, %v", b, err)
	}
}

// writeForEver appends and prints each receipt, until it is killed.
func writeForEver(dir string) error {
	l, err := OpenWith(dir, quiet(), Options{MaxFile: 5000, Sync: time.Millisecond})
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		sum, err := l.PutCode(context.Background(), fmt.Appendf(nil, "%s %d", dir, i))
		if err != nil {
			return err
		}
		rc, err := l.Append(context.Background(), Record{Kind: KindRun, Code: sum, Fields: i})
		if err != nil {
			return err
		}
		fmt.Println(rc.Seq, rc.Hash)
	}
}

// A daemon that is killed loses no record that it has acknowledged.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	acked := make(map[uint64]string)
	for round := range 5 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), writerEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			var rc Receipt
			if _, err := fmt.Sscan(lines.Text(), &rc.Seq, &rc.Hash); err != nil {
				break // the kill cut the last line
			}
			acked[rc.Seq] = rc.Hash
			if n == 50+round*37 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait() // killed
		if s, err := Verify(dir); err != nil {
			t.Fatalf("after kill %d: %+v, %v", round, s, err)
		}
	}
	write(t, filepath.Join(dir, ".tmp-1"), []byte("left by a kill"))
	write(t, filepath.Join(dir, codeDir, ".tmp-1"), []byte("left by a kill"))
	l := mustOpen(t, dir, Options{})
	mustClose(t, l)
	for _, d := range []string{dir, filepath.Join(dir, codeDir)} {
		if left, err := filepath.Glob(filepath.Join(d, tmpName)); err != nil || len(left) > 0 {
			t.Errorf("temporary files are left: %v, %v", left, err)
		}
	}
	if s, err := Verify(dir); err != nil || s.Records < uint64(len(acked)) || len(acked) < 500 {
		t.Errorf("%d acknowledged; %+v, %v", len(acked), s, err)
	}
	for _, e := range readAll(t, dir, 0) {
		if h, ok := acked[e.Seq]; ok && h != e.Hash {
			t.Errorf("record %d has another hash than its receipt", e.Seq)
		}
		delete(acked, e.Seq)
	}
	if len(acked) > 0 {
		t.Errorf("%d acknowledged records are lost", len(acked))
	}
}

func BenchmarkAppend(b *testing.B) {
	l := mustOpen(b, b.TempDir(), Options{})
	r := Record{
		Kind: KindRun, Tenant: "alice", RunID: "0198c4b2-run", Code: strings.Repeat("a", 64),
		Caller: map[string]int{"uid": 1000, "pid": 4711},
		Fields: map[string]any{"language": "ts", "status": "ok", "wall": "1.2ms", "cpu": "0.9ms", "calls": []string{"db.query", "fetch"}},
	}
	took := make([]time.Duration, 0, 1<<20)
	for b.Loop() {
		start := time.Now()
		if _, err := l.Append(context.Background(), r); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	report(b, took)
}

func BenchmarkPutCodeKnown(b *testing.B) {
	l := mustOpen(b, b.TempDir(), Options{})
	code := bytes.Repeat([]byte("let x = 1;\n"), 100)
	for b.Loop() {
		if _, err := l.PutCode(context.Background(), code); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	dir := b.TempDir()
	l := mustOpen(b, dir, Options{})
	for i := range 10_000 {
		mustAppend(b, l, Record{Kind: KindRun, Tenant: "alice", Fields: i})
	}
	mustClose(b, l)
	for b.Loop() {
		if _, err := Verify(dir); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*10_000/b.Elapsed().Seconds(), "records/s")
}

// Several records go into the log with one write; the chain, files and what
// follows are as if each had been appended by itself.
func TestAppendAll(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, dir, Options{MaxFile: 20_000})
	total := 0
	for i := range 40 {
		var list []Record
		for j := range i {
			list = append(list, Record{Kind: KindEgress, Tenant: "t", Fields: map[string]any{"i": i, "j": j, "pad": strings.Repeat("x", j*10)}})
		}
		n, err := l.AppendAll(t.Context(), list)
		if err != nil || n != len(list) {
			t.Fatalf("%d of %d, %v", n, len(list), err)
		}
		mustAppend(t, l, Record{Kind: KindRun})
		total += n + 1
	}
	// One that is too large for a batch, between two that are not.
	large := Record{Kind: KindEgress, Fields: strings.Repeat("y", maxBatch+1)}
	if n, err := l.AppendAll(t.Context(), []Record{{Kind: KindRun}, large, {Kind: KindRun}}); err != nil || n != 3 {
		t.Fatalf("%d, %v", n, err)
	}
	total += 3
	mustClose(t, l)
	if n, err := l.AppendAll(t.Context(), []Record{{Kind: KindRun}}); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %d, %v", n, err)
	}
	s, err := Verify(dir)
	if err != nil || s.Records != uint64(total) || s.Files < 2 {
		t.Errorf("%+v, %v; want %d records", s, err, total)
	}
}
