package memstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onefill/onefill/store"
)

// ErrClosed is wrapped by the error of an operation on a closed session.
var ErrClosed = errors.New("the session is closed")

// ErrDown is wrapped by the error of every operation between [Store.Down] and
// [Store.Up].
var ErrDown = errors.New("the store is down")

const (
	defaultMinLease   = time.Millisecond
	defaultMaxTracked = 1 << 20
	defaultMaxValues  = 1 << 20
)

// Options make the store act as a server that can do less than memory can. The
// zero value is a store that can do everything.
type Options struct {
	// NoPush leaves out the events and the watches, as memcached does.
	NoPush bool
	// AcquireReads is declared in store.Features: readers that would load ask
	// Acquire at once and leave out Get.
	AcquireReads bool
	// ForgetsToken makes Acquire by the token that already holds the lease
	// answer Held, as a server does that chooses the tokens itself.
	ForgetsToken bool
	// Granularity is the step to which TTLs and leases are rounded up; 0 means
	// that they are exact.
	Granularity time.Duration
	// MinLease is the shortest lease; shorter ones are raised to it. Default 1 ms.
	MinLease time.Duration
	// MaxKeyBytes and MaxValueBytes refuse longer keys and values with an error
	// that wraps store.ErrTooLarge. 0 means no limit.
	MaxKeyBytes, MaxValueBytes int
	// MaxTracked is for how many keys one session is told of changes. Beyond it
	// the session is told of a change that did not happen and forgets that key,
	// as Redis does. Default 1,048,576.
	MaxTracked int
	// MaxValues is how many values the store holds; one more removes another one,
	// whichever. Default 1,048,576.
	MaxValues int
}

// Store is a store in memory. Its methods are safe for concurrent use. Values
// take memory until their TTL is over, at most Options.MaxValues of them.
type Store struct {
	options Options

	// mu guards everything below and everything in sessions and entries. It is
	// held for map operations only: nothing waits, and no user's code runs,
	// under it.
	mu       sync.Mutex
	entries  map[id]*entry
	tags     tags
	values   int                   // entries with a value
	sessions map[string][]*session // by name, closed ones are removed
	dirty    []*session            // sessions with news, see unlock
	counts   map[Kind]int
	fault    func(Op) Fault
	down     bool
	held     bool          // pushes wait
	failover chan struct{} // operations wait until it is closed; nil: they do not
}

// id is the identity of a key in the store. Name and key stay apart, so no two
// pairs can meet.
type id struct{ name, key string }

var _ store.Store = (*Store)(nil)

// New makes an empty store. At most one Options may be given.
func New(options ...Options) *Store {
	if len(options) > 1 {
		panic("memstore.New: more than one Options")
	}
	st := &Store{
		entries:  make(map[id]*entry),
		tags:     newTags(),
		sessions: make(map[string][]*session),
		counts:   make(map[Kind]int),
	}
	if len(options) == 1 {
		st.options = options[0]
	}
	st.options.MinLease = max(st.options.MinLease, defaultMinLease)
	if st.options.MaxTracked <= 0 {
		st.options.MaxTracked = defaultMaxTracked
	}
	if st.options.MaxValues <= 0 {
		st.options.MaxValues = defaultMaxValues
	}
	return st
}

// Attach implements store.Store.
func (st *Store) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	if err := store.ValidName(cfg.Name); err != nil {
		return nil, fail(OpAttach, err)
	}
	if err := store.ValidOwner(cfg.Owner); err != nil {
		return nil, fail(OpAttach, err)
	}
	s := &session{st: st, name: cfg.Name, owner: cfg.Owner, events: cfg.Events,
		armed: make(map[string]struct{}), watches: make(map[string]map[*watch]struct{})}
	err := st.do(ctx, Op{Kind: OpAttach, Name: cfg.Name}, func(time.Time) {})
	if err != nil && !(cfg.AllowDown && errors.Is(err, store.ErrUnavailable)) {
		return nil, err
	}
	st.mu.Lock()
	defer st.unlock()
	st.sessions[s.name] = append(st.sessions[s.name], s)
	return s, nil
}

func (st *Store) features() store.Features {
	o := st.options
	return store.Features{
		Push:              !o.NoPush,
		AcquireReads:      o.AcquireReads,
		KeepsToken:        !o.ForgetsToken,
		FailureKeepsValue: true,
		Granularity:       o.Granularity,
		MinLease:          o.MinLease,
		MaxKeyBytes:       o.MaxKeyBytes,
		MaxValueBytes:     o.MaxValueBytes,
	}
}

// unlock releases mu and then tells the sessions what happened meanwhile.
func (st *Store) unlock() {
	dirty := st.dirty
	st.dirty = nil
	st.mu.Unlock()
	for _, s := range dirty {
		s.drain()
	}
}

// fail is an error that is an answer: the store was asked and refused.
func fail(kind Kind, err error) *store.Error {
	return &store.Error{Service: "memory", Addr: "in-process", Op: string(kind), Err: err}
}

// unavailable is an error of a store that could not be asked or that did not
// answer in time.
func unavailable(kind Kind, err error) *store.Error {
	e := fail(kind, err)
	e.Unavailable = true
	return e
}

// contextError is the error of an operation whose context has ended. A deadline
// says that the store was too slow; a cancellation says nothing about the store.
func contextError(kind Kind, err error) *store.Error {
	if errors.Is(err, context.DeadlineExceeded) {
		return unavailable(kind, err)
	}
	return fail(kind, err)
}

// checkSize refuses keys and values that are too large; data is nil where none
// is written.
func (st *Store) checkSize(kind Kind, key string, data []byte) error {
	if limit := st.options.MaxKeyBytes; limit > 0 && len(key) > limit {
		return fail(kind, fmt.Errorf("%w: the key has %d bytes, at most %d are allowed", store.ErrTooLarge, len(key), limit))
	}
	if limit := st.options.MaxValueBytes; limit > 0 && len(data) > limit {
		return fail(kind, fmt.Errorf("%w: the value has %d bytes, at most %d are allowed", store.ErrTooLarge, len(data), limit))
	}
	return nil
}
