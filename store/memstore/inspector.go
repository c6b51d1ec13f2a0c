package memstore

import (
	"context"
	"time"

	"github.com/onefill/onefill/store"
)

// The operations of store.Inspector, by the names that errors carry.
const (
	OpInspect     Kind = "inspect"
	OpInspectTags Kind = "inspect tags" // once for all tags
	OpBreakLease  Kind = "break lease"
)

var _ store.Inspector = (*session)(nil)

// Inspect implements store.Inspector.
func (s *session) Inspect(ctx context.Context, key string) (store.Holding, error) {
	var h store.Holding
	err := s.do(ctx, OpInspect, key, func(now time.Time) {
		h = inspect(s.st.entry(s.id(key), now), now)
	})
	if err != nil {
		return store.Holding{}, err
	}
	return h, nil
}

func inspect(e *entry, now time.Time) store.Holding {
	h := store.Holding{Server: "in-process", Item: read(e), Clock: now}
	if e == nil {
		return h
	}
	if e.value.found {
		h.Left = left(e.value.until, now)
	}
	if e.claim.kind == leased {
		owner := e.claim.owner
		h.Lease = store.LeaseInfo{ID: owner.token.String(), Token: owner.token, Try: owner.try, Owner: e.claim.by, Left: left(e.claim.until, now)}
	}
	if e.memory.found {
		h.Failure = store.FailureInfo{Record: append([]byte{}, e.memory.record...), Left: left(e.memory.until, now)}
		if e.claim.kind == failed {
			h.Failure.Blocks = left(e.claim.until, now)
		}
	}
	return h
}

// left is how long until is away.
func left(until, now time.Time) time.Duration {
	if until.IsZero() {
		return store.Forever
	}
	return until.Sub(now)
}

// InspectTags implements store.Inspector.
func (s *session) InspectTags(ctx context.Context, tags ...string) (store.TagState, error) {
	if err := s.open(OpInspectTags); err != nil {
		return store.TagState{}, err
	}
	state := store.TagState{Generations: make([]uint64, len(tags))}
	err := s.st.do(ctx, Op{Kind: OpInspectTags, Name: s.name}, func(now time.Time) {
		state.Epoch = s.st.tags.epochs[s.name]
		for i, tag := range tags {
			if g, ok := s.st.tags.generations[s.id(tag)]; ok && !over(g.until, now) {
				state.Generations[i] = g.epoch
			}
		}
	})
	if err != nil {
		return store.TagState{}, err
	}
	return state, nil
}

// BreakLease implements store.Inspector.
func (s *session) BreakLease(ctx context.Context, key, id string) (bool, error) {
	broken := false
	err := s.do(ctx, OpBreakLease, key, func(now time.Time) {
		k := s.id(key)
		e := s.st.entry(k, now)
		if e == nil || e.claim.kind != leased || id != "" && id != e.claim.owner.token.String() {
			return
		}
		e.claim, broken = claim{}, true
		s.st.settle(k, e, now)
		s.st.claimChanged(k, s)
	})
	return broken && err == nil, err
}
