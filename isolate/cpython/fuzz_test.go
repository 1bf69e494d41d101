package cpython

import (
	"encoding/binary"
	"testing"
	"time"
)

// FuzzWhere reads frames out of memory in which anything may stand.
func FuzzWhere(f *testing.F) {
	f.Add([]byte{}, uint32(4))
	loop := make([]byte, 4096)
	for i := range len(loop) / 4 {
		binary.LittleEndian.PutUint32(loop[4*i:], uint32(16+(i*37)%1000*4))
	}
	f.Add(loop, uint32(16))
	f.Fuzz(func(t *testing.T, memory []byte, thread uint32) {
		start := time.Now()
		frames, _ := view{memory}.frames(thread, func(string) bool { return true }, 8)
		if len(frames) > 8 || time.Since(start) > 5*time.Second {
			t.Errorf("%d frames in %v", len(frames), time.Since(start))
		}
		findThread(memory, thread)
	})
}

// FuzzFiles does to a file system what the bytes say, and counts again what it
// counts.
func FuzzFiles(f *testing.F) {
	f.Add([]byte("mkdir a/b write rename remove"))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100})
	f.Fuzz(func(t *testing.T, moves []byte) {
		fs := testFiles(map[string]string{"main.py": "x", "a/b": "y"}, 64<<10)
		path := func(c byte) string {
			return [...]string{"a", "a/b", "b", "b/../a", "..", "", "main.py", "a/b/c", "c/d", "tmp/x", "/", "c", "c/d/../../a/x"}[int(c)%13]
		}
		for ; len(moves) >= 3; moves = moves[3:] {
			p, q := path(moves[1]), path(moves[2])
			parent, name, n, errno := fs.find(fdRoot, p)
			if errno != wasiSuccess {
				continue
			}
			switch moves[0] % 6 {
			case 0, 1:
				if n == nil {
					fs.create(parent, name, moves[0]%2 == 0)
				}
			case 2:
				if n != nil && !n.dir() {
					fs.write(n, int64(moves[2])*257, make([]byte, int(moves[0])*100))
				}
			case 3:
				fs.rename(fdRoot, p, fdRoot, q)
			case 4:
				fs.remove(fdRoot, p, n != nil && n.dir())
			case 5:
				if n != nil && !n.dir() {
					fs.resize(n, int64(moves[2])*1000)
				}
			}
		}
		var all []string
		if bytes, nodes := fs.walk(fs.root, "", &all); bytes != fs.bytes || nodes != fs.nodes || bytes > fs.room {
			t.Errorf("%d bytes and %d nodes are counted, there are %d and %d: %v", fs.bytes, fs.nodes, bytes, nodes, all)
		}
	})
}
