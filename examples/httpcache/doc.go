// Package httpcache puts onefill in front of an expensive http.Handler: a thousand requests for the
// same page make one call of the handler, in the whole fleet. Copy it into your project; it is an
// example, and small enough to be read.
//
//	pages, err := httpcache.New(reports, httpcache.Options{
//		Name:    "reports",
//		Store:   shared,                      // leave out for one process
//		TTL:     time.Minute,
//		Query:   []string{"year", "page"},    // what a page depends on, besides host and path
//		Headers: []string{"Accept-Language"},
//	})
//	mux.Handle("GET /reports/", pages)
//
// # Never another user's page
//
// The scope is what a page depends on: the host, the path, and the query parameters and headers that
// Options name. It is the key. And it is all that the handler gets to see: when a page is made for the
// cache, the handler is called with a request that holds the scope and nothing else. No other
// parameter, no other header, no cookie, no remote address, no value that a middleware before it has
// put into the context. The wildcards of the ServeMux that has called the cache are kept, and are part of the
// key: what http.StripPrefix has cut off the path counts. What it cannot see it cannot put into the page, so a page cannot depend on what
// is not in its key.
//
// A request with Cookie, Authorization, Proxy-Authorization or a client certificate goes past the cache, to
// the handler as it is, unless the header is named in the scope (its value is hashed in the key then), or
// Credentials is Strip: then it gets the page that everybody gets. So put what decides who may see a
// page before the cache, and what depends on the user behind another path.
//
// # What is stored
//
// Answers to GET, with status 200, 203, 204, 301, 308, 404 or 410, of at most MaxBody bytes. Not stored,
// and not shared with those who wait either, is an answer that has Set-Cookie, or
// Cache-Control with private, no-store, no-cache, max-age=0 or s-maxage=0; whose Vary names what is not in the scope;
// that is flushed, or has trailers; or that has any other status. The handler is then called with each
// request itself, and for PassTTL the requests of that key go past the cache at once. An answer of 429, or of 500 and above, is a
// failed load, whatever its headers say: everybody who waits in this process gets it, or a stale page where
// StaleOnError allows; it is remembered for ErrorTTL; other processes answer 503. If its headers forbid to share
// it, those who wait get its status only. So what limits single clients belongs before the cache: the 429 of one
// would be that of all who wait with him. A handler that returns after its context has ended (LoadTimeout, Close)
// has failed, too, unless it has answered 429, 500 or above itself.
//
// s-maxage, max-age or Expires make a page's time shorter than TTL, never longer. A page with must-revalidate
// or proxy-revalidate is not served stale: who asks when it is old waits for one call of the handler. Where
// StaleFor or StaleOnError are set, such pages are in a second cache, called Name-strict, which has a quarter of
// MaxBytes.
//
// # What a client gets
//
// Status, headers and body as the handler made them, with Age, an ETag (a hash of the body, if the handler
// has made none), Vary with the scope's headers, and Cache-Status as in RFC 9211:
//
//		Cache-Status: onefill; hit; ttl=41
//		Cache-Status: onefill; fwd=uri-miss; fwd-status=200
//		Cache-Status: onefill; fwd=uri-miss; collapsed; fwd-status=200
//		Cache-Status: onefill; fwd=bypass; detail=credentials
//
//	  - HEAD is answered from the page that a GET would get, which is made if need be.
//	  - Range is answered from the whole page, as are If-None-Match, If-Modified-Since, If-Match, If-Unmodified-Since and
//	    If-Range, for status 200; the handler never sees them. Other statuses are sent as they are.
//	  - Cache-Control and Pragma of a request are ignored: a client cannot make the handler work.
//	  - Other methods, and a GET that has a body, asks for an upgrade, or has a query that is malformed, go
//	    past the cache. One that may change something (POST, PUT, PATCH, DELETE, and what is not known to be
//	    safe) and succeeds removes the pages of its path, in all their variants, before its answer is sent; so
//	    does Purge.
//	  - Accept-Encoding is in no scope unless you name it: compress in a middleware before this one.
//	  - A page that cannot be had in time is 503 with Retry-After.
//
// # Bounds
//
// Whoever chooses the key chooses how many there are: without Query, every query that somebody makes up
// is a page of its own. What they cost is bounded by MaxLoads calls of the handler at once, MaxBytes of
// memory, and the store's own limit. Marks of keys whose requests go past the cache are bounded by themselves, by
// MaxPasses in each PassTTL and process, so that they push no page out. Name the parameters. The Host header is part of the key unless AnyHost
// is set, so set that, or let a proxy or a mux decide which hosts there are.
package httpcache
