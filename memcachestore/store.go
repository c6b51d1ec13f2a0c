package memcachestore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
)

// Options are what [NewWith] needs. Only Addrs must be set.
type Options struct {
	// Addrs are the servers: host:port, or unix:/path (or /path) for a socket. Keys
	// are spread over them by consistent hashing of these texts, so all processes must
	// write them alike; their order does not matter. A server that is down costs its
	// share of the keys.
	Addrs []string
	// TLS is used for every server, if set. Its ServerName defaults to the host.
	TLS *tls.Config
	// Conns is the number of connections to each server. Requests are pipelined, so a
	// few carry any number of callers; more than one keeps large values from holding
	// up small ones. The first one is used while it is not busy, and answers. Default 2.
	Conns int
	// DialTimeout bounds one attempt to connect, TLS and the questions that a server
	// is asked first included. Default 2 s.
	DialTimeout time.Duration
	// StallTimeout is how long a connection may bring no answer although one is due,
	// before it is given up and made anew. Requests end earlier, with their contexts.
	// Default 3 s.
	StallTimeout time.Duration
}

const (
	defaultConns        = 2
	defaultDialTimeout  = 2 * time.Second
	defaultStallTimeout = 3 * time.Second
)

// Store is a shared cache in one or several memcached servers. It is safe for
// concurrent use and serves any number of caches.
type Store struct {
	opts Options
	ring *ring
	hash func(string) [32]byte // of keys that memcached does not take
	// wrong is what is the matter with the options, reported by Attach.
	wrong  error
	closed atomic.Bool
}

var _ store.Store = (*Store)(nil)

// New makes a store on the given servers: host:port, or unix:/path for a socket. It
// connects when it is used first. Addresses that make no sense are reported when a
// cache is attached, by onefill.New.
func New(addrs ...string) *Store { return NewWith(Options{Addrs: addrs}) }

// NewWith is [New] with more to choose.
func NewWith(o Options) *Store {
	orDefault(&o.Conns, defaultConns)
	orDefault(&o.DialTimeout, defaultDialTimeout)
	orDefault(&o.StallTimeout, defaultStallTimeout)
	st := &Store{opts: o, hash: sha}
	nodes, err := st.parse()
	if err != nil {
		st.wrong = err
		return st
	}
	st.ring = newRing(nodes)
	return st
}

func orDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

func (st *Store) parse() ([]*node, error) {
	if len(st.opts.Addrs) == 0 {
		return nil, invalid("no address", errors.New(`no servers are given; write memcachestore.New("localhost:11211")`))
	}
	var nodes []*node
	seen := map[string]bool{}
	for _, text := range st.opts.Addrs {
		a, err := parseAddress(text)
		if err == nil && seen[a.identity()] {
			err = errors.New("the server is given twice")
		}
		if err != nil {
			return nil, invalid(fmt.Sprintf("%q", text), err)
		}
		seen[a.identity()] = true
		nodes = append(nodes, newNode(a, &st.opts))
	}
	return nodes, nil
}

// Close ends all connections; sessions fail from now on. Closing twice is fine.
func (st *Store) Close() error {
	if st.ring != nil && !st.closed.Swap(true) {
		for _, n := range st.ring.nodes {
			n.close()
		}
	}
	return nil
}

// Attach implements store.Store. It asks every server whether it answers and is a
// memcached that will do. With cfg.AllowDown a server that cannot be reached is no
// error; one that is no memcached, or too old a one, is.
func (st *Store) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	if st.wrong != nil {
		return nil, st.wrong
	}
	for _, err := range []error{store.ValidName(cfg.Name), store.ValidOwner(cfg.Owner)} {
		if err != nil {
			return nil, invalid(st.addrs(), err)
		}
	}
	errs := make([]error, len(st.ring.nodes))
	var wg sync.WaitGroup
	for i, n := range st.ring.nodes {
		wg.Go(func() { errs[i] = n.probe(ctx) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil && !(cfg.AllowDown && heals(err)) {
			return nil, failure("attach", st.ring.nodes[i].addr.text, err)
		}
	}
	return &session{st: st, name: cfg.Name, owner: cfg.Owner, raising: make(chan struct{}, 1)}, nil
}

// probe asks a server whether it answers, over a new connection if there is none.
func (n *node) probe(ctx context.Context) error {
	c, err := n.pick(ctx, true)
	if err != nil {
		return err
	}
	return c.noop(ctx)
}

// heals says whether waiting may help.
func heals(err error) bool {
	var never unfit
	return !errors.As(err, &never) && !errors.Is(err, errProtocol) && !errors.Is(err, errStoreClosed) && !errors.Is(err, context.Canceled)
}

func (st *Store) addrs() string {
	var texts []string
	for _, n := range st.ring.nodes {
		texts = append(texts, n.addr.text)
	}
	return strings.Join(texts, ",")
}

// What a value may not fill of an item: the item's own header, its key, a kept key,
// a lease, and a failure record of a few KiB.
const (
	reservedBytes  = 16 << 10
	itemOverhead   = 512
	defaultItemMax = 1 << 20 // memcached's
)

// features are those of all servers together, as far as they have been met.
func (st *Store) features() store.Features {
	itemMax, explicit := 0, true
	for _, n := range st.ring.nodes {
		l := n.known.Load()
		if l == nil {
			l = &life{itemMax: defaultItemMax}
		}
		explicit = explicit && l.explicit
		if itemMax == 0 || l.itemMax < itemMax {
			itemMax = l.itemMax
		}
	}
	return store.Features{
		AcquireReads:      true,
		KeepsToken:        explicit,
		FailureKeepsValue: true,
		Granularity:       time.Second,
		MinLease:          shortestClaim * time.Second,
		MaxKeyBytes:       maxKey,
		MaxValueBytes:     itemMax - min(reservedBytes, itemMax/4),
	}
}
