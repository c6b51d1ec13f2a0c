package watch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// serve is a server with the recorder; it ends with the test, streams too.
func serve(t *testing.T, r *Recorder) string {
	t.Helper()
	s := httptest.NewServer(r)
	t.Cleanup(func() { r.Close(); s.Close() })
	return s.URL
}

func get(t *testing.T, url string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// miss tells r of a miss group.
func miss(r *Recorder, key string, err error) {
	r.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "c", Key: key, Took: time.Millisecond, N: 1, Callers: 3, Err: err})
}

func TestSnapshotOverHTTP(t *testing.T) {
	r := New(Options{})
	url := serve(t, r)
	miss(r, "k", fmt.Errorf("secret row"))
	miss(r, "other", nil)
	res := get(t, url+"?key=k")
	var s Snapshot
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	if len(s.Recent) != 1 || s.Recent[0].Key != "k" || s.Recent[0].Error != "secret row" || s.Recent[0].Outcome != Failed || len(s.Missed) != 1 || s.Process == "" || s.Seconds <= 0 {
		t.Errorf("%+v", s)
	}
	if res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%v", res.Header)
	}
}

// TestRefusals: who is not answered, and with what.
func TestRefusals(t *testing.T) {
	r := New(Options{Hosts: []string{"app-1.internal"}})
	for _, tt := range []struct {
		method, host, header, value string
		status                      int
	}{
		{"GET", "127.0.0.1:6060", "", "", 200},
		{"GET", "[::1]:6060", "", "", 200},
		{"GET", "localhost", "", "", 200},
		{"GET", "LOCALHOST.:6060", "", "", 200},
		{"GET", "app-1.internal:6060", "", "", 200},
		{"GET", "evil.example:6060", "", "", 403},
		{"GET", "127.0.0.1.evil.example", "", "", 403},
		{"GET", "", "", "", 403},
		{"GET", "localhost", "Sec-Fetch-Site", "cross-site", 403},
		{"GET", "localhost", "Sec-Fetch-Site", "none", 200},
		{"POST", "localhost", "", "", 405},
		{"HEAD", "localhost", "", "", 405},
	} {
		req := httptest.NewRequest(tt.method, "/debug/onefill", nil)
		req.Host = tt.host
		req.Header.Set(tt.header, tt.value)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		if w.Code != tt.status {
			t.Errorf("%s of host %q, %s %s: %d, expected %d", tt.method, tt.host, tt.header, tt.value, w.Code, tt.status)
		}
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/?top=many", nil))
	if w.Code != http.StatusBadRequest || !contains(w.Body.String(), "many") {
		t.Errorf("top=many: %d %s", w.Code, w.Body)
	}
}

// TestStreams: both forms, filtered; the groups come in order, and Close ends the stream.
func TestStreams(t *testing.T) {
	for _, tt := range []struct{ query, accept, kind, prefix string }{
		{"?cache=c&key=k&follow=1", "", "application/x-ndjson", ""},
		{"?cache=c&key=k", "text/event-stream", "text/event-stream", "data: "},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			r := New(Options{})
			res := get(t, serve(t, r)+tt.query, "Accept", tt.accept)
			if got := res.Header.Get("Content-Type"); got != tt.kind {
				t.Fatalf("Content-Type %q", got)
			}
			lines := bufio.NewScanner(res.Body)
			next := func() (g Group) {
				for lines.Scan() {
					text, ok := strings.CutPrefix(lines.Text(), tt.prefix)
					if !ok || text == "" {
						continue
					}
					if err := json.Unmarshal([]byte(text), &g); err != nil {
						t.Fatalf("%q: %v", text, err)
					}
					return g
				}
				t.Fatalf("the stream has ended: %v", lines.Err())
				return g
			}
			if g := next(); g.Type != "beat" { // from here on nothing is missed
				t.Fatalf("%+v", g)
			}
			miss(r, "other", nil)
			for range 3 {
				miss(r, "k", nil)
			}
			for range 3 {
				if g := next(); g.Type != "group" || g.Key != "k" || g.Callers != 3 || g.Loads != 1 {
					t.Errorf("%+v", g)
				}
			}
			r.Close()
			for lines.Scan() {
			}
			if lines.Err() != nil {
				t.Error(lines.Err())
			}
		})
	}
}

// TestLongWaitIsToldOnce: a flight that goes on for more than a second is told of while it does, once.
func TestLongWaitIsToldOnce(t *testing.T) {
	r := New(Options{})
	res := get(t, serve(t, r)+"?follow=1")
	end := r.TraceWait(t.Context(), []onefill.Flight{{ID: 1, Cache: "c", Key: "hangs"}})
	lines := json.NewDecoder(res.Body)
	var live []Group
	for {
		var g Group
		if err := lines.Decode(&g); err != nil {
			t.Fatal(err)
		}
		if g.Type == "live" {
			live = append(live, g)
			end(nil)
			miss(r, "hangs", nil)
		}
		if g.Type == "group" {
			break
		}
	}
	if len(live) != 1 || live[0].Key != "hangs" || live[0].Waiting != 1 || live[0].TookMS < 1000 || live[0].Outcome != Waiting {
		t.Errorf("%+v", live)
	}
}

// TestSlowReaderIsCutOff: a reader who takes nothing holds nobody up. Its queue is full, and
// it is cut off, while another one goes on.
func TestSlowReaderIsCutOff(t *testing.T) {
	var s stream
	slow, quick := s.listen(), s.listen()
	for range kept + 1 {
		s.tell(Group{})
		<-quick.groups
	}
	n := 0
	for range slow.groups { // what it had, and then the end
		n++
	}
	if n != kept {
		t.Errorf("%d groups before the end", n)
	}
	if len(s.listeners) != 1 {
		t.Errorf("%d listeners are left", len(s.listeners))
	}
}

// TestSilentReaderHoldsNobody: a reader opens the stream over TCP and never reads. Telling of groups goes
// on all the same (if it waited for the reader's queue, it would for ever), and the stream is given up.
func TestSilentReaderHoldsNobody(t *testing.T) {
	r := New(Options{})
	get(t, serve(t, r)+"?follow=1")
	key := strings.Repeat("k", longestKey)
	for range 50_000 { // about 20 MB, more than the sockets' buffers hold
		miss(r, key, nil)
	}
	r.stream.mu.Lock()
	defer r.stream.mu.Unlock()
	if len(r.stream.listeners) != 0 {
		t.Error("the reader is still listened for")
	}
}

func TestTooManyStreams(t *testing.T) {
	r := New(Options{})
	for range mostListeners {
		r.stream.listen()
	}
	if res := get(t, serve(t, r)+"?follow=1"); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d", res.StatusCode)
	}
}

// TestHideKeys: no key and no text leaves, in no form; the hash is the same wherever the salt
// is, and cannot be had without it.
func TestHideKeys(t *testing.T) {
	show := func(o Options) (Snapshot, string) {
		r := New(o)
		url := serve(t, r)
		f := []onefill.Flight{{ID: 1, Cache: "c", Key: "alice@example.com"}}
		r.TraceWait(t.Context(), f)
		_, end := r.TraceLoad(t.Context(), f)
		r.Observe(onefill.Event{Kind: onefill.EventLoad, Cache: "c", Key: "alice@example.com", Took: time.Second})
		r.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "c", Key: "alice@example.com", Flight: 1, N: 2, Err: fmt.Errorf("loading alice@example.com")})
		end(nil)
		r.TraceWait(t.Context(), []onefill.Flight{{ID: 2, Cache: "c", Key: "alice@example.com"}})
		text, err := io.ReadAll(get(t, url).Body)
		if err != nil {
			t.Fatal(err)
		}
		var s Snapshot
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		return s, string(text)
	}
	_, plain := show(Options{})
	if n := strings.Count(plain, "alice"); n != 7 { // hot, missed, extra, slow, live, recent and its error
		t.Errorf("%d times in what is not hidden: %s", n, plain)
	}
	a, text := show(Options{HideKeys: true, Salt: "x"})
	if contains(text, "alice") || !a.KeysHidden {
		t.Errorf("%s", text)
	}
	if b, _ := show(Options{HideKeys: true, Salt: "x"}); b.Hot[0].Key != a.Hot[0].Key || a.Hot[0].Key != a.Slow[0].Key {
		t.Errorf("%s and %s with the same salt", a.Hot[0].Key, b.Hot[0].Key)
	}
	c, _ := show(Options{HideKeys: true})
	d, _ := show(Options{HideKeys: true})
	if c.Hot[0].Key == d.Hot[0].Key {
		t.Error("without a salt of its own, each process should have a random one")
	}
}
