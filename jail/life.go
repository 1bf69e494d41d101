package jail

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// CauseCrash is of jails whose daemon was killed: its successor finds them.
const CauseCrash = "daemon_crash"

// An End is how a tenant's last jail ended.
type End struct {
	Cause string
	Time  time.Time
}

// life is kept in the tenant's folder: by it the daemon's successor knows of a
// jail that was not ended in order, whatever else is left of it.
type life struct {
	Created time.Time `json:"created"`
	Ended   time.Time `json:"ended,omitzero"`
	Cause   string    `json:"cause,omitempty"`
}

func (m *Manager) lifePath(tenant string) string {
	return filepath.Join(m.tenantsDir(), tenant, "life.json")
}

func (m *Manager) writeLife(tenant string, l life) error {
	b, err := json.Marshal(l)
	if err == nil {
		err = os.WriteFile(m.lifePath(tenant), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("jail: %w", err)
	}
	return nil
}

// readLife is the tenant's last jail; ok is false if there is none on record.
// What cannot be read was being written when the daemon was killed.
func (m *Manager) readLife(tenant string) (l life, ok bool) {
	b, err := os.ReadFile(m.lifePath(tenant))
	if errors.Is(err, fs.ErrNotExist) {
		return life{}, false
	}
	if err != nil || json.Unmarshal(b, &l) != nil {
		return life{}, true
	}
	return l, true
}

// LastEnd says how the tenant's last jail ended; ok is false if none has, or all
// of it was deleted.
func (m *Manager) LastEnd(tenant string) (e End, ok bool) {
	if !tenantName.MatchString(tenant) {
		return End{}, false
	}
	l, ok := m.readLife(tenant)
	return End{Cause: l.Cause, Time: l.Ended}, ok && !l.Ended.IsZero()
}
