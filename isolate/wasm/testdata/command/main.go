// Command command does what its input asks. It is a guest of the tests.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"
)

type input struct {
	Do   string `json:"do"`
	Text string `json:"text"`
	N    int    `json:"n"`
}

func main() {
	var in input
	raw, err := io.ReadAll(os.Stdin)
	if err == nil && len(raw) > 0 {
		err = json.Unmarshal(raw, &in)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "input:", err)
		os.Exit(3)
	}
	do, ok := map[string]func(input) any{
		"echo": echo, "files": files, "sleep": sleep, "spin": spin, "grow": grow, "flood": flood, "recurse": recurse,
		"random": random, "panic": func(input) any { panic("told to") }, "exit": func(in input) any { os.Exit(in.N); return nil }, "outside": outside,
		"open": open, "fill": fill,
	}[in.Do]
	if !ok {
		do = echo
	}
	json.NewEncoder(os.Stdout).Encode(do(in))
}

func echo(in input) any {
	fmt.Fprintln(os.Stderr, "to standard error")
	return map[string]any{"args": os.Args, "env": os.Environ(), "text": in.Text}
}

func files(input) any {
	var out []any
	must(os.MkdirAll("/tmp/a/b", 0o755))
	must(os.WriteFile("/tmp/a/b/f.txt", []byte("one\ntwo\n"), 0o644))
	f := try(os.OpenFile("/tmp/a/b/f.txt", os.O_APPEND|os.O_WRONLY, 0))
	try(f.WriteString("three\n"))
	must(f.Close())
	must(os.Rename("/tmp/a/b/f.txt", "/tmp/a/g.txt"))
	must(os.Symlink("a/g.txt", "/tmp/link"))
	must(os.Link("/tmp/a/g.txt", "/tmp/hard"))
	out = append(out, string(try(os.ReadFile("/tmp/link"))), string(try(os.ReadFile("/tmp/hard"))))
	var names []string
	for _, e := range try(os.ReadDir("/tmp")) {
		names = append(names, e.Name())
	}
	r := try(os.Open("/data/words.txt"))
	s := bufio.NewScanner(r)
	for s.Scan() {
		names = append(names, s.Text())
	}
	st := try(os.Stat("/tmp/hard"))
	try(r.Seek(2, io.SeekStart))
	b := make([]byte, 3)
	try(r.ReadAt(b, 1))
	must(os.Remove("/tmp/hard"))
	must(os.RemoveAll("/tmp/a"))
	_, err := os.Stat("/tmp/link")
	return append(out, names, st.Size(), string(b), errors.Is(err, os.ErrNotExist))
}

// outside tries every way out of the tree.
func outside(input) any {
	var found []string
	os.Symlink("../../../../etc/passwd", "/tmp/l1")
	os.Symlink("/etc/passwd", "/tmp/l2")
	os.Symlink("/tmp/l3", "/tmp/l3")
	for _, p := range []string{"/etc/passwd", "../../etc/passwd", "/proc/self/environ", "/tmp/../../etc/passwd", "/tmp/l1", "/tmp/l2", "/tmp/l3", "/dev/null", "/sys", "//etc//passwd"} {
		if _, err := os.Stat(p); err == nil {
			found = append(found, p)
		}
	}
	entries, err := os.ReadDir("/")
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return fmt.Sprint(found, err)
}

func open(in input) any {
	var all []*os.File
	for i := 0; i < in.N; i++ {
		f, err := os.Create(fmt.Sprintf("/tmp/%d", i))
		if err != nil {
			return fmt.Sprint(len(all), " ", strings.Contains(err.Error(), "open files") || strings.Contains(err.Error(), "space"))
		}
		all = append(all, f)
	}
	return len(all)
}

// fill writes until there is no room.
func fill(input) any {
	f := try(os.Create("/tmp/big"))
	b := make([]byte, 1<<20)
	for i := 0; ; i++ {
		if _, err := f.Write(b); err != nil {
			return fmt.Sprintf("%d MiB, %v", i, err)
		}
	}
}

func sleep(in input) any {
	start := time.Now()
	done := make(chan bool)
	go func() { time.Sleep(time.Duration(in.N) * time.Millisecond / 2); done <- true }()
	time.Sleep(time.Duration(in.N) * time.Millisecond)
	<-done
	return time.Since(start).Milliseconds()
}

func spin(in input) any {
	x := uint64(in.N)
	for i := 0; in.N == 0 || i < in.N; i++ {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

var keep [][]byte

func grow(input) any {
	for {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = 1
		}
		keep = append(keep, b)
	}
}

func flood(input) any {
	for {
		fmt.Println(strings.Repeat("x", 1000))
	}
}

func recurse(in input) any {
	var f func(n int) int
	f = func(n int) int { return f(n+1) + f(n+2) + 1 }
	return f(in.N)
}

func random(input) any {
	return []any{rand.Uint64(), time.Now().UTC().Format(time.RFC3339Nano)}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func try[T any](v T, err error) T {
	must(err)
	return v
}
