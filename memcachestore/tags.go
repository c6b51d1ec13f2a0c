package memcachestore

import (
	"context"
	"time"

	"github.com/onefill/onefill/store"
)

// The epoch of a name and the generations of its tags are items of their own, each on the
// server that the ring gives it. They change one after the other, the epoch first: a load
// that begins in between has the new epoch, and so has its value, which the new generation
// does not void; nor need it, for what was committed before VoidTags was called is what
// such a load reads.

var _ store.Tagger = (*session)(nil)

// Epoch implements store.Tagger: one mg, and one ms if there is none.
func (s *session) Epoch(ctx context.Context) (uint64, error) { return s.epoch(ctx, "epoch") }

func (s *session) epoch(ctx context.Context, op string) (uint64, error) {
	p, err := s.place(op, epochPrefix+s.name)
	if err != nil {
		return 0, err
	}
	e, err := p.become(ctx, lasting{ttl: forever}, func(n uint64) uint64 {
		if n == 0 {
			return clock()
		}
		return n
	})
	return e, p.failure(op, err)
}

// clock makes a lost epoch anew, above every one before as far as the clocks of the
// clients agree: the server's counts seconds.
func clock() uint64 { return uint64(max(time.Now().UnixMicro(), 1)) }

// place finds the place of an item that is not a cache's key.
func (s *session) place(op, item string) (place, error) {
	if s.closed.Load() {
		return place{}, failure(op, s.st.addrs(), errSessionClosed)
	}
	return place{node: s.st.ring.node(item), item: item}, nil
}

func (s *session) tagPlaces(op string, tags []string) ([]place, error) {
	places := make([]place, len(tags))
	for i, tag := range tags {
		var err error
		if places[i], err = s.place(op, tagKey(s.st.hash, s.name, tag)); err != nil {
			return nil, err
		}
	}
	return places, nil
}

// keeping is for generations that must be there for keep. The server may end an item a
// second early.
func keeping(keep time.Duration) lasting {
	least := max(seconds(keep), 1)
	if least > forever/4 {
		return lasting{forever, forever}
	}
	return lasting{least + 1, 2 * (least + 1)}
}

// found is what Generations knows of a tag.
type found struct {
	conn *conn
	number
	done bool
}

// Generations implements store.Tagger: one mg for each tag, all at once, and for those that
// are not there one mg of the epoch and one ms each.
func (s *session) Generations(ctx context.Context, keep time.Duration, tags ...string) ([]uint64, error) {
	const op = "generations"
	places, err := s.tagPlaces(op, tags)
	if err != nil {
		return nil, err
	}
	last, all := keeping(keep), make([]found, len(tags))
	for range attempts {
		absent, open, err := look(ctx, op, places, all, last)
		if err != nil {
			return nil, err
		}
		if open == 0 {
			break
		}
		present := uint64(0)
		if absent { // read behind the empty items: see number
			if present, err = s.epoch(ctx, op); err != nil {
				return nil, err
			}
		}
		if err := put(ctx, op, places, all, last, present); err != nil {
			return nil, err
		}
	}
	generations := make([]uint64, len(tags))
	for i := range all {
		if !all[i].done {
			return nil, places[i].failure(op, errContended)
		}
		generations[i] = all[i].n
	}
	return generations, nil
}

// look reads the generations that are not done, and says how many of them are not then,
// and whether some of these are not there.
func look(ctx context.Context, op string, places []place, all []found, last lasting) (absent bool, open int, err error) {
	err = together(len(all), func(i int) error {
		f := &all[i]
		if f.done {
			return nil
		}
		var err error
		if f.conn, err = places[i].node.get(ctx); err == nil {
			f.number, err = places[i].number(ctx, f.conn)
		}
		f.done = err == nil && f.n != 0 && f.left >= last.least
		return places[i].failure(op, err)
	})
	for i := range all {
		if !all[i].done {
			open++
			absent = absent || all[i].n == 0
		}
	}
	return absent, open, err
}

// put makes the generations that are not there the present epoch, and those that are last
// longer.
func put(ctx context.Context, op string, places []place, all []found, last lasting, present uint64) error {
	return together(len(all), func(i int) error {
		f := &all[i]
		if f.done {
			return nil
		}
		n := f.n
		if n == 0 {
			n = present
		}
		var err error
		f.done, err = places[i].replace(ctx, f.conn, f.number, n, last.ttl)
		f.n = n
		return places[i].failure(op, err)
	})
}

// VoidTags implements store.Tagger: one mg and one ms for the epoch, then one of each for
// each tag, all at once.
func (s *session) VoidTags(ctx context.Context, keep time.Duration, tags ...string) error {
	const op = "void tags"
	places, err := s.tagPlaces(op, tags)
	if err != nil || len(tags) == 0 {
		return err
	}
	epoch, err := s.raise(ctx, op)
	if err != nil {
		return err
	}
	last := keeping(keep)
	return together(len(places), func(i int) error {
		// Who has raised the epoch later may have been here first.
		_, err := places[i].become(ctx, last, func(n uint64) uint64 { return max(n, epoch) })
		return places[i].failure(op, err)
	})
}

// raise makes a new epoch. The calls of one session take turns: of all that try at once one
// succeeds.
func (s *session) raise(ctx context.Context, op string) (uint64, error) {
	p, err := s.place(op, epochPrefix+s.name)
	if err != nil {
		return 0, err
	}
	select {
	case s.raising <- struct{}{}:
		defer func() { <-s.raising }()
	case <-ctx.Done():
		return 0, p.failure(op, ended(ctx))
	}
	e, err := p.become(ctx, lasting{ttl: forever}, func(n uint64) uint64 { return max(n+1, clock()) })
	return e, p.failure(op, err)
}
