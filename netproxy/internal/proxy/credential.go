package proxy

import (
	"encoding/json"
	"net/http"
	"sync"

	"sandboxd/netproxy/internal/names"
	"sandboxd/policy"
	"sandboxd/secrets"
)

// holders are the credentials that a host is given under any rule of the
// tenant's: a value that it was sent may come back on another path, on another
// port, or in answer to a request without any.
type holders struct {
	list []*policy.Injection
	key  string // the same for the same list
}

// holdersOf finds the credentials of a host. The rules do not change, so they
// are found once.
func (s *ruleset) holdersOf(h names.Host) *holders {
	if s == nil || !s.credentials {
		return nil
	}
	if found, ok := s.held.Load(h.Name); ok {
		out, _ := found.(*holders)
		return out
	}
	var out *holders
	for _, r := range s.rules {
		if r.Credential != nil && h.Match(r.host) {
			if out == nil {
				out = &holders{}
			}
			out.list = append(out.list, r.Credential)
		}
	}
	if out == nil {
		return nil // nothing to remember: names under a wildcard are endless
	}
	key, err := json.Marshal(out.list)
	if err == nil {
		out.key = string(key)
	}
	s.held.Store(h.Name, out)
	return out
}

// A searcher is what answers of a host are searched for; it follows the
// credentials while an answer is under way.
type searcher struct {
	s       *Server
	holders *holders
}

// redactors are kept by what they look for: making one takes longer than using
// it.
type redactors struct {
	mu    sync.Mutex
	known map[string]knownRedactor // guarded by mu; by holders.key
}

type knownRedactor struct {
	version [2]uint64
	r       *secrets.Redactor
}

// maxRedactors bounds what is kept; more are made anew.
const maxRedactors = 1024

// now returns the forms of all values as they are at this moment.
func (f *searcher) now() *secrets.Redactor {
	version := [2]uint64{f.s.secrets.Version(), f.s.tokens.set.Version()}
	c := &f.s.redactors
	c.mu.Lock()
	defer c.mu.Unlock()
	if k, ok := c.known[f.holders.key]; ok && k.version == version {
		return k.r
	}
	var list []secrets.Injected
	for _, in := range f.holders.list {
		list = append(list, f.s.valuesOf(in)...)
	}
	r := secrets.NewRedactorOf(list)
	if len(c.known) >= maxRedactors || c.known == nil {
		c.known = map[string]knownRedactor{}
	}
	c.known[f.holders.key] = knownRedactor{version, r}
	return r
}

// valuesOf are all values of a credential that a server may have: the one in
// use and those before it, and what tokens are made from.
func (s *Server) valuesOf(in *policy.Injection) (list []secrets.Injected) {
	for _, held := range []secrets.Held{s.secrets.Held(in.Name), s.tokens.set.Held(in.Name)} {
		for _, v := range append(held.Previous, held.Value) {
			if !v.IsZero() {
				list = append(list, secrets.Injected{As: in, Value: v})
			}
		}
	}
	return list
}

// readable makes the answer one that can be searched: not compressed, and
// whole, since a range could cut an echoed value in two (step 17).
func readable(header http.Header) {
	header["Accept-Encoding"] = []string{"identity"}
	for _, name := range []string{"Range", "If-Range", "Want-Digest", "A-Im"} {
		secrets.Strip(header, name)
	}
}
