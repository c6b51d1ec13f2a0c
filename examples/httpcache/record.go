package httpcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// recorder is the http.ResponseWriter of a handler that makes a page.
type recorder struct {
	header http.Header
	sent   http.Header // as it was at the first WriteHeader; nil before
	status int
	body   bytes.Buffer
	most   int
	pass   string             // why the page must not be stored, found while it was made
	stop   context.CancelFunc // tells a handler whose answer is not needed
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if status >= 100 && status < 200 || w.sent != nil { // informational, or too late
		return
	}
	w.status, w.sent = status, w.header.Clone()
}

var errTooLarge = errors.New("httpcache: the page is too large to be stored; it will be made again, and sent as it is made")

func (w *recorder) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.body.Len()+len(b) > w.most {
		w.past("too-large")
		return 0, errTooLarge
	}
	return w.body.Write(b)
}

// Flush is called by handlers that stream: what they send is no page.
func (w *recorder) Flush() { w.past("stream") }

func (w *recorder) past(why string) {
	w.pass = why
	w.stop()
}

// record calls the handler and returns its answer as a page. Its context ends early if the answer is not
// needed to its end.
func (c *Cache) record(ctx context.Context, sc scope) (p *page, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &recorder{header: make(http.Header), most: c.opts.MaxBody, stop: stop}
	defer func() {
		if w.pass != "" { // whatever the handler has made of its failing writes
			recover()
			p, err = w.unstored(w.pass), nil
		}
	}()
	c.handler.ServeHTTP(w, sc.reduced.WithContext(ctx))
	w.WriteHeader(http.StatusOK) // if it has done nothing
	return w.page()
}

// unstored is what becomes of an answer that cannot be stored: a mark, or a failure without its body.
func (w *recorder) unstored(why string) *page {
	if failing(w.status) {
		return bareFailure(w.status, w.sent["Retry-After"])
	}
	return &page{head: head{Pass: why}}
}

// page is what was recorded, as it may be stored.
func (w *recorder) page() (*page, error) {
	h := make(http.Header, len(w.sent)+2)
	size := 0
	for name, values := range w.sent {
		name = http.CanonicalHeaderKey(name) // a handler may write into the map
		h[name] = append(h[name], values...)
		size += len(name)
		for _, v := range values {
			size += len(v) + 32 // what each line costs
		}
	}
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return w.unstored("trailer"), nil
		}
	}
	if size > maxHeader {
		return w.unstored("too-large"), nil
	}
	body := w.body.Bytes()
	if n := h.Get("Content-Length"); n != "" && n != strconv.Itoa(len(body)) {
		return nil, fmt.Errorf("httpcache: the handler has announced %s bytes and written %d", n, len(body))
	}
	if _, set := h["Content-Type"]; !set && len(body) > 0 && h.Get("Content-Encoding") == "" {
		h.Set("Content-Type", http.DetectContentType(body))
	}
	if h.Get("Date") == "" {
		h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	if w.status == http.StatusOK && h.Get("ETag") == "" {
		h.Set("ETag", `"`+hash(string(body))[:32]+`"`)
	}
	return &page{head: head{Status: w.status, Header: h}, body: body}, nil
}

const maxHeader = 64 << 10

// trim takes out what is about one connection, or one transfer, and not about the page. It comes after judge.
func (p *page) trim() {
	for _, line := range p.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			p.Header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		"Content-Length", "Age", "Cache-Status"} {
		p.Header.Del(name)
	}
}
