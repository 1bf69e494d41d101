// Package proxy is the proxy process: it reads what sandboxes send, decides,
// and carries what is granted. The decision procedure is that of the design's
// security notes, section 3; its steps are cited by number in the comments
// ("step 7").
//
// Who calls it: netproxy.Main. It imports netproxy/internal/{control,names,
// strict}, internal/{confine,ipc}, policy and secrets.
//
// It must never decide for a tunnel what must be decided for a request, never
// tell a tenant by anything that the tenant sends, never follow a redirect, and
// never put more of an error into an answer or a record than a fixed word.
package proxy
