package systemd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Messages for Notify.
const (
	Ready     = daemon.SdNotifyReady
	Stopping  = daemon.SdNotifyStopping
	Reloading = daemon.SdNotifyReloading
)

// Status is a message for Notify that sets the line `systemctl status` shows.
// Line breaks would start another message, so they become spaces.
func Status(text string) string {
	return "STATUS=" + strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}

// Notify sends messages to the service manager, all in one datagram. Without a
// service manager it does nothing.
func Notify(state ...string) error {
	if _, err := daemon.SdNotify(false, strings.Join(state, "\n")); err != nil {
		return fmt.Errorf("systemd: notify: %w", err)
	}
	return nil
}

// Watchdog starts to tell the service manager that the daemon is alive, and
// goes on until ctx is done. While a check fails or does not answer in
// time it sends the reason as the status in place of the beat, so that the
// service manager restarts a daemon that only looks alive. Without WatchdogSec= it does nothing.
func Watchdog(ctx context.Context, checks ...func(context.Context) error) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd: watchdog: %w", err)
	}
	if interval == 0 {
		return nil
	}
	// Half the interval is what systemd recommends: one late message is borne.
	go beat(ctx, interval/2, checks)
	return nil
}

func beat(ctx context.Context, every time.Duration, checks []func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		message := daemon.SdNotifyWatchdog
		if err := alive(ctx, every, checks); err != nil {
			message = Status("watchdog: " + err.Error())
		}
		// A message that cannot be sent has the effect of one that is not:
		// there is nobody else to tell.
		_ = Notify(message)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// alive runs the checks, each bounded in time by the context it is given. A
// check that ignores its context blocks here, which is a missed beat as well.
func alive(ctx context.Context, within time.Duration, checks []func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for _, check := range checks {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}
