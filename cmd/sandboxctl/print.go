package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandboxd/daemon/api"
	"sandboxd/policy"
)

// The rules of everything that is printed: results go to stdout and the rest to
// stderr; text out of a sandbox is escaped when it goes to a terminal; an error
// says what, then indented where and how to mend it.

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// escape makes text harmless for a terminal: control characters, also those of
// the C1 range, characters that turn the direction of text, and bytes that are
// not UTF-8 are shown as \x.. or \u....; newlines and tabs stay.
func escape(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < 0x80 && unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// safe escapes for stdout when that is a terminal, safeErr for stderr.
func (a *app) safe(s string) string {
	if a.outTTY {
		return escape(s)
	}
	return s
}

func (a *app) safeErr(s string) string {
	if a.errTTY {
		return escape(s)
	}
	return s
}

// printJSON prints a value as the API gives it. JSON escapes control characters
// by itself, but not those above ASCII.
func (a *app) printJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, a.safe(string(text)))
	return err
}

// done ends a command that has nothing to say: with --json that is an empty
// object.
func (a *app) done(err error) error {
	if err != nil || !a.json {
		return err
	}
	return a.printJSON(struct{}{})
}

// table prints aligned columns. Cells are escaped always: a newline in one would
// make rows that are none.
func (a *app) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(head, "\t"))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func oneLine(s string) string {
	s = strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(escape(s))
	if s == "" {
		return "-"
	}
	return s
}

// fields prints names and values below each other.
func (a *app) fields(w io.Writer, pairs ...[2]string) {
	width := 0
	for _, p := range pairs {
		width = max(width, len(p[0]))
	}
	for _, p := range pairs {
		if p[1] != "" {
			fmt.Fprintf(w, "%-*s  %s\n", width, p[0], oneLine(p[1]))
		}
	}
}

// printError prints an error of the daemon or of a run.
func (a *app) printError(e *api.Error) {
	w := a.errOut
	line := e.Code
	if e.Limit != "" {
		line += " (" + e.Limit + ")"
	}
	fmt.Fprintf(w, "%s: %s\n", line, a.safeErr(e.Message))
	if p := e.Position; p != nil {
		at := p.File
		if p.Line > 0 {
			at += fmt.Sprintf(":%d", p.Line)
		}
		if p.Column > 0 {
			at += fmt.Sprintf(":%d", p.Column)
		}
		fmt.Fprintf(w, "  at: %s\n", a.safeErr(strings.TrimPrefix(at, ":")))
		if e.SourceLine != "" {
			fmt.Fprintf(w, "    %s\n", a.safeErr(strings.ReplaceAll(e.SourceLine, "\t", " ")))
		}
	}
	for _, p := range [][2]string{{"field", e.Field}, {"used", e.Used}, {"allowed", e.Allowed}} {
		if p[1] != "" {
			fmt.Fprintf(w, "  %s: %s\n", p[0], a.safeErr(p[1]))
		}
	}
	if e.Stack != "" {
		for line := range strings.Lines(strings.TrimRight(e.Stack, "\n")) {
			fmt.Fprintf(w, "  | %s\n", a.safeErr(strings.TrimRight(line, "\n")))
		}
	}
	if e.Hint != "" {
		fmt.Fprintf(w, "  hint: %s\n", a.safeErr(e.Hint))
	}
}

// age is how long ago, for people.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return rounded(time.Since(t))
}

// rounded keeps about three digits of a duration.
func rounded(d time.Duration) string {
	for _, unit := range []time.Duration{time.Microsecond, time.Millisecond, 10 * time.Millisecond, time.Second} {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}

func durationUse(u api.DurationUse) string {
	if u.Used == nil {
		return "not known on this host"
	}
	s := rounded(u.Used.Std())
	if u.Limit > 0 {
		s += " of " + u.Limit.String()
	}
	return s
}

func sizeUse(u api.CountUse) string {
	if u.Used == nil {
		return "not known on this host"
	}
	s := bytesText(*u.Used)
	if u.Limit > 0 {
		s += " of " + policy.Size(u.Limit).String()
	}
	return s
}

// bytesText is a size with a unit and one digit after the point.
func bytesText(n int64) string {
	const units = "KMGT"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

func sizeOrUnknown(n *int64) string {
	if n == nil {
		return "not known on this host"
	}
	return bytesText(*n)
}

func (a *app) printLog(l *api.LogEntry) {
	line := fmt.Sprintf("%-5s %s", l.Level, l.Message)
	if len(l.Data) > 0 && string(l.Data) != "null" {
		line += " " + string(l.Data)
	}
	fmt.Fprintln(a.errOut, a.safeErr(line))
}

func (a *app) printDenial(d *api.Denial) {
	fmt.Fprintf(a.errOut, "denied %s: %s", d.Kind, a.safeErr(d.What))
	if d.Rule != "" {
		fmt.Fprintf(a.errOut, " (%s)", a.safeErr(d.Rule))
	}
	if d.Count > 1 {
		fmt.Fprintf(a.errOut, ", %d times", d.Count)
	}
	fmt.Fprintln(a.errOut)
	if d.Kind != "network" {
		return
	}
	switch d.Rule {
	case "no_rule":
		fmt.Fprintln(a.errOut, "  hint: an operator can add a rule for it to egress: of the tenant's profile")
	case "ip_denied":
		fmt.Fprintln(a.errOut, "  hint: the name leads to an address that is not public; an operator can name its network in addresses: of the rule")
	}
}
