package httpcache

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/store/memstore"
)

// counted is a handler that counts its calls.
type counted struct {
	calls atomic.Int64
	http.HandlerFunc
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.calls.Add(1)
	c.HandlerFunc(w, r)
}

func newCache(t *testing.T, h http.Handler, o Options) *Cache {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	c, err := New(h, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// ask sends a request in the form "GET /path"; header is name, value, ...
func ask(h http.Handler, line string, header ...string) *http.Response {
	method, target, _ := strings.Cut(line, " ")
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// says checks status, body and a part of Cache-Status.
func says(t *testing.T, res *http.Response, status int, text, cacheStatus string) {
	t.Helper()
	if got := body(t, res); res.StatusCode != status || got != text || !strings.Contains(res.Header.Get("Cache-Status"), cacheStatus) {
		t.Errorf("%d %q, Cache-Status %q; expected %d %q, %q", res.StatusCode, got, res.Header.Get("Cache-Status"), status, text, cacheStatus)
	}
}

// TestHerd: fifty requests for one page in two processes are one call of the handler; the other
// forty-nine waited for it, and everybody has the same.
func TestHerd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		slow := &counted{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
			<-time.After(time.Second)
			w.Header().Set("X-Made", "here")
			w.WriteHeader(http.StatusOK)
			io.WriteString(w, "page")
		}}
		st := memstore.New()
		a, b := newCache(t, slow, Options{Name: "p", Store: st}), newCache(t, slow, Options{Name: "p", Store: st})
		var all sync.WaitGroup
		var collapsed, missed, hit atomic.Int64
		for i := range 50 {
			all.Go(func() {
				res := ask([]*Cache{a, b}[i%2], "GET /report")
				if got := body(t, res); got != "page" || res.Header.Get("X-Made") != "here" {
					t.Errorf("%q, %v", got, res.Header)
				}
				switch cs := res.Header.Get("Cache-Status"); {
				case strings.Contains(cs, "collapsed"):
					collapsed.Add(1)
				case strings.Contains(cs, "hit"): // the process whose lease it was not
					hit.Add(1)
				default:
					missed.Add(1)
				}
			})
		}
		all.Wait()
		if slow.calls.Load() != 1 || missed.Load() != 1 || collapsed.Load() != 24 || hit.Load() != 25 {
			t.Errorf("%d calls; %d missed, %d collapsed, %d hit", slow.calls.Load(), missed.Load(), collapsed.Load(), hit.Load())
		}
		bubble.After(3 * time.Second)
		res := ask(a, "GET /report")
		says(t, res, 200, "page", "onefill; hit; ttl=57")
		if res.Header.Get("Age") != "3" {
			t.Errorf("Age %q", res.Header.Get("Age"))
		}
	})
}

type userKey struct{}

// TestHandlerSeesTheScopeOnly: the handler that makes a page sees host, path, path values and what the
// options name, and nothing else of the request.
func TestHandlerSeesTheScopeOnly(t *testing.T) {
	seen := make(chan *http.Request, 1)
	c := newCache(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r }), Options{
		Query: []string{"page", "tag"}, Headers: []string{"accept-language"}, Credentials: Strip,
	})
	mux := http.NewServeMux()
	mux.Handle("GET /reports/{year}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, "alice")))
	}))
	ask(mux, "HEAD http://Example.com/reports/20%2F26?utm=1&tag=b&page=2&tag=a&session=alice",
		"Cookie", "session=alice", "Authorization", "Bearer alice", "Accept-Language", "de", "X-Forwarded-For", "10.0.0.1", "Accept-Encoding", "gzip", "Range", "bytes=0-1", "If-None-Match", "*")
	r := <-seen
	if r.Method != "GET" || r.Host != "example.com" || r.URL.String() != "/reports/20%2F26?page=2&tag=b&tag=a" || r.RequestURI != r.URL.String() || r.PathValue("year") != "20/26" {
		t.Errorf("%s %s %s %s, year %q", r.Method, r.Host, r.URL, r.RequestURI, r.PathValue("year"))
	}
	if len(r.Header) != 1 || r.Header.Get("Accept-Language") != "de" || r.RemoteAddr != "" || r.TLS != nil {
		t.Errorf("%v, %q", r.Header, r.RemoteAddr)
	}
	if got := fmt.Sprint(r, r.Context().Value(userKey{})); strings.Contains(got, "alice") {
		t.Errorf("the handler sees who asks: %s", got)
	}
}

// TestContextIsCopied: what Options.Context copies, and nothing else, reaches the handler.
func TestContextIsCopied(t *testing.T) {
	type traceKey struct{}
	var trace, user any
	c := newCache(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		trace, user = r.Context().Value(traceKey{}), r.Context().Value(userKey{})
	}), Options{Context: func(from, into context.Context) context.Context {
		return context.WithValue(into, traceKey{}, from.Value(traceKey{}))
	}})
	r := httptest.NewRequest("GET", "/", nil)
	c.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(context.WithValue(r.Context(), traceKey{}, "t"), userKey{}, "alice")))
	if trace != "t" || user != nil {
		t.Errorf("%v, %v", trace, user)
	}
}

// whoami answers with who asks, as a handler does that should not be cached for everybody.
func whoami() *counted {
	return &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s%s", r.Header.Get("Cookie"), r.Header.Get("Authorization"))
	}}
}

// TestCredentialsBypass: requests with credentials get the handler's own answer, and leave nothing for
// others; nor do they get what others have left.
func TestCredentialsBypass(t *testing.T) {
	h := whoami()
	c := newCache(t, h, Options{})
	says(t, ask(c, "GET /", "Cookie", "alice"), 200, "alice", "fwd=bypass; detail=credentials")
	says(t, ask(c, "GET /"), 200, "", "fwd=uri-miss; fwd-status=200")
	says(t, ask(c, "GET /", "Authorization", "bob"), 200, "bob", "bypass")
	says(t, ask(c, "GET /"), 200, "", "hit")
	if vary := strings.Join(ask(c, "GET /").Header["Vary"], ","); vary != "Authorization,Cookie" {
		t.Errorf("Vary %q: a cache behind this one must tell them apart, too", vary)
	}
}

// TestCredentialsInTheScope: named, they are part of the key, as a hash.
func TestCredentialsInTheScope(t *testing.T) {
	h := whoami()
	c := newCache(t, h, Options{Headers: []string{"Authorization"}})
	for range 2 {
		says(t, ask(c, "GET /", "Authorization", "alice"), 200, "alice", "")
		says(t, ask(c, "GET /", "Authorization", "bob"), 200, "bob", "")
	}
	if h.calls.Load() != 2 {
		t.Errorf("%d calls", h.calls.Load())
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "alice")
	if sc, _ := c.opts.scope(r); strings.Contains(sc.key, "alice") {
		t.Errorf("the key %q has the credentials", sc.key)
	}
}

// TestSetCookieIsNotShared: twenty requests wait for one page, and it turns out to begin a session. Each of
// them gets a session of its own.
func TestSetCookieIsNotShared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var sessions atomic.Int64
		c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-time.After(time.Second)
			w.Header()[strings.ToLower("Set-Cookie")] = []string{fmt.Sprintf("session=%d", sessions.Add(1))} // and not in its canonical form
			io.WriteString(w, "hello")
		}), Options{})
		var all sync.WaitGroup
		var given sync.Map
		for range 20 {
			all.Go(func() {
				cookie := ""
				for name, values := range ask(c, "GET /").Header {
					if strings.EqualFold(name, "Set-Cookie") {
						cookie += strings.Join(values, "")
					}
				}
				if _, twice := given.LoadOrStore(cookie, true); twice || cookie == "" {
					t.Errorf("the session %q was given twice", cookie)
				}
			})
		}
		all.Wait()
		synctest.Wait()
		if n := sessions.Load(); n != 21 {
			t.Errorf("%d sessions", n)
		}
	})
}

// TestNotStored: what must not be stored is not; the second request calls the handler again, with the
// request itself, at once.
func TestNotStored(t *testing.T) {
	for _, tt := range []struct {
		name    string
		status  int
		header  []string
		why     string
		options Options
	}{
		{name: "Set-Cookie", status: 200, header: []string{"Set-Cookie", "a=b"}, why: "set-cookie"},
		{name: "private", status: 200, header: []string{"Cache-Control", "public, Private"}, why: "cache-control"},
		{name: "private field", status: 200, header: []string{"Cache-Control", `max-age=5, private="x,y"`}, why: "cache-control"},
		{name: "no-store", status: 200, header: []string{"Cache-Control", "no-store"}, why: "cache-control"},
		{name: "no-cache", status: 404, header: []string{"Cache-Control", "no-cache"}, why: "cache-control"},
		{name: "max-age=0", status: 200, header: []string{"Cache-Control", "max-age=0"}, why: "cache-control"},
		{name: "s-maxage=0", status: 200, header: []string{"Cache-Control", "max-age=60, s-maxage=0"}, why: "cache-control"},
		{name: "max-age unreadable", status: 200, header: []string{"Cache-Control", "max-age=-1"}, why: "cache-control"},
		{name: "Expires in the past", status: 200, header: []string{"Expires", "0"}, why: "cache-control"},
		{name: "old already", status: 200, header: []string{"Cache-Control", "max-age=60", "Age", "60"}, why: "cache-control"},
		{name: "Vary *", status: 200, header: []string{"Vary", "*"}, why: "vary"},
		{name: "Vary Cookie", status: 200, header: []string{"Vary", "Accept-Encoding, cookie"}, why: "vary"},
		{name: "302", status: 302, header: []string{"Location", "/login"}, why: "status"},
		{name: "401", status: 401, why: "status"},
		{name: "403", status: 403, why: "status"},
		{name: "206", status: 206, why: "status"},
		{name: "Trailer", status: 200, header: []string{"Trailer", "X"}, why: "trailer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
				for i := 0; i < len(tt.header); i += 2 {
					w.Header().Add(tt.header[i], tt.header[i+1])
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, "for "+r.Header.Get("X-Who"))
			}}
			c := newCache(t, h, tt.options)
			says(t, ask(c, "GET /", "X-Who", "alice"), tt.status, "for alice", "fwd=bypass; detail="+tt.why)
			says(t, ask(c, "GET /", "X-Who", "bob"), tt.status, "for bob", "fwd=bypass; detail="+tt.why)
			if n := h.calls.Load(); n != 3 {
				t.Errorf("%d calls: expected one for the cache and one for each request", n)
			}
		})
	}
}

// TestStored: for how long.
func TestStored(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		header []string
		fresh  time.Duration
	}{
		{"plain", 200, nil, time.Minute},
		{"203", 203, nil, time.Minute},
		{"204", 204, nil, time.Minute},
		{"301", 301, []string{"Location", "/new"}, time.Minute},
		{"308", 308, []string{"Location", "/new"}, time.Minute},
		{"404", 404, nil, 10 * time.Second},
		{"410", 410, nil, 10 * time.Second},
		{"shorter", 200, []string{"Cache-Control", "public, max-age=20"}, 20 * time.Second},
		{"for shared caches", 200, []string{"Cache-Control", "max-age=5, s-maxage=30"}, 30 * time.Second},
		{"longer than TTL", 200, []string{"Cache-Control", "max-age=86400"}, time.Minute},
		{"behind another cache", 200, []string{"Cache-Control", "max-age=60", "Age", "45"}, 15 * time.Second},
		{"compressing handler", 200, []string{"Vary", "Accept-Encoding"}, time.Minute},
		{"varies within the scope", 200, []string{"Vary", "accept-language"}, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := &counted{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
					for i := 0; i < len(tt.header); i += 2 {
						w.Header().Add(tt.header[i], tt.header[i+1])
					}
					w.WriteHeader(tt.status)
				}}
				c := newCache(t, h, Options{Headers: []string{"Accept-Language"}, Store: memstore.New(), Name: "p"})
				for range 2 {
					if res := ask(c, "GET /"); res.StatusCode != tt.status || res.Header.Get("Location") != "" && tt.header[1] != res.Header.Get("Location") {
						t.Errorf("%d, %v", res.StatusCode, res.Header)
					}
				}
				bubble.After(tt.fresh - time.Second)
				says(t, ask(c, "GET /"), tt.status, "", "hit; ttl=1")
				if n := h.calls.Load(); n != 1 {
					t.Fatalf("%d calls within its time", n)
				}
				bubble.After(2 * time.Second)
				says(t, ask(c, "GET /"), tt.status, "", "fwd=uri-miss")
			})
		})
	}
}

// TestHeadRangeConditions: all of them are answered from the page that one GET has made.
func TestHeadRangeConditions(t *testing.T) {
	h := &counted{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		io.WriteString(w, "0123456789")
	}}
	c := newCache(t, h, Options{})
	head := ask(c, "HEAD /")
	says(t, head, 200, "", "fwd=uri-miss")
	etag := head.Header.Get("ETag")
	if head.ContentLength != 10 || etag == "" || head.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("HEAD: %v", head.Header)
	}
	says(t, ask(c, "GET /"), 200, "0123456789", "hit")
	says(t, ask(c, "GET /", "Range", "bytes=2-4"), 206, "234", "hit")
	says(t, ask(c, "GET /", "Range", "bytes=2-4", "If-Range", etag), 206, "234", "hit")
	says(t, ask(c, "GET /", "Range", "bytes=2-4", "If-Range", `"other"`), 200, "0123456789", "hit")
	if res := ask(c, "GET /", "Range", "bytes=20-"); res.StatusCode != 416 {
		t.Errorf("a range past the end: %d", res.StatusCode)
	}
	says(t, ask(c, "GET /", "If-None-Match", etag), 304, "", "hit")
	says(t, ask(c, "GET /", "If-None-Match", `"other"`), 200, "0123456789", "hit")
	says(t, ask(c, "GET /", "If-Modified-Since", "Mon, 02 Jan 2006 15:04:05 GMT"), 304, "", "hit")
	if res := ask(c, "GET /", "If-Match", `"other"`); res.StatusCode != 412 {
		t.Errorf("If-Match of another version: %d", res.StatusCode)
	}
	says(t, ask(c, "GET /", "Cache-Control", "no-cache", "Pragma", "no-cache"), 200, "0123456789", "hit")
	if n := h.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// TestKeys: what is different for the handler has different keys, and what is the same for it the same.
func TestKeys(t *testing.T) {
	key := func(o Options, line string, header ...string) string {
		o, err := o.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		method, target, _ := strings.Cut(line, " ")
		r := httptest.NewRequest(method, target, nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Add(header[i], header[i+1])
		}
		sc, ok := o.scope(r)
		if !ok {
			return "none"
		}
		return sc.key
	}
	all := Options{Headers: []string{"B", "A"}}
	different := []string{
		key(all, "GET /"), key(all, "GET /a"), key(all, "GET /a/"), key(all, "GET /A"), key(all, "GET /a?"+strings.Repeat("x", 2000)), key(all, "GET /a?"+strings.Repeat("x", 2001)),
		key(all, "GET /a?x=1"), key(all, "GET /a?x=2"), key(all, "GET /a?x"), key(all, "GET /a?x=1&x=2"), key(all, "GET /a?x=2&x=1"), key(all, "GET /a%3Fx=1"), key(all, "GET /a%2Fb"), key(all, "GET /a/b"),
		key(all, "GET http://other.example/a"), key(all, "GET /a", "A", "1"), key(all, "GET /a", "B", "1"), key(all, "GET /a", "A", `1" B="1`), key(all, "GET /a", "A", "1", "B", "1"), key(all, "GET /a", "A", ""),
		key(all, `GET /a%20A=%221%22`), key(all, "GET /a?x=1+A%3D%221%22"),
		key(all, "GET /a", "A", "1", "A", "2"), key(all, "GET /a", "A", "1, 2"),
	}
	seen := make(map[string]int)
	for i, k := range different {
		if j, twice := seen[k]; twice || k == "none" || len(k) > 1024 {
			t.Errorf("%d and %d have the key %.100q", i, j, k)
		}
		seen[k] = i
	}
	some := Options{Query: []string{"x"}, AnyHost: true}
	for _, same := range [][2]string{
		{key(all, "GET /a?x=1&y=2"), key(all, "HEAD /a?y=2&x=1")},
		{key(all, "GET /a", "C", "1"), key(all, "GET /a")},
		{key(all, "GET http://EXAMPLE.com/a"), key(all, "GET http://example.com/a")},
		{key(some, "GET /a?x=1&utm=2"), key(some, "GET http://other.example/a?x=1")},
		{key(Options{Query: []string{}}, "GET /a?x=1"), key(Options{Query: []string{}}, "GET /a")},
		{key(all, "GET /a?x=%zz"), "none"},
		{key(all, "GET /a?x=1;y=2"), "none"},
	} {
		if same[0] != same[1] {
			t.Errorf("%q and %q", same[0], same[1])
		}
	}
}

// TestPastTheCache: requests that are no business of a cache reach the handler as they are.
func TestPastTheCache(t *testing.T) {
	h := &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) { b, _ := io.ReadAll(r.Body); w.Write(b) }}
	c := newCache(t, h, Options{})
	says(t, ask(c, "OPTIONS /"), 200, "", "fwd=method")
	says(t, ask(c, "GET /?x=%zz"), 200, "", "fwd=bypass; detail=query")
	says(t, ask(c, "GET /", "Upgrade", "websocket"), 200, "", "detail=upgrade")
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest("GET", "/", strings.NewReader("question")))
	says(t, w.Result(), 200, "question", "detail=body")
	if h.calls.Load() != 4 {
		t.Errorf("%d calls", h.calls.Load())
	}
}

// TestLargeAndStreamed: what does not fit, and what is flushed, reaches the client as the handler sends it.
func TestLargeAndStreamed(t *testing.T) {
	large := strings.Repeat("0123456789", 1000)
	for name, send := range map[string]http.HandlerFunc{
		"too-large": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 10 {
				if _, err := io.WriteString(w, large[i*1000:(i+1)*1000]); err != nil {
					panic(err) // as some do
				}
			}
		},
		"stream": func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, large[:5000])
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			if r.Context().Err() != nil { // nobody needs it
				return
			}
			io.WriteString(w, large[5000:])
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &counted{HandlerFunc: send}
			c := newCache(t, h, Options{MaxBody: 9999})
			says(t, ask(c, "GET /"), 200, large, "fwd=bypass; detail="+name)
			says(t, ask(c, "GET /"), 200, large, "fwd=bypass; detail="+name)
			if n := h.calls.Load(); n != 3 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// TestServerErrors: an answer of 500 is a failed load: everybody who waits has it, no cache does, and where
// that is allowed an old page is served instead.
func TestServerErrors(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		h := &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			<-time.After(time.Second)
			if broken.Load() {
				http.Error(w, "no database", http.StatusBadGateway)
				return
			}
			io.WriteString(w, "page")
		}}
		c := newCache(t, h, Options{TTL: 10 * time.Second, StaleOnError: time.Hour})
		says(t, ask(c, "GET /good"), 200, "page", "fwd=uri-miss")
		broken.Store(true)
		h.calls.Store(0)
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { says(t, ask(c, "GET /"), 502, "no database\n", "fwd=uri-miss; fwd-status=502") })
		}
		all.Wait()
		says(t, ask(c, "GET /"), 502, "no database\n", "") // remembered for ErrorTTL
		if n := h.calls.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
		bubble.After(20 * time.Second)
		says(t, ask(c, "GET /good"), 200, "page", "hit; ttl=-") // stale
		broken.Store(false)
		bubble.After(20 * time.Second)
		says(t, ask(c, "GET /"), 200, "page", "fwd=uri-miss; fwd-status=200")
	})
}

// TestFailuresLeaveNoMark: a handler that answers 429, or 503, in whatever way, has failed. That is remembered for
// ErrorTTL and not for PassTTL: as soon as it is well again there are pages again, and until then nobody is sent
// past the cache to it.
func TestFailuresLeaveNoMark(t *testing.T) {
	for _, tt := range []struct {
		name string
		send func(http.ResponseWriter)
	}{
		{"429", func(w http.ResponseWriter) { w.WriteHeader(429) }},
		{"429 no-store", func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "no-store"); w.WriteHeader(429) }},
		{"429 large", func(w http.ResponseWriter) { w.WriteHeader(429); io.WriteString(w, strings.Repeat("x", 2000)) }},
		{"429 flushed", func(w http.ResponseWriter) { w.WriteHeader(429); http.NewResponseController(w).Flush() }},
		{"429 trailer", func(w http.ResponseWriter) { w.WriteHeader(429); w.Header().Set(http.TrailerPrefix+"X", "1") }},
		{"503 header", func(w http.ResponseWriter) {
			w.Header().Set("X-Large", strings.Repeat("x", maxHeader))
			w.WriteHeader(503)
		}},
		{"503 large", func(w http.ResponseWriter) { w.WriteHeader(503); io.WriteString(w, strings.Repeat("x", 2000)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				broken.Store(true)
				h := &counted{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
					<-time.After(time.Second)
					w.Header().Set("Retry-After", "7")
					if broken.Load() {
						tt.send(w)
						return
					}
					io.WriteString(w, "page")
				}}
				c := newCache(t, h, Options{Name: "p", Store: memstore.New(), MaxBody: 1000, PassTTL: time.Hour})
				var all sync.WaitGroup
				for range 10 {
					all.Go(func() {
						res := ask(c, "GET /")
						if status, _, _ := strings.Cut(tt.name, " "); fmt.Sprint(res.StatusCode) != status || res.Header.Get("Retry-After") != "7" || !strings.Contains(res.Header.Get("Cache-Status"), "fwd=uri-miss") {
							t.Errorf("%d %v", res.StatusCode, res.Header)
						}
					})
				}
				all.Wait()
				if n := h.calls.Load(); n != 1 {
					t.Errorf("%d calls for ten requests", n)
				}
				broken.Store(false)
				bubble.After(20 * time.Second)
				says(t, ask(c, "GET /"), 200, "page", "fwd=uri-miss; fwd-status=200")
			})
		})
	}
}

// TestMarksAreBounded: ten thousand made-up addresses, none of whose answers may be stored, leave MaxPasses marks, in
// the store and in the process, and push no page out. The next PassTTL has room again.
func TestMarksAreBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/page" {
				w.Header().Set("Cache-Control", "no-store")
			}
			io.WriteString(w, "page")
		}}
		st := memstore.New()
		c := newCache(t, h, Options{Name: "p", Store: st, MaxPasses: 100, MaxBytes: 100_000})
		ask(c, "GET /page")
		for i := range 10_000 {
			says(t, ask(c, fmt.Sprintf("GET /none?made=up-%d", i)), 200, "page", "fwd=bypass; detail=cache-control")
		}
		if n := st.Usage().Values; n != 101 {
			t.Errorf("%d entries in the store, expected 100 marks and a page", n)
		}
		says(t, ask(c, "GET /page"), 200, "page", "hit")
		h.calls.Store(0)
		says(t, ask(c, "GET /none?made=up-1"), 200, "page", "fwd=bypass") // marked
		says(t, ask(c, "GET /none?made=up-101"), 200, "page", "fwd=bypass")
		if n := h.calls.Load(); n != 1+2 {
			t.Errorf("%d calls: expected one for the key that is marked, two for the other", n)
		}
		bubble.After(15 * time.Second)
		ask(c, "GET /none?made=up-101")
		h.calls.Store(0)
		ask(c, "GET /none?made=up-101")
		if n := h.calls.Load(); n != 1 {
			t.Errorf("%d calls: there is room for its mark now", n)
		}
	})
}

// TestStrictPagesAreNotStale: must-revalidate forbids what StaleFor allows.
func TestStrictPagesAreNotStale(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/strict" {
				w.Header().Set("Cache-Control", "max-age=10, must-revalidate")
			}
		}}
		c := newCache(t, h, Options{TTL: 10 * time.Second, StaleFor: time.Hour})
		ask(c, "GET /strict")
		ask(c, "GET /lax")
		bubble.After(15 * time.Second)
		says(t, ask(c, "GET /lax"), 200, "", "hit; ttl=-5")
		says(t, ask(c, "GET /strict"), 200, "", "fwd=stale; fwd-status=200")
		says(t, ask(c, "GET /strict"), 200, "", "hit; ttl=10")
	})
}

// TestStrictHerd: a hundred requests find a page old that must not be served stale. They wait for one call
// of the handler, and the refresh in the background is another; when both fail, it is 503 for all of them.
func TestStrictHerd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		h := &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
			<-time.After(time.Second)
			w.Header().Set("Cache-Control", "max-age=10, must-revalidate")
			if broken.Load() {
				w.WriteHeader(http.StatusBadGateway)
			}
		}}
		c := newCache(t, h, Options{TTL: 10 * time.Second, StaleFor: time.Hour, StaleOnError: time.Hour})
		ask(c, "GET /")
		for _, status := range []int{http.StatusOK, http.StatusBadGateway} {
			broken.Store(status != http.StatusOK)
			bubble.After(15 * time.Second)
			h.calls.Store(0)
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if res := ask(c, "GET /"); res.StatusCode != status {
						t.Errorf("%d, expected %d", res.StatusCode, status)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			if n := h.calls.Load(); n > 2 {
				t.Errorf("%d calls", n)
			}
		}
	})
}

// TestErrorsThatForbidToBeStored: a failing handler says no-store, as many do, or begins a session. That is a
// failure as any other: it does not replace the old page, nor does it send a hundred requests past the cache.
// Those who have no old page get its status, and nothing else of it.
func TestErrorsThatForbidToBeStored(t *testing.T) {
	for _, header := range [][2]string{{"Cache-Control", "no-store"}, {"Set-Cookie", "session=alice"}, {"Vary", "*"}} {
		bubble.Test(t, func(t *testing.T) {
			var broken atomic.Bool
			h := &counted{HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
				<-time.After(time.Second)
				if broken.Load() {
					w.Header().Set(header[0], header[1])
					w.Header().Set("Retry-After", "7")
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				io.WriteString(w, "page")
			}}
			c := newCache(t, h, Options{TTL: 10 * time.Second, StaleOnError: time.Hour})
			ask(c, "GET /old")
			broken.Store(true)
			bubble.After(15 * time.Second)
			h.calls.Store(0)
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() { says(t, ask(c, "GET /old"), 200, "page", "hit") })
				all.Go(func() {
					res := ask(c, "GET /new")
					if res.Header.Get("Set-Cookie") != "" || res.Header.Get("Retry-After") != "7" {
						t.Errorf("%v", res.Header)
					}
					says(t, res, 503, "Service Unavailable\n", "fwd-status=503")
				})
			}
			all.Wait()
			if n := h.calls.Load(); n != 2 {
				t.Errorf("%s: %d calls for two pages", header[0], n)
			}
		})
	}
}

// TestHandlerGivesUp: a handler returns without an answer when its context ends, as many do. That is no empty
// page of status 200, and is not stored as one.
func TestHandlerGivesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		slow := time.Hour
		c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(slow):
				io.WriteString(w, "page")
			case <-r.Context().Done():
			}
		}), Options{Name: "p", Store: memstore.New(), LoadTimeout: time.Second, WaitTimeout: 5 * time.Second})
		says(t, ask(c, "GET /"), 503, "Service Unavailable\n", "")
		slow = 0
		bubble.After(time.Minute)
		says(t, ask(c, "GET /"), 200, "page", "fwd=uri-miss")
	})
}

// TestRequestsWithADeadline: the deadline that a middleware has set ends while the handler works. The request
// is answered, by an error: to return without an answer is 200.
func TestRequestsWithADeadline(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-time.After(2 * time.Second)
			io.WriteString(w, "page")
		}), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		says(t, w.Result(), 503, "Service Unavailable\n", "")
		says(t, ask(c, "GET /"), 200, "page", "")
	})
}

// TestPathValuesAreInTheScope: a mux has taken the tenant from a part of the path that is cut off before
// the cache. The handler sees it, so one's page is not the other's.
func TestPathValuesAreInTheScope(t *testing.T) {
	c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.PathValue("tenant"), r.URL.Path, r.PathValue("user"))
	}), Options{AnyHost: true})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /t/{tenant}/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		r.SetPathValue("user", "alice") // from a cookie, say
		http.StripPrefix("/t/"+r.PathValue("tenant"), c).ServeHTTP(w, r)
	})
	mux.Handle("GET /all", http.StripPrefix("/all", c)) // leaves an empty path
	for range 2 {
		says(t, ask(mux, "GET /t/ann/2026"), 200, "ann/2026", "")
		says(t, ask(mux, "GET /t/bob/2026"), 200, "bob/2026", "")
		says(t, ask(mux, "GET /all"), 200, "", "")
	}
	if err := c.Purge(t.Context(), "/%32026", ""); err != nil { // in another form
		t.Fatal(err)
	}
	for _, line := range []string{"GET /t/ann/2026", "GET /t/bob/2026", "GET /all"} {
		if cs := ask(mux, line).Header.Get("Cache-Status"); !strings.Contains(cs, "uri-miss") {
			t.Errorf("%s after a purge: %s", line, cs)
		}
	}
	if err := c.Purge(t.Context(), "/%zz"); err == nil {
		t.Error("a path that cannot be read was purged")
	}
}

// TestHeadersOfPages: any bytes come back from the store as they were; what a middleware before has said in
// Vary stays; and the age of an answer that comes from a cache behind is counted.
func TestHeadersOfPages(t *testing.T) {
	large := strings.Repeat("<", 60<<10)
	h := &counted{HandlerFunc: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Name", "caf\xe9")
		w.Header().Set("X-Large", large)
		w.Header().Add("Vary", "Accept-Language")
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Age", "45")
	}}
	o := Options{Name: "p", Store: memstore.New(), Headers: []string{"Accept-Language"}, MaxBody: 1}
	for _, c := range []*Cache{newCache(t, h, o), newCache(t, h, o)} {
		res := ask(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Accept-Encoding")
			c.ServeHTTP(w, r)
		}), "GET /")
		if got := res.Header; got.Get("X-Name") != "caf\xe9" || got.Get("X-Large") != large || got.Get("Age") != "45" {
			t.Errorf("X-Name %q, %d bytes, Age %q", got.Get("X-Name"), len(got.Get("X-Large")), got.Get("Age"))
		}
		if vary := strings.Join(res.Header["Vary"], ","); vary != "Accept-Encoding,Accept-Language,Authorization,Cookie" {
			t.Errorf("Vary %q", vary)
		}
	}
	if n := h.calls.Load(); n != 1 {
		t.Errorf("%d calls in two processes", n)
	}
}

// TestChangesCanStream: a handler of POST that looks for a http.Flusher finds one.
func TestChangesCanStream(t *testing.T) {
	c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }), Options{})
	w := httptest.NewRecorder()
	if c.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil)); !w.Flushed {
		t.Error("nothing was flushed")
	}
}

// TestPanics: a handler that panics is 500 for everybody, and one that aborts aborts.
func TestPanics(t *testing.T) {
	c := newCache(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/abort" {
			panic(http.ErrAbortHandler)
		}
		panic("nil pointer, or so")
	}), Options{})
	if res := ask(c, "GET /"); res.StatusCode != 500 || strings.Contains(body(t, res), "nil") {
		t.Errorf("%d", res.StatusCode)
	}
	defer func() {
		if r := recover(); r != http.ErrAbortHandler {
			t.Errorf("recovered %v", r)
		}
	}()
	ask(c, "GET /abort")
}

// TestTruncated: a page that is shorter than its handler has announced is none.
func TestTruncated(t *testing.T) {
	c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
	}), Options{})
	if res := ask(c, "GET /"); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d, %v", res.StatusCode, res.Header)
	}
}

// TestChangesRemovePages: a change that succeeds removes all variants of its path, in all processes, and
// no other path.
func TestChangesRemovePages(t *testing.T) {
	version := 1
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == "PUT" && r.Header.Get("If-Match") != "":
			w.WriteHeader(http.StatusPreconditionFailed)
		case r.Method == "PUT":
			version++
		default:
			fmt.Fprint(w, version)
		}
	})
	st := memstore.New()
	a, b := newCache(t, h, Options{Name: "p", Store: st}), newCache(t, h, Options{Name: "p", Store: st})
	for _, c := range []*Cache{a, b} {
		for _, path := range []string{"/x", "/x?page=2", "/y"} {
			says(t, ask(c, "GET "+path), 200, "1", "")
		}
	}
	says(t, ask(a, "PUT /x", "If-Match", "*"), 412, "", "fwd=method")
	says(t, ask(b, "GET /x"), 200, "1", "hit")
	says(t, ask(a, "PUT /x"), 200, "", "fwd=method")
	for _, c := range []*Cache{a, b} {
		says(t, ask(c, "GET /x"), 200, "2", "")
		says(t, ask(c, "GET /x?page=2"), 200, "2", "")
		says(t, ask(c, "GET /y"), 200, "1", "hit")
	}
	version = 3
	if err := b.Purge(t.Context(), "/y"); err != nil {
		t.Fatal(err)
	}
	says(t, ask(a, "GET /y"), 200, "3", "fwd=uri-miss")
}

// TestChangesAreSeenByWhoMadeThem: a client has the answer to its change, all of it, while the handler has
// not returned yet. The page that it asks for then is not the old one.
func TestChangesAreSeenByWhoMadeThem(t *testing.T) {
	var version atomic.Int64
	asked := make(chan struct{})
	c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			version.Add(1)
			w.(http.Flusher).Flush()
			<-asked
			return
		}
		fmt.Fprint(w, version.Load())
	}), Options{})
	server := httptest.NewServer(c)
	defer server.Close()
	old, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Body.Close()
	says(t, old, 200, "0", "uri-miss")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got, err := http.Get(server.URL)
	close(asked)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	says(t, got, 200, "1", "uri-miss")
}

// TestClosed: after Close the handler is called itself, so that a server which is shut down late answers.
func TestClosed(t *testing.T) {
	c := newCache(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "page") }), Options{})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	says(t, ask(c, "GET /"), 200, "page", "fwd=bypass; detail=closed")
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{MaxBody: -1}, {MaxBody: mostBody + 1}, {PassTTL: -1}, {NotFoundTTL: -1}, {Headers: []string{"host"}}, {TTL: -1}, {Store: memstore.New()}} {
		if c, err := New(http.NotFoundHandler(), o); err == nil {
			c.Close()
			t.Errorf("%+v is taken", o)
		}
	}
}

// FuzzCodec: a page comes back as it was, and no bytes are a page that is none.
func FuzzCodec(f *testing.F) {
	f.Add([]byte("2\n{}"), "x")
	f.Add([]byte("30\n{\"status\":200,\"fresh\":1}xx"), "")
	f.Add([]byte("-1\n"), "\x00")
	f.Fuzz(func(t *testing.T, stored []byte, text string) {
		if p, err := (codec{}).Decode(stored); err == nil && p.Pass == "" && (p.Status < 200 || p.Status > 999) {
			t.Errorf("%q is %+v", stored, p)
		}
		p := &page{head: head{Status: 200, Header: http.Header{"X": {text}}, Fresh: time.Minute}, body: []byte(text)}
		data, err := codec{}.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		back, err := codec{}.Decode(data)
		if err != nil || string(back.body) != text || back.Header.Get("X") != text || back.Status != 200 || back.Fresh != time.Minute {
			t.Errorf("%+v, %v", back, err)
		}
	})
}
