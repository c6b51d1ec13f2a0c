package watch

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// process names this one.
func process() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// ServeHTTP implements http.Handler. See the package documentation for what it serves and to
// whom.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Vary", "Accept")
	if req.Method != http.MethodGet {
		h.Set("Allow", http.MethodGet)
		http.Error(w, "GET only", http.StatusMethodNotAllowed)
		return
	}
	if why := r.refuses(req); why != "" {
		http.Error(w, why, http.StatusForbidden)
		return
	}
	q := req.URL.Query()
	filter := Filter{Cache: q.Get("cache"), Key: q.Get("key")}
	sse := strings.Contains(req.Header.Get("Accept"), "text/event-stream")
	if follow := q.Get("follow"); sse || follow != "" && follow != "0" {
		r.follower(w, req, filter, sse)
		return
	}
	top := 20
	if n := q.Get("top"); n != "" {
		var err error
		if top, err = strconv.Atoi(n); err != nil || top < 0 {
			http.Error(w, fmt.Sprintf("top=%q: a number of keys is needed", n), http.StatusBadRequest)
			return
		}
	}
	h.Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	_ = out.Encode(r.Snapshot(top, filter)) // the reader has gone
}

// refuses says why a request is not answered. A page that resolves its own name to this address
// (DNS rebinding) sends that name as Host; an IP address cannot be had that way.
func (r *Recorder) refuses(req *http.Request) string {
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.Trim(strings.ToLower(host), "[]"), ".")
	_, err := netip.ParseAddr(host)
	known := func(h string) bool { return strings.EqualFold(h, host) }
	switch {
	case err != nil && host != "localhost" && !slices.ContainsFunc(r.opts.Hosts, known):
		return fmt.Sprintf("the host %q is not known here: ask by IP address or localhost, or add the name to watch.Options.Hosts", host)
	case req.Header.Get("Sec-Fetch-Site") == "cross-site":
		return "asked by another site's page"
	}
	return ""
}

const (
	beatEvery    = 10 * time.Second
	lookEvery    = time.Second
	longWaited   = time.Second
	writeTimeout = 5 * time.Second
)

// follower serves a stream until its reader leaves, is too slow, or Close is called.
func (r *Recorder) follower(w http.ResponseWriter, req *http.Request, filter Filter, sse bool) {
	r.listeners.Add(1)
	defer r.listeners.Add(-1)
	l := r.stream.listen()
	if l == nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d streams are open already, which is the most", mostListeners), http.StatusServiceUnavailable)
		return
	}
	defer r.stream.leave(l)
	out := newWriter(w, sse)
	beat, look := time.NewTicker(beatEvery), time.NewTicker(lookEvery)
	defer beat.Stop()
	defer look.Stop()
	told := make(map[uint64]bool)
	err := out.write(Group{Type: "beat", At: time.Now()}) // the reader knows that it is connected
	for err == nil {
		select {
		case g, ok := <-l.groups:
			if !ok {
				return
			}
			if filter.matches(g.Cache, g.Key) {
				err = out.write(g)
			}
		case <-look.C:
			err = r.tellLong(out, filter, told)
		case now := <-beat.C:
			err = out.write(Group{Type: "beat", At: now})
		case <-req.Context().Done():
			return
		}
	}
}

// tellLong tells of each flight once that has been waited for long.
func (r *Recorder) tellLong(out *writer, filter Filter, told map[uint64]bool) error {
	now := time.Now()
	var groups []Group
	r.mu.Lock()
	for id := range told {
		if r.air[id] == nil {
			delete(told, id)
		}
	}
	for id, f := range r.air {
		if !f.idle && !told[id] && now.Sub(f.start) >= longWaited {
			told[id] = true
			groups = append(groups, f.live(now))
		}
	}
	r.mu.Unlock()
	for _, g := range groups {
		if g = r.show(g); filter.matches(g.Cache, g.Key) {
			if err := out.write(g); err != nil {
				return err
			}
		}
	}
	return nil
}

// writer writes groups as server-sent events or as NDJSON.
type writer struct {
	w    http.ResponseWriter
	ctrl *http.ResponseController
	sse  bool
}

func newWriter(w http.ResponseWriter, sse bool) *writer {
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	if sse {
		h.Set("Content-Type", "text/event-stream")
	}
	h.Set("X-Accel-Buffering", "no") // a proxy in front is not to hold the stream back
	return &writer{w, http.NewResponseController(w), sse}
}

func (out *writer) write(g Group) error {
	text, err := json.Marshal(g)
	if err != nil {
		return err
	}
	// Each write has its own deadline, in place of the server's WriteTimeout, which
	// would end every stream. A wrapped ResponseWriter may not have deadlines: then the queue of the
	// listener is the bound.
	_ = out.ctrl.SetWriteDeadline(time.Now().Add(writeTimeout))
	form := "%s\n"
	if out.sse {
		form = "event: " + g.Type + "\ndata: %s\n\n"
	}
	if _, err := fmt.Fprintf(out.w, form, text); err != nil {
		return err
	}
	return out.ctrl.Flush()
}
