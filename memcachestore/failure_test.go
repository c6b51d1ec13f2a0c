package memcachestore

import (
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// h: the server's clock ticks once a second, so a TTL of one second may be over at once.
// A failure record of one second lasts for one at least, whatever the tick's phase:
// otherwise a waiter comes by too late and loads again. Forced: records are left every
// 50 ms for more than a second, and each is looked at when its second is nearly over.
func TestFailureOutlastsTheTick(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{})
	r := attach(t, open(t, server.Addr()))
	const records, apart, ttl = 25, 50 * time.Millisecond, time.Second
	type look struct {
		state store.State
		err   error
		after time.Duration // the answer, from before the failure was sent
	}
	looks := make(chan look, records)
	tick := time.NewTicker(apart)
	defer tick.Stop()
	for i := range records {
		key := string(rune('a' + i))
		lease, began := r.wins(key, nil), time.Now()
		if ok, err := lease.Fail(r.ctx, []byte("record"), ttl); !ok || err != nil {
			t.Fatalf("Fail: %v, %v", ok, err)
		}
		time.AfterFunc(ttl-apart-time.Since(began), func() {
			a, err := r.Acquire(r.ctx, key, store.Request{Token: store.NewToken(), Try: 1, TTL: 2 * time.Second})
			looks <- look{a.State, err, time.Since(began)}
		})
		<-tick.C
	}
	late := 0
	for range records {
		switch l := <-looks; {
		case l.err != nil:
			t.Error(l.err)
		case l.after > ttl:
			late++ // a busy machine: whatever was found is right
		case l.state != store.Failed:
			t.Errorf("%v after %v, want failed", l.state, l.after)
		}
	}
	if late > 0 {
		t.Logf("%d of %d records were looked at too late to tell", late, records)
	}
}

// failsFor leaves a failure that counts for ttl on a key, which may have a value, and
// returns the value's mark.
func (r *rig) failsFor(key, over string, ttl time.Duration) (seen []byte) {
	r.t.Helper()
	if over != "" {
		r.set(key, over)
		seen = mark(over)
	}
	if ok, err := r.wins(key, seen).Fail(r.ctx, []byte("down"), ttl); !ok || err != nil {
		r.t.Fatalf("Fail = %v, %v", ok, err)
	}
	return seen
}

// lapses waits until the key's failure or lease has ended, and returns the next
// winner's answer.
func (r *rig) lapses(key string, seen []byte, lease time.Duration) (won store.Answer) {
	r.t.Helper()
	eventually(r.t, "the claim on "+key+" ends", func() bool {
		var err error
		won, err = r.Acquire(r.ctx, key, store.Request{Token: store.NewToken(), Try: 1, TTL: lease, Seen: seen})
		ok(r.t, err)
		return won.State == store.Won
	})
	return won
}

// peek reads the key's item, which changes nothing.
func (r *rig) peek(key string) item {
	r.t.Helper()
	p, err := r.Session.(*session).at("peek", key)
	ok(r.t, err)
	c, err := p.node.get(r.ctx)
	ok(r.t, err)
	it, err := p.read(r.ctx, c)
	ok(r.t, err)
	return it
}

// What has happened to a failure's record when it has stopped to count: the winner who
// gets it renews, gives up, or dies without a word, and the next one gets it, too. It
// touches the value as little as the failure did. It is remembered for much longer than
// the test takes to look.
func TestFailureOutlastsTheNextLease(t *testing.T) {
	t.Parallel()
	const counts = 6 * time.Second // so from the 6th to the 12th second it is remembered
	for name, over := range map[string]string{"absent": "", "stale": envelope("old")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := attach(t, open(t, shared.Get(t).Addr()))
			began := time.Now()
			check := func(who string, a store.Answer) {
				t.Helper()
				if time.Since(began) > 2*counts-2*time.Second {
					t.Logf("the %s winner: too late to tell", who)
				} else if string(a.Failure) != "down" || string(a.Item.Data) != over {
					t.Errorf("the %s winner gets the failure %q over %q, want %q over %q", who, a.Failure, a.Item.Data, "down", over)
				}
			}
			seen := r.failsFor(name, over, counts)
			first := r.lapses(name, seen, long)
			check("first", first)
			if item, err := r.Get(r.ctx, name); err != nil || item.Found != (over != "") || string(item.Data) != over {
				t.Errorf("Get = %v %q, %v", item.Found, item.Data, err)
			}
			if ok, err := first.Lease.Renew(r.ctx, long); !ok || err != nil {
				t.Errorf("Renew = %v, %v", ok, err)
			}
			if ok, err := first.Lease.Release(r.ctx); !ok || err != nil {
				t.Errorf("Release = %v, %v", ok, err)
			}
			second := r.lapses(name, seen, 2*time.Second)
			check("second", second)
			eventually(t, "the second dies", func() bool { return r.peek(name).claim == unclaimed })
			r.fill(second.Lease, "late", false) // though the item is as it was
			third := r.lapses(name, seen, long)
			check("third", third)
			r.fill(third.Lease, "fresh", true)
			if after := r.finds(name, mark("fresh"), store.Won); len(after.Failure) > 0 {
				t.Errorf("after a fill the winner gets the failure %q", after.Failure)
			}
		})
	}
}

// A write that changes nothing else, since the value is of a newer row or has expired
// already, forgets a failure that has stopped to count.
func TestWritesForgetAnOldFailure(t *testing.T) {
	t.Parallel()
	r := attach(t, open(t, shared.Get(t).Addr()))
	row := func(version uint64) string {
		e := store.Envelope{Kind: store.KindValue, SoftExpiry: time.Now().Add(-time.Hour), RowVersion: version}
		return string(e.Encode())
	}
	writes := map[string]func(key string) error{
		"expire": func(key string) error { return r.Expire(r.ctx, time.Now(), key) },
		"set": func(key string) error {
			stored, err := r.Set(r.ctx, key, []byte(row(1)), long)
			if stored {
				t.Errorf("an older row was stored")
			}
			return err
		},
	}
	const counts = 6 * time.Second
	old := row(2)
	for key := range writes {
		r.failsFor(key, old, counts)
	}
	for key, write := range writes {
		eventually(t, "the failure ends", func() bool { it := r.peek(key); return it.claim == unclaimed && it.recorded })
		ok(t, write(key))
		if it := r.peek(key); it.recorded {
			t.Errorf("%s: the failure is still remembered: %q", key, it.record)
		}
		r.holds(key, old)
	}
}

// A record that does not count any more is taken over by one contender: slow reads the
// record | fast reads it and takes the lease | slow tries to take it.
func TestOneTakesOverAFailure(t *testing.T) {
	t.Parallel()
	p, slow, fast := proxied(t)
	fast.failsFor("k", "", 4*time.Second)
	eventually(t, "the failure ends", func() bool { it := fast.peek("k"); return it.claim == unclaimed && it.recorded })
	fast.absent("k")
	release := p.hold(replies)
	answer := make(chan store.Answer, 1)
	go func() {
		a, err := slow.Acquire(slow.ctx, "k", store.Request{Token: store.NewToken(), Try: 1, TTL: long})
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	p.awaitHeld(replies)
	won := fast.finds("k", nil, store.Won)
	if string(won.Failure) != "down" {
		t.Errorf("the winner gets the failure %q", won.Failure)
	}
	release()
	if a := <-answer; a.State != store.Held {
		t.Errorf("the other one = %v, want held", a.State)
	}
	fast.fill(won.Lease, "fresh", true)
}
