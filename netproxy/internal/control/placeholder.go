package control

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"

	"sandboxd/policy"
)

// Placeholder is what stands for a credential inside the sandboxes of a tenant:
// another value for each tenant and credential, and worth nothing anywhere. Both
// sides make it from a key of this start of the daemon.
func Placeholder(key []byte, tenant string, in *policy.Injection) string {
	if in.Placeholder == "" || len(key) == 0 {
		return ""
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte(tenant + "\x00" + in.Name + "\x00" + in.Placeholder))
	return in.PlaceholderPrefix + "placeholder" + hex.EncodeToString(m.Sum(nil)[:16])
}
