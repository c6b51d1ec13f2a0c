package onefill

import (
	"context"
	"errors"
	"time"

	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// What a failed load leaves behind: the error, or a stale value, for those who wait; a
// record for the other processes; and for how long nobody tries again.

// failed is the outcome of a load that brought nothing.
func (m *miss[K, V]) failed(err error, reachable bool) outcome[V] {
	m.failure = err
	if out, ok := m.staleOnError(reachable); ok {
		return out
	}
	return outcome[V]{err: err, source: SourceLoad}
}

// staleOnError is the old value, if StaleOnError allows it. A local one whose
// Local.TTL has ended counts only while the store cannot be asked: otherwise the
// store has just said that it has nothing, perhaps because of an invalidation. So
// does one that is doubted.
func (m *miss[K, V]) staleOnError(reachable bool) (outcome[V], bool) {
	c := m.c
	if m.old == nil {
		return outcome[V]{}, false
	}
	now := c.local.Now()
	if !c.mayServeOnError(m.old, now) || reachable && (m.doubted || now >= m.old.Trusted) {
		return outcome[V]{}, false
	}
	return outcome[V]{entry: m.old, source: m.oldFrom, stale: true}, true
}

// confirmOld notes whether the store holds the old value still, as its answer to an
// acquire shows: by the item (which says nothing of its tags), or where it pushes by not
// having said otherwise. Then it may be served for Local.TTL, where stale values are allowed.
func (m *miss[K, V]) confirmOld(a store.Answer) {
	if m.confirmed = false; m.old == nil || m.oldFrom != SourceStore {
		return
	}
	push := m.c.remote.session.Features().Push
	m.confirmed = a.Item.Found && m.c.tags == nil || push && m.c.local.CurrentEntry(m.old)
	m.trustOld(m.asked)
}

// trustOld trusts the confirmed value for Local.TTL from when the store was asked: what it
// says may have become old since then.
func (m *miss[K, V]) trustOld(asked int64) {
	if m.confirmed {
		old := *m.old
		old.Trusted = until(asked, m.c.localTTL())
		m.old = &old
	}
}

// fail leaves the failure in the store for ErrorTTL, for all processes; where they have
// to poll, long enough for each of them to come by.
func (m *miss[K, V]) fail(ctx context.Context, lease store.Lease, l *loaded[V]) {
	c := m.c
	const longest = 1 << 10 // bytes of the message
	text := causeOf(l.err).Error()
	hold := m.holdBack()
	record := store.Envelope{Kind: store.KindFailure, Created: time.Now(), Cost: l.cost, Failures: m.failures,
		Payload: []byte(text[:min(len(text), longest)])}
	ttl := hold
	if !c.remote.session.Features().Push {
		ttl = max(ttl, 2*pollCeiling)
	}
	asked, ok := c.local.Now(), false
	err := c.remote.do(ctx, m.f.Key, func(ctx context.Context) (err error) {
		ok, err = lease.Fail(ctx, record.Encode(), ttl)
		return err
	})
	if err != nil { // nobody knows whether it was applied
		c.releaseLater(ctx, m.f.Key, lease)
	}
	if err == nil && ok {
		m.trustOld(asked) // the lease was not void, so nobody has invalidated it since
	}
	if err != nil || ok {
		m.rememberFailure(l.err, hold, false)
	}
}

// causeOf is the loader's own error, without the key that LoadError names.
func causeOf(err error) error {
	var le *LoadError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}

// sharedFailure answers with the failure that another load has left, or with the
// old value where that is allowed, and remembers it in this process too.
func (m *miss[K, V]) sharedFailure(a store.Answer) outcome[V] {
	c := m.c
	c.stats.sharedFailures.Add(1)
	text := "the failure's record could not be read"
	if env, err := store.Decode(a.Failure); err == nil {
		text, m.failures = string(env.Payload), env.Failures
	}
	err := &LoadError{Key: m.f.Key, Err: remoteFailure(text)}
	m.rememberFailure(err, min(or(a.Remaining, c.opts.ErrorTTL), after(c.longestBackOff(), time.Second)), false)
	return m.failed(err, true)
}

// rememberFailure makes local answer with err for ttl, without losing the value
// that it may still serve. For as long again it is remembered how many loads have
// failed in a row, m.failures. A private failure only holds back further loads.
func (m *miss[K, V]) rememberFailure(err error, ttl time.Duration, private bool) {
	e := &local.Entry[V]{Stamp: m.stamp, Rare: &local.Rare{Absent: true, Weight: entryOverhead}, Trusted: m.c.local.Now()}
	if old := m.keptBeside(); old != nil {
		kept := *old
		e = &kept
		e.Rare = &local.Rare{RowVersion: kept.RowVersion(), Tags: kept.Tags(), Weight: kept.Weight(), Doubted: kept.Doubted()}
	}
	now := m.c.local.Now()
	e.Rare.Failure, e.Rare.FailedUntil, e.Rare.Private = err, until(now, ttl), private
	e.Rare.Failures, e.Rare.CountedUntil = m.failures, until(until(now, ttl), ttl)
	m.publish = e
}

// keptBeside is the old value if local may go on to hold it beside a failure. One that is not
// current may have changed: it is kept as long as the store cannot be asked about it, since
// then it may be all that there is to serve; once the store has been asked, it is not.
func (m *miss[K, V]) keptBeside() *local.Entry[V] {
	switch {
	case m.old == nil || m.c.local.CurrentEntry(m.old) && !m.old.Doubted():
		return m.old
	case m.offline:
		return m.c.local.Doubt(m.old, m.stamp)
	}
	return nil
}

// stillHeldBack is the answer of a flight that cannot ask the store and need not ask the origin
// either: a load has failed lately. The error of a private failure is told to nobody.
func (m *miss[K, V]) stillHeldBack() (outcome[V], bool) {
	if m.heldBack == nil || m.c.local.Now() >= m.heldBack.FailedUntil {
		return outcome[V]{}, false
	}
	out, stale := m.staleOnError(false)
	if !stale && m.heldBack.Private {
		return outcome[V]{}, false
	}
	m.failure = m.heldBack.Failure
	if !stale {
		out = outcome[V]{err: m.failure, source: SourceLocal}
	}
	return out, true
}

// After a failed load nobody tries again for ErrorTTL. As long as loads keep failing,
// this doubles: up to patientBackOff times as long as a stale value is there for those who
// ask; up to impatientBackOff times, and from the third failure on only, where they get
// the error, so that they soon notice that the origin is back. What failed together does
// not come back together (Jitter).
const (
	patientBackOff   = 16
	impatientBackOff = 4
)

// holdBack counts a failure, and is how long it holds back the next load.
func (m *miss[K, V]) holdBack() time.Duration {
	c := m.c
	m.failures++
	back := func(doublings uint64, most uint64) time.Duration {
		if doublings == 0 {
			return c.opts.ErrorTTL
		}
		return jittered(times(c.opts.ErrorTTL, min(1<<min(doublings, 10), most)), c.opts.Jitter)
	}
	d := back(max(m.failures, 2)-2, impatientBackOff)
	if m.servable() { // not for longer than it can be served
		window := c.opts.grace()
		if m.offline { // see servable
			window = c.opts.StaleOnError
		}
		left := time.Duration(until(m.old.Soft, window) - c.local.Now())
		d = max(d, min(back(m.failures-1, patientBackOff), left))
	}
	return d
}

func (c *Cache[K, V]) longestBackOff() time.Duration {
	return longestJittered(times(c.opts.ErrorTTL, patientBackOff), c.opts.Jitter)
}

// holdBackPrivately is for a load that ran into a timeout: that is a context error, so
// nobody is told of it later, but whoever has a stale value does not try at once again.
func (m *miss[K, V]) holdBackPrivately(l *loaded[V]) {
	if l.late && m.old != nil {
		m.rememberFailure(l.err, m.holdBack(), true)
	}
}

// servable says whether those who ask can be given the old value meanwhile.
func (m *miss[K, V]) servable() bool {
	if m.offline {
		_, ok := m.staleOnError(false)
		return ok
	}
	now := m.c.local.Now()
	return m.old != nil && !m.doubted && (m.confirmed || now < m.old.Trusted) &&
		(now < m.old.Soft || m.c.mayServeStale(m.old, now) || m.c.mayServeOnError(m.old, now))
}
