package redisstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// manyAreRead sets every other key and reads all of them.
func manyAreRead(t *testing.T, a *rig, n int) {
	t.Helper()
	keys := make([]string, n)
	for i := range keys {
		if keys[i] = fmt.Sprint("k", i); i%2 == 0 {
			a.set(keys[i], "v")
		}
	}
	for range 2 {
		items, err := a.Session.(store.ManyReader).GetMany(a.ctx, keys)
		if err != nil || len(items) != n {
			t.Fatalf("%d items, %v", len(items), err)
		}
		for i, item := range items {
			if item.Found != (i%2 == 0) {
				t.Errorf("%s: found %t", keys[i], item.Found)
			}
		}
	}
}

// A user that may not use MGET, by an ACL from before this used it, reads by GETs.
func TestGetManyWithoutMGET(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	args := append([]string{"ACL", "SETUSER", "cache", "on", ">secret"}, strings.Fields(strings.ReplaceAll(minimalACL, " +mget", ""))...)
	if got := sayTo(t, server.Addr(), args...); got != "OK" {
		t.Fatal(got)
	}
	forEach(t, func(t *testing.T, v variant) {
		manyAreRead(t, attach(t, v.on(t, "redis://cache:secret@"+server.Addr()), unique(t)), 300)
	})
}

// In a cluster the keys lie in many slots, also if the store may not know which: one address
// is given, and CLUSTER NODES is refused.
func TestGetManyInACluster(t *testing.T) {
	c := servertest.RedisCluster(t, 2)
	for _, rights := range []string{"-cluster|nodes", "+cluster|nodes"} {
		for _, couple := range c {
			for _, s := range []*servers.Server{couple.Primary, couple.Replica} {
				if got := sayTo(t, s.Addr(), append([]string{"ACL", "SETUSER", "cache"}, append(strings.Fields(minimalACL), "on", ">secret", "+cluster|slots", "+cluster|shards", rights)...)...); got != "OK" {
					t.Fatal(got)
				}
			}
		}
		t.Run(rights, func(t *testing.T) {
			manyAreRead(t, attach(t, opened(t, "redis://cache:secret@"+c[0].Primary.Addr()), unique(t)), 300)
		})
	}
}
