package live

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/internal/servers"
)

// The stores that a page can be on.
const (
	StoreMemory = "memory" // each session has one of its own, in this program
	StoreRedis  = "redis"  // Options.RedisURL, or a private redis-server for each session
)

// Options configure a Handler. The zero value of each field is its default.
type Options struct {
	// Store is StoreMemory or StoreRedis. Default StoreMemory; StoreRedis where RedisURL is set.
	Store string
	// RedisURL is an existing Redis or Valkey, as in redis://host:6379. The page uses keys of
	// its own there, which expire some minutes after it was closed, and never stops it. Default "": StoreRedis starts a
	// private redis-server for each session, which must be on PATH.
	RedisURL string
	// MaxSessions is how many pages may be open at once. Default 8.
	MaxSessions int
	// Hosts are names, without scheme and port, that a request's Host may have beside localhost and IP
	// addresses. Default none.
	Hosts []string
}

const (
	defaultMaxSessions = 8
	interval           = 100 * time.Millisecond // between two frames
	writeTimeout       = 5 * time.Second        // a page that takes no frame for so long is gone
	openTimeout        = 20 * time.Second       // to open the caches, and to wait for a herd
	maxBody            = 4 << 10                // bytes
)

//go:embed page
var files embed.FS

// Handler serves the page. Make it with [New]; it is safe for concurrent use.
type Handler struct {
	options Options
	hosts   []string
	label   string // of a given Redis
	mux     *http.ServeMux
	closing chan struct{}

	mu       sync.Mutex // guards what follows; nothing waits under it
	closed   bool
	open     int                 // sessions, those that open or close included
	sessions map[string]*session // by id
	streams  sync.WaitGroup      // added to under mu
}

// New checks the options, and fails with an *OptionError: the server behind a RedisURL must
// answer within 10 seconds, and redis-server must be installed where one is to be started.
func New(o Options) (*Handler, error) {
	h := &Handler{options: o, closing: make(chan struct{}), sessions: make(map[string]*session)}
	if err := h.checkStore(); err != nil {
		return nil, err
	}
	switch {
	case o.MaxSessions < 0:
		return nil, badOption("MaxSessions", "%d is negative; 0 means the default, %d", o.MaxSessions, defaultMaxSessions)
	case o.MaxSessions == 0:
		h.options.MaxSessions = defaultMaxSessions
	}
	for _, host := range o.Hosts {
		if host == "" || strings.ContainsAny(host, ":/") {
			return nil, badOption("Hosts", "%q is no name: write it without scheme and port, such as lab.example", host)
		}
		h.hosts = append(h.hosts, strings.ToLower(strings.TrimSuffix(host, ".")))
	}
	page, err := fs.Sub(files, "page")
	if err != nil {
		return nil, err
	}
	h.mux = http.NewServeMux()
	h.mux.Handle("GET /", http.FileServerFS(page))
	h.mux.HandleFunc("POST /session", h.serveSession)
	h.mux.HandleFunc("POST /session/{id}/settings", h.serveSettings)
	h.mux.HandleFunc("POST /session/{id}/{action}", h.serveAction)
	return h, nil
}

func (h *Handler) checkStore() error {
	o := &h.options
	if o.Store == "" {
		o.Store = StoreMemory
		if o.RedisURL != "" {
			o.Store = StoreRedis
		}
	}
	switch {
	case o.Store != StoreMemory && o.Store != StoreRedis:
		return badOption("Store", "unknown store %q; known: %s, %s", o.Store, StoreMemory, StoreRedis)
	case o.Store == StoreMemory && o.RedisURL != "":
		return badOption("RedisURL", "excludes the store %q", o.Store)
	case o.Store == StoreRedis && o.RedisURL == "":
		if _, err := servers.RedisProgram(); err != nil {
			return badOption("Store", "redis-server is not on PATH: install Redis, give the URL of one, or use the store %q", StoreMemory)
		}
	case o.RedisURL != "":
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		label, err := probe(ctx, o.RedisURL)
		if err != nil {
			return badOption("RedisURL", "cannot use the server: %w", err)
		}
		h.label = label
	}
	return nil
}

// OptionError says which of the Options cannot be.
type OptionError struct {
	Option string // its name
	Err    error
}

func (e *OptionError) Error() string { return "live: Options." + e.Option + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *OptionError) Unwrap() error { return e.Err }

func badOption(name, format string, args ...any) error {
	return &OptionError{name, fmt.Errorf(format, args...)}
}

// ServeHTTP serves the page and what it asks for.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.guard(w, r) {
		h.mux.ServeHTTP(w, r)
	}
}

// Close ends all sessions and returns when they have ended. Pages that are open say so; new
// ones are refused. More than once is fine.
func (h *Handler) Close() error {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.closing)
	}
	h.mu.Unlock()
	h.streams.Wait()
	return nil
}

// Sessions is how many pages are open.
func (h *Handler) Sessions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

// hello is the first line of a stream.
type hello struct {
	ID        string           `json:"id"`
	Settings  Settings         `json:"settings"`
	Limits    map[string]Limit `json:"limits"`
	Store     string           `json:"store"`
	MayKill   bool             `json:"may_kill"`
	Processes string           `json:"processes"`
	Origin    string           `json:"origin"`
}

const (
	processesLabel = "simulated: caches beside each other in one program"
	originLabel    = "simulated: a timer and a counter in this program"
)

// serveSession opens a session and streams it: JSON lines, first a hello, then frames. When
// the stream ends, so does the session.
func (h *Handler) serveSession(w http.ResponseWriter, r *http.Request) {
	settings := Defaults()
	if !decode(w, r, &settings) {
		return
	}
	if err := settings.Validate(); err != nil {
		refuseError(w, err)
		return
	}
	if err := h.enter(); err != nil {
		refuse(w, http.StatusServiceUnavailable, "", err.Error())
		return
	}
	defer h.leave()
	ctx, cancel := context.WithTimeout(r.Context(), openTimeout)
	defer cancel()
	se, err := h.openSession(ctx, settings)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "", "the session could not be opened: "+err.Error())
		return
	}
	defer h.closeSession(se)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Accel-Buffering", "no")
	if err := http.NewResponseController(w).Flush(); errors.Is(err, http.ErrNotSupported) {
		refuse(w, http.StatusInternalServerError, "", "the server around this page hands over a ResponseWriter that cannot be flushed, so nothing can be streamed: give it an Unwrap or a Flush method")
		return
	}
	h.stream(w, r.Context(), se)
}

func (h *Handler) stream(w http.ResponseWriter, ctx context.Context, se *session) {
	out := http.NewResponseController(w)
	out.SetReadDeadline(time.Time{}) // the request has been read; the server's ReadTimeout would end the stream
	send := func(v any) bool {
		line, err := json.Marshal(v)
		if err != nil {
			return false
		}
		out.SetWriteDeadline(time.Now().Add(writeTimeout)) // where it is not supported, the server's own holds
		_, err = w.Write(append(line, '\n'))
		return err == nil && out.Flush() == nil
	}
	se.mu.Lock()
	first := hello{
		ID: se.id, Settings: se.settings, Limits: Limits, Store: se.backend.about(), MayKill: se.backend.ours(),
		Processes: processesLabel, Origin: originLabel,
	}
	se.mu.Unlock()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ok := send(first); ok; ok = send(se.frame()) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-h.closing:
			send(map[string]string{"end": "the server is being stopped"})
			return
		}
	}
}

// enter takes a place for a session.
func (h *Handler) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return errors.New("the server is being stopped")
	case h.open >= h.options.MaxSessions:
		return fmt.Errorf("%d pages are open already, which is the limit: close one", h.open)
	}
	h.open++
	h.streams.Add(1)
	return nil
}

func (h *Handler) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
	h.streams.Done()
}

func (h *Handler) openSession(ctx context.Context, s Settings) (*session, error) {
	var random [16]byte
	rand.Read(random[:]) // never fails
	id := hex.EncodeToString(random[:])
	b, err := h.openBackend(ctx, id)
	if err != nil {
		return nil, err
	}
	se, err := newSession(ctx, id, b, s)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions[id] = se
	return se, nil
}

func (h *Handler) openBackend(ctx context.Context, id string) (backend, error) {
	switch {
	case h.options.RedisURL != "":
		return &redis{url: h.options.RedisURL, id: id, label: h.label}, nil
	case h.options.Store == StoreRedis:
		return startRedis(ctx, id)
	}
	return newMemory(), nil
}

func (h *Handler) closeSession(se *session) {
	h.mu.Lock()
	delete(h.sessions, se.id)
	h.mu.Unlock()
	se.close()
}

// session is that of the request's path, or the answer has been given.
func (h *Handler) session(w http.ResponseWriter, r *http.Request) *session {
	h.mu.Lock()
	se := h.sessions[r.PathValue("id")]
	h.mu.Unlock()
	if se == nil {
		refuse(w, http.StatusNotFound, "", "there is no such session: it ends when its page is closed")
	}
	return se
}

func (h *Handler) serveSettings(w http.ResponseWriter, r *http.Request) {
	se := h.session(w, r)
	if se == nil {
		return
	}
	settings := Defaults()
	if !decode(w, r, &settings) {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), openTimeout)
	defer cancel()
	answer(w, se.apply(ctx, settings))
}

func (h *Handler) serveAction(w http.ResponseWriter, r *http.Request) {
	act := actions[r.PathValue("action")]
	if act == nil {
		refuse(w, http.StatusNotFound, "", "there is no such action")
		return
	}
	se := h.session(w, r)
	if se == nil || !decode(w, r, &struct{}{}) {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), openTimeout)
	defer cancel()
	answer(w, act(se, ctx))
}

// decode reads the body, one JSON object of known fields, or gives the answer. That it is of JSON's
// content type is what no other site's page can send without asking.
func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "", "the Content-Type must be application/json")
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusRequestEntityTooLarge, "", fmt.Sprintf("the body could not be read, or is longer than %d bytes", maxBody))
		return false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err = d.Decode(into); err == nil && d.More() {
		err = errors.New("there is more than one value")
	}
	if err == nil {
		return true
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		refuse(w, http.StatusBadRequest, wrong.Field, fmt.Sprintf("%s: %s is no %s", wrong.Field, wrong.Value, wrong.Type))
		return false
	}
	refuse(w, http.StatusBadRequest, "", "the body is not as it should be: "+err.Error())
	return false
}

// answer is that of a control request.
func answer(w http.ResponseWriter, err error) {
	if err != nil {
		refuseError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func refuseError(w http.ResponseWriter, err error) {
	var field *FieldError
	var conflict *conflictError
	switch {
	case errors.As(err, &field):
		refuse(w, http.StatusBadRequest, field.Field, err.Error())
	case errors.As(err, &conflict):
		refuse(w, http.StatusConflict, "", err.Error())
	case errors.Is(err, errEnded):
		refuse(w, http.StatusNotFound, "", err.Error())
	default:
		refuse(w, http.StatusServiceUnavailable, "", err.Error())
	}
}

// refusal is the body of every answer that is an error.
type refusal struct {
	Error string `json:"error"`
	Field string `json:"field,omitempty"` // of the Settings
}

func refuse(w http.ResponseWriter, status int, field, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(refusal{text, field})
}
