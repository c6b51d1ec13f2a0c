package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// lies reads what lies in a lease's key.
func lies(t *testing.T, s *Store, r *rig, key string) string {
	t.Helper()
	got, err := raw(t, s, "GET", leaseKey(valueKey(sessionPrefix(r.name), key))).ToString()
	ok(t, err)
	return got
}

func leaseTTL(t *testing.T, s *Store, r *rig, key string) time.Duration {
	t.Helper()
	ms, err := raw(t, s, "PTTL", leaseKey(valueKey(sessionPrefix(r.name), key))).AsInt64()
	ok(t, err)
	return time.Duration(ms) * time.Millisecond
}

func (r *rig) mustFail(l store.Lease, record string, ttl time.Duration) {
	r.t.Helper()
	if !must(l.Fail(r.ctx, []byte(record), ttl))(r.t) {
		r.t.Fatal("Fail was refused")
	}
}

// What lies in the lease's key is a format: others read it, and a rolling deploy has both
// versions of the code. docs/format.md describes it.
func TestClaimBytes(t *testing.T) {
	s := variants[0].store(t)
	a := attach(t, s, unique(t))
	token := store.Token{0: 0xa0, 15: 0xaf}
	a.acquire("k", store.Request{Token: token, Try: 0x01020304, TTL: time.Minute})
	claim := "t" + string(token[:]) + "\x01\x02\x03\x04"
	if got := lies(t, s, a, "k"); got != claim {
		t.Errorf("a lease: %q, want %q", got, claim)
	}
	a.mustFail(a.win("long"), "down", time.Minute)
	if got := lies(t, s, a, "long"); got != "f60000:down" {
		t.Errorf("a failure: %q, want f60000:down", got)
	}
	if ttl := leaseTTL(t, s, a, "long"); ttl <= time.Minute || ttl > 2*time.Minute {
		t.Errorf("a failure that blocks for a minute is there for %s, want two", ttl)
	}
	// Its first half is over: the next winner's claim carries it along.
	ok(t, raw(t, s, "PEXPIRE", leaseKey(valueKey(sessionPrefix(a.name), "long")), "50000").Error())
	a.acquire("long", store.Request{Token: token, Try: 0x01020304})
	got, left, record := lies(t, s, a, "long"), 0, ""
	if _, err := fmt.Sscanf(strings.TrimPrefix(got, claim), "%d:%s", &left, &record); err != nil || left > 50000 || left < 40000 || record != "down" {
		t.Errorf("a lease that was won over a failure: %q, want the claim, 50000:down", got)
	}
}

// Whatever else lies there holds up nobody, and nothing in it is taken for a record.
func TestForeignClaims(t *testing.T) {
	s := variants[0].store(t)
	a := attach(t, s, unique(t))
	for i, foreign := range []string{"", "t", "tshort", "f", "f:", "fx:down", "f-1:down", "fdown", "x", "f12", "{}"} {
		key := fmt.Sprint(i)
		ok(t, raw(t, s, "SET", leaseKey(valueKey(sessionPrefix(a.name), key)), foreign, "PX", "60000").Error())
		won := a.acquire(key, store.Request{Token: store.NewToken(), TTL: time.Minute})
		if won.State != store.Won || won.Failure != nil {
			t.Errorf("%q: %s, failure %q, want won and nothing else", foreign, won.State, won.Failure)
			continue
		}
		if !must(won.Lease.Fill(a.ctx, []byte("v"), time.Minute))(t) {
			t.Errorf("%q: the fill was refused", foreign)
		}
	}
}

// The record goes along with the lease: who asks again because the reply was lost gets
// it again, and who gives the lease back leaves it behind for what was left of it.
func TestRecordOutlivesALease(t *testing.T) {
	s := variants[0].store(t)
	a := attach(t, s, unique(t))
	a.mustFail(a.win("k"), "3 in a row", 30*time.Second)
	ok(t, raw(t, s, "PEXPIRE", leaseKey(valueKey(sessionPrefix(a.name), "k")), "20000").Error())
	token := store.NewToken()
	for try := range uint32(3) {
		won := a.acquire("k", store.Request{Token: token, Try: try + 1, TTL: time.Hour})
		if won.State != store.Won || string(won.Failure) != "3 in a row" {
			t.Fatalf("try %d: %s, failure %q", try+1, won.State, won.Failure)
		}
		if try < 2 {
			continue
		}
		if !must(won.Lease.Renew(a.ctx, time.Hour))(t) || !must(won.Lease.Release(a.ctx))(t) {
			t.Fatal("the lease was lost")
		}
	}
	if ttl := leaseTTL(t, s, a, "k"); ttl > 20*time.Second || ttl < 10*time.Second {
		t.Errorf("after the release the record stays for %s, want what was left: 20s", ttl)
	}
	won := a.acquire("k", store.Request{Token: store.NewToken(), TTL: time.Minute})
	if won.State != store.Won || string(won.Failure) != "3 in a row" {
		t.Errorf("after the release: %s, failure %q", won.State, won.Failure)
	}
	a.mustFail(won.Lease, "4 in a row", time.Minute)
	if got := lies(t, s, a, "k"); got != "f60000:4 in a row" {
		t.Errorf("after the next failure: %q", got)
	}
}

// A server that is full lets the lease go all the same, and forgets the record.
func TestReleaseOnAFullServer(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{Args: []string{"--maxmemory-policy", "noeviction"}})
	s := variants[0].on(t, server.URL())
	a := attach(t, s, "n")
	a.mustFail(a.win("k"), "down", 30*time.Second)
	ok(t, raw(t, s, "PEXPIRE", leaseKey(valueKey(sessionPrefix(a.name), "k")), "20000").Error())
	won := a.acquire("k", store.Request{Token: store.NewToken(), TTL: time.Minute})
	if string(won.Failure) != "down" {
		t.Fatalf("%s, failure %q", won.State, won.Failure)
	}
	ok(t, raw(t, s, "CONFIG", "SET", "maxmemory", "1").Error())
	if !must(won.Lease.Release(a.ctx))(t) {
		t.Error("the lease was not released")
	}
	ok(t, raw(t, s, "CONFIG", "SET", "maxmemory", "0").Error())
	if again := a.acquire("k", store.Request{Token: store.NewToken()}); again.State != store.Won || again.Failure != nil {
		t.Errorf("after the release: %s, failure %q", again.State, again.Failure)
	}
}
