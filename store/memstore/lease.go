package memstore

import (
	"bytes"
	"context"
	"math"
	"time"

	"github.com/onefill/onefill/store"
)

// lease implements store.Lease. It is a claim to be checked, not the lease
// itself: that lies in the entry.
type lease struct {
	s     *session
	key   string
	owner owner
}

var _ store.Lease = (*lease)(nil)

// owned runs act if the lease is still the holder's: the fence. act sees the
// entry with the claim in place, and settles it.
func (l *lease) owned(ctx context.Context, kind Kind, act func(e *entry, now time.Time) bool) (bool, error) {
	ok := false
	err := l.s.do(ctx, kind, l.key, func(now time.Time) {
		e := l.s.st.entry(l.s.id(l.key), now)
		if e == nil || e.claim.kind != leased || e.claim.owner != l.owner {
			return
		}
		ok = act(e, now)
	})
	return ok && err == nil, err
}

// Fill implements store.Lease. With a ttl of 0 or less it is accepted, and the
// value is gone at once. A fill that is refused because the stored value is of a
// newer row version ends the lease, too: the holder is told false and takes it
// for lost.
func (l *lease) Fill(ctx context.Context, data []byte, ttl time.Duration) (bool, error) {
	if err := l.s.st.checkSize(OpFill, l.key, data); err != nil {
		return false, err
	}
	return l.owned(ctx, OpFill, func(e *entry, now time.Time) bool {
		e.void()
		return l.s.write(l.key, e, data, ttl, now)
	})
}

// Fail implements store.Lease. With a ttl of 0 or less it leaves no record, not even
// that of a failure before.
func (l *lease) Fail(ctx context.Context, record []byte, ttl time.Duration) (bool, error) {
	return l.owned(ctx, OpFail, func(e *entry, now time.Time) bool {
		e.void()
		if ttl > 0 {
			e.claim = claim{kind: failed, until: l.s.st.deadline(now, ttl)}
			e.memory = memory{record: bytes.Clone(record), found: true, until: l.s.st.deadline(now, twice(ttl))}
		}
		l.done(e, now)
		return true
	})
}

// Renew implements store.Lease.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) (bool, error) {
	return l.owned(ctx, OpRenew, func(e *entry, now time.Time) bool {
		e.claim.until = l.s.st.leaseDeadline(now, ttl)
		l.done(e, now)
		return true
	})
}

// Release implements store.Lease. The record of a failure before this lease stays for
// as long as it would have: to release is no success.
func (l *lease) Release(ctx context.Context) (bool, error) {
	return l.owned(ctx, OpRelease, func(e *entry, now time.Time) bool {
		e.claim = claim{}
		l.done(e, now)
		return true
	})
}

// twice is the whole life of a failure record: as long as it blocks, and once more.
func twice(ttl time.Duration) time.Duration {
	if ttl > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return 2 * ttl
}

// done settles an entry whose claim was changed and wakes who watches it.
func (l *lease) done(e *entry, now time.Time) {
	k := l.s.id(l.key)
	l.s.st.settle(k, e, now)
	l.s.st.claimChanged(k, l.s)
}
