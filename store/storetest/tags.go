package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/store"
)

// tags has the tests of sessions that implement store.Tagger.
var tags = append(tagsAreTold, []test{
	{"TagEpoch", func(c *check) {
		// It grows with each VoidTags and with nothing else, it is the same for all
		// sessions of a name, and another name has its own.
		c.needsTags()
		other := c.peerNamed(c.b.store, c.name+"x")
		theirs := other.epoch()
		last := c.a.epoch()
		for i := range 5 {
			c.a.generation("read")
			c.a.set("k", c.value("v"), long)
			c.a.invalidate("k")
			for _, p := range []*peer{c.a, c.b, c.peer(c.a.store)} {
				if e := p.epoch(); e != last {
					c.Fatalf("epoch %d, want %d: no tag was voided", e, last)
				}
			}
			c.b.void(fmt.Sprint("tag", i))
			if e := c.a.epoch(); e <= last {
				c.Fatalf("epoch %d after VoidTags, and %d before", e, last)
			} else {
				last = e
			}
		}
		if e := other.epoch(); e != theirs {
			c.Errorf("another name's epoch has gone from %d to %d", theirs, e)
		}
	}},
	{"TagNewGeneration", func(c *check) {
		// It is the present epoch, and stays, whatever becomes of other tags.
		c.needsTags()
		want := map[string]uint64{}
		for i := range 4 {
			tag := fmt.Sprint("tag", i)
			want[tag] = c.a.epoch()
			if got := c.b.generation(tag); got != want[tag] {
				c.Fatalf("the new generation of %s is %d, the epoch %d", tag, got, want[tag])
			}
			c.a.void(fmt.Sprint("other", i))
		}
		for tag, g := range want {
			for _, p := range []*peer{c.a, c.b} {
				if got := p.generation(tag); got != g {
					c.Errorf("the generation of %s has gone from %d to %d", tag, g, got)
				}
			}
		}
	}},
	{"TagVoid", func(c *check) {
		// The new generation is above the epoch before, whether the tag was ever read
		// or not, and no tag of another name is concerned.
		c.needsTags()
		other := c.peerNamed(c.b.store, c.name+"x")
		theirs := other.generation("t")
		c.b.generation("t")
		for range 3 {
			before, kept := c.a.epoch(), c.b.generation("kept")
			c.b.void("t", "never read")
			for _, p := range []*peer{c.a, c.b} {
				for _, tag := range []string{"t", "never read"} {
					if g := p.generation(tag); g <= before || g > p.epoch() {
						c.Fatalf("generation %d of %q, want it above %d, and at most %d", g, tag, before, p.epoch())
					}
				}
			}
			if g := c.a.generation("kept"); g != kept {
				c.Errorf("the generation of another tag has gone from %d to %d", kept, g)
			}
		}
		if g := other.generation("t"); g != theirs {
			c.Errorf("the generation of another name's tag has gone from %d to %d", theirs, g)
		}
	}},
	{"TagOfTheWholeCache", func(c *check) {
		// The empty tag is one like any other.
		c.needsTags()
		whole, t := c.a.generation(""), c.a.generation("t")
		c.b.void("")
		if g := c.a.generation(""); g <= whole {
			c.Errorf("generation %d of the empty tag after it was voided, %d before", g, whole)
		}
		if g := c.a.generation("t"); g != t {
			c.Errorf("the empty tag was voided, and the generation of another one has gone from %d to %d", t, g)
		}
	}},
	{"TagsNone", func(c *check) {
		c.needsTags()
		before := c.a.epoch()
		if got := c.a.generations(); len(got) != 0 {
			c.Errorf("generations %v of no tags", got)
		}
		c.a.void()
		if e := c.a.epoch(); e < before {
			c.Errorf("epoch %d, and %d before", e, before)
		}
	}},
	{"TagLost", func(c *check) {
		// Lost means void: what is made anew is above every epoch of before the last
		// void, whichever tag that was.
		c.needsTags()
		c.needs(c.h.LoseTag != nil, "the harness has no LoseTag")
		c.a.void("t")
		before := c.a.epoch()
		c.b.void("another")
		c.h.LoseTag(c, c.name, "t")
		if g := c.a.generation("t"); g <= before || g != c.b.epoch() {
			c.Errorf("a lost generation was made anew as %d, want the epoch %d, above %d", g, c.b.epoch(), before)
		}
		before = c.a.epoch()
		c.h.LoseTag(c, c.name, "t")
		c.b.void("t")
		if g := c.a.generation("t"); g <= before {
			c.Errorf("generation %d of a lost tag that was voided, and the epoch was %d before", g, before)
		}
	}},
	{"TagEpochLost", func(c *check) {
		c.needsTags()
		c.needs(c.h.LoseEpoch != nil, "the harness has no LoseEpoch")
		lose := func() (before uint64) {
			before = c.a.epoch()
			c.eventually("the clock has gone on", func() bool { return uint64(time.Now().UnixMicro()) > before })
			c.h.LoseEpoch(c, c.name)
			return before
		}
		c.a.void("t")
		before := lose()
		if e := c.b.epoch(); e <= before {
			c.Errorf("a lost epoch was made anew as %d, it was %d", e, before)
		}
		before = lose()
		if g := c.b.generation("new"); g <= before {
			c.Errorf("the generation of a new tag is %d after the epoch was lost, which was %d", g, before)
		}
		c.a.generation("t")
		before = lose()
		c.b.void("t")
		if g := c.a.generation("t"); g <= before {
			c.Errorf("generation %d of a tag that was voided after the epoch was lost, which was %d", g, before)
		}
	}},
	{"TagsAreKept", func(c *check) {
		// For keep from the last reading on, at least; a shorter keep shortens nothing.
		// The epoch is raised first, so that one made anew would be another.
		c.needsTags()
		for name, renew := range map[string]func(p *peer, tag string){
			"read again":              func(p *peer, tag string) { p.generation(tag) },
			"read again, then hardly": func(p *peer, tag string) { p.generation(tag); p.keeps(c.h.Tick, tag) },
			"read again with others":  func(p *peer, tag string) { p.generations("one", tag, "other") },
		} {
			c.longer(c.h.Tick, func(key string, ttl time.Duration) bool {
				tag := name + " " + key
				g := c.a.keeps(ttl, tag)[0]
				c.b.void("another")
				renew(c.b, tag)
				if c.a.generation(tag) != g {
					return false // it was too late
				}
				c.letPass(3 * ttl)
				if now := c.a.generation(tag); now != g {
					c.Errorf("%s: the generation of a tag that is to be kept has gone from %d to %d", name, g, now)
				}
				return true
			})
		}
	}},
	{"TagsAreKeptWhenVoid", func(c *check) {
		c.needsTags()
		c.a.keeps(c.h.Tick, "t")
		c.b.void("t", "never read")
		want := c.a.epoch()
		c.b.void("another")
		c.letPass(3 * c.h.Tick)
		for _, tag := range []string{"t", "never read"} {
			if g := c.a.generation(tag); g != want {
				c.Errorf("the generation of %q has gone from %d to %d", tag, want, g)
			}
		}
	}},
	{"TagsOddOnes", func(c *check) {
		// Each tag is one of its own.
		c.needsTags()
		tags := oddTags()
		before := c.a.generations(tags...)
		for i, tag := range tags {
			c.b.void(tag)
			after := c.a.generations(tags...)
			for j := range tags {
				if (after[j] != before[j]) != (i == j) {
					c.Fatalf("%s was voided, and the generation of %s has gone from %d to %d", short(tag), short(tags[j]), before[j], after[j])
				}
			}
			before = after
		}
	}},
	{"TagsMany", func(c *check) {
		// In one call: new and known ones, in the order in which they are asked for. Not
		// more: Redis looks at 200 keys a second for whether they have expired, and other
		// tests wait for that.
		c.needsTags()
		const n = 300
		tags := make([]string, n)
		for i := range tags {
			tags[i] = fmt.Sprint("tag ", i)
		}
		c.a.void(tags[n/2])
		known, rest := c.a.generation(tags[n/2]), c.a.generation(tags[0])
		c.b.void("another")
		after := c.b.epoch()
		for i, g := range c.b.generations(tags...) {
			want := after
			switch i {
			case 0:
				want = rest
			case n / 2:
				want = known
			}
			if g != want {
				c.Fatalf("generation %d of tag %d, want %d", g, i, want)
			}
		}
		c.a.void(tags...)
		for i, g := range c.b.generations(tags...) {
			if g <= after {
				c.Fatalf("generation %d of tag %d after all were voided, want it above %d", g, i, after)
			}
		}
	}},
	{"TagsCrowd", func(c *check) {
		// Many void tags of their own and a common one: each void makes an epoch of its
		// own, above all that were read before it began, and no generation ever falls.
		c.needsTags()
		const workers, rounds = 8, 15
		made := make([][]uint64, workers)
		c.crowd(workers, func(ctx context.Context, p *peer, worker int) error {
			t, common := p.Session.(store.Tagger), uint64(0)
			own := fmt.Sprint("tag ", worker)
			for range rounds {
				before, err := t.Epoch(ctx)
				if err != nil {
					return err
				}
				if err := t.VoidTags(ctx, long, own, "common"); err != nil {
					return err
				}
				now, err := t.Generations(ctx, long, own, "common")
				switch {
				case err != nil:
					return err
				case now[0] <= before:
					return fmt.Errorf("generation %d after VoidTags, and the epoch was %d before", now[0], before)
				case now[1] < now[0] || now[1] < common:
					return fmt.Errorf("generation %d of the common tag, which had %d, after one of %d was made", now[1], common, now[0])
				}
				made[worker], common = append(made[worker], now[0]), now[1]
			}
			return nil
		})
		all := slices.Concat(made...)
		slices.Sort(all)
		if distinct := len(slices.Compact(slices.Clone(all))); distinct != workers*rounds && !c.Failed() {
			c.Errorf("%d calls of VoidTags have made %d epochs", workers*rounds, distinct)
		}
		if e := c.a.epoch(); len(all) > 0 && e < all[len(all)-1] {
			c.Errorf("the epoch is %d, and a generation %d", e, all[len(all)-1])
		}
	}},
	{"TagsCrowdMakingOne", func(c *check) {
		// Many read one new tag at once, while others are voided: they agree, as it is made
		// once.
		c.needsTags()
		const workers, rounds = 8, 15
		var seen sync.Map
		c.crowd(workers, func(ctx context.Context, p *peer, worker int) error {
			t := p.Session.(store.Tagger)
			for i := range rounds {
				tag := fmt.Sprint("tag ", i)
				got, err := t.Generations(ctx, long, tag)
				if err != nil {
					return err
				}
				if first, there := seen.LoadOrStore(tag, got[0]); there && first != got[0] {
					return fmt.Errorf("the generation of %s is %d to one and %d to another", tag, first, got[0])
				}
				if worker == 0 {
					if err := t.VoidTags(ctx, long, "another"); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}},
}...)

// tagsAreTold are those that need pushes.
var tagsAreTold = []test{
	{"TagToldOfVoid", func(c *check) {
		// Whoever has read a generation, new or not, hears of the next one, whether another
		// client has made it or another session of the own.
		c.needsTags()
		c.needsPush()
		for who, writer := range map[string]*peer{"client": c.b, "sibling": c.peer(c.a.store)} {
			made, known := "made by the reader, voided by the other "+who, "known, voided by the other "+who
			c.b.void(known)
			c.a.generations("one", made, known, "other")
			c.a.heard.forget()
			writer.void("a third", made, known)
			c.a.hearsTag(made)
			c.a.hearsTag(known)
		}
	}},
	{"TagToldAgainAfterReadingAgain", func(c *check) {
		c.needsTags()
		c.needsPush()
		for range 3 {
			c.a.generation("t")
			c.a.heard.forget()
			c.b.void("t")
			c.a.hearsTag("t")
		}
		c.a.void("t")
		c.a.generation("t")
		c.a.heard.forget()
		c.b.void("t")
		c.a.hearsTag("t")
	}},
	{"TagToldEachSession", func(c *check) {
		c.needsTags()
		c.needsPush()
		readers := []*peer{c.b, c.peer(c.b.store), c.peer(c.a.store), c.peer(c.h.New(c))}
		for _, p := range readers {
			p.generation("t")
			p.heard.forget()
		}
		c.a.void("t")
		for _, p := range readers {
			p.hearsTag("t")
		}
	}},
	{"TagEpochIsTold", func(c *check) {
		// Who has read the epoch hears when it is raised, also by a void of a tag that he has
		// never read, and when it is lost; each time that he has read it again.
		c.needsTags()
		c.needsPush()
		readers := []*peer{c.b, c.peer(c.b.store), c.peer(c.a.store), c.peer(c.h.New(c))}
		for range 3 {
			for _, p := range readers {
				p.epoch()
				p.heard.forget()
			}
			c.a.void("never read")
			for _, p := range readers {
				p.hearsOfEpoch()
			}
		}
		if c.h.LoseEpoch == nil {
			return
		}
		c.b.epoch()
		c.b.heard.forget()
		c.h.LoseEpoch(c, c.name)
		c.b.hearsOfEpoch()
	}},
	{"TagNotToldOfOwn", func(c *check) {
		// Neither of the own void nor of what the own reading has made.
		c.needsTags()
		c.needsPush()
		for range 3 {
			c.a.generations("t", "u", "")
			c.a.void("t", "", "never read")
			c.a.generations("t", "new", "never read")
			c.a.epoch()
		}
		c.allHeard(c.a)
		for _, tag := range []string{"t", "u", "", "new", "never read"} {
			if n := c.a.heard.countTag(tag); n > 0 {
				c.Errorf("told %d times that %q was voided, by nobody else", n, tag)
			}
		}
		if n := len(c.a.heard.tags); n > 0 {
			c.Errorf("told of %d tags: %q", n, c.a.heard.tags)
		}
	}},
	{"TagNotToldOfOtherNames", func(c *check) {
		c.needsTags()
		c.needsPush()
		other := c.peerNamed(c.b.store, c.name+"x")
		c.a.generation("t")
		other.generation("t")
		other.void("t")
		c.allHeard(c.a)
		if n := c.a.heard.countTag("t"); n > 0 {
			c.Errorf("told %d times of another name's tag", n)
		}
	}},
	{"TagToldOfLoss", func(c *check) {
		c.needsTags()
		c.needsPush()
		c.needs(c.h.LoseTag != nil, "the harness has no LoseTag")
		c.a.generation("t")
		c.a.heard.forget()
		c.h.LoseTag(c, c.name, "t")
		c.a.hearsTag("t")
	}},
	{"TagsOddOnesAreTold", func(c *check) {
		c.needsTags()
		c.needsPush()
		tags := oddTags()
		c.a.generations(tags...)
		for _, tag := range tags {
			c.a.heard.forget()
			c.b.void(tag)
			c.a.hearsTag(tag)
		}
	}},
	{"TagSilentAfterClose", func(c *check) {
		c.needsTags()
		c.needsPush()
		p, witness := c.peer(c.a.store), c.peer(c.a.store)
		p.generation("t")
		witness.generation("t")
		c.ok("Close", p.Close())
		c.b.void("t")
		witness.hearsTag("t")
		c.allHeard(witness)
		if n := p.heard.countTag("t"); n > 0 {
			c.Errorf("a closed session was told %d times", n)
		}
	}},
}

// oddTags are tags that would meet others, or keys, if names were put together
// carelessly.
func oddTags() []string {
	return []string{
		"", "t", "T", "t ", " t", "t:", ":t", ":", "::", "t:t", "e", ":e", "l", ":l", "t:l", "t}:l", "w", ":w",
		"{", "}", "{}", "t}", "{t}", "}:t:x", "}{", "ключ", "鍵 1", "🔑", "\xff", "a b", "*", "?", "%s", "a/b", "a\\b", "0", "00", "-1",
		strings.Repeat("x", store.MaxTagBytes), strings.Repeat("x", store.MaxTagBytes-1), strings.Repeat("x", store.MaxTagBytes-1) + "y",
		strings.Repeat("é", store.MaxTagBytes/2), strings.Repeat(" ", store.MaxTagBytes),
	}
}

func (c *check) needsTags() {
	c.Helper()
	_, ok := c.a.Session.(store.Tagger)
	c.needs(ok, "the session is no store.Tagger")
}

func (p *peer) tagger() store.Tagger { return p.Session.(store.Tagger) }

func (p *peer) epoch() uint64 {
	p.c.Helper()
	e, err := p.tagger().Epoch(p.c.ctx())
	p.c.ok("Epoch", err)
	if e == 0 {
		p.c.Fatal("Epoch = 0, which is none")
	}
	return e
}

func (p *peer) generation(tag string) uint64 {
	p.c.Helper()
	return p.generations(tag)[0]
}

func (p *peer) generations(tags ...string) []uint64 {
	p.c.Helper()
	return p.keeps(long, tags...)
}

// keeps reads generations, which are to last for keep.
func (p *peer) keeps(keep time.Duration, tags ...string) []uint64 {
	p.c.Helper()
	got, err := p.tagger().Generations(p.c.ctx(), keep, tags...)
	p.c.ok("Generations", err)
	if len(got) != len(tags) || slices.Contains(got, 0) {
		p.c.Fatalf("Generations of %d tags = %d of them, %v", len(tags), len(got), got[:min(len(got), 10)])
	}
	return got
}

func (p *peer) void(tags ...string) {
	p.c.Helper()
	p.c.ok("VoidTags", p.tagger().VoidTags(p.c.ctx(), long, tags...))
}

// hearsTag waits until the peer has been told that a tag was voided, or that it cannot be
// told.
func (p *peer) hearsOfEpoch() {
	p.c.Helper()
	p.hearsOf("the epoch was raised", func() bool { return p.heard.raised() > 0 })
}

func (p *peer) hearsTag(tag string) {
	p.c.Helper()
	p.hearsOf(short(tag)+" was voided", func() bool { return p.heard.countTag(tag) > 0 })
}
