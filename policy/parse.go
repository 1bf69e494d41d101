package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// MaxFile is the largest policy file that Load and Parse read.
const MaxFile = 1 << 20

// Load reads the policy file at path. A file that others than its owner could
// have written, or that neither root nor this process's user owns, is refused:
// whoever writes it decides what sandboxes may do.
func Load(path string) (*Policy, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("policy: %s: %w", path, err)
	}
	if msg := untrusted(&st); msg != "" {
		return nil, &ParseError{File: path, Message: msg}
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return Parse(path, b)
}

func untrusted(st *unix.Stat_t) string {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "is not a regular file"
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to uid %d; it must belong to root or to the user that runs sandboxd (chown root)", st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("can be written by others (mode %04o); run chmod go-w on it", st.Mode&0o7777)
	}
	return ""
}

// Parse reads a policy file's content; name is for messages. A fault makes the
// whole file void: the error is a ParseErrors with all of them. Content without
// any document is a policy that grants nothing.
func Parse(name string, b []byte) (*Policy, error) {
	return parse(name, b, osAccounts{})
}

// accounts resolves the names of callers.
type accounts interface {
	uid(user string) (uint32, error)
	gid(group string) (uint32, error)
}

func parse(name string, b []byte, a accounts) (*Policy, error) {
	r := &reader{file: name, accounts: a}
	root := r.document(b)
	p := &Policy{File: name, profiles: map[string]*Profile{}, exact: map[string]string{}, credentials: map[string]*Credential{}}
	if root != nil {
		r.policy(root, p, a)
	}
	if len(r.errs) > 0 {
		slices.SortStableFunc(r.errs, func(x, y *ParseError) int { return x.Line - y.Line })
		return nil, r.errs
	}
	p.origins = r.origins
	return p, nil
}

// yamlLine finds the place in a syntax error of the YAML package, which has no
// type for it.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// document returns the root of the only document, nil when there is none.
func (r *reader) document(b []byte) *yaml.Node {
	if len(b) > MaxFile {
		r.fail(&yaml.Node{}, "", "is larger than %s", Size(MaxFile))
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		r.syntax(err)
		return nil
	}
	if err := dec.Decode(&second); err == nil {
		r.fail(&second, "", "has a second document (---); a policy is one document")
		return nil
	} else if !errors.Is(err, io.EOF) {
		r.syntax(err)
		return nil
	}
	if len(doc.Content) == 0 {
		return nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return nil
	}
	return root
}

func (r *reader) syntax(err error) {
	text, at := err.Error(), &yaml.Node{}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		at.Line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	r.fail(at, "", "is not YAML: %s", strings.TrimPrefix(text, "yaml: "))
}

// policy reads the file's top level. References are checked last, so that the
// order of the sections does not matter.
func (r *reader) policy(root *yaml.Node, p *Policy, a accounts) {
	version := ""
	used := make(map[*yaml.Node]string) // where a profile is named
	r.keys(root, "", map[string]keyFunc{
		"version": r.word(&version, "1", func(s string) error {
			if s != "1" {
				return fmt.Errorf("is %s; this sandboxd reads version 1", quote(s))
			}
			return nil
		}),
		"callers": func(n *yaml.Node, field string) {
			r.list(n, field, func(v *yaml.Node, path string) { r.caller(v, path, p, a) })
		},
		"profiles": func(n *yaml.Node, field string) {
			r.entries(n, field, func(k, v *yaml.Node, path string) { r.profile(k, v, path, p) })
		},
		"credentials": func(n *yaml.Node, field string) {
			r.entries(n, field, func(k, v *yaml.Node, path string) { r.credential(k, v, path, p) })
		},
		"tenants": func(n *yaml.Node, field string) {
			r.entries(n, field, func(k, v *yaml.Node, path string) { r.tenant(k, v, path, p, used) })
		},
	})
	if version == "" && root.Kind == yaml.MappingNode && !hasKey(root, "version") {
		r.fail(root, "version", "is missing; write version: 1")
	}
	for n, field := range used {
		if _, ok := p.profiles[n.Value]; !ok {
			r.fail(n, field, "names profile %s, which the file does not have", quote(n.Value))
		}
	}
	r.linkCredentials(root, p)
	slices.SortFunc(p.prefixes, func(x, y prefixRule) int { return len(y.prefix) - len(x.prefix) })
}

func hasKey(n *yaml.Node, key string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// tenant reads one entry of "tenants".
func (r *reader) tenant(k, v *yaml.Node, field string, p *Policy, used map[*yaml.Node]string) {
	if err := checkPattern(k.Value); err != nil {
		r.fail(k, field, "%v", err)
	}
	var name string
	r.keys(v, field, map[string]keyFunc{
		"profile": func(n *yaml.Node, path string) {
			if r.word(&name, "the name of a profile", checkProfileName)(n, path); name != "" {
				used[n] = path
			}
		},
	})
	if v.Kind == yaml.MappingNode && !hasKey(v, "profile") {
		r.fail(k, field, "has no profile; write profile: NAME")
	}
	if prefix, wild := strings.CutSuffix(k.Value, "*"); wild {
		p.prefixes = append(p.prefixes, prefixRule{prefix, name})
	} else {
		p.exact[k.Value] = name
	}
}

// caller reads one entry of "callers".
func (r *reader) caller(n *yaml.Node, field string, p *Policy, a accounts) {
	var uid, gid *uint32
	var rule callerRule
	who := 0 // how many keys say who it is
	named := func(read keyFunc) keyFunc {
		return func(v *yaml.Node, path string) { who++; read(v, path) }
	}
	lookup := func(dst **uint32, find func(string) (uint32, error)) keyFunc {
		return func(v *yaml.Node, path string) {
			s, ok := r.text(v, path, "a name")
			if !ok {
				return
			}
			id, err := find(s)
			if err != nil {
				r.fail(v, path, "%v", err)
				return
			}
			*dst = &id
		}
	}
	r.keys(n, field, map[string]keyFunc{
		"uid":     named(r.id(&uid)),
		"gid":     named(r.id(&gid)),
		"user":    named(lookup(&uid, a.uid)),
		"group":   named(lookup(&gid, a.gid)),
		"tenants": r.words(&rule.tenants, "a tenant's name or prefix*", checkPattern),
		"admin":   r.boolean(&rule.admin),
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	switch {
	case who != 1:
		r.fail(n, field, "names its caller %d times; write exactly one of user, uid, group, gid", who)
		return
	case !hasKey(n, "tenants") && !rule.admin:
		r.fail(n, field, `grants nothing; write tenants: [NAME, PREFIX*] or tenants: ["*"]`)
	}
	switch {
	case uid != nil:
		rule.id = *uid
	case gid != nil:
		rule.id, rule.group = *gid, true
	default:
		return // its fault is already noted
	}
	p.callers = append(p.callers, rule)
}

// osAccounts asks the system's user database.
type osAccounts struct{}

func (osAccounts) uid(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("%s is no user of this system; create it, or write uid: NUMBER", quote(name))
	}
	return parseID(u.Uid)
}

func (osAccounts) gid(name string) (uint32, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("%s is no group of this system; create it, or write gid: NUMBER", quote(name))
	}
	return parseID(g.Gid)
}

func parseID(s string) (uint32, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("the system's id %s is not a number", quote(s))
	}
	return uint32(id), nil
}
