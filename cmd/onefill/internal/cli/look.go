package cli

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/onefill/onefill/store"
)

// look is what was found under a key, and what it means at the moment of now.
type look struct {
	cache, key string
	now        time.Time
	holding    store.Holding
	env        store.Envelope
	// unreadable is why the value is none, for every cache: nil if it can be read or there
	// is none.
	unreadable error
	tags       []string // of the value, the whole cache's first; nil if it has no epoch
	tagState   store.TagState
}

// The states of a value, as --json has them.
const (
	stateFresh       = "fresh"
	stateStale       = "stale"
	stateVoid        = "void"      // one of its tags was invalidated
	stateNotFound    = "not_found" // the origin has said that there is no such row
	stateUnstorable  = "unstorable"
	stateUndecodable = "undecodable"
	stateAbsent      = "absent"
)

// look asks the store: about the key, and then about the value's tags.
func (k *keyFlags) look(ctx context.Context, in store.Inspector) (*look, error) {
	l := &look{cache: k.cache, key: k.key}
	var err error
	l.holding, err = bounded(ctx, k.timeout, func(ctx context.Context) (store.Holding, error) { return in.Inspect(ctx, k.key) })
	if err != nil {
		return nil, err
	}
	l.now = time.Now()
	l.read()
	if l.env.Epoch == 0 {
		return l, nil
	}
	l.tags = append([]string{""}, l.env.Tags...)
	l.tagState, err = bounded(ctx, k.timeout, func(ctx context.Context) (store.TagState, error) { return in.InspectTags(ctx, l.tags...) })
	return l, err
}

// read reads the envelope, as a cache does.
func (l *look) read() {
	item := l.holding.Item
	switch {
	case !item.Found:
		return
	case l.holding.Foreign != "":
		l.unreadable = fmt.Errorf("a %s lies there, which is no value of onefill's", l.holding.Foreign)
		return
	}
	env, err := store.Decode(item.Data)
	if err == nil && env.Kind == store.KindFailure {
		err = errors.New("the record of a failure lies there, in the place of a value")
	}
	if l.unreadable = err; err == nil {
		l.env = env
	}
}

// readable says whether there is an envelope.
func (l *look) readable() bool { return l.holding.Item.Found && l.unreadable == nil }

// freshFor is how long the value is fresh still, by this machine's clock and bounded by the
// time that it was stored with, as a cache counts it; negative once it is stale.
func (l *look) freshFor() time.Duration {
	return min(l.env.SoftExpiry.Sub(l.now), l.env.SoftExpiry.Sub(l.env.Created))
}

// voided is the first tag that makes the value void.
func (l *look) voided() (i int, void bool) {
	for i := range l.tags {
		if !l.tagState.Valid(i, l.env.Epoch) {
			return i, true
		}
	}
	return 0, false
}

func (l *look) state() (state, why string) {
	switch {
	case !l.holding.Item.Found:
		return stateAbsent, ""
	case l.unreadable != nil:
		return stateUndecodable, l.unreadable.Error()
	}
	if i, void := l.voided(); void {
		return stateVoid, l.tagText(i)
	}
	fresh := l.freshFor() > 0
	switch l.env.Kind {
	case store.KindNotFound, store.KindUnstorable:
		state = map[store.Kind]string{store.KindNotFound: stateNotFound, store.KindUnstorable: stateUnstorable}[l.env.Kind]
		if !fresh {
			why = "no more: the next reader asks the origin again"
		}
		return state, why
	}
	if fresh {
		return stateFresh, ""
	}
	return stateStale, ""
}

// tagText says what has become of the i-th tag, which is void.
func (l *look) tagText(i int) string {
	name, generation := fmt.Sprintf("the tag %q", l.tags[i]), l.tagState.Generations[i]
	if l.tags[i] == "" {
		name = "the whole cache"
	}
	if at := epochTime(generation); at != nil {
		return fmt.Sprintf("%s was invalidated at %s, after the value's load began", name, stamp(*at))
	}
	return fmt.Sprintf("the generation of %s was lost, which counts as an invalidation", name)
}

// epochTime is when an epoch was made, where it was made of a clock, which all are unless
// they were made faster than it goes.
func epochTime(epoch uint64) *time.Time {
	if epoch == 0 || epoch > 1<<53 {
		return nil
	}
	t := time.UnixMicro(int64(epoch)).UTC()
	return &t
}

// hasValue says whether there is something to be shown: a mark, such as that there is no such
// row, is not the empty value.
func (l *look) hasValue() bool {
	return l.holding.Item.Found && (l.unreadable != nil || l.env.Kind == store.KindValue)
}

// payload is what a reader would decode, or all that is there where that is nothing.
func (l *look) payload() []byte {
	if l.readable() {
		return l.env.Payload
	}
	return l.holding.Item.Data
}

func (l *look) line() *inspectLine {
	line := &inspectLine{Cache: l.cache, Key: l.key, Server: l.holding.Server, Value: l.valueLine()}
	line.State, line.Why = l.state()
	line.Lease = l.leaseLine()
	if failure := l.holding.Failure; failure.Record != nil {
		line.Failure = &failureLine{Message: "the record cannot be read", BlocksMS: leftMS(failure.Blocks), LeftMS: leftMS(failure.Left)}
		if env, err := store.Decode(failure.Record); err == nil {
			at := env.Created.UTC()
			line.Failure.Message, line.Failure.Failures, line.Failure.Failed = string(env.Payload), env.Failures, &at
		}
	}
	return line
}

func (l *look) leaseLine() *leaseLine {
	lease := l.holding.Lease
	if lease.ID == "" {
		return nil
	}
	line := &leaseLine{ID: lease.ID, Owner: lease.Owner, Try: lease.Try, LeftMS: leftMS(lease.Left)}
	if lease.Token != (store.Token{}) {
		line.Token = lease.Token.String()
	}
	return line
}

func (l *look) valueLine() *valueLine {
	if !l.holding.Item.Found {
		return nil
	}
	v := &valueLine{Bytes: len(l.holding.Item.Data), LeftMS: leftMS(l.holding.Left), Foreign: l.holding.Foreign, PayloadBytes: len(l.payload())}
	if !l.readable() {
		return v
	}
	created, granted := l.env.Created.UTC(), l.env.Version.Time().UTC()
	v.ChecksumOK, v.Created, v.LeaseGranted = true, &created, &granted
	v.AgeMS, v.FreshForMS = l.now.Sub(created).Milliseconds(), l.freshFor().Milliseconds()
	v.Version, v.RowVersion, v.Epoch = l.env.Version.String(), l.env.RowVersion, l.env.Epoch
	v.CodecID, v.Codec = l.env.Codec, codecName(l.env.Codec)
	v.LoadCostMS = milliseconds(l.env.Cost)
	for i, tag := range l.tags {
		t := tagLine{Tag: tag, Valid: l.tagState.Valid(i, l.env.Epoch), Generation: l.tagState.Generations[i]}
		if !t.Valid {
			t.Voided = epochTime(t.Generation)
		}
		v.Tags = append(v.Tags, t)
	}
	return v
}

// leftMS is what is left of something, rounded up: what is there lasts a moment at least.
func leftMS(d time.Duration) int64 {
	if d == store.Forever {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// codecID is what an envelope keeps of a codec's name: docs/format.md.
func codecID(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32()
}

// codecName knows the codecs that onefill brings.
func codecName(id uint32) string {
	for _, name := range []string{"json", "raw"} {
		if codecID(name) == id {
			return name
		}
	}
	return ""
}
