package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"time"

	"sandboxd/policy"
	"sandboxd/secrets"
)

// inject adds the credential, last of all (steps 13 to 16). The transport
// sends it only over a connection whose server it has verified.
func (c *session) inject(ctx context.Context, g *rule, req *request, out *http.Request) *refusal {
	in := g.Credential
	v, err := c.s.value(ctx, c, in)
	if err == nil && in.As == policy.AsSigV4 {
		return c.sign(ctx, in, v, req, out)
	}
	if err == nil {
		err = secrets.Apply(in, v, c.s.placeholder(c.t.name, in), out.Header, out.URL)
	}
	if err != nil {
		return unavailable(req)
	}
	return nil
}

func unavailable(req *request) *refusal {
	return &refusal{status: 503, code: "internal", reason: "credential_unavailable", host: req.host.Name,
		message: "the credential that the rule for " + req.host.Name + " names is not set up, or cannot be used now",
		hint:    "the operator sees it with: sandboxctl secret list"}
}

const (
	// maxSigned is the largest body that is held in memory to be hashed.
	maxSigned = 8 << 20
	// maxSigning is how many are held at a time, maxSigningEach how many of one
	// tenant: never all.
	maxSigning     = 16
	maxSigningEach = 2
)

// signing bounds the bodies in memory.
var signing = make(chan struct{}, maxSigning)

// sign signs the request in place of the sandbox, whose own signature, made
// with a key that opens nothing, is taken out.
func (c *session) sign(ctx context.Context, in *policy.Injection, v secrets.Value, req *request, out *http.Request) *refusal {
	hash, err := secrets.PayloadHash(in, out.Header)
	if err != nil {
		return &refusal{status: 400, code: "invalid_request", reason: "payload_unsupported", host: req.host.Name,
			message: "the body is signed chunk by chunk with the sandbox's own key, which the service does not know",
			hint:    "tell the client not to sign payloads in chunks, or to leave them unsigned"}
	}
	if hash == "" {
		var r *refusal
		if hash, r = c.hashBody(ctx, req, out); r != nil {
			return r
		}
	}
	query, err := secrets.Sign(ctx, in, v, secrets.Signing{
		Method: out.Method, Scheme: req.scheme, Host: out.Host, Path: req.path, Query: out.URL.RawQuery,
		Length: out.ContentLength, Payload: hash, Time: time.Now(),
	}, out.Header)
	if err != nil {
		return unavailable(req)
	}
	out.URL.RawQuery, out.URL.ForceQuery = query, false
	return nil
}

// hashBody reads a body that is small enough, and returns its hash.
func (c *session) hashBody(ctx context.Context, req *request, out *http.Request) (string, *refusal) {
	if out.Body == http.NoBody {
		empty := sha256.Sum256(nil)
		return hex.EncodeToString(empty[:]), nil
	}
	large := &refusal{status: 413, code: "too_large", reason: "payload_unsigned", host: req.host.Name, allowed: "8MiB",
		message: "a body whose hash the client does not send is read whole to be signed, and this one is too large",
		hint:    "send its SHA-256 as X-Amz-Content-Sha256, as SDKs do"}
	if out.ContentLength > maxSigned {
		return "", large
	}
	for _, slots := range []chan struct{}{c.t.signing, signing} {
		select {
		case slots <- struct{}{}:
			context.AfterFunc(ctx, func() { <-slots }) // the request ends with its context
		case <-ctx.Done():
			return "", upstreamRefusal(ctx, ctx.Err(), req.host)
		}
	}
	body, err := io.ReadAll(io.LimitReader(out.Body, maxSigned+1))
	if err != nil {
		return "", upstreamRefusal(ctx, errors.Join(errClient, err), req.host)
	}
	if len(body) > maxSigned {
		return "", large
	}
	sum := sha256.Sum256(body)
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return hex.EncodeToString(sum[:]), nil
}
