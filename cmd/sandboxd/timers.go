package main

import (
	"os"
	"path/filepath"
	"strconv"

	"sandboxd/internal/confine"
)

// coarseTimers gives the threads that there are, and with them all that they
// make, confine.TimerSlack: see there. The unit says the same to systemd
// (TimerSlackNSec), because without CAP_SYS_NICE a thread's slack is its own to
// set alone; then this does nothing.
func coarseTimers() {
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return
	}
	slack := []byte(strconv.Itoa(int(confine.TimerSlack)))
	for _, task := range tasks {
		// Nothing depends on it but speed.
		_ = os.WriteFile("/proc/"+filepath.Base(task)+"/timerslack_ns", slack, 0)
	}
}
