package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sandboxd/daemon"
	"sandboxd/policy"
	"sandboxd/systemd"
)

// stopTime is how long a graceful stop may take.
const stopTime = 30 * time.Second

func serveCommand() *cobra.Command {
	o := &options{policy: "/etc/sandboxd/policy.yaml", state: "/var/lib/sandboxd", logLevel: "info"}
	run := "/run/sandboxd"
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon, usually under systemd",
		Long: `Runs the daemon. Under systemd the sockets come by socket activation, the
credentials from $CREDENTIALS_DIRECTORY and the cgroup by Delegate=yes.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return serve(c.Context(), o, run) },
	}
	c.Flags().StringVar(&o.policy, "policy", o.policy, "policy file")
	c.Flags().StringVar(&o.state, "state", o.state, "folder that outlives the daemon: audit log, data, workspaces")
	c.Flags().StringVar(&run, "run", run, "folder for the sockets, without socket activation")
	o.credentials = os.Getenv("CREDENTIALS_DIRECTORY")
	o.flags(c.Flags())
	return c
}

func serve(ctx context.Context, o *options, run string) error {
	log, err := o.logger()
	if err != nil {
		return err
	}
	cfg, err := serveConfig(o, run, log)
	if err != nil {
		return err
	}
	cfg.Progress = func(part string, took time.Duration, err error) {
		log.Info("started", "part", part, "took", took, "error", err)
		if nerr := systemd.Notify(systemd.Status("starting: " + part)); nerr != nil {
			log.Warn("the service manager could not be told", "error", nerr)
		}
	}
	return runDaemon(ctx, cfg, func(d *daemon.Daemon) error {
		if err := systemd.Watchdog(ctx, d.Alive); err != nil {
			return err
		}
		return systemd.Notify(systemd.Ready, systemd.Status("ready"))
	})
}

// serveConfig gathers what systemd hands over, or makes the same.
func serveConfig(o *options, run string, log *slog.Logger) (daemon.Config, error) {
	cfg, err := o.config(log)
	if err != nil {
		return cfg, err
	}
	cfg.Mode, cfg.StateDir, cfg.PolicyName = daemon.ModeServe, o.state, o.policy
	if cfg.Policy, err = loadPolicy(o.policy); err != nil {
		return cfg, err
	}
	cfg.LoadPolicy = func() (*policy.Policy, error) { return policy.Load(o.policy) }
	if cfg.RunDir = os.Getenv("RUNTIME_DIRECTORY"); cfg.RunDir == "" {
		cfg.RunDir = filepath.Join(run, "daemon")
	}
	inherited, err := systemd.Listeners()
	if err != nil {
		return cfg, err
	}
	if err := serveSockets(&cfg, inherited, o, run); err != nil {
		return cfg, err
	}
	cfg.CgroupDir, err = systemd.DelegatedCgroup()
	if errors.Is(err, systemd.ErrNotDelegated) {
		var cleanup func() error
		if cfg.CgroupDir, cleanup, err = ownCgroup(); err == nil {
			cfg.Cleanup = append(cfg.Cleanup, cleanup)
		}
	}
	if err != nil {
		log.Warn("no cgroup for jails", "error", err)
		cfg.CgroupDir = ""
	}
	return cfg, nil
}

func serveSockets(cfg *daemon.Config, inherited map[string][]net.Listener, o *options, run string) error {
	var preview net.Listener
	for name, group := range inherited {
		for _, l := range group {
			switch name {
			case systemd.SocketAPI, systemd.SocketAdmin:
				cfg.Sockets = append(cfg.Sockets, &daemon.Socket{Listener: l, Admin: name == systemd.SocketAdmin, Path: l.Addr().String()})
			case systemd.SocketPreview:
				preview = l
			default:
				return fmt.Errorf("the inherited socket %q is not one of %s, %s, %s", name, systemd.SocketAPI, systemd.SocketAdmin, systemd.SocketPreview)
			}
		}
	}
	if len(cfg.Sockets) == 0 {
		if err := os.MkdirAll(run, 0o755); err != nil {
			return err
		}
		if err := listenBoth(cfg, run); err != nil {
			return err
		}
	}
	return o.preview.apply(cfg, preview)
}

// listenBoth opens api.sock and admin.sock in dir.
func listenBoth(cfg *daemon.Config, dir string) error {
	for _, name := range []string{"api", "admin"} {
		s, err := daemon.ListenUnix(filepath.Join(dir, name+".sock"), name == "admin")
		if err != nil {
			return err
		}
		cfg.Sockets = append(cfg.Sockets, s)
	}
	return nil
}

// reloadOnHangup reloads the policy on SIGHUP until stop is called; how it went
// is in the log and on record.
func reloadOnHangup(d *daemon.Daemon) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range hangups {
			_, _ = d.ReloadPolicy(context.Background(), nil)
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-ended
	}
}

// runDaemon runs a daemon until a signal or a fault, and ends it in order.
func runDaemon(ctx context.Context, cfg daemon.Config, ready func(*daemon.Daemon) error) error {
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if cfg.Mode == daemon.ModeDev {
		signals = append(signals, unix.SIGHUP) // its terminal is gone
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	defer stop()
	coarseTimers()
	d, err := daemon.New(ctx, cfg)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve() }()
	if cfg.Mode == daemon.ModeServe {
		defer reloadOnHangup(d)()
	}
	fault := ready(d)
	if fault == nil {
		select {
		case <-ctx.Done():
			cfg.Log.Info("stopping")
		case fault = <-served:
		}
	}
	stop() // a second signal ends the process at once
	nerr := systemd.Notify(systemd.Stopping, systemd.Status("stopping: ending jails"))
	ending, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	return errors.Join(fault, d.Close(ending), nerr)
}
