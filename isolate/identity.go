package isolate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"

	"sandboxd/isolate/cpython"
	"sandboxd/isolate/guests"
	prelude "sandboxd/isolate/js"
	"sandboxd/isolate/wasmbin"
)

// An Identity names what decides, beside a request and the answers of its host
// calls, what a deterministic run shows. Where it differs a run cannot be had
// again.
type Identity struct {
	// Engine is a hash of the interpreter, of what is loaded into it, of how
	// fuel is counted and of the processor's kind.
	Engine string `json:"engine"`
	// FuelVersion names the costs alone.
	FuelVersion string `json:"fuel_version"`
}

// behaviour counts the changes of this package and of the engines' that a
// deterministic run can show, such as the order in which timers and answers come
// or what is charged for memory.
const behaviour = 1

var identities sync.Map // language → Identity

// IdentityOf gives the identity of the engine that runs a language here.
func IdentityOf(language string) (Identity, error) {
	if id, ok := identities.Load(language); ok {
		return id.(Identity), nil
	}
	var names, sums []string
	var loaded string
	switch language {
	case "js", "ts":
		names, loaded = []string{quickjsGuest, streamsGuest}, prelude.Source("")
	case languagePython:
		names, loaded = []string{pythonGuest}, cpython.Script()
	}
	for _, name := range names {
		g, err := guests.Find(name)
		if err != nil {
			return Identity{}, fmt.Errorf("isolate: identity: %w", err)
		}
		sums = append(sums, g.SHA256)
	}
	b, err := json.Marshal([]any{behaviour, language, sums, loaded, wasmbin.FuelVersion(), runtime.GOARCH})
	if err != nil {
		return Identity{}, fmt.Errorf("isolate: identity: %w", err)
	}
	hash := sha256.Sum256(b)
	id := Identity{Engine: hex.EncodeToString(hash[:16]), FuelVersion: wasmbin.FuelVersion()}
	identities.Store(language, id)
	return id, nil
}
