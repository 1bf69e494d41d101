package main

import (
	"strings"
	"testing"

	"sandboxd/daemon"
)

func TestPreviewOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		o     previewOptions
		fault string
	}{
		"nothing":            {previewOptions{}, ""},
		"behind a proxy":     {previewOptions{url: "https://preview.example.com"}, ""},
		"with its own port":  {previewOptions{url: "https://preview.example.com:8443/", cert: "c", key: "k"}, ""},
		"half a certificate": {previewOptions{url: "https://a.example", cert: "c"}, "--preview-key"},
		"no name for it":     {previewOptions{cert: "c", key: "k"}, "--preview-url"},
		"plain with TLS":     {previewOptions{url: "http://a.example", cert: "c", key: "k"}, "https://"},
		"no scheme":          {previewOptions{url: "preview.example.com"}, "https://HOST"},
		"another scheme":     {previewOptions{url: "ftp://a.example"}, "https://HOST"},
		"a path":             {previewOptions{url: "https://a.example/x"}, "more than"},
		"a user":             {previewOptions{url: "https://u@a.example"}, "more than"},
		"an address":         {previewOptions{url: "https://127.0.0.1"}, "is an address"},
		"no host name":       {previewOptions{url: "https://a_b..example"}, "no host name"},
	} {
		err := tc.o.check()
		if (err == nil) != (tc.fault == "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%s: %v, want %q", name, err, tc.fault)
		}
	}
}

func TestPreviewIsReachedByItsURL(t *testing.T) {
	for url, want := range map[string]string{"": "localhost:", "https://Preview.example.com:8443": "Preview.example.com:8443"} {
		o := previewOptions{address: "127.0.0.1:0", url: url}
		var cfg daemon.Config
		if err := o.apply(&cfg, nil); err != nil {
			t.Fatal(err)
		}
		defer cfg.Preview.Close()
		if !strings.HasPrefix(cfg.PreviewBase, want) || cfg.PreviewHTTPS != (url != "") || cfg.PreviewTLS != nil {
			t.Errorf("%q: base %q, https %t", url, cfg.PreviewBase, cfg.PreviewHTTPS)
		}
	}
	o := previewOptions{address: "127.0.0.1:0", url: "https://a.example", cert: "/nonexistent/c", key: "/nonexistent/k"}
	var cfg daemon.Config
	err := o.apply(&cfg, nil)
	defer cfg.Preview.Close()
	if err == nil || !strings.Contains(err.Error(), "--preview-cert") {
		t.Errorf("a missing certificate: %v", err)
	}
}
