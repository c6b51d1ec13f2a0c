package memcachestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

func (r *rig) tagger() store.Tagger { return r.Session.(store.Tagger) }

func (r *rig) epoch() uint64 {
	r.t.Helper()
	e, err := r.tagger().Epoch(r.ctx)
	ok(r.t, err)
	return e
}

func (r *rig) generations(keep time.Duration, tags ...string) []uint64 {
	r.t.Helper()
	g, err := r.tagger().Generations(r.ctx, keep, tags...)
	ok(r.t, err)
	return g
}

func (r *rig) void(tags ...string) {
	r.t.Helper()
	ok(r.t, r.tagger().VoidTags(r.ctx, long, tags...))
}

func TestTagKeys(t *testing.T) {
	name := strings.Repeat("n", 128)
	seen := map[string]string{epochPrefix + name: "the epoch"}
	for _, tag := range []string{"", "t", ":", "a b", "é", "\x7f", "\xff", strings.Repeat("x", 118), strings.Repeat("x", 119), strings.Repeat("x", 250)} {
		item := tagKey(sha, name, tag)
		if len(item) > maxItemKey || !printable(item) {
			t.Errorf("memcached does not take %q", item)
		}
		if want := tag == "" || len(tag) < 119 && printable(tag); strings.HasPrefix(item, plainTagPrefix) != want {
			t.Errorf("the tag %q lies under %q", tag, item)
		}
		if other, there := seen[item]; there {
			t.Errorf("%q is the item of %q and of %q", item, tag, other)
		}
		seen[item] = tag
	}
}

// Generations last for keep at least, and are made longer at once for twice that; the epoch
// lasts for ever. All are written in decimal.
func TestTagsLast(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	r := attach(t, open(t, server.Addr()))
	w := dialWire(t, server.Addr())
	wantLeft := func(what, tag string, least, most int64) {
		t.Helper()
		answer := w.say("mg %s t", tagKey(sha, r.name, tag))
		left := int64(0)
		if _, err := fmt.Sscanf(answer, "HD t%d", &left); err != nil || left < least-5 || left > most {
			t.Errorf("%s: %q, want t%d to t%d", what, answer, least, most)
		}
	}
	r.generations(time.Hour, "t", "")
	wantLeft("new", "t", 7200, 7202)
	wantLeft("of the whole cache", "", 7200, 7202)
	r.generations(time.Minute, "t")
	wantLeft("a shorter keep", "t", 7200, 7202)
	r.generations(3*time.Hour, "t")
	wantLeft("a longer keep", "t", 6*3600, 6*3600+2)
	r.generations(40*24*time.Hour, "t")
	wantLeft("more than 30 days", "t", 80*24*3600, 80*24*3600+3)
	r.generations(0, "zero")
	wantLeft("none", "zero", 3, 4)
	r.generations(1<<63-1, "ever")
	wantLeft("for ever", "ever", -1, -1)
	r.void("void")
	want := fmt.Sprintf("2 %d", r.epoch())
	for _, item := range []string{epochPrefix + r.name, tagKey(sha, r.name, "void")} {
		if got := w.say("mg %s v", item); !strings.HasSuffix(got, want[1:]) {
			t.Errorf("%s holds %q, want%s", item, got, want[1:])
		}
	}
	if got := w.say("mg %s t", epochPrefix+r.name); got != "HD t-1" {
		t.Errorf("the epoch: %q, want that it lasts for ever", got)
	}
}

// What is none of ours is as good as lost.
func TestForeignTags(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	r := attach(t, open(t, server.Addr()))
	w := dialWire(t, server.Addr())
	for _, data := range []string{"", "x", "-5", "0", "1e9", " 12", "99999999999999999999", "9223372036854775808", strings.Repeat("1", 1000)} {
		put := func(item string) {
			t.Helper()
			if got := w.say("set %s 0 0 %d\r\n%s", item, len(data), data); got != "STORED" {
				t.Fatal(got)
			}
		}
		before := r.epoch()
		put(epochPrefix + r.name)
		if e := r.epoch(); e <= before {
			t.Errorf("%.30q in the epoch's place: made anew as %d, it was %d", data, e, before)
		}
		put(tagKey(sha, r.name, "t"))
		if g := r.generations(long, "t")[0]; g != r.epoch() {
			t.Errorf("%.30q in a generation's place: made anew as %d, the epoch is %d", data, g, r.epoch())
		}
		before = r.epoch()
		put(epochPrefix + r.name)
		put(tagKey(sha, r.name, "t"))
		r.void("t")
		if g := r.generations(long, "t")[0]; g <= before || g != r.epoch() {
			t.Errorf("%.30q in both: generation %d, epoch %d, it was %d", data, g, r.epoch(), before)
		}
	}
}

// The epoch is this process's time, unless it is ahead of that: then it is one more than
// it was.
func TestEpochIsTheTime(t *testing.T) {
	t.Parallel()
	r := attach(t, open(t, shared.Get(t).Addr()))
	w := dialWire(t, shared.Get(t).Addr())
	put := func(e uint64) {
		t.Helper()
		data := fmt.Sprint(e)
		if got := w.say("set %s 0 0 %d\r\n%s", epochPrefix+r.name, len(data), data); got != "STORED" {
			t.Fatal(got)
		}
	}
	for what, do := range map[string]func(){"made": func() { r.epoch() }, "raised": func() { put(5); r.void("t") }} {
		before := clock()
		do()
		if e := r.epoch(); e < before || e > clock() {
			t.Errorf("%s: epoch %d, and the time was %d before and is %d", what, e, before, clock())
		}
		dialWire(t, shared.Get(t).Addr()).say("md %s", epochPrefix+r.name)
	}
	ahead := clock() + 3_600_000_000
	put(ahead)
	for i := range uint64(3) {
		r.void("t")
		if e, g := r.epoch(), r.generations(long, "t")[0]; e != ahead+i+1 || g != e {
			t.Errorf("epoch %d, generation %d; want both %d", e, g, ahead+i+1)
		}
	}
}

// Who makes a generation of an epoch that he has read before somebody voids the tag does
// not hide that. The interleaving: the reader finds no generation, reads the epoch, and his
// write is on its way | the tag is voided; in two of the cases its generation is lost
// again, and in one made anew by somebody else | the write arrives.
func TestMakingAGenerationLate(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	for what, meanwhile := range map[string]func(v *rig, item string){
		"voided":          func(v *rig, _ string) { v.void("t") },
		"voided and lost": func(v *rig, item string) { v.void("t"); remove(t, server, item) },
		"voided, lost, made": func(v *rig, item string) {
			v.void("t")
			remove(t, server, item)
			v.generations(long, "t")
		},
	} {
		p := startProxy(t, server.Addr())
		v := attach(t, open(t, server.Addr()))
		r := attachAs(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1}), v.name)
		before := v.epoch()
		release := p.holdAfter(requests, 2) // mg of the tag, mg of the epoch
		made := make(chan []uint64, 1)
		go func() {
			g, err := r.tagger().Generations(r.ctx, long, "t")
			if err != nil {
				t.Error(err)
			}
			made <- g
		}()
		p.awaitHeld(requests)
		meanwhile(v, tagKey(sha, v.name, "t"))
		release()
		for who, g := range map[string][]uint64{"the late one": <-made, "another": v.generations(long, "t")} {
			if len(g) != 1 || g[0] <= before {
				t.Errorf("%s: %s has %d, want it above the epoch %d of before", what, who, g, before)
			}
		}
	}
}

// The generation of a tag does not fall when an older VoidTags comes last. The interleaving:
// a raises the epoch, and its write of the tag is on its way | b voids the tag | a's write
// arrives.
func TestOlderVoidComesLast(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	for _, there := range []bool{false, true} {
		p := startProxy(t, server.Addr())
		b := attach(t, open(t, server.Addr()))
		a := attachAs(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1}), b.name)
		if there {
			b.void("t")
		}
		a.epoch()
		release := p.holdAfter(requests, 3) // mg, ms of the epoch, mg of the tag
		done := make(chan error, 1)
		go func() { done <- a.tagger().VoidTags(a.ctx, long, "t") }()
		p.awaitHeld(requests)
		b.void("t")
		want := b.generations(long, "t")[0]
		release()
		ok(t, <-done)
		if g := b.generations(long, "t")[0]; g != want || g != b.epoch() {
			t.Errorf("the tag was there: %v; generation %d, want %d; epoch %d", there, g, want, b.epoch())
		}
	}
}

// Many calls of one session at once do not get in each other's way.
func TestVoidTagsCrowd(t *testing.T) {
	t.Parallel()
	r := attach(t, open(t, shared.Get(t).Addr()))
	const callers = 4 * attempts
	before := r.epoch()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			if err := r.tagger().VoidTags(r.ctx, long, fmt.Sprint("tag ", i), "common"); err != nil {
				t.Errorf("VoidTags: %v", err)
			}
		})
	}
	wg.Wait()
	seen := map[uint64]bool{}
	for i := range callers {
		g := r.generations(long, fmt.Sprint("tag ", i))[0]
		if g <= before || seen[g] {
			t.Fatalf("generation %d: above %d? made before? %v", g, before, seen[g])
		}
		seen[g] = true
	}
	if g := r.generations(long, "common")[0]; g != r.epoch() {
		t.Errorf("the common tag has %d, the epoch is %d", g, r.epoch())
	}
}

// A tag costs a command to read, three to make or to void, and each of the two waits for
// the other's answer: with the epoch's, that is what a call takes however many tags it has.
func TestTagCommands(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	r := attach(t, openWith(t, Options{Addrs: []string{server.Addr()}, Conns: 1}))
	r.void("warm up")
	tags := make([]string, 20)
	for i := range tags {
		tags[i] = fmt.Sprint("tag ", i)
	}
	const n = 20
	for _, tt := range []struct {
		what string
		want int64
		do   func()
	}{
		{"Generations that are not there", 2*n + 1, func() { r.generations(long, tags...) }},
		{"Generations that are there", n, func() { r.generations(long, tags...) }},
		{"VoidTags", 2*n + 2, func() { r.void(tags...) }},
		{"Epoch", 1, func() { r.epoch() }},
	} {
		before := asked(t, server.Addr())
		tt.do()
		if got := asked(t, server.Addr()) - before; got != tt.want {
			t.Errorf("%s of %d tags: %d commands, want %d", tt.what, n, got, tt.want)
		}
	}
}

// A server that is down costs the tags that lie on it; the error names it and says that it
// could not be asked. If it has the epoch, no tag can be voided.
func TestTagsOfAServerThatIsDown(t *testing.T) {
	t.Parallel()
	one, two := servertest.Memcached(t, servers.MemcachedOptions{}), servertest.Memcached(t, servers.MemcachedOptions{})
	r := attach(t, open(t, one.Addr(), two.Addr()))
	st := r.Session.(*session).st
	tagOn := func(addr string) string {
		for i := 0; ; i++ {
			if tag := fmt.Sprint("tag ", i); st.ring.node(tagKey(sha, r.name, tag)).addr.text == addr {
				return tag
			}
		}
	}
	up, down := one, two // the epoch's server goes on, at first
	if st.ring.node(epochPrefix+r.name).addr.text == two.Addr() {
		up, down = two, one
	}
	there, gone := tagOn(up.Addr()), tagOn(down.Addr())
	before := r.generations(long, there, gone)
	unavailable := func(what, addr string, err error) {
		t.Helper()
		var e *store.Error
		if !errors.As(err, &e) || !errors.Is(err, store.ErrUnavailable) || e.Addr != addr {
			t.Errorf("%s = %v, want unavailable, at %s", what, err, addr)
		}
	}
	ok(t, down.Kill())
	_, err := r.tagger().Generations(r.ctx, long, there, gone)
	unavailable("Generations", down.Addr(), err)
	unavailable("VoidTags", down.Addr(), r.tagger().VoidTags(r.ctx, long, gone))
	r.void(there)
	if g := r.generations(long, there)[0]; g <= before[0] {
		t.Errorf("generation %d after it was voided, it was %d", g, before[0])
	}
	ok(t, down.Restart(r.ctx))
	eventually(t, "the server is found again", func() bool {
		_, err := r.tagger().Generations(r.ctx, long, gone)
		return err == nil
	})
	if g := r.generations(long, gone)[0]; g <= before[1] {
		t.Errorf("generation %d after its server was restarted, it was %d", g, before[1])
	}
	ok(t, up.Kill())
	unavailable("VoidTags without the epoch", up.Addr(), r.tagger().VoidTags(r.ctx, long, gone))
	_, err = r.tagger().Epoch(r.ctx)
	unavailable("Epoch", up.Addr(), err)
	r.generations(long, gone)
}

// Who waits for his turn to raise the epoch leaves with his context. The interleaving: one
// call is held at the server | the other one waits, and is cancelled.
func TestCancelledWhileAnotherRaises(t *testing.T) {
	t.Parallel()
	p := startProxy(t, shared.Get(t).Addr())
	r := attach(t, openWith(t, Options{Addrs: []string{p.addr()}, Conns: 1}))
	r.epoch()
	release := p.hold(requests)
	first := make(chan error, 1)
	go func() { first <- r.tagger().VoidTags(r.ctx, long, "t") }()
	p.awaitHeld(requests)
	ctx, cancel := context.WithCancel(r.ctx)
	second := make(chan error, 1)
	go func() { second <- r.tagger().VoidTags(ctx, long, "t") }()
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the second = %v, want context.Canceled, and no unavailability", err)
	}
	release()
	ok(t, <-first)
}
