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

// What is easy to get wrong with memcached leases, with the letters of the issue that
// collected it: TestTrapA to TestTrapI. The last, j (waiting without pushes), is in
// cache_test.go.

func envelope(payload string) string {
	now := time.Now()
	e := store.Envelope{Kind: store.KindValue, Version: store.NewVersion(now), Created: now, SoftExpiry: now.Add(time.Hour), Payload: []byte(payload)}
	return string(e.Encode())
}

func mark(data string) []byte { return store.MarkOf([]byte(data)) }

// a: a late fill marks nothing stale and does not make the newer winner's fill fail.
// The first wins | the key is invalidated | the second wins | the first fills | the
// second fills.
func TestTrapA_LateFillDisturbsNobody(t *testing.T) {
	r := attach(t, open(t, shared.Get(t).Addr()))
	late := r.wins("k", nil)
	ok(t, r.Invalidate(r.ctx, "k"))
	newer := r.wins("k", nil)
	r.fill(late, "late", false)
	r.fill(newer, "newer", true)
	r.holds("k", "newer")
}

// b: strangers who read (health checks, metrics, somebody at a terminal), in every way
// that memcached has, also on an item that they have marked as stale, use up nobody's
// turn.
func TestTrapB_ReadersConsumeNothing(t *testing.T) {
	server := shared.Get(t)
	r, w := attach(t, open(t, server.Addr())), dialWire(t, server.Addr())
	peek := func(key string) {
		item, _, _ := itemKey(sha, r.name, key)
		for range 3 {
			r.Get(r.ctx, key)
			w.say("mg %s v c t", item)
			w.say("me %s", item)
		}
	}
	absent := r.wins("absent", nil)
	peek("absent")
	r.finds("absent", nil, store.Held)
	r.fill(absent, "v", true)

	old := envelope("old")
	r.set("stale", old)
	item, _, _ := itemKey(sha, r.name, "stale")
	if got := w.say("md %s I T600", item); got != "HD" {
		t.Fatalf("md I: %s", got)
	}
	peek("stale")
	r.holds("stale", old)
	lease := r.wins("stale", mark(old))
	peek("stale")
	r.finds("stale", mark(old), store.Held)
	r.fill(lease, "fresh", true)
	r.holds("stale", "fresh")
}

// c: the winner on a stale item dies: of those who ask after the end of his lease one
// wins, and the value is still there.
func TestTrapC_DeadWinnerOnAStaleItem(t *testing.T) {
	t.Parallel()
	st := open(t, shared.Get(t).Addr())
	r := attach(t, st)
	old := envelope("old")
	r.set("k", old)
	if _, err := r.Acquire(r.ctx, "k", store.Request{Token: store.NewToken(), TTL: time.Second, Seen: mark(old)}); err != nil {
		t.Fatal(err)
	}
	r.finds("k", mark(old), store.Held)
	eventually(t, "one takes over", func() bool {
		states := make(chan store.State, 16)
		var wg sync.WaitGroup
		for range cap(states) {
			wg.Go(func() {
				a, err := r.Acquire(r.ctx, "k", store.Request{Token: store.NewToken(), TTL: long, Seen: mark(old)})
				if err != nil {
					t.Error(err)
				}
				states <- a.State
			})
		}
		wg.Wait()
		close(states)
		won := 0
		for s := range states {
			switch s {
			case store.Won:
				won++
			case store.Held:
			default:
				t.Errorf("answer %v", s)
			}
		}
		if won > 1 {
			t.Errorf("%d of 16 took over, want 1", won)
		}
		return won > 0
	})
	r.holds("k", old)
}

// The lease over a stale value ends while its holder pauses, and nobody takes it over:
// the item has not changed since, but its fill is refused, and so is whatever else the
// holder does first.
func TestLeaseOverAValueEnds(t *testing.T) {
	t.Parallel()
	r := attach(t, open(t, shared.Get(t).Addr()))
	old := envelope("old")
	calls := map[string]func(l store.Lease) (bool, error){
		"fill":    func(l store.Lease) (bool, error) { return l.Fill(r.ctx, []byte("late"), long) },
		"fail":    func(l store.Lease) (bool, error) { return l.Fail(r.ctx, []byte("late"), long) },
		"renew":   func(l store.Lease) (bool, error) { return l.Renew(r.ctx, long) },
		"release": func(l store.Lease) (bool, error) { return l.Release(r.ctx) },
	}
	leases := map[string]store.Lease{}
	for key := range calls {
		r.set(key, old)
		a, err := r.Acquire(r.ctx, key, store.Request{Token: store.NewToken(), TTL: time.Second, Seen: mark(old)})
		ok(t, err)
		leases[key] = a.Lease
	}
	r.set("watch", old)
	_, err := r.Acquire(r.ctx, "watch", store.Request{Token: store.NewToken(), TTL: time.Second, Seen: mark(old)})
	ok(t, err)
	eventually(t, "the leases end", func() bool { return r.ask("watch", mark(old)).State == store.Won })
	for key, call := range calls {
		if ok, err := call(leases[key]); ok || err != nil {
			t.Errorf("%s after the lease's end = %v, %v, want false", key, ok, err)
		}
		r.holds(key, old)
	}
}

// d: a server counts from 1 again when it starts. The first wins, with some CAS | the
// server restarts | the second wins the same key, with the same CAS | the first fills.
func TestTrapD_RestartBetweenGrantAndFill(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	name := "restart"
	for _, over := range []string{"", envelope("old")} {
		first, second := attachAs(t, open(t, server.Addr()), name), open(t, server.Addr())
		win := func(r *rig) *lease {
			if over != "" {
				r.set("k", over)
				return r.wins("k", mark(over)).(*lease)
			}
			return r.wins("k", nil).(*lease)
		}
		ok(t, first.Invalidate(first.ctx, "k"))
		before := restartUntilSameCAS(t, server, first, func() *lease { return win(first) }, func() *lease { return win(attachAs(t, second, name)) })
		if ok, err := before.Renew(first.ctx, long); ok || err != nil {
			t.Errorf("Renew after the restart = %v, %v, want false", ok, err)
		}
		if over == "" {
			first.absent("k")
		} else {
			first.holds("k", over)
		}
		first.finds("k", mark(over), store.Held) // by the second
	}
}

// restartUntilSameCAS gets a lease from before a restart and one from after it whose
// CAS is the same, and checks that the older one's fill is refused.
func restartUntilSameCAS(t *testing.T, server *servers.Server, r *rig, before, after func() *lease) *lease {
	t.Helper()
	for range 10 {
		ok(t, server.RestartEmpty(context.Background()))
		r.heals()
		old := before()
		ok(t, server.RestartEmpty(context.Background()))
		r.heals()
		newer := after()
		explicit := newer.conn.life.explicit
		if old.cas != newer.cas && !explicit {
			continue // both count their connections, too; they come in some order
		}
		for range 2 {
			if ok, err := old.Fill(r.ctx, []byte("late"), long); ok || err != nil {
				t.Fatalf("the fill of a lease from before the restart (CAS %d, now %d): %v, %v, want false", old.cas, newer.cas, ok, err)
			}
		}
		t.Logf("CAS %d before the restart, %d after it, chosen by the client: %v", old.cas, newer.cas, explicit)
		return old
	}
	t.Fatal("the CAS values never met")
	return nil
}

// A broken connection alone costs no lease: the new one leads to the same life of the
// server.
func TestLeaseSurvivesItsConnection(t *testing.T) {
	p, r, other := proxied(t)
	old := envelope("old")
	for _, over := range []string{"", old} {
		for what, use := range map[string]func(l store.Lease) (bool, error){
			"fill":    func(l store.Lease) (bool, error) { return l.Fill(r.ctx, []byte("fresh"), long) },
			"fail":    func(l store.Lease) (bool, error) { return l.Fail(r.ctx, []byte("down"), long) },
			"renew":   func(l store.Lease) (bool, error) { return l.Renew(r.ctx, long) },
			"release": func(l store.Lease) (bool, error) { return l.Release(r.ctx) },
		} {
			key, seen := what+over, []byte(nil)
			if over != "" {
				r.set(key, over)
				seen = mark(over)
			}
			lease := r.wins(key, seen)
			p.cut()
			r.heals()
			if ok, err := use(lease); !ok || err != nil {
				t.Errorf("%s over %.10q on a new connection = %v, %v, want it accepted", what, over, ok, err)
			}
			// And a connection that breaks costs nobody else's lease either.
			other.Get(other.ctx, key)
		}
	}
}

// The server's name for its life is gone (evicted): nobody can tell that it is the
// same one, so the lease is refused.
func TestLeaseOfAnUnknownLife(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	p := startProxy(t, server.Addr())
	r := attach(t, open(t, p.addr()))
	lease := r.wins("k", nil)
	if r.connectionOf(lease).life.explicit {
		t.Skip("the server takes CAS values of our choice: its life does not matter")
	}
	if got := dialWire(t, server.Addr()).say("md %s", bootKey); got != "HD" {
		t.Fatalf("the life's name is not there: %s", got)
	}
	p.cut()
	r.heals()
	r.fill(lease, "late", false)
	r.absent("k")
}

func (r *rig) connectionOf(l store.Lease) *conn { return l.(*lease).conn }

// The whole cache is flushed between grant and fill, before and after somebody else
// has won.
func TestFlushInMidLoad(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	r, w := attach(t, open(t, server.Addr())), dialWire(t, server.Addr())
	old := envelope("old")
	for _, won := range []bool{false, true} {
		r.set("stale", old)
		absent, stale := r.wins("absent", nil), r.wins("stale", mark(old))
		if got := w.say("flush_all"); got != "OK" {
			t.Fatal(got)
		}
		var newer store.Lease
		if won {
			newer = r.wins("absent", nil)
		}
		r.fill(absent, "late", false)
		r.fill(stale, "late", false)
		r.absent("absent")
		r.absent("stale")
		if won {
			r.fill(newer, "newer", true)
			r.holds("absent", "newer")
		}
	}
}

// e: a value above the server's limit is refused before it is sent; the lease stands
// until it is released, and then the next caller wins at once.
func TestTrapE_TooLargeValue(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{Args: []string{"-I", "512k"}})
	r := attach(t, open(t, server.Addr()))
	limit := r.Features().MaxValueBytes
	if limit >= 512<<10 || limit < 480<<10 {
		t.Fatalf("the limit is %d bytes on a server with items of 512 KiB", limit)
	}
	largest := string(make([]byte, limit))
	r.fill(r.wins("largest", nil), largest, true)
	r.holds("largest", largest)

	old := envelope("old")
	r.set("stale", old)
	for key, seen := range map[string][]byte{"absent": nil, "stale": mark(old)} {
		lease := r.wins(key, seen)
		ok, err := lease.Fill(r.ctx, make([]byte, limit+1), long)
		var e *store.Error
		if ok || !errors.As(err, &e) || !errors.Is(err, store.ErrTooLarge) || e.Unavailable || e.Addr != server.Addr() {
			t.Errorf("Fill = %v, %v, want store.ErrTooLarge", ok, err)
		}
		r.finds(key, seen, store.Held)
		if ok, err := lease.Release(r.ctx); !ok || err != nil {
			t.Errorf("Release = %v, %v, want it done", ok, err)
		}
		r.fill(r.wins(key, seen), "small", true)
	}
	if _, err := r.Set(r.ctx, "absent", make([]byte, limit+1), long); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("Set = %v, want store.ErrTooLarge", err)
	}
	r.holds("absent", "small")
	// A failure's record that does not fit beside the largest value.
	lease := r.wins("largest", mark(largest))
	if _, err := lease.Fail(r.ctx, make([]byte, 20<<10), long); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("Fail = %v, want store.ErrTooLarge", err)
	}
	if ok, err := lease.Release(r.ctx); !ok || err != nil {
		t.Errorf("Release = %v, %v", ok, err)
	}
	r.holds("largest", largest)
}

// f: the key is absent when it is invalidated, so nothing is left of that; the fill of
// a lease from before is refused all the same, and so is a claim on a value that was
// read before.
func TestTrapF_InvalidateOfAnAbsentKey(t *testing.T) {
	r := attach(t, open(t, shared.Get(t).Addr()))
	lease := r.wins("k", nil)
	ok(t, r.Invalidate(r.ctx, "k"))
	ok(t, r.Invalidate(r.ctx, "k"))
	r.fill(lease, "late", false)
	r.absent("k")

	// Acquire reads the stale value | the key is invalidated | Acquire claims it.
	p, slow, fast := proxied(t)
	old := envelope("old")
	fast.set("k", old)
	release := p.hold(replies)
	answer := make(chan store.Answer, 1)
	go func() {
		a, err := slow.Acquire(slow.ctx, "k", store.Request{Token: store.NewToken(), TTL: long, Seen: mark(old)})
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	p.awaitHeld(replies)
	ok(t, fast.Invalidate(fast.ctx, "k"))
	release()
	a := <-answer
	if a.State != store.Won || a.Item.Found {
		t.Fatalf("Acquire = %v with %q, want won, of an absent key", a.State, a.Item.Data)
	}
	fast.absent("k")
	slow.fill(a.Lease, "fresh", true)
}

// g: an empty value is a value, a lease is none, and a stranger's empty item is the
// stranger's.
func TestTrapG_EmptyValues(t *testing.T) {
	server := shared.Get(t)
	r := attach(t, open(t, server.Addr()))
	r.set("set", "")
	r.holds("set", "")
	lease := r.wins("fill", nil)
	r.absent("fill")
	r.fill(lease, "", true)
	r.holds("fill", "")
	r.finds("fill", nil, store.Hit)

	item, _, _ := itemKey(sha, r.name, "stranger")
	if got := dialWire(t, server.Addr()).say("set %s 0 0 0\r\n", item); got != "STORED" {
		t.Fatal(got)
	}
	r.holds("stranger", "")
	r.fill(r.wins("stranger", mark("")), "ours", true)
	r.holds("stranger", "ours")
}

// h: what the server says remains of an item is what was asked for, above 30 days too.
func TestTrapH_LongTTLs(t *testing.T) {
	server := shared.Get(t)
	r, w := attach(t, open(t, server.Addr())), dialWire(t, server.Addr())
	const day = 24 * time.Hour
	for _, ttl := range []time.Duration{time.Second, 29 * day, 30 * day, 30*day + time.Second, 31 * day, 365 * day} {
		want := int64(ttl / time.Second)
		check := func(how, key string) {
			t.Helper()
			item, _, _ := itemKey(sha, r.name, key)
			var left int64
			if got := w.say("mg %s t", item); got != "EN" || want > 1 { // one second may be over
				if _, err := fmt.Sscanf(got, "HD t%d", &left); err != nil || left > want+1 || left < want-5 {
					t.Errorf("%s with %v: %q, want about t%d", how, ttl, got, want)
				}
			}
		}
		key := ttl.String()
		_, err := r.Set(r.ctx, key, []byte("v"), ttl)
		ok(t, err)
		check("Set", key)
		lease := r.wins(key+" fill", nil)
		_, err = lease.Fill(r.ctx, []byte("v"), ttl)
		ok(t, err)
		check("Fill", key+" fill")
		if want > 100 {
			// A lease that was taken and released has not changed it.
			lease := r.wins(key, mark("v"))
			if ok, err := lease.Release(r.ctx); !ok || err != nil {
				t.Fatalf("Release = %v, %v", ok, err)
			}
			check("Release", key)
		}
	}
}

// i: keys that would be commands, or that memcached does not take, are keys.
func TestTrapI_Injection(t *testing.T) {
	server := shared.Get(t)
	r, w := attach(t, open(t, server.Addr())), dialWire(t, server.Addr())
	victim := "v" + store.NewToken().String()
	for _, key := range []string{"k\r\nset " + victim + " 0 0 1\r\nx", "k 0 0 0\r\n\r\nset " + victim + " 0 0 1\r\nx\r\n", "k\nmd " + victim} {
		r.set(key, "v")
		r.holds(key, "v")
		r.fill(r.wins(key, mark("v")), "w", true)
		ok(t, r.Expire(r.ctx, time.Now(), key))
		ok(t, r.Invalidate(r.ctx, key))
		r.absent(key)
	}
	if got := w.say("mg %s v", victim); got != "EN" {
		t.Errorf("a key has run a command: %s", got)
	}
}

// Two keys whose hash is the same: neither is served the other's value, neither gets
// the other's failure, and both work, if not at the same time.
func TestHashCollision(t *testing.T) {
	st := open(t, shared.Get(t).Addr())
	st.hash = func(string) [32]byte { return [32]byte{1} }
	r := attach(t, st)
	r.set("key a", "of a")
	r.holds("key a", "of a")
	r.absent("key b")
	r.fill(r.wins("key b", nil), "of b", true)
	r.holds("key b", "of b")
	r.absent("key a")

	// One waits for the other's lease rather than break it.
	lease := r.wins("key b", mark("of b"))
	a := r.finds("key a", nil, store.Held)
	if a.Item.Found {
		t.Errorf("the other key's value came with the answer: %q", a.Item.Data)
	}
	r.fill(lease, "of b again", true)
	lease = r.wins("key a", nil)
	if ok, err := lease.Fail(r.ctx, []byte("a is down"), long); !ok || err != nil {
		t.Fatalf("Fail = %v, %v", ok, err)
	}
	r.finds("key a", nil, store.Failed)
	r.fill(r.wins("key b", nil), "of b", true)
	r.set("key a", "of a")
	ok(t, r.Expire(r.ctx, time.Now(), "key b"))
	r.absent("key b")
}

// The caller of Acquire leaves before the answer comes, and the answer is that he has
// won: the lease is given back, and nobody waits for its end.
func TestWonAfterLeaving(t *testing.T) {
	p, slow, fast := proxied(t)
	old := envelope("old")
	fast.set("stale", old)
	for _, c := range []struct {
		key     string
		seen    []byte
		replies int // before the one that says "won"
	}{{"absent", nil, 0}, {"stale", mark(old), 1}} {
		// Acquire is sent | the server grants | the caller leaves | the grant arrives.
		release := p.holdAfter(replies, c.replies)
		ctx, cancel := context.WithCancel(slow.ctx)
		left := make(chan error, 1)
		go func() {
			_, err := slow.Acquire(ctx, c.key, store.Request{Token: store.NewToken(), TTL: long, Seen: c.seen})
			left <- err
		}()
		p.awaitHeld(replies)
		fast.finds(c.key, c.seen, store.Held)
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire = %v, want context.Canceled", err)
		}
		release()
		eventually(t, "the lease is given back", func() bool {
			a := fast.ask(c.key, c.seen)
			if a.State == store.Won {
				fast.fill(a.Lease, "fresh", true)
			}
			return a.State == store.Won
		})
	}
}

// Acquire is sent | the server grants | the deadline passes | the caller asks again
// with his token, and has the lease | the first grant arrives: it is not given back.
func TestGrantAfterTheDeadline(t *testing.T) {
	p, slow, fast := proxied(t)
	if !slow.Features().KeepsToken {
		t.Skip("the server takes no CAS values of our choice, so a token does not win again")
	}
	old := envelope("old")
	fast.set("stale", old)
	for key, seen := range map[string][]byte{"absent": nil, "stale": mark(old)} {
		req := store.Request{Token: store.NewToken(), Try: 1, TTL: long, Seen: seen}
		release := p.holdAfter(replies, len(seen)/store.MarkBytes)
		if _, err := slow.Acquire(soon(t), key, req); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Acquire = %v, want an unavailable error", err)
		}
		req.Try = 2
		again, err := fast.Acquire(fast.ctx, key, req)
		if err != nil || again.State != store.Won {
			t.Fatalf("Acquire with the same token = %v, %v, want won", again.State, err)
		}
		release()
		ok(t, slow.Ping(slow.ctx)) // so the first grant has arrived
		fast.finds(key, seen, store.Held)
		fast.fill(again.Lease, "fresh", true)
	}
}

// As before, but nobody asks again: the grant that arrives after the deadline is given
// back, and nobody waits for its end.
func TestGrantForNobody(t *testing.T) {
	p, slow, fast := proxied(t)
	old := envelope("old")
	fast.set("stale", old)
	for key, seen := range map[string][]byte{"absent": nil, "stale": mark(old)} {
		release := p.holdAfter(replies, len(seen)/store.MarkBytes)
		_, err := slow.Acquire(soon(t), key, store.Request{Token: store.NewToken(), Try: 1, TTL: long, Seen: seen})
		if !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Acquire = %v, want an unavailable error", err)
		}
		fast.finds(key, seen, store.Held)
		release()
		fast.fill(fast.lapses(key, seen, long).Lease, "fresh", true)
	}
}

// Try 1 is sent and does not arrive | its deadline passes, and its connection is given
// up, or not | try 2 wins | the key is invalidated | try 1 arrives, and is granted a lease
// | try 2 fills: what it has loaded is old. Where the connection lives, try 1's lease is
// given back; else nobody knows of it, and it ends by itself.
func TestLateTry(t *testing.T) {
	for _, givenUp := range []bool{false, true} {
		t.Run(fmt.Sprint("given up ", givenUp), func(t *testing.T) {
			p, slow, fast := proxied(t)
			token := store.NewToken()
			release := p.hold(requests)
			if _, err := slow.Acquire(soon(t), "k", store.Request{Token: token, Try: 1, TTL: long}); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("Acquire = %v, want an unavailable error", err)
			}
			p.awaitHeld(requests)
			if givenUp {
				slow.connection().fail(errStalled)
			}
			again, err := fast.Acquire(fast.ctx, "k", store.Request{Token: token, Try: 2, TTL: long})
			if err != nil || again.State != store.Won {
				t.Fatalf("try 2 = %v, %v, want won", again.State, err)
			}
			ok(t, fast.Invalidate(fast.ctx, "k"))
			made := dialWire(t, shared.Get(t).Addr())
			item, _, _ := itemKey(sha, fast.name, "k")
			release()
			if givenUp {
				eventually(t, "try 1 arrives", func() bool { return strings.HasPrefix(made.say("me %s", item), "ME") })
			} else {
				ok(t, slow.Ping(slow.ctx)) // behind try 1
			}
			fast.fill(again.Lease, "late", false)
			fast.absent("k")
			if givenUp {
				fast.finds("k", nil, store.Held)
				return
			}
			fast.fill(fast.lapses("k", nil, long).Lease, "fresh", true)
		})
	}
}

// Try 2 takes the lease that try 1 has been granted, before or after it was renewed; a
// try that comes late gets a lease that can do nothing, and disturbs nobody.
func TestTriesOfOneFlight(t *testing.T) {
	r := attach(t, open(t, shared.Get(t).Addr()))
	if !r.Features().KeepsToken {
		t.Skip("the server takes no CAS values of our choice, so a token does not win again")
	}
	old := envelope("old")
	for _, over := range []string{"", old} {
		for _, renewed := range []bool{false, true} {
			key, seen := fmt.Sprint(len(over), renewed), []byte(nil)
			if over != "" {
				r.set(key, over)
				seen = mark(over)
			}
			token := store.NewToken()
			try := func(n uint32) store.Lease {
				t.Helper()
				a, err := r.Acquire(r.ctx, key, store.Request{Token: token, Try: n, TTL: long, Seen: seen})
				if err != nil || a.State != store.Won || string(a.Item.Data) != over {
					t.Fatalf("try %d = %v over %q, %v, want won", n, a.State, a.Item.Data, err)
				}
				return a.Lease
			}
			first := try(1)
			if renewed {
				_, err := first.Renew(r.ctx, long)
				ok(t, err)
			}
			third := try(3)
			second := try(2)
			for name, lost := range map[string]store.Lease{"earlier": first, "late": second} {
				for what, err := range map[string]error{
					"fill": refused(lost.Fill(r.ctx, []byte("lost"), long)), "fail": refused(lost.Fail(r.ctx, []byte("down"), long)),
					"renew": refused(lost.Renew(r.ctx, long)), "release": refused(lost.Release(r.ctx)),
				} {
					if err != nil {
						t.Errorf("the %s try's %s: %v", name, what, err)
					}
				}
			}
			r.finds(key, seen, store.Held)
			r.fill(third, "fresh", true)
			r.holds(key, "fresh")
		}
	}
}

// refused is an error unless a lease's call was refused.
func refused(ok bool, err error) error {
	if err == nil && ok {
		return errors.New("accepted")
	}
	return err
}

// The answer to a call of the lease is lost: what the holder does next finds out.
func TestLostAnswers(t *testing.T) {
	p, slow, fast := proxied(t)
	old := envelope("old")
	for _, c := range []struct {
		name    string
		over    string
		replies int // before the one that is lost
		call    func(ctx context.Context, l store.Lease) error
		fills   bool // a fill is accepted afterwards
	}{
		{"renew", "", 0, func(ctx context.Context, l store.Lease) error { return second(l.Renew(ctx, long)) }, true},
		{"renew over a value", old, 1, func(ctx context.Context, l store.Lease) error { return second(l.Renew(ctx, long)) }, true},
		{"fill", "", 0, func(ctx context.Context, l store.Lease) error { return second(l.Fill(ctx, []byte("filled"), long)) }, false},
		{"fill over a value", old, 1, func(ctx context.Context, l store.Lease) error { return second(l.Fill(ctx, []byte("filled"), long)) }, false},
		{"fail", "", 0, func(ctx context.Context, l store.Lease) error { return second(l.Fail(ctx, []byte("down"), long)) }, false},
		{"release", "", 0, func(ctx context.Context, l store.Lease) error { return second(l.Release(ctx)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen []byte
			if c.over != "" {
				fast.set(c.name, c.over)
				seen = mark(c.over)
			}
			lease := slow.wins(c.name, seen)
			release := p.holdAfter(replies, c.replies)
			ctx, cancel := context.WithCancel(slow.ctx)
			lost := make(chan error, 1)
			go func() { lost <- c.call(ctx, lease) }()
			p.awaitHeld(replies) // the server has done it
			cancel()
			if err := <-lost; !errors.Is(err, context.Canceled) {
				t.Fatalf("error %v, want context.Canceled", err)
			}
			release()
			before, err := fast.Get(fast.ctx, c.name)
			ok(t, err)
			if !c.fills {
				if ok, err := lease.Release(slow.ctx); ok || err != nil {
					t.Errorf("Release = %v, %v, want false: it has ended", ok, err)
				}
			}
			slow.fill(lease, "after", c.fills)
			if c.fills {
				fast.holds(c.name, "after")
			} else if after, err := fast.Get(fast.ctx, c.name); err != nil || string(after.Data) != string(before.Data) {
				t.Errorf("%q became %q, %v", before.Data, after.Data, err)
			}
		})
	}
}

// The request itself is lost: the lease still stands, and Release frees the key.
func TestLostRequest(t *testing.T) {
	p, slow, fast := proxied(t)
	lease := slow.wins("k", nil)
	release := p.hold(requests)
	if _, err := lease.Fill(soon(t), []byte("filled"), long); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("Fill = %v, want an unavailable error", err)
	}
	p.cut()
	release()
	slow.heals()
	fast.finds("k", nil, store.Held)
	if ok, err := lease.Release(slow.ctx); !ok || err != nil {
		t.Errorf("Release = %v, %v, want it done", ok, err)
	}
	fast.fill(fast.wins("k", nil), "fresh", true)
	slow.fill(lease, "late", false)
	fast.holds("k", "fresh")
}
