package httpcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
)

// page is a stored answer, or the mark of one that must not be stored. It does not change.
type page struct {
	head
	body []byte
}

// head is what is stored beside the body.
type head struct {
	Status int         `json:"status"`
	Header http.Header `json:"-"` // see stored
	// Age is what a cache behind the handler has said.
	Age time.Duration `json:"age,omitempty"`
	// Fresh is for how long, as the handler or the options say.
	Fresh time.Duration `json:"fresh"`
	// Strict: not to be served stale.
	Strict bool `json:"strict,omitempty"`
	// Pass is why it must not be stored.
	Pass string `json:"pass,omitempty"`
}

// stored is a head as JSON. The values of headers are bytes, which JSON's strings are not.
type stored struct {
	*head
	Lines map[string][][]byte `json:"header,omitempty"`
}

// codec stores a page as its head's length, its head as JSON, and its body.
type codec struct{}

func (codec) Name() string { return "httpcache/1" }

func (codec) Encode(p *page) ([]byte, error) {
	s := stored{&p.head, make(map[string][][]byte, len(p.Header))}
	for name, values := range p.Header {
		s.Lines[name] = [][]byte{}
		for _, v := range values {
			s.Lines[name] = append(s.Lines[name], []byte(v))
		}
	}
	head, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	out := strconv.AppendInt(make([]byte, 0, len(head)+len(p.body)+8), int64(len(head)), 10)
	return append(append(append(out, '\n'), head...), p.body...), nil
}

func (codec) Decode(data []byte) (*page, error) {
	line, rest, ok := bytes.Cut(data, []byte("\n"))
	n, err := strconv.Atoi(string(line))
	if !ok || err != nil || n < 0 || n > len(rest) {
		return nil, errors.New("httpcache: not a stored page")
	}
	p := &page{body: rest[n:]}
	s := stored{head: &p.head}
	if err := json.Unmarshal(rest[:n], &s); err != nil {
		return nil, fmt.Errorf("httpcache: a stored page: %w", err)
	}
	p.Header = make(http.Header, len(s.Lines))
	for name, values := range s.Lines {
		p.Header[name] = nil
		for _, v := range values {
			p.Header[name] = append(p.Header[name], string(v))
		}
	}
	if p.Pass == "" && (p.Status < 200 || p.Status > 999) {
		return nil, fmt.Errorf("httpcache: a stored page of status %d", p.Status)
	}
	return p, nil
}

// weigh is about what a page takes in memory.
func weigh(key string, p *page) int {
	n := 256 + 2*len(key) + len(p.body)
	for name, values := range p.Header {
		n += 64 + len(name)
		for _, v := range values {
			n += 16 + len(v)
		}
	}
	return n
}

// failing says whether an answer is a failure of the handler, which says nothing about the page: 500 and above,
// and 429, by which an API behind the handler asks for peace.
func failing(status int) bool { return status >= 500 || status == http.StatusTooManyRequests }

// judge decides what becomes of an answer: its time, or why it must not be stored. A failing one is a
// failure whatever its headers say: to take it for a page that must not be stored would replace a good page,
// and send everybody past the cache to an origin that is in trouble.
func (o *Options) judge(p *page) {
	h := p.Header
	cc := directives(h)
	p.Pass = o.unshared(h, cc)
	switch {
	case failing(p.Status) && p.Pass != "":
		*p = *bareFailure(p.Status, h["Retry-After"])
	case failing(p.Status), p.Pass != "":
	case !cacheable[p.Status]:
		p.Pass = "status"
	default:
		p.Fresh = o.TTL
		if p.Status == http.StatusNotFound || p.Status == http.StatusGone {
			p.Fresh = o.NotFoundTTL
		}
		p.Age = ageOf(h)
		if stated, ok := lifetime(h, cc); ok {
			p.Fresh = min(p.Fresh, stated-p.Age)
		}
		p.Strict = has(cc, "must-revalidate") || has(cc, "proxy-revalidate")
		if p.Fresh <= 0 {
			p.Pass = "cache-control"
		}
	}
	if p.Pass != "" {
		*p = page{head: head{Pass: p.Pass}}
	}
}

// unshared is why an answer is for one request only; empty: it is not.
func (o *Options) unshared(h http.Header, cc map[string]string) string {
	switch {
	case len(h["Set-Cookie"]) > 0:
		return "set-cookie"
	case has(cc, "no-store"), has(cc, "private"), has(cc, "no-cache"):
		return "cache-control"
	case !o.variesWithin(h):
		return "vary"
	case len(h["Trailer"]) > 0:
		return "trailer"
	}
	return ""
}

// bareFailure is what those who wait for a failed load get of an answer that must not be shared.
func bareFailure(status int, retryAfter []string) *page {
	h := http.Header{"Cache-Control": {"no-store"}, "Content-Type": {"text/plain; charset=utf-8"}}
	if len(retryAfter) > 0 {
		h["Retry-After"] = retryAfter
	}
	return &page{head: head{Status: status, Header: h}, body: []byte(http.StatusText(status) + "\n")}
}

// cacheable are the statuses that RFC 9110, 15.1, lets be stored without being asked, and that
// do not depend on who asks.
var cacheable = map[int]bool{200: true, 203: true, 204: true, 301: true, 308: true, 404: true, 410: true}

// directives are those of Cache-Control; names are in lower case.
func directives(h http.Header) map[string]string {
	d := make(map[string]string)
	for _, line := range h["Cache-Control"] {
		for part := range strings.SplitSeq(line, ",") { // a quoted list of private=... has its first part here, which does
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if name = strings.ToLower(strings.TrimSpace(name)); name != "" {
				d[name] = strings.Trim(strings.TrimSpace(value), `"`)
			}
		}
	}
	return d
}

func has(d map[string]string, name string) bool { _, ok := d[name]; return ok }

// ageOf is for how long a cache behind the handler has had an answer.
func ageOf(h http.Header) time.Duration {
	age, err := strconv.ParseUint(h.Get("Age"), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(age) * time.Second
}

// lifetime is how long the handler says that its answer is fresh, in a shared cache. What cannot be read
// counts as no time at all.
func lifetime(h http.Header, cc map[string]string) (time.Duration, bool) {
	for _, name := range []string{"s-maxage", "max-age"} {
		if has(cc, name) {
			seconds, err := strconv.ParseUint(cc[name], 10, 31)
			if err != nil {
				return 0, true
			}
			return time.Duration(seconds) * time.Second, true
		}
	}
	if expires := h.Get("Expires"); expires != "" {
		at, err := http.ParseTime(expires)
		date, dateErr := http.ParseTime(h.Get("Date"))
		if err != nil || dateErr != nil {
			return 0, true
		}
		return at.Sub(date), true
	}
	return 0, false
}

// variesWithin says whether an answer depends on nothing but the scope.
func (o *Options) variesWithin(h http.Header) bool {
	for _, line := range h["Vary"] {
		for name := range strings.SplitSeq(line, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			// A handler that compresses has not seen the header, and so has not: its page is fit for all.
			if name != "" && name != "Accept-Encoding" && !slices.Contains(o.Headers, name) {
				return false
			}
		}
	}
	return true
}
