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

// couple is a primary of a cluster and its replica.
type couple struct{ primary, replica *servers.Server }

// startCluster starts a cluster whose slots are shared out evenly.
func startCluster(t *testing.T, n int) []couple {
	t.Helper()
	node := func() *servers.Server {
		return servertest.Redis(t, servers.RedisOptions{Args: []string{"--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0",
			"--cluster-node-timeout", "2000"}})
	}
	say := func(s *servers.Server, command ...string) {
		t.Helper()
		if got := sayTo(t, s.Addr(), command...); got != "OK" {
			t.Fatalf("%v: %s", command, got)
		}
	}
	const slots = 16384
	shards := make([]couple, n)
	for i := range shards {
		shards[i] = couple{node(), node()}
		say(shards[i].primary, "CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(i*slots/n), fmt.Sprint((i+1)*slots/n-1))
		for _, s := range []*servers.Server{shards[i].primary, shards[i].replica} {
			if s != shards[0].primary {
				say(s, "CLUSTER", "MEET", "127.0.0.1", fmt.Sprint(shards[0].primary.Port()))
			}
		}
	}
	everywhere(t, shards, func(info string) bool { return strings.Contains(info, fmt.Sprint("cluster_known_nodes:", 2*n)) })
	for _, sh := range shards {
		id := sayTo(t, sh.primary.Addr(), "CLUSTER", "MYID")
		eventually(t, "the replica knows its primary", func() error {
			if got := sayTo(t, sh.replica.Addr(), "CLUSTER", "REPLICATE", id); got != "OK" {
				return errors.New(got)
			}
			return nil
		})
		inStep(t, sh.replica)
	}
	everywhere(t, shards, func(info string) bool { return strings.Contains(info, "cluster_state:ok") })
	eventually(t, "everybody knows the replicas", func() error {
		for _, sh := range shards {
			if got := sayTo(t, sh.primary.Addr(), "CLUSTER", "NODES"); strings.Count(got, "slave") != n {
				return errors.New(got)
			}
		}
		return nil
	})
	return shards
}

func everywhere(t *testing.T, shards []couple, settled func(info string) bool) {
	t.Helper()
	eventually(t, "the cluster has settled", func() error {
		for _, sh := range shards {
			for _, s := range []*servers.Server{sh.primary, sh.replica} {
				if info := sayTo(t, s.Addr(), "CLUSTER", "INFO"); !settled(info) {
					return errors.New(info)
				}
			}
		}
		return nil
	})
}

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
			sh := startCluster(t, 1)[0]
			a := attach(t, variants[0].on(t, sh.replica.URL()+"?addr="+sh.primary.Addr()), "n")
			b := attach(t, variants[1].on(t, sh.primary.URL()+"?addr="+sh.replica.Addr()), "n")
			for i := range 50 {
				a.set(fmt.Sprint(i), "v")
				b.get(fmt.Sprint(i))
			}
			if n := a.replacements() + b.replacements(); n != 0 {
				t.Errorf("told of %d replacements before there was one", n)
			}
			if how == "dead" {
				ok(t, sh.primary.Kill())
			}
			if got := sayTo(t, sh.replica.Addr(), "CLUSTER", "FAILOVER", "TAKEOVER"); got != "OK" {
				t.Fatal(got)
			}
			eventually(t, "the replica is the primary", func() error {
				if info := sayTo(t, sh.replica.Addr(), "INFO", "replication"); !strings.Contains(info, "role:master") {
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
					if there := sayTo(t, sh.replica.Addr(), "EXISTS", leaseKey(valueKey("of:{n:", who))); there != "1" {
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
	shards := startCluster(t, 2)
	a := attach(t, variants[0].on(t, shards[0].primary.URL()+"?addr="+shards[1].replica.Addr()), "n")
	keys := []string{ownedBy(t, shards[0].primary, "n", 0), ownedBy(t, shards[1].primary, "n", 0)}
	for range 3 {
		for i, key := range keys {
			a.set(key, "v")
			sayTo(t, shards[i].primary.Addr(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			a.succeeds("an answer", func(ctx context.Context) error { _, err := a.Get(ctx, key); return err })
		}
	}
	if n := a.replacements(); n != 0 {
		t.Errorf("told of %d replacements", n)
	}
	// One of them is restarted: that is one.
	ok(t, shards[1].primary.Restart(a.ctx))
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
	shards := startCluster(t, 2)
	url := shards[0].primary.URL() + "?addr=" + shards[1].primary.Addr()
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
				b.void(tags...)
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
				if n := b.voids("t"); n != 0 {
					t.Errorf("told of its own void %d times", n)
				}
			}
		})
	}
}
