package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// nginx is the upstream of the egress part, and what the proxy is held against.
type nginx struct {
	upstream, proxy int // ports on the loopback
	cmd             *exec.Cmd
}

// One worker for each processor, as its package has it; no log, since the other
// side's is not counted as its work either.
const nginxConf = `daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log %[1]s/nginx.log crit;
events { worker_connections 16384; }
http {
  access_log off;
  sendfile on;
  keepalive_requests 100000000;
  keepalive_timeout 600s;
  client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3; uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5;
  upstream up { server 127.0.0.1:%[2]d; keepalive 64; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:%[2]d backlog=4096;
    root %[1]s/www;
    location = /small { return 200 "hello"; }
  }
  server {
    listen 127.0.0.1:%[3]d backlog=4096;
    location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; }
  }
}
`

// startNginx runs one in dir.
func startNginx(ctx context.Context, dir string) (*nginx, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx"
	}
	n := &nginx{}
	var free []net.Listener
	for _, port := range []*int{&n.upstream, &n.proxy} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*port = l.Addr().(*net.TCPAddr).Port
		free = append(free, l)
	}
	for _, l := range free { // not before both are known: they must differ
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	// Its workers are another user's.
	www := filepath.Join(dir, "www")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(www, 0o755)); err != nil {
		return nil, err
	}
	large, err := os.Create(filepath.Join(www, "large"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(large.Truncate(downloadOf), large.Chmod(0o644), large.Close()); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, n.upstream, n.proxy), 0o644); err != nil {
		return nil, err
	}
	n.cmd = exec.CommandContext(ctx, path, "-c", conf, "-p", dir)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	n.cmd.Cancel = func() error { return n.cmd.Process.Signal(syscall.SIGTERM) }
	if err := n.cmd.Start(); err != nil {
		return nil, fmt.Errorf("nginx (apt-get install nginx-light): %w", err)
	}
	for stop := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.proxy))
		if err == nil {
			return n, c.Close()
		}
		if time.Now().After(stop) {
			return nil, errors.Join(errors.New("nginx does not answer"), err, n.stop())
		}
	}
}

func (n *nginx) stop() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return n.cmd.Wait()
}
