package api

import "time"

// SecretProtocol is what a connection is upgraded to for a value.
const SecretProtocol = "sandboxd-secret"

// A Secret is what may be known of a credential.
type Secret struct {
	Name string `json:"name"`
	// Source is where its value comes from.
	Source string `json:"source" enum:"store,file,command,socket,oauth2,none" doc:"none: a rule names it, and nothing has its value. oauth2: the client's secret is in the store or a file."`
	// Changed is when the value was set, absent where nobody knows.
	Changed *time.Time  `json:"changed,omitempty"`
	Uses    []SecretUse `json:"uses" doc:"Rules that send it."`
}

// A SecretUse is one rule that sends a credential.
type SecretUse struct {
	Profile string `json:"profile"`
	Rule    string `json:"rule"`
	As      string `json:"as" enum:"bearer,basic,header,query,aws-sigv4"`
}

// SecretList lists credentials by name.
type SecretList struct {
	Secrets []Secret `json:"secrets"`
}
