package httpcache

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill"
)

// serve sends a page.
func (c *Cache) serve(w http.ResponseWriter, r *http.Request, p *page, age time.Duration, status string) {
	h := w.Header()
	for name, values := range p.Header {
		if name == "Vary" { // a middleware before this one may have said something, too: that it compresses, say
			values = append(h[name], values...)
		}
		h[name] = slices.Clone(values)
	}
	c.vary(h)
	h.Add("Cache-Status", "onefill; "+status)
	if age += p.Age; age >= time.Second {
		h.Set("Age", strconv.FormatInt(int64(age/time.Second), 10))
	}
	if p.Status == http.StatusOK {
		modified, err := http.ParseTime(h.Get("Last-Modified"))
		if err != nil {
			modified = time.Time{} // which ServeContent takes for unknown
		}
		if h.Get("Content-Type") == "" {
			h["Content-Type"] = nil // an empty page has none, and none is made up
		}
		http.ServeContent(w, r, "", modified, bytes.NewReader(p.body)) // ranges, conditions, HEAD
		return
	}
	if p.Status != http.StatusNoContent {
		h.Set("Content-Length", strconv.Itoa(len(p.body)))
	}
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead && p.Status != http.StatusNoContent {
		_, _ = w.Write(p.body) // a client that has gone
	}
}

// vary adds what an answer depends on, for caches between here and the client.
func (c *Cache) vary(h http.Header) {
	names := slices.Clone(c.opts.Headers)
	if c.opts.Credentials == Bypass {
		for _, name := range []string{"Authorization", "Cookie"} {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	there := strings.Join(h["Vary"], ",")
	for _, name := range names {
		if !strings.Contains(","+strings.ReplaceAll(there, " ", "")+",", ","+name+",") {
			h.Add("Vary", name)
		}
	}
}

// status is what Cache-Status says of a page that was had; miss is why the handler was asked, if it was.
func status(r *onefill.Result[*page], miss string) string {
	left := int64((r.Value.Fresh - r.Age) / time.Second)
	if r.Source != onefill.SourceLoad {
		return fmt.Sprintf("hit; ttl=%d; detail=%s", left, r.Source)
	}
	s := "fwd=" + miss
	if r.Coalesced {
		s += "; collapsed"
	}
	return fmt.Sprintf("%s; fwd-status=%d", s, r.Value.Status)
}
