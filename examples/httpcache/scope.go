package httpcache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// scope is what a page depends on, as a key, and as a request that holds nothing else.
type scope struct {
	key, tag string
	reduced  *http.Request
}

// credentials are headers that say who asks.
var credentials = []string{"Authorization", "Cookie", "Proxy-Authorization"}

// past says why a request goes past the cache; empty: it does not.
func (o *Options) past(r *http.Request) (why string) {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "method"
	case r.ContentLength != 0 || len(r.TransferEncoding) > 0:
		return "body"
	case r.Header.Get("Upgrade") != "":
		return "upgrade"
	case o.Credentials == Strip:
		return ""
	case r.TLS != nil && len(r.TLS.PeerCertificates) > 0:
		return "credentials"
	}
	for _, name := range credentials {
		if len(r.Header[name]) > 0 && !slices.Contains(o.Headers, name) {
			return "credentials"
		}
	}
	return ""
}

// scope is that of a request. False: its query cannot be read in one way only.
func (o *Options) scope(r *http.Request) (scope, bool) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return scope{}, false
	}
	if o.Query != nil {
		for name := range query {
			if !slices.Contains(o.Query, name) {
				delete(query, name)
			}
		}
	}
	host, path := strings.ToLower(r.Host), r.URL.EscapedPath()
	if o.AnyHost {
		host = ""
	}
	sorted := query.Encode() // by name; several values of one name stay in their order
	header := make(http.Header)
	key := host + path
	if !strings.HasPrefix(path, "/") { // http.StripPrefix leaves such ones
		key = host + " " + path
	}
	if sorted != "" {
		key += "?" + sorted
	}
	for _, name := range o.Headers {
		values := r.Header.Values(name)
		if len(values) == 0 {
			continue
		}
		header[name] = slices.Clone(values)
		text := fmt.Sprintf("%q", values) // two lines are not one with a comma: the handler can tell
		if slices.Contains(credentials, name) {
			text = hash(text) // a key is no place for a secret
		}
		key += " " + name + "=" + text // no path or query holds a space
	}
	req := reduced(r, host, sorted, header)
	for _, m := range wildcard.FindAllStringSubmatch(r.Pattern, -1) {
		// Taken from a path that may be longer than this one: what http.StripPrefix has cut off counts, too.
		req.SetPathValue(m[1], r.PathValue(m[1]))
		key += fmt.Sprintf(" {%s}=%q", m[1], r.PathValue(m[1]))
	}
	return scope{bounded(key, 1024), tagOf(r.URL.Path), req}, true
}

// wildcard is one in the pattern of a http.ServeMux.
var wildcard = regexp.MustCompile(`\{(\pL[\pL\pN_]*|_[\pL\pN_]*)(?:\.\.\.)?\}`)

// reduced is a request that holds the scope and nothing else. It is a new one and no clone, which would hold
// whatever a request may hold in the Go of tomorrow. The load's context is its own.
func reduced(r *http.Request, host, query string, header http.Header) *http.Request {
	u := &url.URL{Path: r.URL.Path, RawQuery: query}
	if u.RawPath = r.URL.RawPath; r.URL.EscapedPath() != u.RawPath { // it is a hint, and not in the key unless it holds
		u.RawPath = ""
	}
	return &http.Request{Method: http.MethodGet, Host: host, URL: u, RequestURI: u.RequestURI(),
		Header: header, Body: http.NoBody, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// bounded replaces the end of what is too long by a hash of all of it.
func bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most-70] + "#" + hash(s)
}

// tagOf is the tag of all variants of a path, however it was escaped.
func tagOf(path string) string {
	return bounded((&url.URL{Path: cmp.Or(path, "/")}).EscapedPath(), 200)
}

// without is a context that ends with another one and has none of its values.
type without struct{ context.Context } //nolint:containedctx // it is a context

func (without) Value(any) any { return nil }

// bare is the context of a request without what middlewares before have put into it: a page must not depend
// on it.
func (o *Options) bare(ctx context.Context) context.Context {
	var into context.Context = without{ctx}
	if o.Context != nil {
		into = o.Context(ctx, into)
	}
	return into
}
