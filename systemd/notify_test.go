package systemd

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// manager stands on the service manager's side of the notify socket.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return conn
}

func receive(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatalf("no message for the service manager: %v", err)
	}
	return string(buf[:n])
}

func TestNotify(t *testing.T) {
	conn := manager(t)
	if err := Notify(Ready, Status("serving\nMAINPID=1")); err != nil {
		t.Fatal(err)
	}
	if got, want := receive(t, conn), "READY=1\nSTATUS=serving MAINPID=1"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	if err := Notify(Stopping); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, conn); got != "STOPPING=1" {
		t.Errorf("message %q", got)
	}
}

func TestNotifyWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(Ready); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if err := Notify(Ready); err == nil {
		t.Error("a service manager that cannot be reached is no error")
	}
}

func TestWatchdogBeatsWhileAlive(t *testing.T) {
	conn := manager(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ill := make(chan struct{})
	err := Watchdog(ctx, func(context.Context) error {
		select {
		case <-ill:
			return errors.New("the store does not answer")
		default:
			return nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := receive(t, conn); got != "WATCHDOG=1" {
			t.Fatalf("message %q, want a beat", got)
		}
	}
	close(ill)
	message := receive(t, conn)
	for message == "WATCHDOG=1" { // beats that were under way
		message = receive(t, conn)
	}
	for range 3 {
		if !strings.HasPrefix(message, "STATUS=watchdog: the store") {
			t.Fatalf("message %q after the check failed", message)
		}
		message = receive(t, conn)
	}
}

func TestWatchdogEnvironment(t *testing.T) {
	conn := manager(t)
	t.Setenv("WATCHDOG_PID", "")
	t.Setenv("WATCHDOG_USEC", "")
	if err := Watchdog(t.Context(), func(context.Context) error {
		t.Error("checked without WatchdogSec=")
		return nil
	}); err != nil {
		t.Errorf("without WatchdogSec=: %v", err)
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if err := Watchdog(t.Context()); err == nil {
		t.Error("WATCHDOG_USEC=soon is no error")
	}
	if err := Notify(Ready); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, conn); got != Ready {
		t.Errorf("first message %q: the watchdog sent one", got)
	}
}
