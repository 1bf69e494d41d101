package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"sandboxd/netproxy"
	"sandboxd/policy"
)

// spending counts what each tenant has used of each credential that has a
// budget. What counts for the day is on the disk ahead of its use: after a crash
// a tenant may have a little less, never more.
type spending struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu      sync.Mutex
	day     string                       // guarded by mu
	spent   map[string]map[string]*spent // guarded by mu; credential → tenant
	claimed map[string]map[string]*spent // guarded by mu; what is on the disk
}

// spent is one tenant's use of one credential on one day.
type spent struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`

	minute   int64 // since 1970
	inMinute int
}

type spendingFile struct {
	Version int                          `json:"version"`
	Day     string                       `json:"day"`
	Spent   map[string]map[string]*spent `json:"spent"`
}

// claimParts is into how many parts a day's budget is put on the disk.
const claimParts = 64

func openSpending(path string, log *slog.Logger) (*spending, error) {
	s := &spending{path: path, log: log, now: time.Now, spent: map[string]map[string]*spent{}, claimed: map[string]map[string]*spent{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	var in spendingFile
	if err == nil {
		err = json.Unmarshal(text, &in)
	}
	if err == nil && in.Version != 1 {
		err = fmt.Errorf("version %d", in.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("budgets: %s: %w", path, err)
	}
	if s.day = in.Day; in.Spent != nil {
		s.spent = in.Spent
		s.claimed = clonedSpending(in.Spent)
	}
	return s, nil
}

func clonedSpending(m map[string]map[string]*spent) map[string]map[string]*spent {
	out := map[string]map[string]*spent{}
	for credential, tenants := range m {
		for tenant, n := range tenants {
			*entryOf(out, credential, tenant) = spent{Requests: n.Requests, Bytes: n.Bytes}
		}
	}
	return out
}

func entryOf(m map[string]map[string]*spent, credential, tenant string) *spent {
	if m[credential] == nil {
		m[credential] = map[string]*spent{}
	}
	if m[credential][tenant] == nil {
		m[credential][tenant] = &spent{}
	}
	return m[credential][tenant]
}

// charge counts a request, or says which budget does not allow it. An error of
// another kind means that it could not be counted.
func (s *spending) charge(credential, tenant string, b *policy.Budget) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().UTC()
	s.turn(now)
	n := entryOf(s.spent, credential, tenant)
	tomorrow := now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now)
	if minute := now.Unix() / 60; n.minute != minute {
		n.minute, n.inMinute = minute, 0
	}
	over := func(budget, allowed string, retry time.Duration) error {
		return &netproxy.BudgetError{Credential: credential, Budget: budget, Allowed: allowed, Retry: retry}
	}
	switch {
	case b.RequestsPerDay > 0 && n.Requests >= int64(b.RequestsPerDay):
		return over("requests_per_day", strconv.Itoa(b.RequestsPerDay), tomorrow)
	case b.BytesPerDay > 0 && n.Bytes >= int64(b.BytesPerDay):
		return over("bytes_per_day", b.BytesPerDay.String(), tomorrow)
	case b.RequestsPerMinute > 0 && n.inMinute >= b.RequestsPerMinute:
		return over("requests_per_minute", strconv.Itoa(b.RequestsPerMinute), time.Minute-time.Duration(now.Unix()%60)*time.Second)
	}
	if b.RequestsPerDay > 0 {
		if err := s.claim(credential, tenant, spent{Requests: n.Requests + 1, Bytes: n.Bytes}, b); err != nil {
			return err
		}
	}
	n.Requests++
	n.inMinute++
	return nil
}

// add counts the bytes of a request that has ended.
func (s *spending) add(credential, tenant string, bytes int64, b *policy.Budget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(s.now().UTC())
	n := entryOf(s.spent, credential, tenant)
	n.Bytes += bytes
	if b.BytesPerDay > 0 {
		if err := s.claim(credential, tenant, *n, b); err != nil {
			s.log.Error("a budget's use could not be stored", "credential", credential, "tenant", tenant, "error", err)
		}
	}
}

// turn begins a new day.
func (s *spending) turn(now time.Time) {
	if day := now.Format(time.DateOnly); day != s.day {
		s.day, s.spent, s.claimed = day, map[string]map[string]*spent{}, map[string]map[string]*spent{}
	}
}

// claim sees to it that at least so much is on the disk as used.
func (s *spending) claim(credential, tenant string, want spent, b *policy.Budget) error {
	c := entryOf(s.claimed, credential, tenant)
	if c.Requests >= want.Requests && c.Bytes >= want.Bytes {
		return nil
	}
	before := *c
	if c.Requests < want.Requests {
		c.Requests = max(want.Requests, min(want.Requests+int64(b.RequestsPerDay)/claimParts, int64(b.RequestsPerDay)))
	}
	if c.Bytes < want.Bytes {
		c.Bytes = max(want.Bytes, min(want.Bytes+int64(b.BytesPerDay)/claimParts, int64(b.BytesPerDay)))
	}
	if err := s.write(s.claimed); err != nil {
		*c = before
		return err
	}
	return nil
}

func (s *spending) write(m map[string]map[string]*spent) error {
	text, err := json.Marshal(spendingFile{1, s.day, m})
	if err != nil {
		return err
	}
	return replaceFile(s.path, text)
}

// close leaves on the disk what was used, and no more.
func (s *spending) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spent) == 0 && len(s.claimed) == 0 {
		return nil
	}
	return s.write(s.spent)
}

// replaceFile replaces a file in one step; it is on the disk when it returns.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
