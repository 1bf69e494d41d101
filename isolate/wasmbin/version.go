package wasmbin

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"sync"
)

// What a unit of fuel is for and where it is charged is decided by these files.
var (
	//go:embed cost.go
	costSource string
	//go:embed segments.go
	segmentsSource string
	//go:embed meter.go
	meterSource string
)

// FuelVersion names the table of costs and the places where they are charged:
// fuel of two versions cannot be compared. It changes with any change of the
// files that decide it, also with one that changes no cost.
var FuelVersion = sync.OnceValue(func() string {
	h := sha256.New()
	for _, text := range []string{costSource, segmentsSource, meterSource} {
		h.Write([]byte(text))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
})
