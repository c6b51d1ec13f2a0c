package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// Generations last for keep at least and twice as long at most; the epoch, and the
// generation of the whole cache, for ever.
func TestTagsLast(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		left := func(key string) time.Duration {
			return time.Duration(must(raw(t, s, "PTTL", key).AsInt64())(t)) * time.Millisecond
		}
		wantLeft := func(what, tag string, least, most time.Duration) {
			t.Helper()
			if got := left(tagPrefix(a.name) + tag); got < least || got > most {
				t.Errorf("%s: %s left, want %s to %s", what, got, least, most)
			}
		}
		keeps := func(keep time.Duration, tags ...string) { must(tagger(a).Generations(a.ctx, keep, tags...))(t) }
		const hour, slack = time.Hour, time.Minute
		keeps(hour, "t", "")
		wantLeft("new", "t", 2*hour-slack, 2*hour)
		keeps(hour+slack, "t")
		wantLeft("enough is left", "t", 2*hour-slack, 2*hour)
		keeps(3*hour, "t", "")
		wantLeft("too little was left", "t", 6*hour-slack, 6*hour)
		keeps(0, "t", "zero")
		wantLeft("a shorter keep", "t", 6*hour-slack, 6*hour)
		a.void("t", "")
		wantLeft("voided", "t", 2*hour-slack, 2*hour)
		keeps(1<<63-1, "t")
		wantLeft("the longest keep", "t", longest, 2*longest)
		for _, key := range []string{tagPrefix(a.name), epochKey(a.name)} {
			if got := left(key); got != -time.Millisecond {
				t.Errorf("%s lasts for %s, want for ever", key, got)
			}
		}
	})
}

// The epoch is the server's time, unless it is ahead of that.
func TestEpochIsTheServersTime(t *testing.T) {
	s := variants[0].store(t)
	a := attach(t, s, unique(t))
	p := dialPeer(t, shared.Get(t).Addr())
	between := func(what string, do func()) {
		t.Helper()
		before := serverTime(p)
		do()
		if e := a.epoch(); e < uint64(before) || e > uint64(serverTime(p)) {
			t.Errorf("%s: epoch %d, and the time was %d before and is %d", what, e, before, serverTime(p))
		}
	}
	between("made", func() { a.epoch() })
	between("raised", func() { a.void("t") })
	ahead := uint64(serverTime(p)) + 3_600_000_000
	ok(t, raw(t, s, "SET", epochKey(a.name), fmt.Sprint(ahead)).Error())
	for i := range uint64(3) {
		a.void("t")
		if e, g := a.epoch(), a.generation("t"); e != ahead+i+1 || g != e {
			t.Errorf("epoch %d, generation %d; want both %d", e, g, ahead+i+1)
		}
	}
	ok(t, raw(t, s, "SET", epochKey(a.name), "5").Error()) // as after a failover
	between("turned back", func() { a.void("t") })
}

// What is none of ours under the keys is as good as lost.
func TestForeignTags(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		for _, put := range [][]string{
			{"SET", "", ""}, {"SET", "", "x"}, {"SET", "", "-5"}, {"SET", "", "0"}, {"SET", "", " 12"}, {"SET", "", "1e9"}, {"SET", "", "12.5"}, {"SET", "", "0x10"},
			{"SET", "", "99999999999999999999"}, {"SET", "", "9007199254740992"}, {"LPUSH", "", "x"}, {"HSET", "", "f", "1"},
		} {
			foreign := func(key string) {
				t.Helper()
				put[1] = key
				ok(t, raw(t, s, "DEL", key).Error())
				ok(t, raw(t, s, put...).Error())
			}
			before := a.epoch()
			foreign(epochKey(a.name))
			if e := a.epoch(); e <= before {
				t.Errorf("%q in the epoch's place: made anew as %d, it was %d", put, e, before)
			}
			foreign(tagPrefix(a.name) + "t")
			if g := a.generation("t"); g != a.epoch() {
				t.Errorf("%q in a generation's place: made anew as %d, the epoch is %d", put, g, a.epoch())
			}
			before = a.epoch()
			foreign(epochKey(a.name))
			foreign(tagPrefix(a.name) + "t")
			a.void("t")
			if g := a.generation("t"); g <= before || g != a.epoch() {
				t.Errorf("%q in both: generation %d, epoch %d, it was %d", put, g, a.epoch(), before)
			}
		}
	})
}

// A server that is full, and evicts nothing: what a hit needs to know of tags can be
// read, and made, and tags can be voided, as keys can.
func TestTagsOnAFullServer(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{Args: []string{"--maxmemory-policy", "noeviction"}})
	forEach(t, func(t *testing.T, v variant) {
		s := v.on(t, server.URL())
		a := attach(t, s, unique(t))
		known := a.generation("known")
		ok(t, raw(t, s, "CONFIG", "SET", "maxmemory", "1").Error())
		defer func() { ok(t, raw(t, s, "CONFIG", "SET", "maxmemory", "0").Error()) }()
		_, err := a.Set(a.ctx, "k", []byte("v"), time.Minute)
		wantError(t, err, "set", false, "OOM")
		if g := a.generation("known"); g != known {
			t.Errorf("a generation has gone from %d to %d", known, g)
		}
		a.void("known", "another")
		if g := a.generation("known"); g <= known {
			t.Errorf("generation %d after it was voided, it was %d", g, known)
		}
		if g := a.generation("new"); g != a.epoch() {
			t.Errorf("a new generation is %d, the epoch %d", g, a.epoch())
		}
	})
}

// A server that refuses all writes, as it has too few replicas (or no room on its disk):
// hits go on, so what they need to know can be read. The rest is refused, which is no
// unavailability.
func TestTagsWhereWritesAreRefused(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	forEach(t, func(t *testing.T, v variant) {
		s := v.on(t, server.URL())
		a := attach(t, s, unique(t))
		known, epoch := a.generation("known"), a.epoch()
		ok(t, raw(t, s, "CONFIG", "SET", "min-replicas-to-write", "1").Error())
		defer func() { ok(t, raw(t, s, "CONFIG", "SET", "min-replicas-to-write", "0").Error()) }()
		if g, e := a.generation("known"), a.epoch(); g != known || e != epoch {
			t.Errorf("generation %d, epoch %d; want %d, %d", g, e, known, epoch)
		}
		_, err := tagger(a).Generations(a.ctx, time.Hour, "known", "new")
		wantError(t, err, "generations", false, "NOREPLICAS")
		wantError(t, tagger(a).VoidTags(a.ctx, time.Hour, "known"), "void tags", false, "NOREPLICAS")
	})
}

// The scripts themselves, without a marker behind them: making generations tells the
// maker nothing and leaves it armed on each of them; so does reading them; voiding tells
// it once for each, whether it was armed or not. What becomes longer is told.
func TestTagScriptsPushAndArm(t *testing.T) {
	addr, name := shared.Get(t).Addr(), unique(t)
	p, other := dialPeer(t, addr, plain...), dialPeer(t, addr)
	keys := []string{epochKey(name), tagPrefix(name), tagPrefix(name) + "a", tagPrefix(name) + "b"}
	run := func(p *peer, sc *script, args ...string) {
		t.Helper()
		keys := keys
		if sc == epochScript {
			keys = keys[:1]
		}
		p.send(slices.Concat([]string{"EVAL", sc.text, fmt.Sprint(len(keys))}, keys, args)...)
		if got := p.frame(); strings.HasPrefix(got, "ERR") {
			t.Fatal(got)
		}
	}
	// All keys are armed on Redis 7.0, the epoch's too: it is told of more often than it was read.
	want := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, push := range p.pushes() {
			if push != ">["+keys[0]+"]" {
				got = append(got, push)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: pushes %q, want %q", what, got, want)
		}
	}
	all := []string{">[" + keys[1] + "]", ">[" + keys[2] + "]", ">[" + keys[3] + "]"}
	raised := func(what string, want bool) {
		t.Helper()
		if got := slices.Contains(p.pushes(), ">["+keys[0]+"]"); got != want {
			t.Fatalf("%s: told of the epoch: %t, want %t", what, got, want)
		}
	}
	run(p, epochScript)
	want("the epoch is made")
	run(other, voidScript, "2000000", keys[1])
	raised("raised by another, whoever made it is armed", true)
	run(other, voidScript, "2000000", keys[1])
	raised("one push for each reading", false)
	run(p, epochScript)
	run(other, voidScript, "2000000", keys[1])
	raised("raised by another, read", true)
	other.do(slices.Concat([]string{"DEL"}, keys[1:])...)
	run(p, generationScript, "1000000", "2000000", keys[1])
	want("all are made")
	run(other, voidScript, "2000000", keys[1])
	want("voided by another", all...)
	run(other, voidScript, "2000000", keys[1])
	want("one push for each reading")
	other.do("DEL", keys[2])
	run(p, generationScript, "1000000", "2000000", keys[1])
	want("one is made, the others are read")
	run(other, voidScript, "2000000", keys[1])
	want("voided by another", all...)
	run(p, voidScript, "2000000", keys[1])
	want("voided by its own, not armed", all...)
	run(p, generationScript, "1000000", "2000000", keys[1])
	run(p, voidScript, "2000000", keys[1])
	want("voided by its own, armed", all...)
	run(p, generationScript, "3000000", "6000000", keys[1])
	want("made to last longer, but for the one that lasts for ever", all[1:]...)
	other.do("DEL", keys[1], keys[3]) // on Redis 7.0 the read of any key would have armed the last
	want("lost", all[0], all[2])
}

// An own void keeps its own pushes from the session, and no others. The interleaving of
// each case is the order of its calls.
func TestOwnVoidAndPushes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // time stands still: no pause makes a push late
		var told []string
		s := newStore(1, options{})
		writer := &session{store: s, name: "n", events: store.Events{
			Voided:  func(tag string) { told = append(told, tag) },
			Changed: func(key string) { told = append(told, "key "+key) },
		}}
		s.enlist(writer)
		full := tagPrefix("n") + "t"
		tag, _ := parseKey(full)
		w := s.board.begin(writer, tag)
		s.heard(tag)
		s.board.end(w, 1)
		if len(told) != 0 {
			t.Errorf("told of its own void: %q", told)
		}
		w = s.board.begin(writer, tag)
		s.heard(tag) // somebody else's, behind which ours has armed the connection again
		s.heard(tag)
		s.board.end(w, 1)
		if !slices.Equal(told, []string{"t"}) {
			t.Errorf("told %q of a void by somebody else during its own", told)
		}
		w = s.board.begin(writer, tag)
		s.heard(tag)
		s.board.end(w, 0) // it has failed
		if !slices.Equal(told, []string{"t", "t"}) {
			t.Errorf("told %q of a push when the own void has failed", told)
		}
		if _, writes := s.board.counts(); writes != 0 {
			t.Errorf("%d writes are left on the board", writes)
		}
	})
}

// A connection that is lost is told of as such: what was read over it must be read again.
func TestTagsAfterALostConnection(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{})
		s := v.on(t, server.URL())
		a := attach(t, s, "n")
		a.generation("t")
		ok(t, raw(t, s, "CLIENT", "KILL", "TYPE", "normal").Error())
		a.awaitLost(1)
		eventually(t, "the connection is made again", func() error {
			_, err := tagger(a).Generations(a.ctx, time.Hour, "t")
			return err
		})
		before := a.voids("t")
		attach(t, v.on(t, server.URL()), "n").void("t")
		a.awaitVoided("t", before+1)
	})
}
