package httpcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
)

// Credentials says what happens to requests with Cookie, Authorization, Proxy-Authorization or a client
// certificate, which are not named in Options.Headers.
type Credentials uint8

const (
	// Bypass calls the handler with the request as it is, and stores nothing.
	Bypass Credentials = iota
	// Strip gives them the page that everybody gets, made without their credentials.
	Strip
)

// Options configure a Cache. The zero value of each field is its default.
type Options struct {
	// Name is the cache's, as in onefill.Options. Needed with a Store.
	Name string
	// Store is what processes share. Default nil: this process only.
	Store store.Store
	// TTL, StaleFor, StaleOnError, ErrorTTL, LoadTimeout, WaitTimeout and MaxLoads are onefill's. A TTL
	// that the handler states is taken where it is shorter.
	TTL, StaleFor, StaleOnError, ErrorTTL, LoadTimeout, WaitTimeout time.Duration
	MaxLoads                                                        int
	// NotFoundTTL is for answers of 404 and 410. Default 10 seconds, or TTL if that is shorter.
	NotFoundTTL time.Duration
	// PassTTL is how long requests of a key go past the cache after an answer that must not be stored. Default
	// 10 seconds.
	PassTTL time.Duration
	// MaxPasses is how many keys are marked so in each PassTTL, by this process: who makes addresses up makes
	// marks. Keys above it are not marked: each of their requests calls the handler for the cache, one at a
	// time for a key, and then itself. Default 1,000.
	MaxPasses int

	// Query are the names of the query parameters that a page depends on. The handler sees no other.
	// Default nil: all of them, sorted by name. An empty slice that is not nil: none.
	Query []string
	// Headers are the names of the request's headers that a page depends on. The handler sees no other.
	Headers []string
	// AnyHost: pages do not depend on the host. The handler sees an empty one.
	AnyHost bool
	// Credentials: see there. Default Bypass.
	Credentials Credentials
	// Context copies what the handler needs from the request's context, such as a trace, into one that has
	// none of its values. It must copy nothing that depends on the user. Default nil: nothing.
	Context func(from, into context.Context) context.Context

	// MaxBody is the largest body that is stored. Default 512 KiB; at most 8 MiB.
	MaxBody int
	// MaxBytes is how much memory the pages in this process take. Default 64 MiB.
	MaxBytes int64
	// Observer and Logger are onefill's.
	Observer onefill.Observer
	Logger   *slog.Logger
}

const mostBody = 8 << 20

func (o Options) withDefaults() (Options, error) {
	if o.MaxBody < 0 || o.MaxBody > mostBody || o.PassTTL < 0 || o.MaxPasses < 0 || o.NotFoundTTL < 0 || o.MaxBytes < 0 {
		return o, fmt.Errorf("httpcache: MaxBody (%d) is from 0 to %d, PassTTL (%v), MaxPasses (%d), NotFoundTTL (%v) and MaxBytes (%d) are not negative", o.MaxBody, mostBody, o.PassTTL, o.MaxPasses, o.NotFoundTTL, o.MaxBytes)
	}
	if o.TTL == 0 {
		o.TTL = onefill.DefaultTTL
	}
	if o.NotFoundTTL == 0 {
		o.NotFoundTTL = min(10*time.Second, o.TTL)
	}
	if o.PassTTL == 0 {
		o.PassTTL = 10 * time.Second
	}
	if o.MaxPasses == 0 {
		o.MaxPasses = 1000
	}
	if o.MaxBody == 0 {
		o.MaxBody = 512 << 10
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Query = slices.Clone(o.Query)
	o.Headers = slices.Clone(o.Headers)
	for i, h := range o.Headers {
		if o.Headers[i] = http.CanonicalHeaderKey(h); h == "" || strings.EqualFold(h, "Host") {
			return o, errors.New("httpcache: Headers: a name is empty or Host, which is in the scope unless AnyHost is set")
		}
	}
	slices.Sort(o.Headers)
	o.Headers = slices.Compact(o.Headers)
	return o, nil
}
