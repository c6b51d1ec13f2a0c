package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/bus/bustest"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

func openBus(t testing.TB, url string) *Bus {
	t.Helper()
	b, err := OpenBus(url)
	ok(t, err)
	t.Cleanup(func() { ok(t, b.Close()) })
	return b
}

func newBus(t testing.TB, url string) *Bus {
	t.Helper()
	b := NewBus(client(t, url))
	t.Cleanup(func() { ok(t, b.Close()) })
	return b
}

func TestBusConformance(t *testing.T) {
	for name, open := range map[string]func(t testing.TB, url string) *Bus{
		"open": openBus,
		"new":  newBus,
		"RESP2": func(t testing.TB, url string) *Bus {
			return openBus(t, url+"?protocol=2")
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := shared.Get(t).URL()
			bustest.Run(t, func(t *testing.T) (x, y bus.Bus) { return open(t, url), openBus(t, url) })
		})
	}
	t.Run("cluster", func(t *testing.T) {
		shards := servertest.RedisCluster(t, 2)
		bustest.Run(t, func(t *testing.T) (x, y bus.Bus) {
			return openBus(t, shards[0].Primary.URL()), newBus(t, shards[1].Primary.URL())
		})
		for _, sh := range shards {
			if got := sayTo(t, sh.Primary.Addr(), "INFO", "commandstats"); strings.Contains(got, "cmdstat_publish:") {
				t.Error("a cluster was asked to carry a message to every node")
			}
		}
	})
}

// listener is a subscription that counts.
type listener struct {
	t             testing.TB
	heard, losses atomic.Int64
	odd           atomic.Int64 // of heard: that are not of hears
	stop          func()
}

func listen(t testing.TB, b *Bus, topic string) *listener {
	t.Helper()
	l := &listener{t: t}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stop, err := b.Subscribe(ctx, topic, func(m []byte) {
		l.heard.Add(1)
		if string(m) != "m" {
			l.odd.Add(1)
		}
	}, func() { l.losses.Add(1) })
	ok(t, err)
	t.Cleanup(stop)
	l.stop = stop
	return l
}

// hears publishes until the listener hears something.
func (l *listener) hears(b *Bus, topic string) {
	l.t.Helper()
	before := l.heard.Load()
	eventually(l.t, "a message is heard", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := b.Publish(ctx, topic, []byte("m")); err != nil {
			return err
		}
		if l.heard.Load() == before {
			return errors.New("not yet")
		}
		return nil
	})
}

func (l *listener) awaitLoss() {
	l.t.Helper()
	eventually(l.t, "the loss is told", func() error {
		if l.losses.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// The connection is cut by the server, or the server is restarted. What was said meanwhile
// is lost; that it may have been is told when the subscription is in force again: who is
// told and asks hears the next message.
func TestBusConnectionCut(t *testing.T) {
	for name, cut := range map[string]func(t *testing.T, server *servers.Server){
		"killed": func(t *testing.T, server *servers.Server) {
			sayTo(t, server.Addr(), "CLIENT", "KILL", "TYPE", "pubsub")
		},
		"restarted": func(t *testing.T, server *servers.Server) { ok(t, server.Restart(t.Context())) },
	} {
		for _, open := range []func(testing.TB, string) *Bus{openBus, newBus} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				server := servertest.Redis(t, servers.RedisOptions{})
				b, other := open(t, server.URL()), openBus(t, server.URL())
				l := listen(t, b, "t")
				l.hears(other, "t")
				if n := l.losses.Load(); n != 0 {
					t.Fatalf("told of %d losses", n)
				}
				cut(t, server)
				l.awaitLoss()
				heard := l.heard.Load()
				eventually(t, "the other one can publish", func() error { return other.Publish(t.Context(), "t", nil) })
				eventually(t, "it is heard at the first attempt", func() error {
					if l.heard.Load() == heard {
						return errors.New("not yet")
					}
					return nil
				})
				if n := l.losses.Load(); n != 1 {
					t.Errorf("told of %d losses, want 1", n)
				}
			})
		}
	}
}

// A connection that is half open looks like a quiet one. A ping finds out.
func TestBusHalfOpenConnection(t *testing.T) {
	t.Parallel()
	proxy := behind(t, shared.Get(t).Addr())
	b := openBus(t, "redis://"+proxy.Addr())
	l := listen(t, b, "half")
	l.hears(b, "half")
	start := time.Now()
	proxy.HalfOpen()
	l.awaitLoss()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("noticed after %v", took)
	}
	l.hears(openBus(t, shared.Get(t).URL()), "half")
}

// A slot of a cluster moves. The server ends the sharded subscription and says so.
func TestBusSlotMoves(t *testing.T) {
	shards := servertest.RedisCluster(t, 2)
	slot := sayTo(t, shards[0].Primary.Addr(), "CLUSTER", "KEYSLOT", channel("moves"))
	from, to := shards[0].Primary, shards[1].Primary
	if got := sayTo(t, from.Addr(), "GET", "{moves}"); strings.Contains(got, "MOVED") {
		from, to = to, from
	}
	b, other := openBus(t, from.URL()), openBus(t, to.URL())
	l := listen(t, b, "moves")
	l.hears(other, "moves")
	id := sayTo(t, to.Addr(), "CLUSTER", "MYID")
	for _, s := range []*servers.Server{to, from} {
		if got := sayTo(t, s.Addr(), "CLUSTER", "SETSLOT", slot, "NODE", id); got != "OK" {
			t.Fatal(got)
		}
	}
	l.awaitLoss()
	l.hears(other, "moves")
	if got := sayTo(t, to.Addr(), "PUBSUB", "SHARDNUMSUB", channel("moves")); !strings.Contains(got, "1") {
		t.Errorf("subscribed at the new node: %q", got)
	}
}

// A message is published at a node that has the slot already, while the subscriber is still
// at the old one:
//
//	the old node hangs
//	the new one is given the slot
//	somebody who knows it from there publishes      nobody is subscribed there
//	the old node goes on, hears that the slot is another's, ends the subscription
//
// The message is lost, and the subscriber is told that something may be.
func TestBusMessageLostAsASlotMoves(t *testing.T) {
	shards := servertest.RedisCluster(t, 2)
	slot := shards.SlotOf(t, channel("moves"))
	from, to := shards[0].Primary, shards[1].Primary
	if got := sayTo(t, from.Addr(), "GET", "{moves}"); strings.Contains(got, "MOVED") {
		from, to = to, from
	}
	l := listen(t, openBus(t, from.URL()), "moves")
	l.hears(openBus(t, to.URL()), "moves")
	id := sayTo(t, to.Addr(), "CLUSTER", "MYID")
	shards.Move(t, slot, from, to) // who was importing a slot wins it from whoever claims it
	ok(t, from.Pause())
	if got := sayTo(t, to.Addr(), "CLUSTER", "SETSLOT", fmt.Sprint(slot), "NODE", id); got != "OK" {
		t.Fatal(got)
	}
	other := openBus(t, to.URL())
	ok(t, other.Publish(t.Context(), "moves", []byte("lost")))
	ok(t, from.Continue())
	l.awaitLoss()
	l.hears(other, "moves")
	if l.odd.Load() != 0 {
		t.Error("the message was heard: nothing was forced")
	}
}

// The sentinels go to another primary, and the old one stays up. Nothing breaks the
// connection to it, and messages go to the new one.
func TestBusSentinelFailover(t *testing.T) {
	t.Parallel()
	_, replica, sentinel := trio(t)
	b, other := openBus(t, sentinel.URL()+"?master_set=main"), openBus(t, sentinel.URL()+"?master_set=main")
	l := listen(t, b, "t")
	l.hears(other, "t")
	eventually(t, "failover", func() error {
		if got := sayTo(t, sentinel.Addr(), "SENTINEL", "FAILOVER", "main"); got != "OK" {
			return errors.New(got)
		}
		return nil
	})
	eventually(t, "subscribed at the new primary", func() error {
		got, err := trySay(replica.Addr(), "PUBSUB", "CHANNELS")
		if info, _ := trySay(replica.Addr(), "INFO", "replication"); !strings.Contains(info, "role:master") {
			return fmt.Errorf("%q, not the primary: %w", got, err)
		}
		if l.losses.Load() == 0 {
			return errors.New("not told")
		}
		return nil
	})
	l.hears(other, "t")
	if got := sayTo(t, replica.Addr(), "PUBSUB", "NUMSUB", channel("t")); !strings.Contains(got, "1") {
		t.Errorf("subscribed at the new primary: %q", got)
	}
}

// Publish and Subscribe end with their contexts, and Close ends, while the server is frozen.
func TestBusFrozenServer(t *testing.T) {
	for name, open := range map[string]func(testing.TB, string) *Bus{"open": openBus, "new": newBus} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, servers.RedisOptions{})
			b := open(t, server.URL())
			l := listen(t, b, "t")
			l.hears(b, "t")
			ok(t, server.Pause())
			for op, do := range map[string]func(ctx context.Context) error{
				"publish": func(ctx context.Context) error { return b.Publish(ctx, "t", []byte("m")) },
				"subscribe": func(ctx context.Context) error {
					_, err := b.Subscribe(ctx, "u", func([]byte) {}, func() {})
					return err
				},
			} {
				within(t, 2*time.Second, op, func() {
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					defer cancel()
					wantError(t, do(ctx), op, true, "deadline")
				})
				within(t, 2*time.Second, op+", cancelled", func() {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(20*time.Millisecond, cancel)
					if err := do(ctx); err == nil { // the connection's own failure may come first
						t.Errorf("%s was answered", op)
					}
				})
			}
			within(t, 2*time.Second, "stop", l.stop)
			within(t, 3*time.Second, "close", func() { b.Close() })
			ok(t, server.Continue())
		})
	}
}

// A subscription that has ended leaves nothing at the server.
func TestBusLeavesNothing(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	b := openBus(t, server.URL())
	one, two := listen(t, b, "t"), listen(t, b, "t")
	one.hears(b, "t")
	one.stop()
	gone := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " subscriptions are left"), func() error {
			if got := sayTo(t, server.Addr(), "PUBSUB", "NUMSUB", channel("t")); !strings.Contains(got, fmt.Sprint(n)) {
				return errors.New(got)
			}
			return nil
		})
	}
	gone(1)
	two.hears(b, "t")
	ok(t, b.Close())
	ok(t, b.Close())
	gone(0)
	err := b.Publish(t.Context(), "t", nil)
	wantError(t, err, "publish", false, "closed")
	if !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Publish: %v", err)
	}
	if _, err = b.Subscribe(t.Context(), "t", func([]byte) {}, func() {}); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Subscribe: %v", err)
	}
}

// The rights that the documentation lists are enough, and an error says which is missing.
func TestBusRights(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	sayTo(t, server.Addr(), "ACL", "SETUSER", "bus", "on", ">pw", "resetchannels", "&of:*", "-@all", "+publish", "+subscribe", "+hello", "+ping")
	sayTo(t, server.Addr(), "ACL", "SETUSER", "other", "on", ">pw", "resetchannels", "&other:*", "+@all")
	b := openBus(t, strings.Replace(server.URL(), "redis://", "redis://bus:pw@", 1))
	l := listen(t, b, "t")
	l.hears(b, "t")
	sayTo(t, server.Addr(), "CLIENT", "KILL", "TYPE", "pubsub")
	l.awaitLoss()
	l.hears(b, "t")
	l.stop()

	b = openBus(t, strings.Replace(server.URL(), "redis://", "redis://other:pw@", 1))
	wantError(t, b.Publish(t.Context(), "t", nil), "publish", false, "NOPERM")
	_, err := b.Subscribe(t.Context(), "t", func([]byte) {}, func() {})
	wantError(t, err, "subscribe", false, "NOPERM")
}

func TestBusMisuse(t *testing.T) {
	b := NewBus(nil)
	wantError(t, b.Publish(t.Context(), "t", nil), "publish", false, "nil client")
	_, err := b.Subscribe(t.Context(), "t", func([]byte) {}, func() {})
	wantError(t, err, "subscribe", false, "nil client")
	ok(t, b.Close())
	for url, want := range map[string]string{"": "URL is empty", "http://user:secret@host": "not a Redis URL"} {
		if _, err := OpenBus(url); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("OpenBus(%q): %v", url, err)
		}
	}
	_, err = OpenBus("redis://127.0.0.1:1")
	wantError(t, err, "open the bus", true, "refused")
}
