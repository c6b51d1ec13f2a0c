package onefill

import (
	"container/list"
	"context"
	"errors"
	"iter"
	"slices"
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
	// reopens counts the replacements of the server that have made debts.
	reopens atomic.Uint64
	// doubt, Unix nanoseconds: what was granted before is not trusted, as too many
	// writes were owed at that moment to be kept. 0: never.
	doubt atomic.Int64

	running atomic.Bool   // somebody pays
	wake    chan struct{} // something to do, or the store is back

	mu   sync.Mutex      // leaf: nothing is called under it
	owed map[debtor]debt // guarded by mu
	size int             // guarded by mu: bytes of owed, about
	// reopened is the last write that had begun when the server was replaced: one that was
	// under way then may have been answered by the old server. Guarded by mu.
	reopened uint64
	recent   recentWrites // guarded by mu
}

// debtor is what was written: a key, or a tag, which is a namespace of its own.
type debtor struct {
	name string
	tag  bool
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

func newDebts() *debts {
	return &debts{
		window: replayWindow,
		most:   maxDebtBytes,
		wake:   make(chan struct{}, 1),
		owed:   map[debtor]debt{},
	}
}

// writeKind is what a write does: Invalidate and Set are hard.
type writeKind uint8

const (
	writeHard writeKind = iota
	writeSoft           // Expire
	writeTag            // InvalidateTag, Clear
)

// begin numbers a write that begins.
func (d *debts) begin() uint64 { return d.begun.Add(1) }

// ended notes how a write has ended. It pays the debts of its keys from writes that
// began before it: what they were about was changed before it was applied.
func (d *debts) ended(keys []string, number uint64, kind writeKind, err error) {
	if errors.Is(err, store.ErrTooLarge) {
		return // the store cannot hold such a key or value, now or later
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		who, what := debtor{key, kind == writeTag}, debt{number, kind == writeSoft}
		if err != nil && !errors.Is(err, store.ErrNotReplicated) || number <= d.reopened {
			d.owe(who, what, now)
			continue
		}
		if old, ok := d.owed[who]; ok && old.number < number && (old.soft || !what.soft) {
			d.forget(who)
		}
		d.recent.add(recentWrite{who, what.soft, now}, d.window, d.most)
	}
}

// owe adds a debt. A hard one is not replaced by a soft one. The lock is held.
func (d *debts) owe(key debtor, new debt, now time.Time) {
	old, there := d.owed[key]
	switch {
	case there:
		new.soft = new.soft && old.soft
		new.number = max(new.number, old.number)
	case d.size+len(key.name)+debtOverhead > d.most:
		d.doubt.Store(now.UnixNano())
		return
	default:
		d.size += len(key.name) + debtOverhead
		d.owing.Add(1)
	}
	d.owed[key] = new
}

// forget removes a debt. The lock is held.
func (d *debts) forget(key debtor) {
	delete(d.owed, key)
	d.size -= len(key.name) + debtOverhead
	d.owing.Add(-1)
}

// of returns the debt of a key or a tag.
func (d *debts) of(key debtor) (debt, bool) {
	if d.owing.Load() == 0 {
		return debt{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one, ok := d.owed[key]
	return one, ok
}

// reopen makes debts of the writes of the window: they may be lost.
func (d *debts) reopen() int {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	writes, dropped := d.recent.take(now, d.window)
	d.reopened = d.begun.Load()
	for _, w := range writes {
		d.owe(w.debtor, debt{d.begun.Add(1), w.soft}, now)
	}
	if dropped {
		d.doubt.Store(now.UnixNano())
	}
	if len(writes) > 0 || dropped {
		d.reopens.Add(1) // last: who sees it finds the debts
	}
	return len(writes)
}

// all returns what is owed, by the kind of write.
func (d *debts) all() (owed [3][]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for who, one := range d.owed {
		kind := writeHard
		switch {
		case who.tag:
			kind = writeTag
		case one.soft:
			kind = writeSoft
		}
		owed[kind] = append(owed[kind], who.name)
	}
	return owed
}

func (d *debts) count() int { return int(d.owing.Load()) }

// trusts says whether a stored entry that was granted at that moment may be used.
func (d *debts) trusts(granted time.Time) bool {
	doubt := d.doubt.Load()
	return doubt == 0 || granted.UnixNano() > doubt+int64(doubtMargin)
}

// errDoubted: the entry may have been invalidated by a write that the store lacks.
var errDoubted = errors.New("from before an outage in which too many keys were written")

// recentWrites are the latest answered writes of keys and tags in the window, the oldest
// first.
type recentWrites struct {
	list    list.List // of recentWrite
	places  map[debtor]*list.Element
	size    int // bytes, about
	dropped time.Time
}

type recentWrite struct {
	debtor
	soft bool
	at   time.Time
}

func (r *recentWrites) add(w recentWrite, window time.Duration, most int) {
	r.prune(w.at, window)
	if at, there := r.places[w.debtor]; there {
		w.soft = w.soft && at.Value.(recentWrite).soft
		at.Value = w
		r.list.MoveToBack(at)
		return
	}
	if r.places == nil {
		r.places = make(map[debtor]*list.Element)
	}
	r.places[w.debtor] = r.list.PushBack(w)
	for r.size += len(w.name) + debtOverhead; r.size > most; {
		r.dropped = r.shift().at
	}
}

func (r *recentWrites) prune(now time.Time, window time.Duration) {
	for first := r.list.Front(); first != nil && now.Sub(first.Value.(recentWrite).at) > window; first = r.list.Front() {
		r.shift()
	}
}

func (r *recentWrites) shift() recentWrite {
	w := r.list.Remove(r.list.Front()).(recentWrite)
	r.size -= len(w.name) + debtOverhead
	delete(r.places, w.debtor)
	return w
}

// take empties the window. dropped: there were more writes in it than could be kept.
func (r *recentWrites) take(now time.Time, window time.Duration) (writes []recentWrite, dropped bool) {
	r.prune(now, window)
	for at := r.list.Front(); at != nil; at = at.Next() {
		writes = append(writes, at.Value.(recentWrite))
	}
	dropped = !r.dropped.IsZero() && now.Sub(r.dropped) <= window
	*r = recentWrites{}
	return writes, dropped
}

// wrote notes how a write has ended, and starts to pay if it has failed.
func (c *Cache[K, V]) wrote(names []string, number uint64, kind writeKind, err error) {
	c.debts.ended(names, number, kind, err)
	c.bus.publish(names, kind == writeTag) // also after an error: it may have been applied
	if c.debts.count() > 0 {
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
	wrote := c.debts.recent.list.Len() > 0
	c.debts.mu.Unlock()
	if wrote {
		c.replaySoon()
	}
}

// payDebt pays what is owed for a key, before it is read.
func (c *Cache[K, V]) payDebt(ctx context.Context, skey string) error {
	one, ok := c.debts.of(debtor{name: skey})
	if !ok {
		return nil
	}
	kind := writeHard
	if one.soft {
		kind = writeSoft
	}
	return c.pay(ctx, kind, []string{skey})
}

// payTags pays what is owed for tags, before their generations are read.
func (c *Cache[K, V]) payTags(ctx context.Context, tags []string) error {
	var owed []string
	for _, tag := range tags {
		if _, ok := c.debts.of(debtor{tag, true}); ok {
			owed = append(owed, tag)
		}
	}
	if len(owed) == 0 {
		return nil
	}
	return c.pay(ctx, writeTag, owed)
}

// pay repeats writes: of keys that one server has, or of tags.
func (c *Cache[K, V]) pay(ctx context.Context, kind writeKind, names []string) error {
	skey := names[0]
	if kind == writeTag {
		skey = ""
	}
	number := c.debts.begin()
	err := c.remote.do(ctx, skey, func(ctx context.Context) error {
		switch kind {
		case writeSoft:
			return c.remote.session.Expire(ctx, time.Now(), names...)
		case writeTag:
			return c.tags.tagger.VoidTags(ctx, c.tags.keep, names...)
		default:
			return c.remote.session.Invalidate(ctx, names...)
		}
	})
	if errors.Is(err, errNotAsked) {
		return err
	}
	for _, name := range names { // also after an error, as after every write
		if kind == writeTag {
			c.voided(name)
		} else {
			c.changed(name)
		}
	}
	c.bus.publish(names, kind == writeTag)
	if err != nil && !errors.Is(err, store.ErrNotReplicated) {
		return err
	}
	c.debts.ended(names, number, kind, err)
	c.stats.replayed.Add(uint64(len(names)))
	c.tell(Event{Kind: EventReplay, N: len(names)})
	return nil
}

// replaySoon lets the goroutine that pays begin at once.
func (c *Cache[K, V]) replaySoon() {
	wake(c.debts.wake)
	c.startReplay()
}

// wake tells a goroutine that waits on c, or will, that there is something to do.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// startReplay starts the goroutine that pays, after a pause, unless it runs.
func (c *Cache[K, V]) startReplay() {
	if c.debts.running.CompareAndSwap(false, true) && !c.begin(c.replay) {
		c.debts.running.Store(false)
	}
}

// replay pays until nothing is owed.
func (c *Cache[K, V]) replay() {
	returned := false
	defer func() {
		if !returned { // an observer has ended this goroutine
			c.debts.running.Store(false)
			c.startReplay()
		}
	}()
	t := time.NewTimer(probeEvery)
	defer t.Stop()
	for pause := probeEvery; ; pause = min(2*pause, slowestReplay) {
		select {
		case <-c.debts.wake:
			pause = probeEvery
		case <-t.C:
		case <-c.closing:
			returned = true
			c.debts.running.Store(false)
			return
		}
		if c.payAll(c.life) == nil && c.debts.count() == 0 {
			break
		}
		t.Reset(jittered(pause, 0.5))
	}
	returned = true
	c.debts.running.Store(false)
	if c.debts.count() > 0 || len(c.debts.wake) > 0 { // owed in this very moment
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
	owed := c.debts.all()
	var errs []error
	for kind, names := range owed {
		for names := range c.byServer(writeKind(kind), names) {
			errs = append(errs, c.pay(ctx, writeKind(kind), names))
		}
	}
	return errors.Join(errs...)
}

// byServer cuts the names of what is owed into chunks of one server each.
func (c *Cache[K, V]) byServer(kind writeKind, names []string) iter.Seq[[]string] {
	if c.remote.sharded == nil || kind == writeTag {
		return slices.Chunk(names, replayChunk)
	}
	return func(yield func([]string) bool) {
		for _, at := range c.remote.byServer(names) {
			for chunk := range slices.Chunk(pick(names, at), replayChunk) {
				if !yield(chunk) {
					return
				}
			}
		}
	}
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
