package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// inspector is the rig's session as operators use it.
func (r *rig) inspector() store.Inspector { return r.Session.(store.Inspector) }

// To look takes one command and changes nothing, and all of it works with the rights that
// the package documentation names.
func TestInspectReadsOnly(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	say := func(command ...string) string { return sayTo(t, server.Addr(), command...) }
	if got := say(append([]string{"ACL", "SETUSER", "cache", "on", ">secret"}, strings.Fields(minimalACL)...)...); got != "OK" {
		t.Fatal(got)
	}
	a := attach(t, opened(t, "redis://cache:secret@"+server.Addr(), NoTracking()), "n")
	a.set("k", "v")
	lease := a.win("leased")
	a.void("t")
	must(a.inspector().Inspect(a.ctx, "warm"))(t) // from here on the server knows the scripts
	must(a.inspector().InspectTags(a.ctx, "warm"))(t)
	say("CONFIG", "RESETSTAT")
	before := say("DBSIZE")

	for _, key := range []string{"k", "leased", "absent"} {
		h := must(a.inspector().Inspect(a.ctx, key))(t)
		if h.Item.Found != (key == "k") || (h.Lease.ID != "") != (key == "leased") || h.Server != server.Addr() {
			t.Errorf("%s: %+v", key, h)
		}
		if off := time.Since(h.Clock).Abs(); off > time.Minute {
			t.Errorf("%s: the server's clock is said to be %v", key, h.Clock)
		}
	}
	if s := must(a.inspector().InspectTags(a.ctx, "t", "u"))(t); s.Epoch == 0 || s.Generations[0] != s.Epoch || s.Generations[1] != 0 {
		t.Errorf("%+v", s)
	}
	stats := say("INFO", "commandstats")
	for line := range strings.Lines(stats) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		switch {
		case !strings.HasPrefix(line, "cmdstat_"):
		case strings.Contains("get pttl time evalsha dbsize config|resetstat", name):
		default:
			t.Errorf("looking has called %s", strings.TrimSpace(line))
		}
	}
	if !strings.Contains(stats, "cmdstat_evalsha:calls=4,") {
		t.Errorf("four looks are four commands: %s", stats)
	}
	if after := say("DBSIZE"); after != before {
		t.Errorf("%s keys before, %s after", before, after)
	}

	if broken := must(a.inspector().BreakLease(a.ctx, "leased", ""))(t); !broken {
		t.Error("the lease was not broken")
	}
	if must(lease.Fill(a.ctx, []byte("late"), time.Minute))(t) {
		t.Error("the holder's late fill was accepted")
	}
	a.win("leased")
}

// A foreign type is named, where the user may ask for it.
func TestInspectForeignTypes(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	a := attach(t, opened(t, server.URL()), "n")
	value := valueKey(sessionPrefix("n"), "k")
	sayTo(t, server.Addr(), "LPUSH", value, "x")
	sayTo(t, server.Addr(), "SADD", leaseKey(value), "x")
	h := must(a.inspector().Inspect(a.ctx, "k"))(t)
	if !h.Item.Found || h.Foreign != "list" || h.Left != store.Forever || h.Lease.ID != "" || h.Failure.Record != nil {
		t.Errorf("%+v", h)
	}
	// What has no deadline is nobody's lease, whatever it looks like.
	sayTo(t, server.Addr(), "DEL", leaseKey(value))
	sayTo(t, server.Addr(), "SET", leaseKey(value), "t"+strings.Repeat("x", 20))
	if h := must(a.inspector().Inspect(a.ctx, "k"))(t); h.Lease.ID != "" {
		t.Errorf("%+v", h.Lease)
	}
	if must(a.inspector().BreakLease(a.ctx, "k", ""))(t) {
		t.Error("a stranger's key was removed")
	}
}

func TestInspectInACluster(t *testing.T) {
	shards := servertest.RedisCluster(t, 2)
	a := attach(t, opened(t, shards[0].Primary.URL()), "n")
	a.void("t")
	for _, shard := range shards {
		key := ownedBy(t, shard.Primary, "n", 0)
		lease := a.win(key)
		h := must(a.inspector().Inspect(a.ctx, key))(t)
		if h.Lease.ID == "" || h.Server != shard.Primary.Addr() {
			t.Errorf("%+v", h)
		}
		if !must(a.inspector().BreakLease(a.ctx, key, h.Lease.ID))(t) || must(lease.Renew(a.ctx, time.Minute))(t) {
			t.Error("the lease was not broken")
		}
		must(a.win(key).Fill(a.ctx, []byte("v"), time.Minute))(t)
		if h := must(a.inspector().Inspect(a.ctx, key))(t); string(h.Item.Data) != "v" || h.Left > time.Minute || h.Left < 50*time.Second {
			t.Errorf("%+v", h)
		}
	}
	if s := must(a.inspector().InspectTags(a.ctx, "t", "u"))(t); s.Epoch == 0 || s.Generations[0] != s.Epoch || s.Generations[1] != 0 {
		t.Errorf("%+v", s)
	}
}
