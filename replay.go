package onefill

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
)

// What was invalidated while the store was away must not be served when it is back,
// and what was invalidated just before a failover may be back, since the replica did
// not have it yet. So a cache keeps the writes that its store may lack, as debts, and
// pays them: a read of such a key pays first, and all of them are paid in the
// background as soon as the store answers. A debt is paid by an Invalidate (or Expire),
// also that of a Set: nobody knows whose value is the latest by then.

// debts are the writes of one cache that its store lacks, or may come to lack. It is
// safe for concurrent use.
type debts struct {
	window time.Duration // how long a write that was answered may still get lost
	most   int           // bytes of what is owed, and of the window, each

	begun atomic.Uint64 // numbers the writes, by their beginning
	owing atomic.Int64  // how many keys are owed; whoever asks the store reads it
	// doubt, Unix nanoseconds: what was granted before is not trusted, as too many
	// writes were owed at that moment to be kept. 0: never.
	doubt atomic.Int64

	running atomic.Bool   // somebody pays
	wake    chan struct{} // something to do, or the store is back

	mu     sync.Mutex      // leaf: nothing is called under it
	owed   map[string]debt // guarded by mu
	size   int             // guarded by mu: bytes of owed, about
	recent recentWrites    // guarded by mu
}

// debt is a write that the store may lack.
type debt struct {
	number uint64 // of the write
	soft   bool   // an Expire
}

const (
	maxDebtBytes = 8 << 20 // some 60,000 keys
	debtOverhead = 96      // of an entry, about

	// replayWindow is how long a write is kept that was answered: replicas lag by less,
	// but an old primary that is cut off from them may go on answering until it is
	// noticed.
	replayWindow = time.Minute

	// doubtMargin is how much the clocks of the processes may differ: when an entry was
	// granted is known by the clock of the one that loaded it.
	doubtMargin = time.Second

	replayChunk   = writeChunk
	slowestReplay = 4 * time.Second // between attempts that fail
)

// newDebts keeps answered writes for no longer than what they have removed could live.
func newDebts(longestTTL time.Duration) *debts {
	return &debts{
		window: min(longestTTL, replayWindow),
		most:   maxDebtBytes,
		wake:   make(chan struct{}, 1),
		owed:   map[string]debt{},
	}
}

// begin numbers a write that begins.
func (d *debts) begin() uint64 { return d.begun.Add(1) }

// ended notes how a write has ended. It pays the debts of its keys from writes that
// began before it: what they were about was changed before it was applied.
func (d *debts) ended(keys []string, number uint64, soft bool, err error) {
	if errors.Is(err, store.ErrTooLarge) {
		return // the store cannot hold such a key or value, now or later
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		if err != nil && !errors.Is(err, store.ErrNotReplicated) {
			d.owe(key, debt{number, soft}, now)
			continue
		}
		if old, ok := d.owed[key]; ok && old.number < number {
			d.forget(key)
		}
		d.recent.add(recentWrite{key, soft, now}, d.window, d.most)
	}
}

// owe adds a debt. A hard one is not replaced by a soft one. The lock is held.
func (d *debts) owe(key string, new debt, now time.Time) {
	old, there := d.owed[key]
	switch {
	case there:
		new.soft = new.soft && old.soft
		new.number = max(new.number, old.number)
	case d.size+len(key)+debtOverhead > d.most:
		d.doubt.Store(now.UnixNano())
		return
	default:
		d.size += len(key) + debtOverhead
		d.owing.Add(1)
	}
	d.owed[key] = new
}

// forget removes a debt. The lock is held.
func (d *debts) forget(key string) {
	delete(d.owed, key)
	d.size -= len(key) + debtOverhead
	d.owing.Add(-1)
}

// of returns the debt of a key.
func (d *debts) of(key string) (debt, bool) {
	if d.owing.Load() == 0 {
		return debt{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one, ok := d.owed[key]
	return one, ok
}

// paid removes debts, but for those that have grown since.
func (d *debts) paid(keys []string, upTo uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		if old, ok := d.owed[key]; ok && old.number <= upTo {
			d.forget(key)
		}
	}
}

// reopen makes debts of the writes of the window: they may be lost.
func (d *debts) reopen() int {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	writes, dropped := d.recent.take(now, d.window)
	for _, w := range writes {
		d.owe(w.key, debt{d.begun.Add(1), w.soft}, now)
	}
	if dropped {
		d.doubt.Store(now.UnixNano())
	}
	return len(writes)
}

// all returns the keys that are owed, hard and soft ones apart, and the number of the
// last write that they belong to.
func (d *debts) all() (hard, soft []string, upTo uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, one := range d.owed {
		if one.soft {
			soft = append(soft, key)
		} else {
			hard = append(hard, key)
		}
	}
	return hard, soft, d.begun.Load()
}

func (d *debts) count() int { return int(d.owing.Load()) }

// trusts says whether a stored entry that was granted at that moment may be used.
func (d *debts) trusts(granted time.Time) bool {
	doubt := d.doubt.Load()
	return doubt == 0 || granted.UnixNano() > doubt+int64(doubtMargin)
}

// errDoubted: the entry may have been invalidated by a write that the store lacks.
var errDoubted = errors.New("from before an outage in which too many keys were written")

// recentWrites are the answered writes of the window, the oldest first.
type recentWrites struct {
	list    []recentWrite
	head    int // of list; what is before it is gone
	size    int // bytes, about
	dropped time.Time
}

type recentWrite struct {
	key  string
	soft bool
	at   time.Time
}

func (r *recentWrites) add(w recentWrite, window time.Duration, most int) {
	r.prune(w.at, window)
	r.list = append(r.list, w)
	for r.size += len(w.key) + debtOverhead; r.size > most; {
		r.dropped = r.list[r.head].at
		r.shift()
	}
}

func (r *recentWrites) prune(now time.Time, window time.Duration) {
	for r.head < len(r.list) && now.Sub(r.list[r.head].at) > window {
		r.shift()
	}
	if r.head > len(r.list)/2 {
		n := copy(r.list, r.list[r.head:])
		clear(r.list[n:])
		r.list, r.head = r.list[:n], 0
	}
}

func (r *recentWrites) shift() {
	r.size -= len(r.list[r.head].key) + debtOverhead
	r.list[r.head] = recentWrite{}
	r.head++
}

// take empties the window. dropped: there were more writes in it than could be kept.
func (r *recentWrites) take(now time.Time, window time.Duration) (writes []recentWrite, dropped bool) {
	r.prune(now, window)
	writes = r.list[r.head:]
	dropped = !r.dropped.IsZero() && now.Sub(r.dropped) <= window
	*r = recentWrites{}
	return writes, dropped
}

// wrote notes how a write has ended, and starts to pay if it has failed.
func (c *Cache[K, V]) wrote(skeys []string, number uint64, soft bool, err error) {
	c.debts.ended(skeys, number, soft, err)
	if err != nil {
		c.startReplay()
	}
}

// replaced hears from the store that another server answers from now on, which may
// lack the last writes.
func (c *Cache[K, V]) replaced() {
	n := c.debts.reopen()
	if n == 0 {
		return // as while the cache attaches to the store
	}
	c.log.Warn("the store's server was replaced; the latest writes are repeated, as it may lack them", "writes", n)
	c.replaySoon()
}

// checkStore finds out soon whether a server whose connection was lost is still the
// same one, also if nobody asks it anything.
func (c *Cache[K, V]) checkStore() {
	c.debts.mu.Lock()
	wrote := c.debts.recent.head < len(c.debts.recent.list)
	c.debts.mu.Unlock()
	if wrote {
		c.replaySoon()
	}
}

// payDebt pays what is owed for a key, before it is read.
func (c *Cache[K, V]) payDebt(ctx context.Context, skey string) error {
	one, ok := c.debts.of(skey)
	if !ok {
		return nil
	}
	return c.pay(ctx, []string{skey}, one.soft, one.number)
}

// pay repeats writes of keys that one server has.
func (c *Cache[K, V]) pay(ctx context.Context, skeys []string, soft bool, upTo uint64) error {
	err := c.remote.do(ctx, skeys[0], func(ctx context.Context) error {
		if soft {
			return c.remote.session.Expire(ctx, time.Now(), skeys...)
		}
		return c.remote.session.Invalidate(ctx, skeys...)
	})
	for _, skey := range skeys { // also after an error, as after every write
		c.changed(skey)
	}
	if err != nil && !errors.Is(err, store.ErrNotReplicated) {
		return err
	}
	c.debts.paid(skeys, upTo)
	c.stats.replayed.Add(uint64(len(skeys)))
	c.tell(Event{Kind: EventReplay, N: len(skeys)})
	return nil
}

// replaySoon lets the goroutine that pays begin at once.
func (c *Cache[K, V]) replaySoon() {
	select {
	case c.debts.wake <- struct{}{}:
	default:
	}
	c.startReplay()
}

// startReplay starts the goroutine that pays, after a pause, unless it runs.
func (c *Cache[K, V]) startReplay() {
	if c.debts.running.CompareAndSwap(false, true) && !c.begin(c.replay) {
		c.debts.running.Store(false)
	}
}

// replay pays until nothing is owed.
func (c *Cache[K, V]) replay() {
	t := time.NewTimer(probeEvery)
	defer t.Stop()
	for pause := probeEvery; ; pause = min(2*pause, slowestReplay) {
		select {
		case <-c.debts.wake:
			pause = probeEvery
		case <-t.C:
		case <-c.closing:
			c.debts.running.Store(false)
			return
		}
		if c.payAll(c.life) == nil && c.debts.count() == 0 {
			break
		}
		t.Reset(jittered(pause, 0.5))
	}
	c.debts.running.Store(false)
	if c.debts.count() > 0 { // owed in this very moment
		c.startReplay()
	}
}

// payAll pays everything, as far as the servers answer. One server is asked first
// whether it is there: by that a store also notices that it was replaced.
func (c *Cache[K, V]) payAll(ctx context.Context) error {
	if c.remote.sharded == nil {
		if err := c.remote.do(ctx, "", c.remote.session.Ping); err != nil {
			return err
		}
	}
	hard, soft, upTo := c.debts.all()
	return errors.Join(c.payEach(ctx, hard, false, upTo), c.payEach(ctx, soft, true, upTo))
}

// payEach pays in chunks, server by server. What is still there after an error is
// tried again later.
func (c *Cache[K, V]) payEach(ctx context.Context, skeys []string, soft bool, upTo uint64) error {
	servers := map[string][]string{}
	for _, skey := range skeys {
		server := ""
		if c.remote.sharded != nil {
			server = c.remote.sharded.Server(skey)
		}
		servers[server] = append(servers[server], skey)
	}
	var errs []error
	for _, keys := range servers {
		for len(keys) > 0 {
			n := min(replayChunk, len(keys))
			if err := c.pay(ctx, keys[:n], soft, upTo); err != nil {
				errs = append(errs, err)
				break
			}
			keys = keys[n:]
		}
	}
	return errors.Join(errs...)
}

// payLast is Close's: once more, and then what is owed is lost.
func (c *Cache[K, V]) payLast() {
	if c.debts.count() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.life), c.opts.StoreTimeout)
	defer cancel()
	if err := c.payAll(ctx); err != nil {
		c.log.Warn("the cache is closed while writes of it have not reached the store; their keys may be stale there until their TTL ends", "keys", c.debts.count(), "err", err)
	}
}
