package isolate

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/internal/ipc"
)

// hostileWorker is a worker that was taken over: it says that it is ready, and
// answers the first run as mode says.
func hostileWorker(mode string) {
	conn, err := ipc.FromFD(workerFD, maxFrame)
	if err != nil {
		os.Exit(3)
	}
	if _, _, err := conn.Recv(); err != nil {
		os.Exit(3)
	}
	send := func(f frame) {
		if err := conn.Send(f.encode(nil)); err != nil {
			os.Exit(3)
		}
	}
	send(frame{kind: frameReady, data: []byte("{}")})
	if mode == "deaf" {
		time.Sleep(time.Hour)
	}
	payload, _, err := conn.Recv()
	if err != nil {
		os.Exit(3)
	}
	f, err := decodeFrame(payload, string(rune(frameRun)))
	if err != nil {
		os.Exit(3)
	}
	call := frame{kind: frameCall, run: f.run, call: 1, binding: "X", method: "now", data: []byte("[]")}
	data := func(v any) []byte {
		b, err := (&frame{}).encodeWith(v)
		if err != nil {
			os.Exit(3)
		}
		return b[len((&frame{}).encode(nil)):]
	}
	result := func(r Result) frame { return frame{kind: frameResult, run: f.run, data: data(r)} }
	event := func(e Event) frame {
		if e.Time.IsZero() {
			e.Time = time.Now()
		}
		return frame{kind: frameEvent, run: f.run, data: data(e)}
	}
	switch mode {
	case "silent":
	case "exit":
		os.Exit(0)
	case "empty":
		if err := conn.Send(nil); err != nil {
			os.Exit(3)
		}
	case "kind":
		send(frame{kind: frameHello, run: f.run})
	case "short":
		if err := conn.Send([]byte{frameCall, 1, 2}); err != nil {
			os.Exit(3)
		}
	case "length":
		if err := conn.Send(append((&frame{kind: frameCall, run: f.run, call: 1}).encode(nil)[:17], 0xff, 0xff, 0xff, 0xff)); err != nil {
			os.Exit(3)
		}
	case "huge":
		header := []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}
		if _, err := unix.Write(workerFD, header); err != nil {
			os.Exit(3)
		}
	case "descriptor":
		if err := conn.Send((&frame{kind: frameDrop, run: f.run}).encode(nil), os.Stderr); err != nil {
			os.Exit(3)
		}
	case "other run":
		call.run = 1 << 60
		send(call)
	case "not granted":
		call.method = "drop"
		send(call)
	case "fetch":
		call.binding, call.method = "fetch", "fetch"
		send(call)
	case "bad args":
		call.data = []byte("[")
		send(call)
	case "same number":
		call.method = "hang"
		send(call)
		send(call)
	case "number before":
		call.call, call.method = 2, "hang"
		send(call)
		call.call = 1
		send(call)
	case "loaded unasked":
		send(frame{kind: frameLoaded, run: f.run})
	case "need without a function":
		send(frame{kind: frameNeed, run: f.run})
	case "need twice": // of a function
		send(frame{kind: frameNeed, run: f.run})
		send(frame{kind: frameNeed, run: f.run})
	case "prepared unasked":
		send(result(Result{Status: StatusOK, Phase: PhaseFinished, Value: json.RawMessage("1"), Prepared: &Prepared{Snapshot: true}}))
	case "not prepared": // though it was asked
		send(result(Result{Status: StatusOK, Phase: PhaseFinished, Value: json.RawMessage("1")}))
	case "prepared": // with much to say
		send(result(Result{Status: StatusOK, Phase: PhaseFinished, Value: json.RawMessage("1"), Prepared: &Prepared{Reason: strings.Repeat("\xff", 100_000)}}))
	case "waiting unasked":
		send(frame{kind: frameWaiting, run: f.run})
	case "too many calls":
		for i := range uint64(1000) {
			call.call = i + 1
			send(call)
		}
	case "bad event":
		send(frame{kind: frameEvent, run: f.run, data: []byte("x")})
	case "cut event":
		send(frame{kind: frameEvent, run: f.run, data: data(Event{Level: "info"})[:5]})
	case "more in event":
		send(frame{kind: frameEvent, run: f.run, data: append(data(Event{Level: "info"}), 0)})
	case "event data":
		send(event(Event{Level: "info", Data: json.RawMessage("{")}))
	case "unknown field":
		send(frame{kind: frameResult, run: f.run, data: data(map[string]string{"Status": StatusOK, "Phase": PhaseFinished, "More": "x"})})
	case "event of another age":
		send(event(Event{Time: time.Unix(1<<40, 0), Level: "info"}))
	case "event before time":
		send(event(Event{Time: time.Unix(-1<<40, 0), Level: "info"}))
	case "event data not text":
		send(event(Event{Time: time.Now(), Level: "info", Data: json.RawMessage("\"\xff\"")}))
	case "result not text":
		send(result(Result{Status: StatusOK, Phase: PhaseFinished, Value: json.RawMessage("\"\xff\"")}))
	case "args not text":
		call.data = []byte("[\"\xff\"]")
		send(call)
	case "result not JSON":
		send(result(Result{Status: StatusOK, Phase: PhaseFinished, Value: json.RawMessage("{")}))
	case "bad level":
		send(event(Event{Level: "<script>"}))
	case "much output":
		for range 100 {
			send(event(Event{Level: "info", Message: string(make([]byte, 100_000))}))
		}
	case "bad result":
		send(frame{kind: frameResult, run: f.run, data: []byte("{")})
	case "odd status":
		send(result(Result{Status: "fine", Phase: PhaseFinished}))
	case "odd phase":
		send(result(Result{Status: StatusOK, Phase: "later"}))
	case "no error":
		send(result(Result{Status: StatusError, Phase: PhaseFinished}))
	case "large result":
		send(result(Result{Status: StatusOK, Phase: PhaseFinished, Value: json.RawMessage(fmt.Sprintf(`"%0200000d"`, 0))}))
	case "memory":
		hoard := make([]byte, workerMemory+(512<<20))
		for i := 0; i < len(hoard); i += 4096 {
			hoard[i] = 1
		}
	case "lies":
		send(call)
		send(result(Result{Status: StatusOK, Phase: PhaseNotStarted, Value: json.RawMessage(`"done"`), Usage: Usage{Calls: 0}}))
	default:
		os.Exit(4)
	}
	time.Sleep(time.Hour)
	runtime.KeepAlive(conn) // unreachable, it would be closed
}

// probe does what native code in a worker would try, and tells what came of it.
func probe() map[string]string {
	out := map[string]string{}
	try := func(name string, err error) {
		out[name] = "done"
		if err != nil {
			out[name] = err.Error()
		}
	}
	_, err := os.Open("/etc/passwd")
	try("open a file", err)
	_, err = os.Open("/proc/self/status")
	try("open proc", err)
	_, err = os.Create("/tmp/isolate-probe")
	try("make a file", err)
	_, err = os.ReadDir("/")
	try("list a directory", err)
	_, err = os.Stat("/etc")
	try("stat", err)
	_, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	try("inet socket", err)
	_, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("unix socket", err)
	_, err = os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	try("start a process", err)
	pid, _, errno := unix.RawSyscall(unix.SYS_FORK, 0, 0, 0)
	if errno == 0 && pid == 0 {
		os.Exit(0)
	}
	try("fork", errnoOf(errno))
	try("kill the parent", unix.Kill(os.Getppid(), 0))
	try("trace", unix.PtraceAttach(os.Getppid()))
	try("become root", syscall.Setuid(0))
	try("mount", unix.Mount("none", "/", "tmpfs", 0, ""))
	try("new namespace", unix.Unshare(unix.CLONE_NEWUSER))
	var attr [128]byte
	_, _, errno = unix.RawSyscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&attr)), 0)
	try("io_uring", errnoOf(errno))
	p, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	_ = p
	try("writable code", err)
	return out
}

func errnoOf(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
