package systemd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
)

// parse reads a unit file with systemd's own syntax rules and fails the test
// on anything else. A directive given twice has several values.
func parse(t *testing.T, name string) map[string][]string {
	t.Helper()
	f, err := os.Open(filepath.Join("units", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	options, err := unit.DeserializeOptions(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	values := make(map[string][]string)
	for _, o := range options {
		key := o.Section + "." + o.Name
		values[key] = append(values[key], o.Value)
	}
	return values
}

func TestServiceDirectives(t *testing.T) {
	got := parse(t, "sandboxd.service")
	want := map[string]string{
		"Service.Type":                    "notify",
		"Service.NotifyAccess":            "main",
		"Service.Delegate":                "yes",
		"Service.KillMode":                "mixed",
		"Service.OOMPolicy":               "continue",
		"Service.WatchdogSec":             "30s",
		"Service.StateDirectory":          "sandboxd",
		"Service.StateDirectoryMode":      "0700",
		"Service.LimitCORE":               "0",
		"Service.UMask":                   "0022",
		"Service.ProtectSystem":           "strict",
		"Service.ProtectHome":             "yes",
		"Service.PrivateTmp":              "yes",
		"Service.PrivateMounts":           "yes",
		"Service.NoNewPrivileges":         "yes",
		"Service.LockPersonality":         "yes",
		"Service.ProtectClock":            "yes",
		"Service.ProtectKernelModules":    "yes",
		"Service.RestrictRealtime":        "yes",
		"Service.KeyringMode":             "private",
		"Service.DevicePolicy":            "closed",
		"Service.RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
		"Service.SystemCallArchitectures": "native",
		"Service.SystemCallErrorNumber":   "EPERM",
		"Service.AmbientCapabilities":     "",
	}
	for key, value := range want {
		if !slices.Equal(got[key], []string{value}) {
			t.Errorf("%s = %q, want %q", key, got[key], value)
		}
	}
}

// TestServiceMustNotHave holds what is absent on purpose. The daemon builds
// jails, so its own confinement is inherited by every process in them and
// limits what it can build.
func TestServiceMustNotHave(t *testing.T) {
	reasons := map[string]string{
		"ProtectKernelTunables":    "mounts over /proc/sys: the kernel then refuses a fresh procfs in a jail's user namespace",
		"ProtectKernelLogs":        "mounts over /proc/kmsg: as above",
		"ProtectProc":              "mounts procfs with hidepid: as above, and the peers' units could not be read",
		"ProcSubset":               "mounts a partial procfs: as above",
		"ProtectControlGroups":     "makes cgroupfs read-only: no cgroup for a jail",
		"ProtectHostname":          "its filter denies sethostname in the jails' own UTS namespaces",
		"MemoryDenyWriteExecute":   "its filter is inherited: node, java and wazero compile to memory",
		"RestrictNamespaces":       "its filter denies the namespaces jails are made of",
		"RestrictSUIDSGID":         "its filter answers ENOSYS to openat2, which keeps file access inside a jail's root",
		"PrivateDevices":           "a /dev of its own, whose mounts a jail's namespace could not split",
		"PrivateNetwork":           "the egress proxy dials from the host's network",
		"PrivateUsers":             "the tenants' uid ranges would not be mapped",
		"DynamicUser":              "the daemon is root with bounded capabilities",
		"RootDirectory":            "jails show the host's /usr",
		"OOMScoreAdjust":           "inherited by jails, whose processes must be the first to go, not the last",
		"TemporaryFileSystem":      "mounts that a jail's namespace could not split",
		"InaccessiblePaths":        "as above",
		"RestrictFileSystems":      "jails mount tmpfs, proc and overlay",
		"IPAddressDeny":            "the proxy shares the daemon's cgroup; what may be reached is its decision",
		"SocketBindDeny":           "as above",
		"RuntimeDirectoryPreserve": "what a stopped daemon leaves is to be gone",
	}
	got := parse(t, "sandboxd.service")
	for name, reason := range reasons {
		if values, ok := got["Service."+name]; ok {
			t.Errorf("%s=%s must not be set: %s", name, strings.Join(values, " "), reason)
		}
	}
}

func TestServiceFilterIsADenyList(t *testing.T) {
	got := parse(t, "sandboxd.service")["Service.SystemCallFilter"]
	if len(got) != 1 || !strings.HasPrefix(got[0], "~") {
		t.Fatalf("SystemCallFilter=%q: an allow-list here would be every jail's and role's too", got)
	}
	denied := strings.Fields(strings.TrimPrefix(got[0], "~"))
	for _, group := range []string{"@clock", "@cpu-emulation", "@debug", "@module", "@obsolete", "@raw-io", "@reboot", "@swap", "io_uring_setup"} {
		if !slices.Contains(denied, group) {
			t.Errorf("%s is not denied", group)
		}
	}
	for _, group := range denied {
		if slices.Contains([]string{"@mount", "@privileged", "@resources", "@setuid", "@keyring", "@sandbox"}, group) {
			t.Errorf("%s is denied: jails could not be made", group)
		}
	}
}

func TestServiceCapabilities(t *testing.T) {
	got := parse(t, "sandboxd.service")["Service.CapabilityBoundingSet"]
	if len(got) != 1 {
		t.Fatalf("CapabilityBoundingSet is set %d times, want once", len(got))
	}
	allowed := []string{
		"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP",
		"CAP_CHOWN", "CAP_FOWNER", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SYS_RESOURCE",
	}
	for name := range strings.FieldsSeq(got[0]) {
		if !slices.Contains(allowed, name) {
			t.Errorf("%s is not among the capabilities that the unit explains", name)
		}
	}
}

func TestSockets(t *testing.T) {
	tests := []struct {
		unit, name, listen, group string
	}{
		{"sandboxd.socket", SocketAPI, "/run/sandboxd/api.sock", "sandboxd"},
		{"sandboxd-admin.socket", SocketAdmin, "/run/sandboxd/admin.sock", "sandboxd-admin"},
	}
	service := parse(t, "sandboxd.service")
	users, err := os.ReadFile("units/sandboxd.sysusers")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		t.Run(tt.unit, func(t *testing.T) {
			got := parse(t, tt.unit)
			for key, value := range map[string]string{
				"ListenStream":       tt.listen,
				"FileDescriptorName": tt.name,
				"SocketUser":         "root",
				"SocketGroup":        tt.group,
				"SocketMode":         "0660",
				"Service":            "sandboxd.service",
			} {
				if !slices.Equal(got["Socket."+key], []string{value}) {
					t.Errorf("%s = %q, want %q", key, got["Socket."+key], value)
				}
			}
			if !strings.Contains(string(users), "g "+tt.group+" ") {
				t.Errorf("group %s is not made by sandboxd.sysusers", tt.group)
			}
		})
	}
	handed := strings.Fields(strings.Join(service["Service.Sockets"], " "))
	if want := []string{"sandboxd.socket", "sandboxd-admin.socket", "sandboxd-preview.socket"}; !slices.Equal(handed, want) {
		t.Errorf("Sockets=%v, want %v", handed, want)
	}
}

// TestPreviewSocketIsLocal: pages of tenants are published to this machine
// until an operator says otherwise.
func TestPreviewSocketIsLocal(t *testing.T) {
	got := parse(t, "sandboxd-preview.socket")
	if listen := got["Socket.ListenStream"]; len(listen) != 1 || !strings.HasPrefix(listen[0], "127.0.0.1:") {
		t.Errorf("ListenStream=%q, want one address on loopback", listen)
	}
	if name := got["Socket.FileDescriptorName"]; !slices.Equal(name, []string{SocketPreview}) {
		t.Errorf("FileDescriptorName=%q, want %q", name, SocketPreview)
	}
}

// TestRuntimeDirectoryLeavesSockets: a RuntimeDirectory= of /run/sandboxd
// would delete the sockets whenever the daemon stops.
func TestRuntimeDirectoryLeavesSockets(t *testing.T) {
	got := parse(t, "sandboxd.service")["Service.RuntimeDirectory"]
	if !slices.Equal(got, []string{"sandboxd/daemon"}) {
		t.Errorf("RuntimeDirectory=%q, want sandboxd/daemon", got)
	}
}
