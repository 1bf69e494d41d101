package jail

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// A command runs as the jail's one user, or as another of the jail's own range
// of ids; never as one of the host's, for the range is all that there is in its
// user namespace. User 0 has no capability either, but owns the root: it is for
// jails whose root is writable.

// ErrNoRoot says that commands of this jail do not run as user 0.
var ErrNoRoot = errors.New("jail: only where the root is writable may a command run as user 0")

const (
	// maxPasswd bounds what is read of a jail's own /etc/passwd, which its tenant
	// may have written.
	maxPasswd = 1 << 20
	// maxUserID is the last id of a range; the one before is nobody's.
	maxUserID = uidRange - 1
	// maxUserField bounds a home or a shell.
	maxUserField = 1024
)

// account is who a command runs as.
type account struct {
	uid, gid    uint32
	name        string
	home, shell string
}

// tenantAccount is the jail's one user.
var tenantAccount = account{uid: tenantUID, gid: tenantGID, name: "user", home: homeDir, shell: "/bin/bash"}

// account finds the user that a request names: "" is the tenant's own, digits
// are an id, anything else a name of the jail's /etc/passwd.
func (j *Jail) account(ctx context.Context, user string) (account, error) {
	if user == "" {
		return tenantAccount, nil
	}
	uid, numeric, err := parseUser(user)
	if err != nil {
		return account{}, err
	}
	// Read as the tenant would, so a link leads nowhere else and nothing waits.
	text, err := j.ReadFile(ctx, "/etc/passwd", maxPasswd)
	if err != nil && !numeric {
		return account{}, &SpecError{Field: "user", Message: fmt.Sprintf("the jail's /etc/passwd cannot be read (%v); give a number", err)}
	}
	a, ok := findAccount(string(text), func(a *account) bool { return numeric && a.uid == uid || !numeric && a.name == user })
	switch {
	case !ok && !numeric:
		return account{}, &SpecError{Field: "user", Message: fmt.Sprintf("the jail's /etc/passwd has no usable line for %q", user)}
	case !ok:
		a = account{uid: uid, gid: uid, name: user, home: "/", shell: "/bin/sh"}
	}
	if (a.uid == 0 || a.gid == 0) && !j.spec.WritableRoot {
		return account{}, ErrNoRoot
	}
	return a, nil
}

// CheckUser says what is wrong with an ExecSpec's user, as far as that can be said
// without a jail: a *SpecError, or nil.
func CheckUser(user string) error {
	_, _, err := parseUser(user)
	return err
}

// parseUser checks the form of a user and tells a number from a name.
func parseUser(user string) (uid uint32, numeric bool, err error) {
	if strings.Trim(user, "0123456789") == "" {
		uid, ok := userID(user)
		if !ok {
			return 0, true, &SpecError{Field: "user", Message: fmt.Sprintf("%.20s is no id of the jail: 0 to %d, without leading zeros", user, maxUserID)}
		}
		return uid, true, nil
	}
	for i, r := range user {
		if letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'; !letter && (i == 0 || !strings.ContainsRune("0123456789-.", r)) {
			return 0, false, &SpecError{Field: "user", Message: fmt.Sprintf("%.40q is neither a number nor a user's name", user)}
		}
	}
	return 0, false, nil
}

// userID reads an id as it is written, and no other way.
func userID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > maxUserID || strconv.FormatUint(n, 10) != s {
		return 0, false
	}
	return uint32(n), true
}

// findAccount returns the first account of a passwd file that is wanted and makes
// sense.
func findAccount(passwd string, wanted func(*account) bool) (account, bool) {
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) != 7 || f[0] == "" {
			continue
		}
		uid, okU := userID(f[2])
		gid, okG := userID(f[3])
		a := account{uid: uid, gid: gid, name: f[0], home: absOr(f[5], "/"), shell: absOr(f[6], "/bin/sh")}
		if okU && okG && wanted(&a) {
			return a, true
		}
	}
	return account{}, false
}

func absOr(p, fallback string) string {
	if !path.IsAbs(p) || len(p) > maxUserField || strings.ContainsRune(p, 0) {
		return fallback
	}
	return p
}

// env tells programs who they are. For the tenant's own user the base, or the
// template, has said it.
func (a *account) env() map[string]string {
	if *a == tenantAccount {
		return nil
	}
	return map[string]string{"HOME": a.home, "USER": a.name, "LOGNAME": a.name, "SHELL": a.shell}
}
