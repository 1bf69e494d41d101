package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/tests/internal/harness"
)

// auditText is the whole log.
func auditText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, b := range auditFiles(t) {
		all.Write(b)
	}
	return all.String()
}

// family are the daemon and all processes beneath it, by what they are.
func family(t *testing.T, root int) map[int]string {
	t.Helper()
	parents, names := map[int]int{}, map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parents[pid], _ = strconv.Atoi(fields[1])
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil {
			names[pid] = strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	found := map[int]string{}
	for pid := range parents {
		for up := pid; up > 1; up = parents[up] {
			if up == root {
				found[pid] = names[pid]
				break
			}
		}
	}
	return found
}

// holds reports whether a process has one of the texts in memory that it can
// write to.
func holds(pid int, texts [][]byte) (bool, error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false, err
	}
	defer maps.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return false, err
	}
	defer mem.Close()
	const piece, overlap = 1 << 20, 256
	buf := make([]byte, piece+overlap)
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to < 0 {
			continue
		}
		for at := from; at < to; at += piece {
			n, err := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at)
			if err != nil && n == 0 {
				break // not there any more, or a device's
			}
			for _, text := range texts {
				if bytes.Contains(buf[:n], text) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// fileHolds is holds for a file, whose holes are passed over: a disk image is
// gigabytes of them.
func fileHolds(path string, texts [][]byte) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	const piece, overlap = 1 << 20, 256
	buf := make([]byte, piece+overlap)
	for at := int64(0); ; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return false, nil // no more of it
		}
		if err != nil {
			return false, err
		}
		if data > at {
			at = data
		}
		n, err := f.ReadAt(buf, at)
		if n == 0 {
			return false, err
		}
		for _, text := range texts {
			if bytes.Contains(buf[:n], text) {
				return true, nil
			}
		}
		at += piece
	}
}

// TestSecretsAreInTheProxyAlone: neither the daemon nor a worker nor a jail has
// a value in its memory, and no file of the state has it.
func TestSecretsAreInTheProxyAlone(t *testing.T) {
	v := credentials(t)
	who := tenant(t, credPrefix)
	warmUp(t, who)
	var p api.Process
	want(t, "POST", jailPath(who)+"/exec", api.ExecRequest{Argv: []string{"python3", "-c", fmt.Sprintf(`
import time, urllib.request
for kind in %q.split():
    urllib.request.urlopen("https://%s/" + kind + "/x?how=forms", timeout=25).read()
print("asked", flush=True)
time.sleep(600)
`, strings.Join(kinds, " "), harness.CredHost)}, Background: true}, &p)
	want(t, "POST", jailPath(who)+"/processes/"+p.ExecID+"/wait", api.WaitRequest{LogRegexp: "asked"}, nil)
	for range 3 {
		r := fetchRun(t, who, `export default async () => (await (await fetch("https://`+harness.CredHost+`/bearer/x?how=forms")).text()).length`, harness.CredHost)
		if r.Status != api.StatusOK {
			t.Fatalf("fetch: %+v", r.Error)
		}
	}
	var texts [][]byte
	for _, s := range v.all() {
		texts = append(texts, []byte(s), []byte(base64.StdEncoding.EncodeToString([]byte(s)))[:20])
	}
	pid, err := sys.Pid(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for pid, name := range family(t, pid) {
		found, err := holds(pid, texts)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Errorf("%d %s: %v", pid, name, err)
			continue
		}
		role := "other"
		for _, word := range []string{"role netproxy", "role isolate-worker", "python3", "sandboxd dev"} {
			if strings.Contains(name, word) {
				role = word
			}
		}
		seen[role]++
		switch {
		case role == "role netproxy" && !found:
			t.Error("the proxy itself has no value: this search finds nothing")
		case role != "role netproxy" && found:
			t.Errorf("%d %s has a value in its memory", pid, name)
		}
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if role == "role netproxy" && (err != nil || !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max core file size 0 0")) {
			t.Errorf("the proxy may leave a core: %v", err)
		}
	}
	if seen["role netproxy"] != 1 || seen["role isolate-worker"] == 0 || seen["python3"] == 0 || !harness.UnderSystemd() && seen["sandboxd dev"] != 1 {
		t.Errorf("searched %v", seen)
	}
	files := 0
	err = filepath.WalkDir(sys.State, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // a jail's, ending
		}
		found, err := fileHolds(path, texts)
		if err != nil {
			return nil
		}
		files++
		if found {
			t.Errorf("%s holds a value", path)
		}
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("%d files were searched, %v", files, err)
	}
	if v.given(sys.Log()) != "" {
		t.Error("the daemon's log holds a value")
	}
}
