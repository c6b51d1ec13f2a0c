package onefill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/onefill/onefill/internal/local"
	"github.com/onefill/onefill/store"
)

// Tags: many values that are void at once, without a list of them. How generations decide
// about what lies in the store is said at store.Tagger. In a process an entry carries, for
// each of its tags, a stamp like that of its key: what is heard of a tag drops all entries
// under it in one step. Every value is also under the tag "", which Clear voids.

// tagging is what a cache with Options.Tags has.
type tagging struct {
	tagger store.Tagger // nil without a store
	keep   time.Duration
	// known are the generations that this process has read lately.
	known *local.Cache[string, knownTag]
	// voids is what was heard of tags, in this process. It decides about what was loaded
	// without an epoch of the store.
	voids voids
}

// voids remembers the latest tags that were voided, by number.
type voids struct {
	mu     sync.Mutex              // leaf
	number uint64                  // guarded by mu: of the latest
	latest [rememberedVoids]string // guarded by mu: number n at n % rememberedVoids
}

const rememberedVoids = 256

func (v *voids) add(tag string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.number++
	v.latest[v.number%rememberedVoids] = tag
}

func (v *voids) now() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.number
}

// any says whether one of the tags was voided since, as far as it is known.
func (v *voids) any(since uint64, tags []string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.number-since > rememberedVoids {
		return true
	}
	for n := since + 1; n <= v.number; n++ {
		if slices.Contains(tags, v.latest[n%rememberedVoids]) {
			return true
		}
	}
	return false
}

type knownTag struct {
	generation uint64
	stamp      local.Stamp // of the tag, from before it was read
	until      int64       // what relies on it is trusted until then
}

const (
	maxKnownTags = 10_000
	// wholeCache is the tag that every value is under.
	wholeCache = ""
)

// tagStripe is what a tag is called among the stripes of local.
func tagStripe(tag string) string { return "\x00" + tag }

// newTagging: longestTTL is how long a value lives at most, stale windows included, unless
// its loader decides otherwise.
func newTagging(longestTTL time.Duration) *tagging {
	return &tagging{
		// A generation must outlive the values under it; it is renewed when it is read.
		keep:  max(times(longestTTL, 2), time.Hour),
		known: local.New[string, knownTag](local.Options{MaxEntries: maxKnownTags}),
	}
}

// attachTags finds out whether the store has tags.
func (c *Cache[K, V]) attachTags() error {
	tagger, ok := c.remote.session.(store.Tagger)
	if !ok {
		return fmt.Errorf("onefill: Options.Tags is set, and a %T has no tags (it does not implement store.Tagger)", c.opts.Store)
	}
	c.tags.tagger = tagger
	return nil
}

// tagSet is where a loader's tags are gathered.
type tagSet struct {
	mu   sync.Mutex // leaf
	tags []string   // guarded by mu
}

func (s *tagSet) add(tags []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tag := range tags {
		if !slices.Contains(s.tags, tag) {
			s.tags = append(s.tags, tag)
		}
	}
}

func (s *tagSet) get() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tags)
}

// SetTags is called by a loader, with its own context, to put what it returns under
// tags, for InvalidateTag. It may be called more than once, before or after the origin
// was asked; with LoadMany it is about all the rows. A value has 64 tags at most, of 250
// bytes. The load fails if a tag is invalid, or if Options.Tags is not set: what cannot be
// invalidated would be stale unnoticed. It does nothing outside a load.
func SetTags(ctx context.Context, tags ...string) {
	if l, ok := ctx.Value(loadingKey{}).(*loading); ok {
		l.tags.add(tags)
	}
}

// tagged is what decides about the validity of a value: its tags, and what was known when
// its load began.
type tagged struct {
	epoch uint64   // of the store, 0 if it was not asked
	voids uint64   // of this process
	tags  []string // without the one that all are under
}

// beginTagged is called before a load, or a Set, for what its value will be judged by.
func (c *Cache[K, V]) beginTagged(ctx context.Context, askStore bool) (t tagged, err error) {
	if c.tags == nil {
		return t, nil
	}
	t.voids = c.tags.voids.now()
	if askStore && c.tags.tagger != nil {
		err = c.remote.twice(ctx, ofTags, func(ctx context.Context) error {
			t.epoch, err = c.tags.tagger.Epoch(ctx)
			return err
		})
	}
	return t, err
}

// tagsOf are the tags of a value that was loaded or Set.
func (c *Cache[K, V]) tagsOf(key K, value V, absent bool, set []string) ([]string, error) {
	if c.tags == nil {
		if len(set) > 0 {
			return nil, errors.New("onefill: SetTags was called and Options.Tags is not set")
		}
		return nil, nil
	}
	if c.opts.TagsOf != nil && !absent {
		set = slices.Concat(set, c.opts.TagsOf(key, value)) // set is shared by the rows of a LoadMany
		slices.Sort(set)
		set = slices.Compact(set)
	}
	if err := store.ValidTags(set); err != nil {
		return nil, fmt.Errorf("onefill: the tags of %q: %w", abbreviate(c.opts.Key(key)), err)
	}
	return set, nil
}

// validate says whether a value is valid still, and puts the stamps of its tags into its
// entry. The stamps come first, so that what is heard later drops the entry.
func (c *Cache[K, V]) validate(ctx context.Context, e *local.Entry[V], t tagged, loaded bool) (valid bool, err error) {
	if c.tags == nil {
		return true, nil
	}
	tags := append([]string{wholeCache}, t.tags...)
	stamps := make([]local.Stamp, len(tags))
	for i, tag := range tags {
		stamps[i] = c.local.Stamp(tagStripe(tag))
	}
	if e.Rare == nil {
		e.Rare = &local.Rare{}
	}
	e.Rare.Tags = stamps
	if t.epoch == 0 {
		return !c.tags.voids.any(t.voids, tags), nil
	}
	valid, until, err := c.belowEpoch(ctx, tags, stamps, t.epoch, loaded)
	e.Trusted = min(e.Trusted, until)
	return valid, err
}

// errVoided: a tag of the entry was voided since its load began.
var errVoided = errors.New("one of its tags was invalidated")

// checkTags is validate for what was read from the store.
func (c *Cache[K, V]) checkTags(ctx context.Context, e *local.Entry[V], t tagged) error {
	if t.epoch == 0 {
		return errVoided // of a process without tags
	}
	valid, err := c.validate(ctx, e, t, false)
	if err == nil && !valid {
		err = errVoided
	}
	return err
}

// belowEpoch says whether no generation of the tags is above epoch.
func (c *Cache[K, V]) belowEpoch(ctx context.Context, tags []string, stamps []local.Stamp, epoch uint64, loaded bool) (bool, int64, error) {
	trusted := until(c.local.Now(), c.localTTL())
	ignore := loaded && !c.remote.session.Features().Push
	if c.debts.count() > 0 {
		if err := c.payTags(ctx, tags); err != nil {
			return false, trusted, err
		}
	}
	var unknown []string
	var asked []local.Stamp
	for i, tag := range tags {
		k, now, _ := c.tags.known.Get(tag)
		switch {
		case ignore || k == nil || !k.Fresh(now) || !c.local.Current(k.Value.stamp):
			unknown, asked = append(unknown, tag), append(asked, stamps[i])
		case k.Value.generation > epoch:
			return false, trusted, nil
		default:
			trusted = min(trusted, k.Value.until)
		}
	}
	if len(unknown) == 0 {
		return true, trusted, nil
	}
	generations, err := c.askGenerations(ctx, unknown, asked)
	if err != nil {
		return false, trusted, err
	}
	return slices.Max(generations) <= epoch, trusted, nil
}

// learnTags asks for the generations that many values need and that are not known, at once.
// That is only to save round trips: what could not be learnt is asked for with each value.
func (c *Cache[K, V]) learnTags(ctx context.Context, items []store.Item) {
	if c.tags == nil || c.debts.count() > 0 {
		return
	}
	needed := map[string]struct{}{wholeCache: {}}
	for _, item := range items {
		if env, err := store.Decode(item.Data); err == nil && item.Found && env.Epoch != 0 {
			for _, tag := range env.Tags {
				needed[tag] = struct{}{}
			}
		}
	}
	var unknown []string
	var stamps []local.Stamp
	for tag := range needed {
		if k, now, _ := c.tags.known.Get(tag); k == nil || !k.Fresh(now) || !c.local.Current(k.Value.stamp) {
			unknown, stamps = append(unknown, tag), append(stamps, c.local.Stamp(tagStripe(tag)))
		}
	}
	if len(unknown) > 1 {
		_, _ = c.askGenerations(ctx, unknown, stamps) // an error is counted where it is made
	}
}

// askGenerations reads generations from the store, and remembers them.
func (c *Cache[K, V]) askGenerations(ctx context.Context, tags []string, stamps []local.Stamp) (generations []uint64, err error) {
	asked, here := c.tags.known.Now(), c.local.Now()
	err = c.remote.twice(ctx, ofTags, func(ctx context.Context) error {
		generations, err = c.tags.tagger.Generations(ctx, c.tags.keep, tags...)
		return err
	})
	if err == nil && len(generations) != len(tags) {
		err = fmt.Errorf("onefill: the store has %d generations for %d tags", len(generations), len(tags))
	}
	if err != nil {
		return nil, err
	}
	fresh := until(asked, min(c.localTTL()/2, c.tags.keep/4))
	for i, tag := range tags {
		if c.local.Current(stamps[i]) {
			c.tags.known.Put(tag, &local.Entry[knownTag]{Value: knownTag{generations[i], stamps[i], until(here, c.localTTL())}, Soft: fresh, Trusted: fresh})
		}
	}
	return generations, nil
}

// voided hears that a tag was voided, here or elsewhere: nothing under it is served from
// local any more, and no flight can be joined, as nobody knows what it will be under.
func (c *Cache[K, V]) voided(tag string) {
	if c.tags == nil {
		return
	}
	c.tags.voids.add(tag) // first: who has taken his stamps before the next line sees it
	c.local.Pushed(tagStripe(tag))
	c.flights.ChangedAll()
}

// raised hears that some tag was voided elsewhere. What a load that began before will be
// under is not known, in this process perhaps not even that there is such a tag: nobody joins
// it any more. What it brings is judged by the generations.
func (c *Cache[K, V]) raised() { c.flights.ChangedAll() }

// InvalidateTag removes everything that is under one of the tags, everywhere, in one step,
// however much it is: in this process, in the store, and in the other processes (see
// Local.TTL). What is being loaded meanwhile goes to those who already wait for it and is
// not kept. Nil means that the store has applied it. Options.Tags must be set.
func (c *Cache[K, V]) InvalidateTag(ctx context.Context, tags ...string) error {
	for _, tag := range tags {
		if err := store.ValidTag(tag); err != nil {
			return fmt.Errorf("onefill: InvalidateTag: %w", err)
		}
	}
	return c.voidTags(ctx, "InvalidateTag", tags)
}

// Clear removes everything of this cache, everywhere, in one step: see InvalidateTag.
// What it leaves in the store is dead, and goes as its TTLs end. Options.Tags must be set.
func (c *Cache[K, V]) Clear(ctx context.Context) error {
	return c.voidTags(ctx, "Clear", []string{wholeCache})
}

func (c *Cache[K, V]) voidTags(ctx context.Context, call string, tags []string) (err error) {
	switch {
	case c.closed.Load():
		return ErrClosed
	case c.tags == nil:
		return fmt.Errorf("onefill: %s: Options.Tags is not set; set it in all processes that share the cache", call)
	case len(tags) == 0:
		return nil
	}
	void := func() {
		for _, tag := range tags {
			c.voided(tag)
		}
	}
	void()
	defer void() // as after every write, also after an error
	if c.remote == nil {
		return nil
	}
	number := c.debts.begin()
	err = c.remote.must(ctx, ofTags, func(ctx context.Context) error { return c.tags.tagger.VoidTags(ctx, c.tags.keep, tags...) })
	c.wrote(tags, number, writeTag, err)
	return err
}
