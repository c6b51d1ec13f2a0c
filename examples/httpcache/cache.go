package httpcache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/onefill/onefill"
)

// Cache is a handler in front of another one. See the package documentation.
type Cache struct {
	opts    Options
	handler http.Handler
	pages   *onefill.Cache[string, *page]
}

// New puts a cache in front of a handler. Close it when the server has been shut down.
func New(handler http.Handler, o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cache{opts: o, handler: handler}
	c.pages, err = onefill.New(onefill.Options[string, *page]{
		Name: o.Name, Store: o.Store, Load: c.load, Codec: codec{}, Tags: true,
		TTL: o.TTL, StaleFor: o.StaleFor, StaleOnError: o.StaleOnError, ErrorTTL: o.ErrorTTL, LoadTimeout: o.LoadTimeout, WaitTimeout: o.WaitTimeout, MaxLoads: o.MaxLoads,
		Jitter: onefill.NoJitter, // a page is not to be served for longer than the handler says
		Local:  onefill.LocalOptions{MaxBytes: o.MaxBytes}, Weigh: weigh, MaxValueBytes: o.MaxBody + maxHeader + 1024,
		Observer: o.Observer, Logger: o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("httpcache: %w", err)
	}
	return c, nil
}

// Close ends the cache; requests go past it from then on.
func (c *Cache) Close() error { return c.pages.Close() }

// Stats are onefill's.
func (c *Cache) Stats() onefill.Stats { return c.pages.Stats() }

// Purge removes the pages of paths, in all their variants, in all processes. A path is as in a URL: "/reports/2026".
func (c *Cache) Purge(ctx context.Context, escapedPaths ...string) error {
	tags := make([]string, len(escapedPaths))
	for i, path := range escapedPaths {
		tags[i] = tagOf(path)
	}
	return c.pages.InvalidateTag(ctx, tags...)
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
		c.opts.judge(p)
	}
	switch {
	case p.Pass != "":
		onefill.SetTTL(ctx, c.opts.PassTTL)
		return p, nil
	case p.Status >= 500:
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
	res, err := c.pages.Fetch(context.WithValue(c.opts.bare(r.Context()), scopeKey{}, sc), sc.key)
	switch {
	case err != nil:
		c.failed(w, r, err)
	case res.Value.Pass != "":
		c.pass(w, r, res.Value.Pass)
	case res.Stale && res.Value.Strict:
		c.pass(w, r, "must-revalidate")
	default:
		c.serve(w, r, res.Value, res.Age, status(&res))
	}
}

// failed answers when there is no page.
func (c *Cache) failed(w http.ResponseWriter, r *http.Request, err error) {
	var answered *failedPage
	var panicked *onefill.PanicError
	switch {
	case errors.Is(err, onefill.ErrClosed):
		c.pass(w, r, "closed")
	case r.Context().Err() != nil: // the client has gone
	case errors.As(err, &answered):
		c.serve(w, r, answered.page, 0, fmt.Sprintf("fwd=uri-miss; fwd-status=%d", answered.page.Status))
	case errors.As(err, &panicked) && panicked.Value == http.ErrAbortHandler:
		panic(http.ErrAbortHandler)
	case errors.As(err, &panicked):
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	default: // ErrWaitTimeout, ErrOriginBusy, ErrStoreDown, a load that failed in another process
		c.opts.Logger.WarnContext(r.Context(), "a page cannot be had", "path", r.URL.Path, "err", err)
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
	seen := &statusWriter{ResponseWriter: w}
	c.handler.ServeHTTP(seen, r)
	if seen.status < 400 { // 0 is 200
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 2*time.Second)
		defer cancel()
		if err := c.Purge(ctx, r.URL.EscapedPath()); err != nil && !errors.Is(err, onefill.ErrClosed) {
			c.opts.Logger.ErrorContext(ctx, "the pages of a path that was changed are not removed; they end with their TTL", "path", r.URL.Path, "err", err)
		}
	}
}

// forwarded is the reason in the words of RFC 9211.
func forwarded(why string) string {
	switch why {
	case "method":
		return "method"
	case "must-revalidate":
		return "stale"
	}
	return "bypass"
}

// statusWriter sees the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status < 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
