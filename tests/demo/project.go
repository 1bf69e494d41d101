package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const devPort = "5173"

// tellProject takes a web project from clone to preview in bob's jail.
func tellProject(ctx context.Context, d *daemon, w *world) error {
	headline("The project: a jail for bob")
	site := "/workspace/site"
	say("Clone from %s. The proxy adds the password; the jail never has it.", gitHost)
	if _, err := d.want(ctx, 0, nil, "exec", "bob", "--", "git", "clone", "-q", "https://"+gitHost+"/tiny-site.git", site); err != nil {
		return err
	}
	say("Install its dependencies through the proxy, from the registry that npm is set up with, and build:")
	if _, err := d.want(ctx, 0, []string{"added"}, "exec", "--cwd", site, "bob", "--", "npm", "install", "--no-audit", "--no-fund"); err != nil {
		return err
	}
	if _, err := d.want(ctx, 0, []string{"built in"}, "exec", "--cwd", site, "bob", "--", "npm", "run", "build"); err != nil {
		return err
	}
	say("Start its dev server in the background, wait for its port, publish it:")
	if _, err := d.want(ctx, 0, nil, "exec", "--background", "--id", "dev", "--cwd", site, "bob", "--", "npm", "run", "dev"); err != nil {
		return err
	}
	if _, err := d.want(ctx, 0, nil, "wait", "--port", devPort, "--timeout", "60s", "bob", "dev"); err != nil {
		return err
	}
	o, err := d.want(ctx, 0, []string{"localhost"}, "--json", "port", "expose", "bob", devPort)
	if err != nil {
		return err
	}
	var port struct{ URL string }
	if err := json.Unmarshal([]byte(o.stdout), &port); err != nil {
		return fmt.Errorf("the published port: %w", err)
	}
	if err := d.showPage(ctx, port.URL); err != nil {
		return err
	}
	if _, err := d.want(ctx, 0, []string{"dev"}, "ps", "bob"); err != nil {
		return err
	}
	if _, err := d.want(ctx, 0, []string{"VITE"}, "logs", "bob", "dev"); err != nil {
		return err
	}
	if _, err := d.want(ctx, 0, []string{"index.html", "assets"}, "ls", "bob", site+"/dist"); err != nil {
		return err
	}
	if err := neighbours(ctx, d); err != nil {
		return err
	}
	say("Destroy it; the preview goes with it:")
	if _, err := d.want(ctx, 0, nil, "jail", "destroy", "bob"); err != nil {
		return err
	}
	status, _, err := d.fetchPreview(ctx, port.URL)
	if err != nil {
		return err
	}
	if status != http.StatusGone {
		return fmt.Errorf("the preview of a destroyed jail answered %d, not 410", status)
	}
	fmt.Printf("  │ GET %s → 410 Gone\n", port.URL)
	return nil
}

// neighbours shows that alice's jail sees nothing of bob's, which runs beside it.
func neighbours(ctx context.Context, d *daemon) error {
	say("alice's jail, at the same time, sees none of it: not the files, not the processes, not the port, not bob's git access.")
	o, err := d.want(ctx, 0, nil, "exec", "alice", "--", "sh", "-c", "ls -A /workspace; cat /proc/[0-9]*/comm; cat /proc/net/tcp")
	if err != nil {
		return err
	}
	// 5173 is 0x1435 in /proc/net/tcp.
	for _, trace := range []string{"site", "\nnode", "npm", ":1435"} {
		if strings.Contains(o.stdout, trace) {
			return fmt.Errorf("alice's jail shows %q", trace)
		}
	}
	o, err = d.call(ctx, "exec", "alice", "--", "git", "ls-remote", "https://"+gitHost+"/tiny-site.git")
	if err != nil {
		return err
	}
	if o.code == 0 || !strings.Contains(o.all(), "403") {
		return fmt.Errorf("alice's git should be refused with 403; it ended with %d", o.code)
	}
	_, err = d.want(ctx, 0, nil, "jail", "destroy", "alice")
	return err
}

// showPage fetches the preview as a browser would and prints it.
func (d *daemon) showPage(ctx context.Context, url string) error {
	say("The page, through the preview listener:")
	status, page, err := d.fetchPreview(ctx, url)
	if err != nil {
		return err
	}
	fmt.Printf("  │ GET %s → %d\n", url, status)
	for _, line := range strings.Split(strings.TrimSpace(page), "\n") {
		fmt.Printf("  │ %s\n", line)
	}
	if status != http.StatusOK || !strings.Contains(page, "/@vite/client") || !strings.Contains(page, "Tiny site") {
		return fmt.Errorf("that is not the dev server's page")
	}
	status, script, err := d.fetchPreview(ctx, strings.TrimSuffix(url, "/")+"/main.js")
	if err != nil {
		return err
	}
	if status != http.StatusOK || !strings.Contains(script, "marked") {
		return fmt.Errorf("the page's script came with %d", status)
	}
	return nil
}

// fetchPreview asks the preview listener; names below localhost are not known to
// every resolver, so the address is dialled as it stands.
func (d *daemon) fetchPreview(ctx context.Context, url string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	dialer := &net.Dialer{}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", d.preview)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Accept", "text/html,*/*")
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", fmt.Errorf("fetch the preview: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(body), err
}

// tellRecord shows what is on record of all this.
func tellRecord(ctx context.Context, d *daemon, w *world) error {
	headline("The record")
	if _, err := d.want(ctx, 0, nil, "audit", "verify"); err != nil {
		return err
	}
	_, err := d.want(ctx, 0, nil, "status")
	return err
}
