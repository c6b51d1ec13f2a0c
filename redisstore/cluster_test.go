package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// ownedBy finds a key of a cache that lies on a server.
func ownedBy(t *testing.T, server *servers.Server, name string, after int) string {
	t.Helper()
	for i := after; i < after+1000; i++ {
		key := fmt.Sprint("k", i)
		if got := sayTo(t, server.Addr(), "GET", valueKey(sessionPrefix(name), key)); !strings.HasPrefix(got, "-MOVED") && !strings.HasPrefix(got, "MOVED") {
			return key
		}
	}
	t.Fatal("no key of 1000 lies there")
	return ""
}

// A node of a cluster is promoted, by a takeover that loses what the primary had not
// passed on: once the primary is dead, once it is alive and is demoted behind open
// connections. The client has known the replica's address since it has asked for the
// nodes, and may have a connection to it from when it was one.
func TestReplacedInACluster(t *testing.T) {
	for _, how := range []string{"dead", "alive"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			sh := servertest.RedisCluster(t, 1)[0]
			a := attach(t, variants[0].on(t, sh.Replica.URL()+"?addr="+sh.Primary.Addr()), "n")
			b := attach(t, variants[1].on(t, sh.Primary.URL()+"?addr="+sh.Replica.Addr()), "n")
			for i := range 50 {
				a.set(fmt.Sprint(i), "v")
				b.get(fmt.Sprint(i))
			}
			if n := a.replacements() + b.replacements(); n != 0 {
				t.Errorf("told of %d replacements before there was one", n)
			}
			if how == "dead" {
				ok(t, sh.Primary.Kill())
			}
			if got := sayTo(t, sh.Replica.Addr(), "CLUSTER", "FAILOVER", "TAKEOVER"); got != "OK" {
				t.Fatal(got)
			}
			eventually(t, "the replica is the primary", func() error {
				if info := sayTo(t, sh.Replica.Addr(), "INFO", "replication"); !strings.Contains(info, "role:master") {
					return errors.New(info)
				}
				return nil
			})
			for who, r := range map[string]*rig{"open": a, "new": b} {
				told := 0
				eventually(t, "a lease from the new primary", func() error {
					_, err := r.Acquire(r.ctx, who, store.Request{Token: store.NewToken(), Try: 1, TTL: time.Minute})
					told = r.replacements()
					if err != nil {
						return err
					}
					if there := sayTo(t, sh.Replica.Addr(), "EXISTS", leaseKey(valueKey("of:{n:", who))); there != "1" {
						return errors.New("it was given by the old primary")
					}
					return nil
				})
				if who == "open" && told == 0 {
					t.Error("open: answered by the replica before the session was told")
				}
				if who == "new" { // a little late, as its documentation says
					eventually(t, "new: told of the replacement", func() error {
						r.get("k")
						if r.replacements() == 0 {
							return errors.New("not yet")
						}
						return nil
					})
				}
			}
		})
	}
}

// A cut in a cluster is no replacement.
func TestCutInACluster(t *testing.T) {
	shards := servertest.RedisCluster(t, 2)
	a := attach(t, variants[0].on(t, shards[0].Primary.URL()+"?addr="+shards[1].Replica.Addr()), "n")
	keys := []string{ownedBy(t, shards[0].Primary, "n", 0), ownedBy(t, shards[1].Primary, "n", 0)}
	for range 3 {
		for i, key := range keys {
			a.set(key, "v")
			sayTo(t, shards[i].Primary.Addr(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			a.succeeds("an answer", func(ctx context.Context) error { _, err := a.Get(ctx, key); return err })
		}
	}
	if n := a.replacements(); n != 0 {
		t.Errorf("told of %d replacements", n)
	}
	// One of them is restarted: that is one.
	ok(t, shards[1].Primary.Restart(a.ctx))
	told := a.succeeds("an answer", func(ctx context.Context) error { _, err := a.Get(ctx, keys[1]); return err })
	if told == 0 {
		t.Error("answered by the restarted node before the session was told")
	}
	a.wantValue(keys[0], "v")
}

// The tags of a cache are in one slot, so that all of them are voided in one step, whatever
// is in them; caches of other names have other slots. They are pushed by the node that has
// them, and confirmed by its replica.
func TestTagsInACluster(t *testing.T) {
	shards := servertest.RedisCluster(t, 2)
	url := shards[0].Primary.URL() + "?addr=" + shards[1].Primary.Addr()
	tags := []string{"", "t", "{x}", "}", "a:b", "of:{other:k}", strings.Repeat("é", 125)}
	for i := range 300 {
		tags = append(tags, fmt.Sprint("tag ", i))
	}
	for name, v := range map[string]variant{"open": confirmed(variants[0], 1, patience), "new": confirmed(variants[1], 1, patience)} {
		t.Run(name, func(t *testing.T) {
			for i := range 4 { // of both nodes
				cache := fmt.Sprint(name, i)
				a, b := attach(t, v.on(t, url), cache), attach(t, v.on(t, url), cache)
				before := must(tagger(a).Generations(a.ctx, time.Hour, tags...))(t)
				start := time.Now()
				b.void(tags...)
				took := time.Since(start)
				for i, g := range must(tagger(a).Generations(a.ctx, time.Hour, tags...))(t) {
					if g <= before[i] {
						t.Errorf("generation %d of tag %q after it was voided, it was %d", g, tags[i], before[i])
					}
				}
				if a.Features().Push {
					for _, tag := range tags {
						a.awaitVoided(tag, 1)
					}
				}
				if n := b.voids("t"); n != 0 && took < ownPushDelay { // a slower one may be told
					t.Errorf("told of its own void %d times, which took %v", n, took)
				}
			}
		})
	}
}

// The rights that the documentation says are enough in a cluster; and without one of them.
func TestMinimalACLInACluster(t *testing.T) {
	c := servertest.RedisCluster(t, 2)
	allow := func(rights ...string) {
		t.Helper()
		for _, couple := range c {
			for _, s := range []*servers.Server{couple.Primary, couple.Replica} {
				if got := sayTo(t, s.Addr(), append([]string{"ACL", "SETUSER", "cache"}, rights...)...); got != "OK" {
					t.Fatal(got)
				}
			}
		}
	}
	allow(append(strings.Fields(minimalACL), "on", ">secret", "+cluster|slots", "+cluster|shards")...)
	url := "redis://cache:secret@" + c[0].Primary.Addr() + "?addr=" + c[1].Primary.Addr()
	keys := []string{ownedBy(t, c[0].Primary, "n", 0), ownedBy(t, c[1].Primary, "n", 0)}
	for _, rights := range []string{"-cluster|nodes", "+cluster|nodes"} {
		allow(rights)
		for _, v := range variants {
			t.Run(v.name+", "+rights, func(t *testing.T) {
				a := attach(t, v.on(t, url), "n")
				for _, key := range keys {
					for op := range every(a, nil) {
						a.set(key, "v")
						ok(t, a.Invalidate(a.ctx, key))
						lease := a.acquire(key, store.Request{Token: store.NewToken()}).Lease
						if err := every(a, lease)[op](a.ctx); err != nil {
							t.Errorf("%s: %v", op, err)
						}
					}
				}
				if one, charted := serverOf(a, keys[0]) == serverOf(a, keys[1]), rights[0] == '+'; one == charted {
					t.Errorf("the keys' servers are %q and %q", serverOf(a, keys[0]), serverOf(a, keys[1]))
				}
			})
		}
	}
	if got := sayTo(t, c[0].Primary.Addr(), "ACL", "LOG"); strings.Contains(got, "evalsha") || strings.Contains(got, "lua") {
		t.Errorf("commands of ours were refused: %s", got)
	}
}
