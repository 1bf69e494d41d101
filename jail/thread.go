package jail

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs f in a goroutine of its own, on a thread that no other
// goroutine uses meanwhile and that is not the process's first one: that one is
// what /proc/self shows, and it cannot end before the process. f reports
// whether the thread is as it was; otherwise it ends with the goroutine.
func onThread(f func() (clean bool)) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			if f() {
				runtime.UnlockOSThread()
			}
			return
		}
		// Stay on the first thread until another goroutine has another.
		other := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(other)
			if f() {
				runtime.UnlockOSThread()
			}
		}()
		<-other
		runtime.UnlockOSThread()
	}()
}
