package memstore

import (
	"context"
	"time"

	"github.com/onefill/onefill/store"
)

// tags are the epochs of all names and the generations of their tags. All of it is
// guarded by Store.mu, and its maps are copied with a snapshot.
type tags struct {
	epochs      map[string]uint64            // by name
	generations map[id]generation            // by name and tag
	armed       map[id]map[*session]struct{} // who has read a generation
	awaiting    map[*session]struct{}        // who has read the epoch of its name
}

type generation struct {
	epoch uint64
	until time.Time // zero: for ever
}

var _ store.Tagger = (*session)(nil)

func newTags() tags {
	return tags{epochs: map[string]uint64{}, generations: map[id]generation{}, armed: map[id]map[*session]struct{}{}, awaiting: map[*session]struct{}{}}
}

// raise makes a new epoch, above every one before, also above those that were lost.
func (t *tags) raise(name string, now time.Time) uint64 {
	t.epochs[name] = max(t.epochs[name]+1, uint64(now.UnixMicro()))
	return t.epochs[name]
}

// epoch returns the epoch, making it if there is none.
func (t *tags) epoch(name string, now time.Time) uint64 {
	if e, ok := t.epochs[name]; ok {
		return e
	}
	return t.raise(name, now)
}

// generation returns a tag's generation, making it if there is none.
func (t *tags) generation(k id, now, until time.Time) uint64 {
	g, ok := t.generations[k]
	if ok && !g.until.IsZero() && !now.Before(g.until) {
		ok = false
	}
	if !ok {
		g = generation{t.epoch(k.name, now), until}
	}
	if !g.until.IsZero() && (until.IsZero() || until.After(g.until)) {
		g.until = until
	}
	t.generations[k] = g
	return g.epoch
}

// Epoch implements store.Tagger.
func (s *session) Epoch(ctx context.Context) (epoch uint64, err error) {
	if err := s.open(OpEpoch); err != nil {
		return 0, err
	}
	err = s.st.do(ctx, Op{Kind: OpEpoch, Name: s.name}, func(now time.Time) {
		epoch = s.st.tags.epoch(s.name, now)
		if !s.st.options.NoPush && !s.closed {
			s.st.tags.awaiting[s] = struct{}{}
		}
	})
	if err != nil {
		return 0, err
	}
	return epoch, nil
}

// Generations implements store.Tagger.
func (s *session) Generations(ctx context.Context, keep time.Duration, tags ...string) ([]uint64, error) {
	if err := s.open(OpGenerations); err != nil {
		return nil, err
	}
	generations := make([]uint64, len(tags))
	err := s.st.do(ctx, Op{Kind: OpGenerations, Name: s.name}, func(now time.Time) {
		for i, tag := range tags {
			k := s.id(tag)
			generations[i] = s.st.tags.generation(k, now, s.st.deadline(now, keep))
			s.armTag(k)
		}
	})
	if err != nil {
		return nil, err
	}
	return generations, nil
}

// VoidTags implements store.Tagger.
func (s *session) VoidTags(ctx context.Context, keep time.Duration, tags ...string) error {
	if err := s.open(OpVoidTags); err != nil {
		return err
	}
	return s.st.do(ctx, Op{Kind: OpVoidTags, Name: s.name}, func(now time.Time) {
		epoch := s.st.tags.raise(s.name, now)
		s.st.epochChanged(s.name, s)
		for _, tag := range tags {
			k := s.id(tag)
			s.st.tags.generations[k] = generation{epoch, s.st.deadline(now, keep)}
			s.st.tagChanged(k, s)
		}
	})
}

func (s *session) armTag(k id) {
	if s.st.options.NoPush || s.closed {
		return
	}
	if s.st.tags.armed[k] == nil {
		s.st.tags.armed[k] = map[*session]struct{}{}
	}
	s.st.tags.armed[k][s] = struct{}{}
}

// disarmTags is part of a session's end.
func (s *session) disarmTags() {
	delete(s.st.tags.awaiting, s)
	for k, readers := range s.st.tags.armed {
		if delete(readers, s); len(readers) == 0 {
			delete(s.st.tags.armed, k)
		}
	}
}

// tagChanged tells all that have read the tag's generation, but for the writer.
func (st *Store) tagChanged(k id, writer *session) {
	for s := range st.tags.armed[k] {
		if s != writer {
			s.tell(event{tagVoided, k.key})
		}
	}
	delete(st.tags.armed, k)
}

// epochChanged tells all that have read the epoch of a name, but for the writer.
func (st *Store) epochChanged(name string, writer *session) {
	for s := range st.tags.awaiting {
		if s.name != name {
			continue
		}
		delete(st.tags.awaiting, s)
		if s != writer {
			s.tell(event{kind: epochRaised})
		}
	}
}

// LoseTags forgets a tag's generation or, without a tag, the epoch and all generations of a
// name, as a server does that is short of memory.
func (st *Store) LoseTags(name string, tags ...string) {
	st.mu.Lock()
	defer st.unlock()
	if len(tags) == 0 {
		delete(st.tags.epochs, name)
		st.epochChanged(name, nil)
		for k := range st.tags.generations {
			if k.name == name {
				tags = append(tags, k.key)
			}
		}
	}
	for _, tag := range tags {
		delete(st.tags.generations, id{name, tag})
		st.tagChanged(id{name, tag}, nil)
	}
}
