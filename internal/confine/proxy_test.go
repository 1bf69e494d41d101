package confine

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	roles["proxy"] = proxy
}

// proxy is confined as the egress proxy; it may read in.Paths[0], a directory,
// and has a listener as descriptor 3.
func proxy(in input) (any, error) {
	old := newThread()
	listed, unlisted := in.Paths[0], in.Paths[1]
	_, err := Apply(Profile{Name: "proxy", ReadOnly: []string{listed}, Connect: true, Seccomp: ProxyFilter()})
	if err != nil {
		return nil, err
	}
	attempts := forbidden()
	open := func(path string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(path, flags, 0o600)
			if err == nil {
				closeQuietly(fd)
			}
			return err
		}
	}
	const high = 1 << 32
	for name, f := range map[string]func() error{
		"read unlisted":     open(unlisted, unix.O_RDONLY),
		"read listed":       open(filepath.Join(listed, "roots.pem"), unix.O_RDONLY),
		"list listed":       open(listed, unix.O_RDONLY|unix.O_DIRECTORY),
		"write listed":      open(filepath.Join(listed, "roots.pem"), unix.O_WRONLY),
		"truncate listed":   open(filepath.Join(listed, "roots.pem"), unix.O_RDONLY|unix.O_TRUNC),
		"create":            open(filepath.Join(listed, "new"), unix.O_RDONLY|unix.O_CREAT),
		"temporary":         open(listed, unix.O_RDWR|unix.O_TMPFILE),
		"path only":         open(unlisted, unix.O_PATH),
		"out of the folder": open(filepath.Join(listed, "..", filepath.Base(unlisted)), unix.O_RDONLY),
		"raw":               raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"raw high bits":     raw(unix.SYS_SOCKET, high|unix.AF_INET, high|unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"multipath tcp":     raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 262),
		"sctp":              raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP),
		"packet":            raw(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_DGRAM, 0),
		"vsock":             raw(unix.SYS_SOCKET, 40, unix.SOCK_STREAM, 0),
		"alg":               raw(unix.SYS_SOCKET, 38, unix.SOCK_SEQPACKET, 0),
		"mark":              raw(unix.SYS_SETSOCKOPT, 3, unix.SOL_SOCKET, unix.SO_MARK),
		"attach filter":     raw(unix.SYS_SETSOCKOPT, 3, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER),
		"tcp ulp":           raw(unix.SYS_SETSOCKOPT, 3, unix.IPPROTO_TCP, 31),
		"iptables":          raw(unix.SYS_SETSOCKOPT, 3, unix.IPPROTO_IP, 64),
		"executable memory": raw(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS),
	} {
		attempts[name] = f
	}
	// In this role these are possible; they are tried in other ways.
	for _, name := range []string{"openat", "stat", "socket inet", "connect"} {
		delete(attempts, name)
	}
	out := try(old, attempts)
	for name, f := range map[string]func() error{
		"threads": manyThreads,
		"collect": collectWhileSpinning,
		"tcp4":    func() error { return exchange("tcp", in.Addr["tcp4"]) },
		"tcp6":    func() error { return exchange("tcp", in.Addr["tcp6"]) },
		"udp":     func() error { return exchange("udp", in.Addr["udp"]) },
		"https":   func() error { return get(in.Addr["https"], filepath.Join(listed, "roots.pem")) },
		"accept":  acceptAndCopy,
	} {
		out["can "+name] = text(f())
	}
	_, err = net.Listen("tcp4", "127.0.0.1:0")
	out["listen"] = text(err)
	return out, nil
}

func TestProxyProfile(t *testing.T) {
	listed, unlisted := folders(t)
	tcp4 := echoTCP(t, "tcp4", "127.0.0.1:0")
	tcp6 := echoTCP(t, "tcp6", "[::1]:0")
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer web.Close()
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(listed, "roots.pem"), roots, 0o644); err != nil {
		t.Fatal(err)
	}
	inside, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	file, err := inside.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	go askTwice(inside.Addr().String())

	want := forbiddenErrors()
	for _, name := range []string{"openat", "stat", "socket inet", "connect"} {
		delete(want, name)
	}
	for name, w := range map[string]string{
		"read unlisted": "EACCES", "read listed": "", "list listed": "", "out of the folder": "EACCES",
		"write listed": "EPERM", "truncate listed": "EPERM", "create": "EPERM", "temporary": "EPERM", "path only": "EPERM",
		"raw": "EPERM", "raw high bits": "EPERM", "multipath tcp": "EPERM", "sctp": "EPERM", "packet": "EPERM",
		"vsock": "EPERM", "alg": "EPERM", "mark": "EPERM", "attach filter": "EPERM", "tcp ulp": "EPERM", "iptables": "EPERM",
		"executable memory": "EPERM", "listen": "EPERM",
		"can threads": "", "can collect": "", "can tcp4": "", "can tcp6": "", "can udp": "", "can https": "", "can accept": "",
	} {
		want[name] = w
	}
	compare(t, run[outcomes](t, "proxy", input{
		Paths: []string{listed, unlisted},
		Addr:  map[string]string{"tcp4": tcp4, "tcp6": tcp6, "udp": echoUDP(t), "https": web.URL},
	}, file), want)
}

// folders makes a directory that a child may be granted, and a file beside it.
func folders(t *testing.T) (listed, unlisted string) {
	t.Helper()
	// Not t.TempDir: another user could not come through its parent.
	dir, err := os.MkdirTemp("", "confine-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listed, unlisted = filepath.Join(dir, "listed"), filepath.Join(dir, "unlisted")
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.Mkdir(listed, 0o755), os.WriteFile(unlisted, []byte("x"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return listed, unlisted
}

func echoTCP(t *testing.T, network, addr string) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	return l.Addr().String()
}

func echoUDP(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo(buf[:n], from)
		}
	}()
	return c.LocalAddr().String()
}

// exchange sends a word and expects it back.
func exchange(network, addr string) error {
	c, err := net.Dial(network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "word"); err != nil {
		return err
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "word" {
		return fmt.Errorf("answer %q, %w", buf, err)
	}
	return nil
}

// get fetches over TLS with roots from a file, as the proxy does.
func get(url, roots string) error {
	b, err := os.ReadFile(roots)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return fmt.Errorf("no certificate in %s", roots)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig.RootCAs = pool
	resp, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "hello" {
		return fmt.Errorf("answer %q, %w", body, err)
	}
	return nil
}

// acceptAndCopy takes two connections from the inherited listener and copies
// from one to the other, which Go would do with splice.
func acceptAndCopy() error {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	defer l.Close()
	from, err := l.Accept()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		return err
	}
	defer to.Close()
	n, err := io.Copy(to, from)
	if err == nil && n != 1<<20 {
		err = fmt.Errorf("%d bytes copied", n)
	}
	return err
}

// askTwice is the other side of acceptAndCopy.
func askTwice(addr string) {
	a, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	b, err := net.Dial("tcp", addr)
	if err != nil {
		a.Close()
		return
	}
	defer b.Close()
	go func() { a.Write(make([]byte, 1<<20)); a.Close() }()
	io.Copy(io.Discard, b)
}
