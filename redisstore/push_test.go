package redisstore

import (
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

func forEachPushing(t *testing.T, do func(t *testing.T, v variant)) {
	for _, v := range variants {
		if v.push {
			t.Run(v.name, func(t *testing.T) { do(t, v) })
		}
	}
}

// touch is a way to read or write a key that must leave the session armed on it.
var touches = map[string]func(r *rig, key string){
	"get of a miss":  func(r *rig, key string) { r.wantMiss(key) },
	"get of a hit":   func(r *rig, key string) { r.set(key, "x"); r.get(key) },
	"acquire, won":   func(r *rig, key string) { r.win(key) },
	"acquire, hit":   func(r *rig, key string) { r.set(key, "x"); r.acquire(key, store.Request{}) },
	"acquire, held":  func(r *rig, key string) { r.win(key); r.acquire(key, store.Request{}).Watch.Stop() },
	"own fill":       func(r *rig, key string) { must(r.win(key).Fill(r.ctx, []byte("x"), time.Minute))(r.t) },
	"own fill, gone": func(r *rig, key string) { must(r.win(key).Fill(r.ctx, []byte("x"), 0))(r.t) },
	"own set":        func(r *rig, key string) { r.set(key, "x") },
	"own set over another": func(r *rig, key string) {
		r.set(key, "x")
		r.set(key, "y")
	},
	"own expire": func(r *rig, key string) {
		r.set(key, string(envelope(store.KindValue, 0, time.Now().Add(time.Hour), "")))
		ok(r.t, r.Expire(r.ctx, time.Now(), key))
	},
	"own set, refused": func(r *rig, key string) {
		r.set(key, string(envelope(store.KindValue, 2, time.Now(), "")))
		if must(r.Set(r.ctx, key, envelope(store.KindValue, 1, time.Now(), ""), time.Minute))(r.t) {
			r.t.Fatal("an older row was accepted")
		}
	},
}

// writes are changes that somebody else must hear of. They are about whatever the
// touch has left there.
var writes = map[string]func(r *rig, key string){
	"set":        func(r *rig, key string) { must(r.Set(r.ctx, key, []byte("new"), time.Minute))(r.t) },
	"invalidate": func(r *rig, key string) { ok(r.t, r.Invalidate(r.ctx, key)) },
	"expire":     func(r *rig, key string) { ok(r.t, r.Expire(r.ctx, time.Now(), key)) },
	"expire of what has expired": func(r *rig, key string) {
		ok(r.t, r.Expire(r.ctx, time.Now().Add(100*time.Hour), key))
	},
}

// Whatever a session has done last with a key, it hears the next change by another
// process (another Store), whatever that is. Absent values included.
func TestChangesByOthersAreHeard(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		name := unique(t)
		a, b := attach(t, v.store(t), name), attach(t, v.store(t), name)
		for touch, doTouch := range touches {
			for write, doWrite := range writes {
				key := touch + "/" + write
				doTouch(a, key)
				ok(t, a.Ping(a.ctx)) // pushes of the touch come before this reply
				if n := a.changes(key); n != 0 {
					t.Fatalf("%s: the session heard its own write", touch)
				}
				doWrite(b, key)
				a.awaitChanged(key, 1)
			}
		}
	})
}

// The other caches of one Store read over the same connection: they are told of a
// write, and the cache that made it is not.
func TestOwnWritesReachTheOtherSessionsOfTheName(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		s, name := v.store(t), unique(t)
		a, b, foreign := attach(t, s, name), attach(t, s, name), attach(t, s, unique(t))
		all := map[string]func(r *rig, key string){
			"fill": func(r *rig, key string) { must(r.win(key).Fill(r.ctx, []byte("x"), time.Minute))(r.t) },
		}
		for write, do := range writes {
			all[write] = do
		}
		for write, do := range all {
			b.get(write)
			foreign.get(write)
			do(a, write)
			ok(t, a.Ping(a.ctx))
			b.awaitChanged(write, 1)
			if a.changes(write) != 0 || foreign.changes(write) != 0 {
				t.Errorf("%s: heard by the writer %d times, by another name %d times", write, a.changes(write), foreign.changes(write))
			}
		}
		// Writes that change no value wake waiters and tell nobody.
		must(a.win("k").Fail(a.ctx, nil, time.Minute))(t)
		ok(t, a.Invalidate(a.ctx, "k"))
		before := b.changes("k")
		must(a.win("k").Release(a.ctx))(t)
		if b.changes("k") != before {
			t.Error("a release was told as a change of the value")
		}
	})
}

// No own write is told to the session that made it, however the goroutine that gets the
// reply and the one that hears the push are scheduled:
//
//	wire    reply, own push, marker's reply
//	reader  hands the reply over   hears the push
//	writer                       ?               ?  the write is over
//
// But for those that take as long as a push is kept at most, as on a machine that is paused.
func TestOwnWritesAreNeverTold(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		const writers, rounds = 16, 50
		var slow sync.Map // keys
		timed := func(key string, write func() error) error {
			start := time.Now()
			err := write()
			if time.Since(start) >= ownPushDelay {
				slow.Store(key, true)
			}
			return err
		}
		round := func(key string) error {
			answer, err := a.Acquire(a.ctx, key, store.Request{Token: store.NewToken(), TTL: time.Minute})
			if err != nil {
				return err
			}
			return errors.Join(
				timed(key, func() error { _, err := answer.Lease.Fill(a.ctx, []byte("x"), time.Minute); return err }),
				timed(key, func() error { _, err := a.Set(a.ctx, key, []byte("y"), time.Minute); return err }),
				timed(key, func() error { return a.Invalidate(a.ctx, key) }))
		}
		errs := make(chan error)
		for w := range writers {
			go func() {
				errs <- func() error {
					for i := range rounds {
						if err := round(fmt.Sprint(w, "/", i)); err != nil {
							return err
						}
					}
					return nil
				}()
			}()
		}
		for range writers {
			ok(t, <-errs)
		}
		ok(t, a.Ping(a.ctx))
		a.mu.Lock()
		defer a.mu.Unlock()
		for key := range a.heard {
			if _, late := slow.Load(key); !late {
				t.Errorf("told of %q, which only this session has written", key)
			}
		}
	})
}

// leaseEnds are the ways in which a lease ends or changes hands.
var leaseEnds = map[string]func(r *rig, key string, l store.Lease){
	"fill":       func(r *rig, _ string, l store.Lease) { must(l.Fill(r.ctx, []byte("x"), time.Minute))(r.t) },
	"fail":       func(r *rig, _ string, l store.Lease) { must(l.Fail(r.ctx, nil, time.Minute))(r.t) },
	"release":    func(r *rig, _ string, l store.Lease) { must(l.Release(r.ctx))(r.t) },
	"set":        func(r *rig, key string, _ store.Lease) { r.set(key, "x") },
	"invalidate": func(r *rig, key string, _ store.Lease) { ok(r.t, r.Invalidate(r.ctx, key)) },
	"expire":     func(r *rig, key string, _ store.Lease) { ok(r.t, r.Expire(r.ctx, time.Now(), key)) },
	"expiry":     func(r *rig, _ string, l store.Lease) { must(l.Renew(r.ctx, time.Millisecond))(r.t) },
	"a renewal, then expiry": func(r *rig, _ string, l store.Lease) {
		must(l.Renew(r.ctx, time.Hour))(r.t)
		must(l.Renew(r.ctx, time.Millisecond))(r.t)
	},
}

// A waiter is woken by the end of the lease, whether the holder is in its own
// process and cache, in another cache of the same Store, or in another process.
func TestWatchWakes(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		s, name := v.store(t), unique(t)
		waiter := attach(t, s, name)
		holders := map[string]*rig{
			"same session": waiter, "same store": attach(t, s, name), "other store": attach(t, v.store(t), name),
		}
		for where, holder := range holders {
			for end, do := range leaseEnds {
				key := where + "/" + end
				l := holder.win(key)
				held := waiter.acquire(key, store.Request{Token: store.NewToken()})
				if held.State != store.Held {
					t.Fatalf("%s: %s", key, held.State)
				}
				asleep(t, held.Watch)
				do(holder, key, l)
				woken(t, held.Watch)
				held.Watch.Stop()
				held.Watch.Stop()
			}
		}
		if n, _ := s.board.counts(); n != 0 {
			t.Errorf("%d watches are left", n)
		}
	})
}

// Only an answer that says "held" leaves a watch behind.
func TestNoWatchIsLeft(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		l := a.win("k")
		first := a.acquire("k", store.Request{Token: store.NewToken()})
		if n, _ := s.board.counts(); n != 1 {
			t.Fatalf("%d watches after one held answer", n)
		}
		second := a.acquire("k", store.Request{Token: store.NewToken()})
		second.Watch.Stop()
		if n, _ := s.board.counts(); n != 1 {
			t.Fatalf("%d watches after one was stopped", n)
		}
		must(l.Fail(a.ctx, nil, time.Minute))(t)
		woken(t, first.Watch)
		a.acquire("k", store.Request{Token: store.NewToken()}) // failed
		a.set("k", "x")
		a.acquire("k", store.Request{Token: store.NewToken()}) // hit
		if n, _ := s.board.counts(); n != 0 {
			t.Fatalf("%d watches are left", n)
		}
	})
}

func TestCloseWakesOwnWatchesOnly(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		s, name := v.store(t), unique(t)
		a, b := attach(t, s, name), attach(t, s, name)
		a.win("k")
		mine := a.acquire("k", store.Request{Token: store.NewToken()}).Watch
		others := b.acquire("k", store.Request{Token: store.NewToken()}).Watch
		ok(t, a.Close())
		woken(t, mine)
		asleep(t, others)
		ok(t, s.Close())
		woken(t, others)
		if losses := func() int { b.mu.Lock(); defer b.mu.Unlock(); return b.losses }(); losses == 0 {
			t.Error("the session that is still open was not told that the store was closed")
		}
	})
}

// CLIENT KILL cuts the tracked connection: everybody is told and woken, and the next
// read arms the new connection.
func TestLostConnection(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{})
		s := v.on(t, server.URL())
		a, b := attach(t, s, "n"), attach(t, s, "other")
		for round := range 3 {
			a.get("k")
			a.win("leased" + fmt.Sprint(round))
			held := a.acquire("leased"+fmt.Sprint(round), store.Request{Token: store.NewToken()})
			ok(t, raw(t, s, "CLIENT", "KILL", "TYPE", "normal").Error())
			a.awaitLost(round + 1)
			b.awaitLost(round + 1)
			woken(t, held.Watch)
			eventually(t, "the connection is made again", func() error { _, err := a.Get(a.ctx, "k"); return err })
			before := a.changes("k")
			ok(t, ask(t, s, a, "SET", "k", "x").Error())
			a.awaitChanged("k", before+1)
		}
	})
}

func eventually(t testing.TB, what string, do func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		<-tick.C
	}
}

func TestFlushIsALoss(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{})
		s := v.on(t, server.URL())
		a := attach(t, s, "n")
		l := a.win("k")
		held := a.acquire("k", store.Request{Token: store.NewToken()})
		ok(t, raw(t, s, "FLUSHALL").Error())
		a.awaitLost(1)
		woken(t, held.Watch)
		if must(l.Fill(a.ctx, []byte("late"), time.Minute))(t) {
			t.Error("a fill was accepted without a lease")
		}
		a.wantMiss("k")
	})
}

// A small tracking table makes the server forget keys: it pushes for them, too early
// and harmlessly, and nothing goes unheard.
func TestTrackingTableOverflow(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{Args: []string{"--tracking-table-max-keys", "10"}})
		s := v.on(t, server.URL())
		a := attach(t, s, "n")
		const n = 200
		for i := range n {
			a.set(fmt.Sprint(i), "x")
		}
		for i := range n {
			ok(t, ask(t, s, a, "SET", fmt.Sprint(i), "y").Error())
		}
		for i := range n {
			a.awaitChanged(fmt.Sprint(i), 1)
		}
	})
}

func TestValueExpiryIsHeard(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		if !must(a.Set(a.ctx, "k", []byte("x"), 20*time.Millisecond))(t) {
			t.Fatal("set refused")
		}
		a.awaitChanged("k", 1)
		a.wantMiss("k")
	})
}

// All commands of a store's keys go over one connection, also under concurrency, and
// a client's four random ones are not used.
func TestOneConnection(t *testing.T) {
	forEachPushing(t, func(t *testing.T, v variant) {
		server := servertest.Redis(t, servers.RedisOptions{})
		s := v.on(t, server.URL())
		a := attach(t, s, "n")
		errs := make(chan error)
		const n = 64
		for i := range n {
			go func() { _, err := a.Get(a.ctx, fmt.Sprint(i)); errs <- err }()
		}
		for range n {
			ok(t, <-errs)
		}
		list := must(raw(t, s, "CLIENT", "LIST").ToString())(t)
		users := 0
		for line := range strings.Lines(list) {
			if strings.Contains(line, "cmd=get ") {
				users++
				if !strings.Contains(line, "flags=t ") {
					t.Errorf("the connection is not tracked: %s", line)
				}
			}
		}
		if users != 1 {
			t.Errorf("%d connections have been used for GET, want 1:\n%s", users, list)
		}
	})
}
