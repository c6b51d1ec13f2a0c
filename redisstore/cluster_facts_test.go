package redisstore

import (
	"strings"
	"testing"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// What a slot that moves does to those who have read its keys, and to scripts of two keys.
func TestSlotMoveFacts(t *testing.T) {
	c := servertest.RedisCluster(t, 2)
	from, to := c[0].Primary, c[1].Primary
	value := valueKey("of:{n:", ownedBy(t, from, "n", 0))
	lease := leaseKey(value)
	put := func(s *servers.Server, key string) {
		t.Helper()
		if got := sayTo(t, s.Addr(), "SET", key, "x"); got != "OK" {
			t.Fatal(got)
		}
	}
	put(from, value)
	reader := dialPeer(t, from.Addr(), plain...)
	there := dialPeer(t, to.Addr(), plain...)
	reader.do("GET", value)
	reader.do("GET", lease)
	both := func(p *peer) string {
		p.t.Helper()
		return p.do("EVAL", "return redis.call('EXISTS', KEYS[1]) * 10 + redis.call('EXISTS', KEYS[2])", "2", value, lease)
	}
	wantIn := func(what, got, want string) {
		t.Helper()
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}

	move := c.Move(t, c.SlotOf(t, value), from, to)
	reader.wantPushes("as the slot begins to move")
	wantIn("one key is there and one is not", both(reader), "TRYAGAIN")
	wantIn("an absent key", reader.do("GET", lease), "ASK")
	move.AllKeys()
	reader.wantPushes("as the value is moved", ">["+value+"]")
	wantIn("both are gone", both(reader), "ASK")
	there.do("ASKING")
	wantIn("both, at the new node, by one key", both(there), "TRYAGAIN")
	there.do("ASKING")
	wantIn("the value, at the new node", there.do("GET", value), "x")
	put2 := dialPeer(t, to.Addr())
	put2.do("ASKING")
	put2.do("SET", value, "y")
	there.wantPushes("what is read under ASKING is tracked", ">["+value+"]")
	move.End()
	reader.wantPushes("as the slot has moved")

	// The lease was absent when it was read: nobody is told that its slot is elsewhere.
	put(to, lease)
	reader.wantPushes("as the absent key is made elsewhere")
	wantIn("both, at the new node", both(there), "11")
}
