package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// serverOf is what the session says of a key's server.
func serverOf(r *rig, key string) string { return r.Session.(store.Sharded).Server(key) }

// manyOwnedBy finds n keys of a cache that lie on a server.
func manyOwnedBy(t *testing.T, server *servers.Server, name string, n int) (keys []string) {
	t.Helper()
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("k", i)
		if got := sayTo(t, server.Addr(), "EXISTS", valueKey(sessionPrefix(name), key)); !strings.Contains(got, "MOVED") {
			keys = append(keys, key)
		}
	}
	return keys
}

// partly lets the nodes that live serve their slots while others are dead.
var partly = []string{"--cluster-require-full-coverage", "no"}

// A node of three is frozen, then killed, and its replica takes its place. Its keys fail in
// bounded time, the others' are not touched, and the server keeps its name, so that the
// breaker that its death has opened is closed by the replica's first answer.
func TestDeadNodeOfACluster(t *testing.T) {
	for i, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			c := servertest.RedisCluster(t, 3, partly...)
			r := attach(t, v.on(t, c.URL()), "n")
			var keys [3][]string
			names := map[string]bool{}
			for shard := range c {
				keys[shard] = manyOwnedBy(t, c[shard].Primary, "n", 5)
				for _, key := range keys[shard] {
					r.set(key, key)
					if got := serverOf(r, key); got != c[shard].Primary.Addr() {
						t.Fatalf("server of %q is %q, want %s", key, got, c[shard].Primary.Addr())
					}
				}
				names[serverOf(r, keys[shard][0])] = true
			}
			dead, alive := keys[i], append(keys[(i+1)%3], keys[(i+2)%3]...)
			name := serverOf(r, dead[0])
			lacks := func(how string) {
				t.Helper()
				for _, key := range dead {
					ctx, ended := briefly(t), make(chan time.Time, 1)
					context.AfterFunc(ctx, func() { ended <- time.Now() })
					_, err := r.Get(ctx, key)
					returned := time.Now()
					if !errors.Is(err, store.ErrUnavailable) {
						t.Errorf("%s: Get of its key = %v, want an unavailable error", how, err)
					}
					// Measured from when another goroutine has seen the end of the context: a
					// paused machine keeps both waiting.
					if ctx.Err() != nil {
						if late := returned.Sub(<-ended); late > 2*brief {
							t.Errorf("%s: Get returned %v after its context of %v had ended", how, late, brief)
						}
					}
				}
				for _, key := range alive {
					r.wantValue(key, key)
				}
				if err := r.Invalidate(briefly(t), dead[0], alive[0], dead[1], alive[9]); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: Invalidate on three servers = %v, want an unavailable error", how, err)
				}
				for _, key := range []string{alive[0], alive[9]} { // it was applied where it could be
					r.wantMiss(key)
					r.set(key, key)
				}
				if err := r.Ping(briefly(t)); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: Ping = %v, want an unavailable error", how, err)
				}
			}
			ok(t, c[i].Primary.Pause())
			lacks("frozen")
			ok(t, c[i].Primary.Continue())
			eventually(t, "thawed", func() error { _, err := r.Get(briefly(t), dead[0]); return err })
			ok(t, c[i].Primary.Kill())
			lacks("killed")
			eventually(t, "the replica answers", func() error { _, err := r.Get(briefly(t), dead[0]); return err })
			for _, key := range dead {
				if got := serverOf(r, key); got != name {
					t.Errorf("server of %q is %q, was %q", key, got, name)
				}
			}
			eventually(t, "told of the replacement", func() error {
				if _, err := r.Get(briefly(t), dead[0]); err != nil { // a client of the user's is looked at with the operations
					return err
				}
				if r.replacements() == 0 {
					return errors.New("not yet")
				}
				return nil
			})
		})
	}
}

const brief = 300 * time.Millisecond

func briefly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	t.Cleanup(cancel)
	return ctx
}

// A crowd writes to a node that hangs, more than the store lets wait at one server. Those
// who ask the other node are not held up, and nobody outlives his context.
func TestCrowdAtAFrozenNode(t *testing.T) {
	c := servertest.RedisCluster(t, 2, partly...)
	r := attach(t, variants[0].on(t, c.URL()), "n")
	at, elsewhere := ownedBy(t, c[0].Primary, "n", 0), ownedBy(t, c[1].Primary, "n", 0)
	r.set(at, "v")
	r.set(elsewhere, "v")
	ok(t, c[0].Primary.Pause())
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var crowd sync.WaitGroup
	for range 2 * defaultPlaces {
		crowd.Go(func() {
			if err := r.Invalidate(ctx, at); err == nil {
				t.Error("an Invalidate was answered by the frozen node")
			}
		})
	}
	guard := r.Session.(*shardedSession).store.guardOf(valueKey("of:{n:", at))
	eventually(t, "all places are taken", func() error {
		if n := len(guard.places); n < defaultPlaces {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	for range 20 {
		soon, done := context.WithTimeout(r.ctx, 2*time.Second)
		got, err := r.Get(soon, elsewhere)
		done()
		if err != nil || !got.Found {
			t.Fatalf("Get on the other node = %v, %v", got.Found, err)
		}
	}
	if n := len(guard.places); n < defaultPlaces {
		t.Errorf("%d places are taken, they have been given back meanwhile", n)
	}
	cancel()
	left := time.Now()
	crowd.Wait()
	if took := time.Since(left); took > patience/2 {
		t.Errorf("the crowd has left %v after its context", took)
	}
	ok(t, c[0].Primary.Continue())
	eventually(t, "it answers again", func() error { return r.Invalidate(briefly(t), at) })
}

// What a session has read at one node is changed at another:
//
//	a reads a key that is absent, or wins its lease there   the old node tells a of the next change
//	the slot moves to another node                          which knows nothing of a
//	b sets the key                                          nobody is told
//
// The session is told that it may have missed something.
func TestSlotMovesUnderAReader(t *testing.T) {
	c := servertest.RedisCluster(t, 2)
	a, b := attach(t, variants[0].on(t, c.URL()), "n"), attach(t, variants[0].on(t, c.URL()), "n")
	cases := map[string]func(key string){
		"absent": func(key string) { a.wantMiss(key) },
		"leased": func(key string) { a.win(key) },
		// The node itself tells of these.
		"there":  func(key string) { b.set(key, "v"); a.wantValue(key, "v") },
		"filled": func(key string) { must(a.win(key).Fill(a.ctx, []byte("v"), time.Minute))(t) },
	}
	keys := manyOwnedBy(t, c[0].Primary, "n", len(cases))
	before := 0 // moves of slots
	for name, read := range cases {
		key := keys[0]
		keys = keys[1:]
		t.Run(name, func(t *testing.T) {
			value := valueKey("of:{n:", key)
			read(key)
			ok(t, a.Ping(a.ctx))
			a.mu.Lock()
			losses, changes := a.losses, a.heard[key]
			a.mu.Unlock()
			if most := before + 1; losses > most {
				t.Errorf("told of %d losses by %d moves", losses, before)
			}
			move := c.Move(t, c.SlotOf(t, value), c[0].Primary, c[1].Primary)
			move.AllKeys()
			move.End()
			b.set(key, "new")
			if got := sayTo(t, c[1].Primary.Addr(), "GET", value); got != "new" {
				t.Fatalf("the new node has %q", got)
			}
			start := time.Now()
			a.await("the change", func() bool { return a.losses > losses || a.heard[key] > changes })
			if took := time.Since(start); took > time.Second {
				t.Errorf("told after %v", took)
			}
			// And what it reads from now on it hears of.
			a.wantValue(key, "new")
			changes = a.changes(key)
			b.set(key, "newer")
			a.await("the next change", func() bool { return a.heard[key] > changes })
			before++
		})
	}
}

// A key on its way, in each state that a move has. What needs both keys of a value waits
// until the slot has arrived: nothing is decided by one side of it.
func TestSlotOnItsWay(t *testing.T) {
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			c := servertest.RedisCluster(t, 2)
			a := attach(t, v.on(t, c.URL()), "n")
			keys := manyOwnedBy(t, c[0].Primary, "n", 3)
			there, leased, absent := keys[0], keys[1], keys[2]
			a.set(there, "v")
			lease := a.win(leased)
			var moves []*servertest.Move
			for _, key := range keys {
				moves = append(moves, c.Move(t, c.SlotOf(t, valueKey("of:{n:", key)), c[0].Primary, c[1].Primary))
			}
			waits := func(what string, do func(context.Context) error) {
				t.Helper()
				// A context that ends before the first answer, as on a paused machine, says nothing.
				var err error
				for d := brief; d < patience; d *= 2 {
					ctx, cancel := context.WithTimeout(t.Context(), d)
					err = do(ctx)
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "TRYAGAIN") {
						break
					}
				}
				if err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "TRYAGAIN") {
					t.Errorf("%s: %v, want an error that says TRYAGAIN and not that the server is unavailable", what, err)
				}
			}
			during := func(where string) {
				a.wantValue(there, "v")
				a.wantMiss(leased)
				a.wantMiss(absent)
				if !must(lease.Renew(a.ctx, time.Minute))(t) {
					t.Errorf("%s: the lease was not renewed", where)
				}
				waits(where+", acquire", func(ctx context.Context) error {
					_, err := a.Acquire(ctx, absent, store.Request{Token: store.NewToken(), TTL: time.Minute})
					return err
				})
				waits(where+", acquire of what is leased", func(ctx context.Context) error {
					_, err := a.Acquire(ctx, leased, store.Request{Token: store.NewToken(), TTL: time.Minute})
					return err
				})
				waits(where+", invalidate", func(ctx context.Context) error { return a.Invalidate(ctx, there, leased, absent) })
				waits(where+", fill", func(ctx context.Context) error { _, err := lease.Fill(ctx, []byte("x"), time.Minute); return err })
			}
			during("not moved")
			for _, m := range moves {
				m.AllKeys()
			}
			during("moved")
			filled, voided := make(chan error, 1), make(chan error, 1)
			go func() {
				done, err := lease.Fill(a.ctx, []byte("loaded"), time.Minute)
				if err == nil && !done {
					err = errors.New("refused")
				}
				filled <- err
			}()
			go func() { voided <- a.Invalidate(a.ctx, there, absent) }()
			for _, m := range moves {
				m.End()
			}
			ok(t, <-filled)
			ok(t, <-voided)
			a.wantValue(leased, "loaded")
			a.wantMiss(there)
			a.win(absent)
		})
	}
}

// A user's client dials a node that does not answer, which knows no context. A look ends in
// its own time all the same: the other nodes are looked at again.
func TestLookEndsWhileANodeIsDialled(t *testing.T) {
	c := servertest.RedisCluster(t, 2, partly...)
	var blocked atomic.Bool
	dialling, over := make(chan struct{}, 100), make(chan struct{})
	option := rueidis.MustParseURL(c.URL())
	option.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if blocked.Load() && addr == c[0].Primary.Addr() {
			dialling <- struct{}{}
			<-over
		}
		return dialer.DialContext(ctx, "tcp", addr)
	}
	cl := must(rueidis.NewClient(option))(t)
	t.Cleanup(cl.Close)
	s := New(cl)
	t.Cleanup(func() { s.Close() })
	t.Cleanup(sync.OnceFunc(func() { close(over) }))
	a := attach(t, s, "n")
	key := ownedBy(t, c[0].Primary, "n", 0)
	a.set(key, "v")
	blocked.Store(true)
	sayTo(t, c[0].Primary.Addr(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	eventually(t, "somebody dials", func() error {
		_, _ = a.Get(briefly(t), key) // whatever comes of it
		select {
		case <-dialling:
			return nil
		default:
			return errors.New("nobody does")
		}
	})
	look := must(s.link.get(a.ctx))(t).watch
	eventually(t, "nobody looks", func() error {
		if !look.looking.CompareAndSwap(false, true) {
			return errors.New("somebody does")
		}
		return nil
	})
	within(t, nodeTimeout+patience/4, "a look", look.run)
}

// While a node is dead and everything that is asked there fails at once, the others are not
// asked with each failure who they are.
func TestLooksAtADeadNodeAreFew(t *testing.T) {
	c := servertest.RedisCluster(t, 2, partly...)
	a := attach(t, variants[1].on(t, c.URL()), "n")
	key := ownedBy(t, c[0].Primary, "n", 0)
	ok(t, c[0].Replica.Kill())
	ok(t, c[0].Primary.Kill())
	sayTo(t, c[1].Primary.Addr(), "CONFIG", "RESETSTAT")
	start, failed := time.Now(), 0
	for time.Since(start) < time.Second || failed < 500 {
		if a.Invalidate(a.ctx, key) != nil {
			failed++
		}
	}
	_, stats, _ := strings.Cut(sayTo(t, c[1].Primary.Addr(), "INFO", "commandstats"), "cmdstat_info:calls=")
	digits, _, _ := strings.Cut(stats, ",")
	asked := must(strconv.Atoi(digits))(t)
	t.Logf("%d writes failed in %v; the other node was asked for INFO %d times", failed, time.Since(start), asked)
	if most := 2 * (2 + int(time.Since(start)/surveyRest)); asked > most { // two sections each
		t.Errorf("asked %d times, want %d at most", asked, most)
	}
}
