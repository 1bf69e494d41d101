package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// profile reads one entry of "profiles".
func (r *reader) profile(k, v *yaml.Node, field string, p *Policy) {
	if err := checkProfileName(k.Value); err != nil {
		r.fail(k, field, "%v", err)
	}
	pr := &Profile{Name: k.Value}
	r.keys(v, field, map[string]keyFunc{
		"isolate": func(n *yaml.Node, path string) { pr.Isolate = r.isolate(n, path) },
		"jail":    func(n *yaml.Node, path string) { pr.Jail = r.jail(n, path) },
		"egress": func(n *yaml.Node, path string) {
			r.list(n, path, func(v *yaml.Node, path string) {
				if rule := r.rule(v, path, fmt.Sprintf("%s/%d", pr.Name, len(pr.Egress))); rule != nil {
					pr.Egress = append(pr.Egress, *rule)
				}
			})
			r.uniqueIDs(n, path, pr.Egress)
		},
		"egress_limits": func(n *yaml.Node, path string) { r.egressLimits(n, path, &pr.EgressLimits) },
	})
	if v.Kind == yaml.MappingNode && !hasKey(v, "egress") && hasKey(v, "egress_limits") {
		r.fail(v, field+".egress_limits", "limits what egress rules grant, and there are none")
	}
	if len(pr.Egress) > 0 {
		r.egressDefaults(field+".egress_limits", &pr.EgressLimits)
	}
	p.profiles[k.Value] = pr
}

// uniqueIDs keeps decisions and records unambiguous.
func (r *reader) uniqueIDs(n *yaml.Node, field string, rules []Rule) {
	seen := make(map[string]bool)
	for _, rule := range rules {
		if seen[rule.ID] {
			r.fail(n, field, "has two rules with the id %s; give each its own", quote(rule.ID))
		}
		seen[rule.ID] = true
	}
}

func (r *reader) isolate(n *yaml.Node, field string) *IsolateGrant {
	g := &IsolateGrant{Recordings: RecordingDefaults()}
	r.keys(n, field, map[string]keyFunc{
		"languages": r.words(&g.Languages, "a language", func(s string) error { return checkOneOf(s, isolateLanguages) }),
		"bindings": func(n *yaml.Node, path string) {
			g.Bindings = make(map[string]Binding)
			r.entries(n, path, func(k, v *yaml.Node, path string) { r.binding(k, v, path, g.Bindings) })
		},
		"fetch":  r.boolean(&g.Fetch),
		"record": r.word(&g.Record, "which runs are recorded", func(s string) error { return checkOneOf(s, recordModes) }),
		"recordings": func(n *yaml.Node, path string) {
			r.recordings(n, path, &g.Recordings)
		},
		"isolation": r.word(&g.Isolation, "shared or strict", func(s string) error { return checkOneOf(s, []string{IsolationShared, IsolationStrict}) }),
		"limits": func(n *yaml.Node, path string) {
			r.limits(n, path, &g.Limits, isolateLimits, "an isolate")
		},
		"functions": func(n *yaml.Node, path string) { r.functions(n, path, &g.Functions) },
	})
	if n.Kind == yaml.MappingNode && !hasKey(n, "languages") {
		r.fail(n, field, "has no languages; write languages: [js, ts]")
	}
	if g.Isolation == "" {
		g.Isolation = IsolationShared
		r.note(field+".isolation", g.Isolation, 0)
	}
	r.defaults(field, &g.Limits, IsolateDefaults())
	r.noteRecording(field, g)
	r.functionDefaults(field+".functions", &g.Functions)
	return g
}

func (r *reader) jail(n *yaml.Node, field string) *JailGrant {
	g := &JailGrant{}
	r.keys(n, field, map[string]keyFunc{
		"template":  r.word(&g.Template, "host or an imported template's name", checkName),
		"templates": r.words(&g.Templates, "a template's name", checkName),
		"root":      r.word(&g.Root, "read-only or writable", func(s string) error { return checkOneOf(s, []string{RootReadOnly, RootWritable}) }),
		"preview":   r.boolean(&g.Preview),
		"env": func(n *yaml.Node, path string) {
			g.Env = make(map[string]string)
			r.entries(n, path, func(k, v *yaml.Node, path string) {
				if err := checkEnvName(k.Value); err != nil {
					r.fail(k, path, "%v", err)
				}
				if s, ok := r.text(v, path, "text"); ok {
					g.Env[k.Value] = s
				}
			})
		},
		"limits": func(n *yaml.Node, path string) {
			r.limits(n, path, &g.Limits, jailLimits, "a jail")
		},
	})
	if g.Template == "" {
		g.Template = "host"
		r.note(field+".template", g.Template, 0)
	}
	if g.Root == "" {
		g.Root = RootReadOnly
		r.note(field+".root", g.Root, 0)
	}
	if g.Root == RootWritable && g.Template == "host" && len(g.Templates) == 0 {
		r.fail(n, field+".root", "is writable, but the only template is host, which never is; import one and name it in template")
	}
	r.defaults(field, &g.Limits, JailDefaults())
	return g
}

// defaults completes the limits and notes which of them the file does not say.
func (r *reader) defaults(field string, l *Limits, d Limits) {
	for _, f := range allLimits {
		if v := f.get(&d); v != 0 && f.get(l) == 0 {
			r.note(field+".limits."+f.key, f.show(v), 0)
		}
	}
	*l = l.WithDefaults(d)
}

// limits reads the fields that have a meaning where they stand.
func (r *reader) limits(n *yaml.Node, field string, l *Limits, fields []limit, where string) {
	known := make(map[string]keyFunc)
	for _, f := range allLimits {
		if slices.ContainsFunc(fields, func(g limit) bool { return g.key == f.key }) {
			continue
		}
		known[f.key] = func(v *yaml.Node, path string) { r.fail(v, path, "has no meaning for %s; remove it", where) }
	}
	for _, f := range fields {
		known[f.key] = func(v *yaml.Node, path string) { r.limit(v, path, l, f) }
	}
	r.keys(n, field, known)
}

func (r *reader) limit(n *yaml.Node, field string, l *Limits, f limit) {
	s, ok := r.text(n, field, "a value such as "+f.show(f.get(example)))
	if !ok {
		return
	}
	v, err := f.parse(s)
	switch {
	case err != nil:
		r.fail(n, field, "%v", err)
	case v < f.min || v > f.max:
		r.fail(n, field, "is %s; want %s to %s, or leave it out for the default", quote(s), f.show(f.min), f.show(f.max))
	default:
		f.set(l, v)
	}
}

// example has a good value in every field.
var example = func() *Limits {
	l := IsolateDefaults().WithDefaults(JailDefaults())
	l.IOBytes, l.IOOps, l.Bandwidth = 64<<20, 1000, 16<<20
	return &l
}()

// parse reads a value in the form that the limit's kind has.
func (f limit) parse(s string) (float64, error) {
	switch f.key {
	case "wall", "cpu", "idle", "lifetime":
		d, err := ParseDuration(s)
		return float64(d), err
	case "memory", "output", "disk", "io_bytes", "bandwidth":
		n, err := ParseSize(s)
		return float64(n), err
	case "cpus":
		return parseNumber(s)
	default:
		return parseCount(s)
	}
}

func parseNumber(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) {
		return 0, fmt.Errorf("%s is not a number", quote(s))
	}
	return v, nil
}

func parseCount(s string) (float64, error) {
	v, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s is not a whole number", quote(s))
	}
	return float64(v), nil
}
