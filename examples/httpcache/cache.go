package httpcache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/onefill/onefill"
)

// Cache is a handler in front of another one. See the package documentation.
type Cache struct {
	opts    Options
	handler http.Handler
	pages   *onefill.Cache[string, *page]
	// strict has pages with must-revalidate again, when those in pages are old: it serves nothing stale,
	// and who finds them old waits for one call of the handler all the same. Nil: pages are never old.
	strict *onefill.Cache[string, *page]
	marks  marks
}

// New puts a cache in front of a handler. Close it when the server has been shut down.
func New(handler http.Handler, o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cache{opts: o, handler: handler, marks: marks{most: o.MaxPasses, each: o.PassTTL}}
	conf := onefill.Options[string, *page]{
		Name: o.Name, Store: o.Store, Load: c.load, Codec: codec{}, Tags: true,
		TTL: o.TTL, StaleFor: o.StaleFor, StaleOnError: o.StaleOnError, ErrorTTL: o.ErrorTTL, LoadTimeout: o.LoadTimeout, WaitTimeout: o.WaitTimeout, MaxLoads: o.MaxLoads,
		Jitter: onefill.NoJitter, // a page is not to be served for longer than the handler says
		Local:  onefill.LocalOptions{MaxBytes: o.MaxBytes}, Weigh: weigh, MaxValueBytes: o.MaxBody + 2*maxHeader + 1024,
		Observer: o.Observer, Logger: o.Logger,
	}
	stale := o.StaleFor != 0 || o.StaleOnError != 0
	if stale {
		conf.Local.MaxBytes = o.MaxBytes - o.MaxBytes/4
	}
	if c.pages, err = onefill.New(conf); err != nil {
		return nil, fmt.Errorf("httpcache: %w", err)
	}
	if !stale {
		return c, nil
	}
	conf.StaleFor, conf.StaleOnError, conf.Local.MaxBytes = 0, 0, max(o.MaxBytes/4, 1)
	if o.Name != "" {
		conf.Name = o.Name + "-strict"
	}
	if c.strict, err = onefill.New(conf); err != nil {
		return nil, errors.Join(fmt.Errorf("httpcache: %w", err), c.pages.Close())
	}
	return c, nil
}

// Close ends the cache; requests go past it from then on.
func (c *Cache) Close() error {
	if c.strict == nil {
		return c.pages.Close()
	}
	return errors.Join(c.pages.Close(), c.strict.Close())
}

// Stats are onefill's, of the cache that is called Options.Name.
func (c *Cache) Stats() onefill.Stats { return c.pages.Stats() }

// Purge removes the pages of paths, in all their variants, in all processes. A path is as in a URL: "/reports/2026".
func (c *Cache) Purge(ctx context.Context, escapedPaths ...string) error {
	tags := make([]string, len(escapedPaths))
	for i, escaped := range escapedPaths {
		path, err := url.PathUnescape(escaped)
		if err != nil {
			return fmt.Errorf("httpcache: Purge: the path must be escaped as in a URL: %w", err)
		}
		tags[i] = tagOf(path)
	}
	if c.strict == nil {
		return c.pages.InvalidateTag(ctx, tags...)
	}
	return errors.Join(c.pages.InvalidateTag(ctx, tags...), c.strict.InvalidateTag(ctx, tags...))
}

// scopeKey finds the scope in a load's context.
type scopeKey struct{}

// load makes a page.
func (c *Cache) load(ctx context.Context, _ string) (*page, error) {
	sc := ctx.Value(scopeKey{}).(scope)
	onefill.SetTags(ctx, sc.tag)
	p, err := c.record(ctx, sc)
	if err != nil {
		return nil, err
	}
	if p.Pass == "" {
		if !failing(p.Status) && ctx.Err() != nil {
			// Handlers return when their context ends. What they have written until then is no page.
			return nil, fmt.Errorf("httpcache: the handler has ended after its context: %w", ctx.Err())
		}
		c.opts.judge(p)
	}
	switch {
	case p.Pass != "":
		onefill.SetTTL(ctx, c.marks.ttl(time.Now()))
		return p, nil
	case failing(p.Status):
		p.trim()
		return nil, &failedPage{p}
	}
	p.trim()
	onefill.SetTTL(ctx, p.Fresh)
	return p, nil
}

// failedPage is a load that has failed: the handler has answered, and its answer is no page.
type failedPage struct{ page *page }

func (e *failedPage) Error() string { return fmt.Sprintf("the handler has answered %d", e.page.Status) }

// ServeHTTP implements http.Handler.
func (c *Cache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if why := c.opts.past(r); why != "" {
		c.pass(w, r, why)
		return
	}
	sc, ok := c.opts.scope(r)
	if !ok {
		c.pass(w, r, "query")
		return
	}
	ctx := context.WithValue(c.opts.bare(r.Context()), scopeKey{}, sc)
	miss := "uri-miss"
	res, err := c.pages.Fetch(ctx, sc.key)
	if err == nil && res.Stale && res.Value.Strict {
		miss = "stale"
		res, err = c.strict.Fetch(ctx, sc.key)
	}
	switch {
	case err != nil:
		c.failed(w, r, err)
	case res.Value.Pass != "":
		c.pass(w, r, res.Value.Pass)
	default:
		c.serve(w, r, res.Value, res.Age, status(&res, miss))
	}
}

// failed answers when there is no page.
func (c *Cache) failed(w http.ResponseWriter, r *http.Request, err error) {
	var answered *failedPage
	var panicked *onefill.PanicError
	switch {
	case errors.Is(err, onefill.ErrClosed):
		c.pass(w, r, "closed")
	case errors.As(err, &answered):
		c.serve(w, r, answered.page, 0, fmt.Sprintf("fwd=uri-miss; fwd-status=%d", answered.page.Status))
	case errors.As(err, &panicked) && panicked.Value == http.ErrAbortHandler:
		panic(http.ErrAbortHandler)
	case errors.As(err, &panicked):
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	default: // ErrWaitTimeout, ErrOriginBusy, ErrStoreDown, a load that failed in another process
		// Also when the request's context has ended: it may have been a deadline, and a handler that returns
		// without an answer has answered 200.
		if r.Context().Err() == nil {
			c.opts.Logger.WarnContext(r.Context(), "a page cannot be had", "path", r.URL.Path, "err", err)
		}
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
	}
}

// pass calls the handler with the request as it is.
func (c *Cache) pass(w http.ResponseWriter, r *http.Request, why string) {
	c.vary(w.Header())
	w.Header().Add("Cache-Status", "onefill; fwd="+forwarded(why)+"; detail="+why)
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		c.handler.ServeHTTP(w, r)
		return
	}
	answer := &changeWriter{ResponseWriter: w, succeeds: func() { c.changed(r) }}
	c.handler.ServeHTTP(answer, r)
	if answer.status < 400 { // 0 is 200; once more, as the change may have come after the answer's first byte
		c.changed(r)
	}
}

// changed removes the pages of a path that a request has changed.
func (c *Cache) changed(r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 2*time.Second)
	defer cancel()
	if err := c.Purge(ctx, r.URL.EscapedPath()); err != nil && !errors.Is(err, onefill.ErrClosed) {
		c.opts.Logger.ErrorContext(ctx, "the pages of a path that was changed are not removed; they end with their TTL", "path", r.URL.Path, "err", err)
	}
}

// forwarded is the reason in the words of RFC 9211.
func forwarded(why string) string {
	if why == "method" {
		return why
	}
	return "bypass"
}

// changeWriter sees the status of an answer, and calls succeeds before a good one is sent: who has read that
// the change is done is not to be served the old page after that.
type changeWriter struct {
	http.ResponseWriter
	status   int // 0: nothing was written
	succeeds func()
}

func (w *changeWriter) begin(status int) {
	if w.status >= 200 { // 1xx is followed by another
		return
	}
	if w.status = status; status >= 200 && status < 400 {
		w.succeeds()
	}
}

func (w *changeWriter) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *changeWriter) Write(b []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Flush is for handlers that look for a http.Flusher themselves, and for http.ResponseController.
func (w *changeWriter) Flush() {
	w.begin(http.StatusOK)
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *changeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
