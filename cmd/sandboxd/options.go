package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"sandboxd/daemon"
	"sandboxd/jail"
	"sandboxd/policy"
)

// options are the flags that serve and dev share.
type options struct {
	policy, state, credentials string
	preview                    previewOptions
	initPath, guests           string
	uidBase                    uint32
	packages                   string
	bestEffort                 bool
	disk                       string
	tenantWorkers              int
	tenantIdle                 time.Duration
	jailSpares                 int
	logLevel                   string
}

// maxTenantWorkers bounds --tenant-workers: each has a user id of its own.
const maxTenantWorkers = 1024

// defaultUIDBase is the first of the users that the daemon gives away: 0x38000000.
const defaultUIDBase = 939524096

func (o *options) flags(f *pflag.FlagSet) {
	o.preview.flags(f)
	f.StringVar(&o.credentials, "credentials", o.credentials, "folder with one file for each credential that the policy names")
	f.StringVar(&o.initPath, "init", "", "the sandbox-init binary (default: beside sandboxd, then /usr/lib/sandboxd)")
	f.StringVar(&o.guests, "guests", "", "folder with the interpreter images (default: beside sandboxd, then /usr/lib/sandboxd)")
	f.Uint32Var(&o.uidBase, "uid-base", defaultUIDBase, "first of the user ids for roles and tenants")
	f.IntVar(&o.tenantWorkers, "tenant-workers", 16, "most isolate workers that belong to one tenant each (Wasm, isolation: strict)")
	f.DurationVar(&o.tenantIdle, "tenant-idle", 30*time.Second, "how long such a worker is kept that nobody uses")
	f.IntVar(&o.jailSpares, "jail-spares", 4, "how many jails are kept ready for tenants that come, each at some 3 MiB; 0: none")
	f.BoolVar(&o.bestEffort, "best-effort", o.bestEffort, "make jails although this host cannot enforce every limit")
	f.StringVar(&o.disk, "disk", "", "how jails are held to their disk limits: project (quotas of the state's file system), image (a file system in a file for each tenant) or none; by default what there is")
	f.StringVar(&o.packages, "package-cache", "2GiB", "how much egress rules with cache: packages keep of what they download; 0 keeps nothing")
	f.StringVar(&o.logLevel, "log-level", o.logLevel, "debug, info, warn or error")
}

func (o *options) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is none of debug, info, warn, error", o.logLevel)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

// config is what both commands know.
func (o *options) config(log *slog.Logger) (daemon.Config, error) {
	cfg := daemon.Config{Version: versionText(), UIDBase: o.uidBase, BestEffort: o.bestEffort, Disk: o.disk, Log: log, Exe: "/proc/self/exe",
		TenantWorkers: o.tenantWorkers, TenantIdle: o.tenantIdle, JailSpares: o.jailSpares}
	if o.tenantWorkers < 1 || o.tenantWorkers > maxTenantWorkers {
		return cfg, fmt.Errorf("--tenant-workers: %d is not 1 to %d", o.tenantWorkers, maxTenantWorkers)
	}
	if o.jailSpares < 0 || o.jailSpares > jail.MaxSpares {
		return cfg, fmt.Errorf("--jail-spares: %d is not 0 to %d", o.jailSpares, jail.MaxSpares)
	}
	if !slices.Contains([]string{jail.DiskAuto, jail.DiskProject, jail.DiskImage, jail.DiskNone}, o.disk) {
		return cfg, fmt.Errorf("--disk: %q is none of project, image, none", o.disk)
	}
	if o.tenantIdle < time.Second {
		return cfg, fmt.Errorf("--tenant-idle: %v is less than a second", o.tenantIdle)
	}
	if err := o.preview.check(); err != nil {
		return cfg, err
	}
	size, err := policy.ParseSize(o.packages)
	if err != nil {
		return cfg, fmt.Errorf("--package-cache: %w", err)
	}
	cfg.PackageMax = int64(size)
	if cfg.InitPath, err = beside(o.initPath, "sandbox-init"); err != nil {
		return cfg, err
	}
	if cfg.GuestDir, err = beside(o.guests, "guests"); err != nil {
		return cfg, err
	}
	if cfg.Credentials, err = openCredentials(o.credentials); err != nil {
		return cfg, err
	}
	cfg.StoreKey = cfg.Credentials[storeKeyName]
	delete(cfg.Credentials, storeKeyName)
	return cfg, nil
}

// beside finds a file of the installation.
func beside(given, name string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	local := filepath.Join(filepath.Dir(exe), name)
	if _, err := os.Stat(local); err == nil {
		return local, nil
	}
	return filepath.Join("/usr/lib/sandboxd", name), nil
}

// storeKeyName is the file among the credentials that is the key of the store,
// not a credential itself.
const storeKeyName = "sandboxd-store-key"

// openCredentials opens the files of a folder without reading them: their
// content is for the egress proxy alone.
func openCredentials(dir string) (map[string]*os.File, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("--credentials: %w", err)
	}
	files := map[string]*os.File{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			var st os.FileInfo
			if st, err = f.Stat(); err == nil && !st.Mode().IsRegular() {
				err = errors.New("not a regular file")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("--credentials: %s: %w", e.Name(), err)
		}
		files[e.Name()] = f
	}
	return files, nil
}

// loadPolicy reads the policy and takes its faults apart for people.
func loadPolicy(path string) (*policy.Policy, error) {
	p, err := policy.Load(path)
	if err != nil {
		return nil, fmt.Errorf("the policy is not usable; nothing was started:\n%w", err)
	}
	return p, nil
}
