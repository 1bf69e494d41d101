package jail

import (
	"fmt"
	"net/netip"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Defaults and bounds of a jail's limits.
const (
	defaultMemory    = 1 << 30
	defaultCPUs      = 2
	defaultPids      = 512
	defaultOpenFiles = 4096
	defaultDisk      = 4 << 30
	maxTmp           = 512 << 20
	bytesPerInode    = 16 << 10 // of the default

	minMemory    = 32 << 20
	minCPUs      = 0.01
	minPids      = 16
	minOpenFiles = 64
	minDisk      = 1 << 20
	minInodes    = 256
	maxInodes    = 1 << 32
	maxPids      = 1 << 20
	maxOpenFiles = 1 << 20
	maxCPUs      = 1 << 12
	maxBytes     = 1 << 46
	minIOBytes   = 64 << 10
	minIOOps     = 10

	maxEnv      = 1 << 10
	maxArgv     = 1 << 12
	maxArgBytes = 1 << 20 // argv and env of one command together
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// byteSize is a number of bytes as people write it.
func byteSize(n int) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := 1 << (40 - 10*i); n >= size && n%size == 0 {
			return strconv.Itoa(n/size) + unit
		}
	}
	return strconv.Itoa(n)
}

// withDefaults fills in what is zero and refuses what is out of range.
func (l Limits) withDefaults() (Limits, error) {
	l.Memory, l.Disk = ifZero(l.Memory, defaultMemory), ifZero(l.Disk, defaultDisk)
	l.Inodes = ifZero(l.Inodes, max(l.Disk/bytesPerInode, minInodes))
	l.Pids, l.OpenFiles = int(ifZero(int64(l.Pids), defaultPids)), int(ifZero(int64(l.OpenFiles), defaultOpenFiles))
	if l.CPUs == 0 {
		l.CPUs = defaultCPUs
	}
	for _, c := range []struct {
		field     string
		v, lo, hi int64
	}{
		{"limits.memory", l.Memory, minMemory, maxBytes},
		{"limits.disk", l.Disk, minDisk, maxBytes},
		{"limits.inodes", l.Inodes, minInodes, maxInodes},
		{"limits.io_bytes", ifZero(l.IOBytes, minIOBytes), minIOBytes, maxBytes},
		{"limits.io_ops", ifZero(l.IOOps, minIOOps), minIOOps, maxBytes},
		{"limits.pids", int64(l.Pids), minPids, maxPids},
		{"limits.open_files", int64(l.OpenFiles), minOpenFiles, maxOpenFiles},
	} {
		if c.v < c.lo || c.v > c.hi {
			show := strconv.Itoa
			if c.hi == maxBytes && c.field != "limits.io_ops" {
				show = byteSize
			}
			return l, &SpecError{Field: c.field, Message: fmt.Sprintf("%s is not between %s and %s", show(int(c.v)), show(int(c.lo)), show(int(c.hi)))}
		}
	}
	if !(l.CPUs >= minCPUs && l.CPUs <= maxCPUs) { // also refuses NaN
		return l, &SpecError{Field: "limits.cpus", Message: fmt.Sprintf("%v is not between %v and %v", l.CPUs, minCPUs, maxCPUs)}
	}
	return l, nil
}

func ifZero(v, def int64) int64 {
	if v == 0 {
		return def
	}
	return v
}

// tmp is what the memory file systems have.
func (l Limits) tmp() int64 { return min(l.Disk, maxTmp) }

// checkOwn refuses what the daemon itself may not have.
func (l Limits) checkOwn() error {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err == nil && uint64(l.OpenFiles) > own.Max {
		return &SpecError{Field: "limits.open_files", Message: fmt.Sprintf("%d is more than the daemon's own limit of %d", l.OpenFiles, own.Max)}
	}
	return nil
}

// check completes a Spec.
func (s *Spec) check() (err error) {
	if !tenantName.MatchString(s.Tenant) {
		return &SpecError{Field: "tenant", Message: "must match " + tenantName.String()}
	}
	if s.Limits, err = s.Limits.withDefaults(); err != nil {
		return err
	}
	if err := s.Limits.checkOwn(); err != nil {
		return err
	}
	for _, r := range s.Resolvers {
		if _, err := netip.ParseAddr(r); err != nil {
			return &SpecError{Field: "resolvers", Message: fmt.Sprintf("%q is not an address", r)}
		}
	}
	if len(s.CABundle) > 16<<20 {
		return &SpecError{Field: "ca_bundle", Message: "over 16 MiB"}
	}
	return checkEnv("env", s.Env)
}

func checkEnv(field string, env map[string]string) error {
	if len(env) > maxEnv {
		return &SpecError{Field: field, Message: fmt.Sprintf("%d variables, at most %d", len(env), maxEnv)}
	}
	for name, value := range env {
		if !envName.MatchString(name) {
			return &SpecError{Field: field, Message: fmt.Sprintf("%q is not a variable's name", name)}
		}
		if strings.ContainsRune(value, 0) {
			return &SpecError{Field: field + "." + name, Message: "has a NUL"}
		}
	}
	return nil
}

// ownNetwork reports whether the network namespace belongs to the jail's own user
// namespace, with nothing in it.
func (s *Spec) ownNetwork() bool {
	return s.NetNS == nil && (s.Spare == nil || s.Spare.Network == nil)
}

// check refuses an ExecSpec that execve could not take.
func (s *ExecSpec) check() error {
	if len(s.ID) > 128 || strings.ContainsFunc(s.ID, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }) {
		return &SpecError{Field: "exec_id", Message: "at most 128 printable characters without spaces and slashes"}
	}
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return &SpecError{Field: "argv", Message: "is empty"}
	}
	if len(s.Argv) > maxArgv {
		return &SpecError{Field: "argv", Message: fmt.Sprintf("%d arguments, at most %d", len(s.Argv), maxArgv)}
	}
	size := 0
	for _, a := range s.Argv {
		if strings.ContainsRune(a, 0) {
			return &SpecError{Field: "argv", Message: "has a NUL"}
		}
		size += len(a) + 1
	}
	for name, value := range s.Env {
		size += len(name) + len(value) + 2
	}
	if size > maxArgBytes {
		return &SpecError{Field: "argv", Message: fmt.Sprintf("%d bytes with env, at most %d", size, maxArgBytes)}
	}
	if s.Cwd != "" && (!strings.HasPrefix(s.Cwd, "/") || strings.ContainsRune(s.Cwd, 0) || len(s.Cwd) > 4095) {
		return &SpecError{Field: "cwd", Message: "must be an absolute path of the jail"}
	}
	if s.Terminal != nil && (s.Terminal.Cols == 0 || s.Terminal.Rows == 0) {
		return &SpecError{Field: "tty", Message: "has no size"}
	}
	if s.Terminal != nil && s.Files != (ExecSpec{}).Files {
		return &SpecError{Field: "tty", Message: "takes the place of descriptors: give one or the other"}
	}
	for i, f := range s.Files {
		if f == nil {
			continue
		}
		if i == 0 && s.Stdin {
			return &SpecError{Field: "fds.stdin", Message: "takes the place of stdin: give one or the other"}
		}
		if err := CheckDescriptor(i, f); err != nil {
			return err
		}
	}
	if s.Timeout < 0 {
		return &SpecError{Field: "timeout", Message: "is negative"}
	}
	if s.Output < 0 {
		return &SpecError{Field: "output", Message: "is negative"}
	}
	return checkEnv("env", s.Env)
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// baseEnv is the environment of every command, under the jail's and its own.
func baseEnv(tenant string) map[string]string {
	env := map[string]string{
		"PATH": defaultPath, "HOME": homeDir, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash",
		"LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp", "HOSTNAME": hostname(tenant),
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT",
		"AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE", "npm_config_cafile",
	} {
		env[name] = certificateAbs
	}
	return env
}

// environ joins layers of variables, later ones win, in a fixed order.
func environ(layers ...map[string]string) ([]string, map[string]string) {
	all := map[string]string{}
	for _, layer := range layers {
		for k, v := range layer {
			all[k] = v
		}
	}
	out := make([]string, 0, len(all))
	for k, v := range all {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out, all
}

// searchPaths lists the files that argv[0] may be, as execvp would.
func searchPaths(program, path string) []string {
	if strings.Contains(program, "/") {
		return []string{program}
	}
	var out []string
	for _, dir := range strings.Split(path, ":") {
		if strings.HasPrefix(dir, "/") && len(out) < 64 {
			out = append(out, dir+"/"+program)
		}
	}
	if len(out) == 0 {
		out = []string{"/usr/bin/" + program}
	}
	return out
}

// hostname is the jail's own; the kernel takes 64 bytes.
func hostname(tenant string) string { return tenant }
