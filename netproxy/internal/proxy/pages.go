package proxy

import (
	"fmt"
	"html"
	"net/http"
	"strings"
)

// pageHead is the same for all pages of our own. Nothing in them comes from the
// request but a port number.
const pageHead = `<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">` +
	`<style>body{font:16px system-ui,sans-serif;margin:20vh auto;max-width:34em;padding:0 1em;color:#222}h1{font-size:1.3em}</style>`

var pageTexts = map[int][2]string{
	http.StatusMisdirectedRequest: {"misdirected", "This host name is not a preview of this server."},
	http.StatusNotFound:           {"not_found", "There is no preview at this address."},
	http.StatusGone:               {"gone", "This preview has ended: it was withdrawn or has expired."},
	http.StatusForbidden:          {"denied", "A WebSocket can be opened from the preview's own pages only."},
	http.StatusBadGateway:         {"internal", "The server behind this preview did not answer as a web server does."},
}

// page answers with a fixed text, as a page or as an error of the API.
func page(w http.ResponseWriter, r *http.Request, status int) {
	text := pageTexts[status]
	own(w)
	if !wantsPage(r) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, "{\"error\":{\"code\":%q,\"message\":%q,\"retryable\":false}}\n", text[0], text[1])
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintf(w, "%s<title>%d</title><h1>%s</h1>\n", pageHead, status, html.EscapeString(text[1]))
}

// waitingPage is for a port on which nothing listens yet; it loads itself
// again until something does.
func waitingPage(w http.ResponseWriter, r *http.Request, port uint16) {
	own(w)
	w.Header().Set("Retry-After", "1")
	if !wantsPage(r) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "{\"error\":{\"code\":\"busy\",\"message\":\"nothing listens on port %d yet\",\"retryable\":true}}\n", port)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprintf(w, "%s<meta http-equiv=\"refresh\" content=\"1\"><title>waiting</title><h1>Nothing listens on port %d yet.</h1>"+
		"<p>This page loads again by itself.</p>\n", pageHead, port)
}

func own(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

func wantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }
