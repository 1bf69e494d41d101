package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandboxd/netproxy"
	"sandboxd/policy"
)

func testSpending(t *testing.T, path string, clock *time.Time) *spending {
	t.Helper()
	s, err := openSpending(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.now = func() time.Time { return *clock }
	return s
}

func wantBudget(t *testing.T, err error, budget string) {
	t.Helper()
	var over *netproxy.BudgetError
	if budget == "" && err == nil {
		return
	}
	if !errors.As(err, &over) || over.Budget != budget || over.Retry <= 0 {
		t.Errorf("got %v, want %q", err, budget)
	}
}

func TestBudgets(t *testing.T) {
	clock := time.Date(2031, 1, 2, 23, 58, 30, 0, time.UTC)
	s := testSpending(t, filepath.Join(t.TempDir(), "budgets.json"), &clock)
	minute := &policy.Budget{RequestsPerMinute: 2}
	for _, want := range []string{"", "", "requests_per_minute"} {
		wantBudget(t, s.charge("c", "a", minute), want)
	}
	wantBudget(t, s.charge("c", "b", minute), "") // another tenant
	wantBudget(t, s.charge("d", "a", minute), "") // another credential
	clock = clock.Add(time.Minute)
	wantBudget(t, s.charge("c", "a", minute), "")

	day := &policy.Budget{RequestsPerDay: 3, BytesPerDay: 100}
	for _, want := range []string{"", "", "", "requests_per_day"} {
		wantBudget(t, s.charge("e", "a", day), want)
	}
	wantBudget(t, s.charge("f", "a", day), "")
	s.add("f", "a", 250, day)
	wantBudget(t, s.charge("f", "a", day), "bytes_per_day")
	clock = clock.Add(time.Minute) // midnight has passed
	wantBudget(t, s.charge("e", "a", day), "")
	wantBudget(t, s.charge("f", "a", day), "")
}

// TestBudgetsOutliveTheDaemon: a restart is no way to begin a day anew, whether
// the daemon was stopped or killed.
func TestBudgetsOutliveTheDaemon(t *testing.T) {
	for _, stopped := range []bool{true, false} {
		clock := time.Date(2031, 1, 2, 3, 0, 0, 0, time.UTC)
		path := filepath.Join(t.TempDir(), "budgets.json")
		b := &policy.Budget{RequestsPerDay: 200, BytesPerDay: 6400}
		s := testSpending(t, path, &clock)
		for range 150 {
			wantBudget(t, s.charge("c", "a", b), "")
			s.add("c", "a", 10, b)
		}
		if stopped {
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
		}
		s = testSpending(t, path, &clock)
		left := 0
		for s.charge("c", "a", b) == nil {
			left++
		}
		if stopped && left != 50 || left > 50 || left < 46 {
			t.Errorf("stopped %v: %d requests are left of 50", stopped, left)
		}
		clock = clock.Add(24 * time.Hour)
		s = testSpending(t, path, &clock)
		wantBudget(t, s.charge("c", "a", b), "")
	}
}

func TestBudgetsThatCannotBeStoredAreNotGranted(t *testing.T) {
	clock := time.Date(2031, 1, 2, 3, 0, 0, 0, time.UTC)
	dir := filepath.Join(t.TempDir(), "gone")
	s := testSpending(t, filepath.Join(dir, "budgets.json"), &clock)
	var over *netproxy.BudgetError
	if err := s.charge("c", "a", &policy.Budget{RequestsPerDay: 5}); err == nil || errors.As(err, &over) {
		t.Errorf("a request that could not be counted: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte(`{"version":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openSpending(bad, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file of another version was taken")
	}
}
