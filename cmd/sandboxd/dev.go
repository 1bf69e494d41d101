package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/daemon"
	"sandboxd/policy"
)

func devCommand() *cobra.Command {
	o := &options{logLevel: "warn", preview: previewOptions{address: "127.0.0.1:0"}}
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run the daemon in the foreground from a temporary folder",
		Long: `Runs the whole daemon in the foreground. Its state is in a temporary folder that
goes when it ends, unless --state names one. It serves when it prints "ready".

Without --policy the built-in development policy applies: the user who started
it may act for the tenants whose names start with "dev". They may run js, ts,
python and wasm in isolates, with a database, a key-value store and a logger, and
have a jail. Nothing reaches out.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return dev(c.Context(), o, c.OutOrStdout()) },
	}
	c.Flags().StringVar(&o.policy, "policy", "", "policy file (default: the built-in development policy)")
	c.Flags().StringVar(&o.state, "state", "", "folder for sockets and state (default: a temporary one)")
	o.flags(c.Flags())
	return c
}

// builtInPolicy is devPolicy's name where a file has its path.
const builtInPolicy = "built-in development policy"

// devPolicy is what applies without a policy file.
func devPolicy(uid int) string {
	return fmt.Sprintf(`version: 1
callers:
  - uid: %d
    tenants: ["dev*"]
    admin: true
profiles:
  dev:
    isolate:
      languages: [js, ts, python, wasm]
      bindings: {db: {type: db}, kv: {type: kv}, log: {type: log}}
    jail:
      template: host
      preview: true
tenants:
  "dev*": {profile: dev}
`, uid)
}

func dev(ctx context.Context, o *options, out io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("sandboxd makes namespaces, mounts and users: start it as root")
	}
	log, err := o.logger()
	if err != nil {
		return err
	}
	dir, remove, err := devState(o.state)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	cfg, err := devConfig(o, dir, log, out)
	if err != nil {
		return err
	}
	cfg.Progress = func(part string, took time.Duration, err error) {
		if err != nil {
			fmt.Fprintf(out, "  %-18s not available: %v\n", part, err)
			return
		}
		fmt.Fprintf(out, "  %-18s started in %s\n", part, took.Round(time.Millisecond))
	}
	cfg.Preparing = func(text string) { fmt.Fprintln(out, "  "+text) }
	fmt.Fprintf(out, "sandboxd %s, development mode\n", versionText())
	return runDaemon(ctx, cfg, func(*daemon.Daemon) error {
		tell(out, &cfg, dir)
		_, err := fmt.Fprintln(out, "ready")
		return err
	})
}

// devState makes the state folder. What this made is removed at the end: all of
// a temporary folder; of a given one the sockets alone, which their listeners
// remove.
func devState(given string) (dir string, remove func() error, err error) {
	if given != "" {
		dir, err = filepath.Abs(given)
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
		return dir, func() error { return nil }, err
	}
	dir, err = os.MkdirTemp("", "sandboxd-dev-")
	return dir, func() error { return os.RemoveAll(dir) }, err
}

func devConfig(o *options, dir string, log *slog.Logger, out io.Writer) (daemon.Config, error) {
	cfg, err := o.config(log)
	if err != nil {
		return cfg, err
	}
	cfg.Mode, cfg.StateDir, cfg.RunDir = daemon.ModeDev, dir, filepath.Join(dir, "run")
	cfg.CacheDir = devCache()
	if o.policy != "" {
		cfg.PolicyName = o.policy
		cfg.Policy, err = loadPolicy(o.policy)
		cfg.LoadPolicy = func() (*policy.Policy, error) { return policy.Load(o.policy) }
	} else {
		cfg.PolicyName = builtInPolicy
		cfg.Policy, err = policy.Parse(cfg.PolicyName, []byte(devPolicy(os.Getuid())))
	}
	if err != nil {
		return cfg, err
	}
	if err := devCgroup(&cfg, out); err != nil {
		return cfg, err
	}
	if err = listenBoth(&cfg, dir); err == nil {
		err = o.preview.apply(&cfg, nil)
	}
	if err != nil {
		return cfg, errors.Join(err, cfg.Discard())
	}
	return cfg, nil
}

// devCgroup makes the cgroup for jails, and says which limits this host cannot
// enforce: a developer's machine may lack them, and is told.
func devCgroup(cfg *daemon.Config, out io.Writer) error {
	dir, cleanup, err := ownCgroup()
	if err != nil {
		cfg.Warnings = append(cfg.Warnings, "jails are not available: "+err.Error())
		return nil
	}
	cfg.CgroupDir = dir
	cfg.Cleanup = append(cfg.Cleanup, cleanup)
	missing, err := missingControllers(dir)
	if err != nil {
		return errors.Join(err, cleanup())
	}
	if len(missing) == 0 {
		return nil
	}
	warning := fmt.Sprintf("best-effort: this host's cgroup v2 has no %s controller; sandboxctl jail show says which limits hold, and sandboxctl doctor what would help", strings.Join(missing, ", "))
	cfg.BestEffort = true
	cfg.Warnings = append(cfg.Warnings, warning)
	_, err = fmt.Fprintln(out, "warning: "+warning)
	return err
}

// tell says how to reach the daemon.
func tell(out io.Writer, cfg *daemon.Config, dir string) {
	fmt.Fprintf(out, "  state              %s\n", dir)
	fmt.Fprintf(out, "  policy             %s\n", cfg.PolicyName)
	for _, s := range cfg.Sockets {
		name := "api socket"
		if s.Admin {
			name = "admin socket"
		}
		fmt.Fprintf(out, "  %-18s %s\n", name, s.Path)
	}
	if cfg.Preview != nil {
		scheme := "http"
		if cfg.PreviewHTTPS {
			scheme = "https"
		}
		fmt.Fprintf(out, "  preview            %s://….%s/\n", scheme, cfg.PreviewBase)
	}
	tenant := "TENANT"
	if cfg.PolicyName == builtInPolicy {
		tenant = "dev"
	}
	fmt.Fprintf(out, "  try                SANDBOXD_SOCKET=%s sandboxctl run -t %s FILE\n", cfg.Sockets[0].Path, tenant)
}
