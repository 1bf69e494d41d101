package strict

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func head(s string) (*Head, error) { return ReadHead(bufio.NewReader(strings.NewReader(s))) }

func TestReadHeadRefuses(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a\r\n"
	const post = "POST / HTTP/1.1\r\nHost: a\r\n"
	for name, tc := range map[string]struct {
		in   string
		want error
	}{
		"length and coding":        {post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", ErrSyntax},
		"coding and length":        {post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", ErrSyntax},
		"two lengths":              {post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", ErrSyntax},
		"two equal lengths":        {post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", ErrSyntax},
		"length list":              {post + "Content-Length: 5, 5\r\n\r\n", ErrSyntax},
		"negative length":          {post + "Content-Length: -5\r\n\r\n", ErrSyntax},
		"signed length":            {post + "Content-Length: +5\r\n\r\n", ErrSyntax},
		"hexadecimal length":       {post + "Content-Length: 0x5\r\n\r\n", ErrSyntax},
		"empty length":             {post + "Content-Length:\r\n\r\n", ErrSyntax},
		"endless length":           {post + "Content-Length: 9999999999999999999\r\n\r\n", ErrSyntax},
		"length of other digits":   {post + "Content-Length: ５\r\n\r\n", ErrSyntax},
		"other coding":             {post + "Transfer-Encoding: gzip, chunked\r\n\r\n", ErrSyntax},
		"misspelt coding":          {post + "Transfer-Encoding: xchunked\r\n\r\n", ErrSyntax},
		"coding in capitals":       {post + "Transfer-Encoding: Chunked\r\n\r\n", ErrSyntax},
		"identity":                 {post + "Transfer-Encoding: identity\r\n\r\n", ErrSyntax},
		"two codings":              {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", ErrSyntax},
		"coding with vertical tab": {post + "Transfer-Encoding: \x0bchunked\r\n\r\n", ErrSyntax},
		"bare line feeds":          {"GET / HTTP/1.1\nHost: a\n\n", ErrSyntax},
		"bare line feed at end":    {"GET / HTTP/1.1\r\nHost: a\r\n\n", ErrSyntax},
		"bare line feed in value":  {"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", ErrSyntax},
		"bare carriage return":     {"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", ErrSyntax},
		"double carriage return":   {"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", ErrSyntax},
		"folded line":              {get + "X: a\r\n b\r\n\r\n", ErrSyntax},
		"folded with tab":          {get + "X: a\r\n\tb\r\n\r\n", ErrSyntax},
		"folded first field":       {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", ErrSyntax},
		"space before colon":       {get + "X : a\r\n\r\n", ErrSyntax},
		"no colon":                 {get + "X\r\n\r\n", ErrSyntax},
		"empty name":               {get + ": a\r\n\r\n", ErrSyntax},
		"name with bad character":  {get + "X(: a\r\n\r\n", ErrSyntax},
		"nul":                      {get + "X: a\x00b\r\n\r\n", ErrSyntax},
		"delete":                   {get + "X: a\x7fb\r\n\r\n", ErrSyntax},
		"no Host":                  {"GET / HTTP/1.1\r\n\r\n", ErrSyntax},
		"two Hosts":                {get + "Host: a\r\n\r\n", ErrSyntax},
		"two Hosts, other case":    {get + "HOST: b\r\n\r\n", ErrSyntax},
		"empty Host":               {"GET / HTTP/1.1\r\nHost:\r\n\r\n", ErrSyntax},
		"HTTP/1.0":                 {"GET / HTTP/1.0\r\nHost: a\r\n\r\n", ErrVersion},
		"HTTP/2.0":                 {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", ErrVersion},
		"h2 preface":               {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ErrVersion},
		"HTTP/0.9":                 {"GET /\r\n\r\n", ErrSyntax},
		"lower-case version":       {"GET / http/1.1\r\nHost: a\r\n\r\n", ErrVersion},
		"two spaces":               {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"tab":                      {"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"space in target":          {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"fragment":                 {"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"high byte in target":      {"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"bad method":               {"GE(T / HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"long method":              {strings.Repeat("G", 33) + " / HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"empty line first":         {"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", ErrSyntax},
		"other expectation":        {get + "Expect: 200-ok\r\n\r\n", ErrSyntax},
		"CONNECT with a body":      {"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 3\r\n\r\n", ErrSyntax},
		"cut off":                  {get, io.ErrUnexpectedEOF},
		"nothing":                  {"", io.EOF},
		"too long":                 {get + "X: " + strings.Repeat("x", MaxHead) + "\r\n\r\n", ErrTooLarge},
		"too many fields":          {get + strings.Repeat("X: y\r\n", MaxFields+1) + "\r\n", ErrTooLarge},
		"endless line":             {strings.Repeat("x", 2*MaxHead), ErrTooLarge},
	} {
		if h, err := head(tc.in); !errors.Is(err, tc.want) {
			t.Errorf("%s: %+v, %v; want %v", name, h, err, tc.want)
		}
	}
}

func TestReadHeadAccepts(t *testing.T) {
	h, err := head("POST /a?b HTTP/1.1\r\nhost: Good.com:8080 \r\nX-Empty:\r\nX-Text: \tcaf\xc3\xa9 x \r\nContent-Length: 005\r\nConnection: keep-alive, Close\r\nExpect: 100-Continue\r\n\r\nhello")
	if err != nil {
		t.Fatal(err)
	}
	if h.Method != "POST" || h.Target != "/a?b" || h.Host != "Good.com:8080" || h.Length != 5 || !h.Close || !h.Continue ||
		h.Get("x-text") != "caf\xc3\xa9 x" || len(h.Fields) != 6 {
		t.Errorf("%+v", h)
	}
	if h, err := head("CONNECT a:443 HTTP/1.0\r\n\r\n"); err != nil || !h.Proto10 || h.Host != "" {
		t.Errorf("CONNECT with HTTP/1.0: %+v, %v", h, err)
	}
	if h, err := head("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil || h.Length != -1 {
		t.Errorf("chunked: %+v, %v", h, err)
	}
}

func body(s string, h *Head) (string, *Body, *bufio.Reader, error) {
	r := bufio.NewReader(strings.NewReader(s))
	b := NewBody(r, h)
	got, err := io.ReadAll(b)
	return string(got), b, r, err
}

func TestBody(t *testing.T) {
	chunked := &Head{Length: -1}
	for name, tc := range map[string]struct {
		in   string
		head *Head
		want string
		rest string
		err  error
	}{
		"none":               {"next", &Head{}, "", "next", nil},
		"length":             {"hellonext", &Head{Length: 5}, "hello", "next", nil},
		"cut off":            {"hel", &Head{Length: 5}, "hel", "", io.ErrUnexpectedEOF},
		"chunks":             {"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\nnext", chunked, "hello!", "next", nil},
		"trailers dropped":   {"1\r\na\r\n0\r\nAuthorization: x\r\n\r\nnext", chunked, "a", "next", nil},
		"hex size":           {"000A\r\n0123456789\r\n0\r\n\r\n", chunked, "0123456789", "", nil},
		"extension":          {"1;a=b\r\na\r\n0\r\n\r\n", chunked, "", "", ErrSyntax},
		"extension with LF":  {"2;\n00\r\n", chunked, "", "", ErrSyntax},
		"bare LF size":       {"1\na\n0\n\n", chunked, "", "", ErrSyntax},
		"bare LF after data": {"1\r\na\n0\r\n\r\n", chunked, "a", "", ErrSyntax},
		"space in size":      {"1 \r\na\r\n0\r\n\r\n", chunked, "", "", ErrSyntax},
		"prefixed size":      {"0x1\r\na\r\n0\r\n\r\n", chunked, "", "", ErrSyntax},
		"negative size":      {"-1\r\na\r\n0\r\n\r\n", chunked, "", "", ErrSyntax},
		"empty size":         {"\r\na\r\n", chunked, "", "", ErrSyntax},
		"huge size":          {"ffffffffffffffff\r\na", chunked, "", "", ErrSyntax},
		"data too long":      {"1\r\nab\r\n0\r\n\r\n", chunked, "a", "", ErrSyntax},
		"cut off in chunk":   {"5\r\nhel", chunked, "hel", "", io.ErrUnexpectedEOF},
		"cut off in size":    {"5", chunked, "", "", io.ErrUnexpectedEOF},
		"bad trailer":        {"0\r\nx y\r\n\r\n", chunked, "", "", ErrSyntax},
		"folded trailer":     {"0\r\nx: y\r\n z\r\n\r\n", chunked, "", "", ErrSyntax},
		"endless size line":  {strings.Repeat("0", 1000), chunked, "", "", ErrTooLarge},
		"endless trailers":   {"0\r\n" + strings.Repeat("x: y\r\n", MaxFields+1), chunked, "", "", ErrTooLarge},
	} {
		got, b, r, err := body(tc.in, tc.head)
		done, n := b.Done()
		if got != tc.want || !errors.Is(err, tc.err) || err != nil && tc.err == nil || done != (tc.err == nil) || n != int64(len(tc.want)) {
			t.Errorf("%s: %q done %v %d, %v; want %q %v", name, got, done, n, err, tc.want, tc.err)
		}
		if rest, _ := io.ReadAll(r); tc.err == nil && string(rest) != tc.rest {
			t.Errorf("%s: left %q, want %q", name, rest, tc.rest)
		}
	}
}

// What we accept, net/http must read in the same way: it is what a lenient
// server sees.
func FuzzReadHead(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("POST http://a/b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX: y\r\n\r\nabc"))
	f.Add([]byte("CONNECT a:443 HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReader(bytes.NewReader(in))
		h, err := ReadHead(r)
		if err != nil || h.Method == "CONNECT" {
			return
		}
		ours, oursErr := io.ReadAll(NewBody(r, h))
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(in)))
		if err != nil {
			return // net/http refuses more targets than we do at this step
		}
		host := h.Host
		if req.URL.Host != "" {
			host = req.URL.Host
		}
		if req.Method != h.Method || req.RequestURI != h.Target || req.Host != host {
			t.Fatalf("read as %q %q %q, and as %q %q %q", h.Method, h.Target, h.Host, req.Method, req.RequestURI, req.Host)
		}
		theirs, theirsErr := io.ReadAll(req.Body)
		if oursErr == nil && (theirsErr != nil || !bytes.Equal(ours, theirs)) {
			t.Fatalf("body %q, and %q %v", ours, theirs, theirsErr)
		}
	})
}

// clientHello is what crypto/tls sends.
func clientHello(t testing.TB, name string) []byte {
	a, b := net.Pipe()
	defer a.Close()
	got := make(chan []byte, 1)
	go func() {
		defer b.Close()
		h, err := ReadHello(b)
		if err != nil {
			t.Error(err)
			got <- nil
			return
		}
		got <- h.Raw
	}()
	_ = tls.Client(a, &tls.Config{ServerName: name}).Handshake()
	return <-got
}

func TestReadHello(t *testing.T) {
	raw := clientHello(t, "good.example.com")
	h, err := ReadHello(bytes.NewReader(raw))
	if err != nil || h.ServerName != "good.example.com" || h.ECH || !bytes.Equal(h.Raw, raw) {
		t.Fatalf("%+v, %v", h, err)
	}
	if h, err := ReadHello(bytes.NewReader(clientHello(t, "127.0.0.1"))); err != nil || h.ServerName != "" {
		t.Fatalf("without a name: %+v, %v", h, err)
	}
	split := []byte{22, 3, 1, 0, 3}
	split = append(split, raw[5:8]...)
	n := len(raw) - 8
	split = append(split, 22, 3, 1, byte(n>>8), byte(n))
	split = append(split, raw[8:]...)
	if h, err := ReadHello(bytes.NewReader(split)); err != nil || h.ServerName != "good.example.com" {
		t.Fatalf("in two records: %+v, %v", h, err)
	}
	at := bytes.Index(raw, []byte("good.example.com"))
	mutate := func(f func(b []byte)) []byte {
		b := bytes.Clone(raw)
		f(b)
		return b
	}
	for name, in := range map[string][]byte{
		"http":           []byte("GET / HTTP/1.1\r\n\r\n"),
		"ssh":            []byte("SSH-2.0-OpenSSH_9.9\r\n"),
		"alert":          {21, 3, 1, 0, 2, 2, 40},
		"empty record":   {22, 3, 1, 0, 0},
		"server hello":   mutate(func(b []byte) { b[5] = 2 }),
		"nul in name":    mutate(func(b []byte) { b[at+3] = 0 }),
		"name type":      mutate(func(b []byte) { b[at-3] = 1 }),
		"list too short": mutate(func(b []byte) { b[at-4]-- }),
		"rides behind":   mutate(func(b []byte) { b[8]-- }),
		"too large":      mutate(func(b []byte) { b[6] = 1 }),
	} {
		if h, err := ReadHello(bytes.NewReader(in)); err == nil {
			t.Errorf("%s: read as %+v", name, h)
		}
	}
	for i := range raw {
		if _, err := ReadHello(bytes.NewReader(raw[:i])); err == nil {
			t.Fatalf("the first %d of %d bytes passed", i, len(raw))
		}
	}
}

// An accepted hello must name the same server to crypto/tls.
func FuzzReadHello(f *testing.F) {
	f.Add(clientHello(f, "good.example.com"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := ReadHello(bytes.NewReader(in))
		if err != nil {
			return
		}
		if !bytes.HasPrefix(in, h.Raw) {
			t.Fatal("more was read than was sent")
		}
		a, b := net.Pipe()
		go func() { _, _ = a.Write(h.Raw) }()
		go func() { _, _ = io.Copy(io.Discard, a) }()
		// A peer that waits for more than we took to be the whole fails here.
		_ = b.SetDeadline(time.Now().Add(5 * time.Second))
		seen := make(chan string, 1)
		stop := errors.New("stop")
		err = tls.Server(b, &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			seen <- info.ServerName
			return nil, stop
		}}).Handshake()
		b.Close()
		a.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("crypto/tls wants more than %d bytes", len(h.Raw))
		}
		select {
		case name := <-seen:
			if name != strings.TrimSuffix(h.ServerName, ".") && name != h.ServerName {
				t.Fatalf("read as %q, and as %q", h.ServerName, name)
			}
		default: // crypto/tls refuses more
		}
	})
}
