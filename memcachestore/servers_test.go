package memcachestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

func ringOf(t *testing.T, addrs ...string) *ring {
	t.Helper()
	var nodes []*node
	for _, text := range addrs {
		a, err := parseAddress(text)
		ok(t, err)
		nodes = append(nodes, newNode(a, &Options{Conns: 1}))
	}
	return newRing(nodes)
}

func TestRing(t *testing.T) {
	const keys = 20_000
	addrs := []string{"a:1", "b:1", "c:1", "d:1"}
	before := ringOf(t, addrs...)
	after := ringOf(t, append(slices.Clone(addrs), "e:1")...)
	reversed := slices.Clone(addrs)
	slices.Reverse(reversed)
	shuffled := ringOf(t, reversed...)
	share, moved := map[string]int{}, 0
	for i := range keys {
		item := "of:users:" + strconv.Itoa(i)
		was, is := before.node(item).addr.text, after.node(item).addr.text
		share[was]++
		if was != is {
			if moved++; is != "e:1" {
				t.Fatalf("%s moved from %s to %s, neither of which is new", item, was, is)
			}
		}
		if other := shuffled.node(item).addr.text; other != was {
			t.Fatalf("%s lies on %s or %s, depending on the order of the addresses", item, was, other)
		}
	}
	for addr, n := range share {
		if n < keys/4*7/10 || n > keys/4*13/10 {
			t.Errorf("%s has %d of %d keys, want about a quarter", addr, n, keys)
		}
	}
	if moved < keys/5*7/10 || moved > keys/5*13/10 {
		t.Errorf("%d of %d keys moved to the fifth server, want about a fifth", moved, keys)
	}
	t.Logf("shares %v, moved %d of %d", share, moved, keys)
}

// Server names the server on which a key's item lies, for hashed keys too.
func TestServerOfAKey(t *testing.T) {
	t.Parallel()
	wires, addrs := map[string]*wire{}, []string{}
	for range 3 {
		addr := servertest.Memcached(t, servers.MemcachedOptions{}).Addr()
		wires[addr], addrs = dialWire(t, addr), append(addrs, addr)
	}
	r := attach(t, open(t, addrs...))
	s := r.Session.(*session)
	used := map[string]int{}
	for i := range 40 {
		key := strings.Repeat("k ", i%2) + strconv.Itoa(i)
		r.set(key, key)
		item, _, err := itemKey(sha, r.name, key)
		ok(t, err)
		used[s.Server(key)]++
		for addr, w := range wires {
			if got, here := w.say("mg %s", item), addr == s.Server(key); (got == "HD") != here {
				t.Errorf("%s answers %q for %q, which is said to lie on %s", addr, got, key, s.Server(key))
			}
		}
	}
	if len(used) != 3 {
		t.Errorf("40 keys lie on %v", used)
	}
	tooLong := strings.Repeat("k", maxKey+1)
	if got := s.Server(tooLong); wires[got] == nil {
		t.Errorf("Server of a key that no server takes is %q", got)
	}
}

// One of three servers is frozen, killed, and comes back: its keys fail, in bounded
// time, the others' are not touched; afterwards it is used again without anybody's
// doing.
func TestOneDeadServer(t *testing.T) {
	t.Parallel()
	var addrs []string
	var all []*servers.Server
	for range 3 {
		s := servertest.Memcached(t, servers.MemcachedOptions{})
		all, addrs = append(all, s), append(addrs, s.Addr())
	}
	r := attach(t, openWith(t, Options{Addrs: addrs, StallTimeout: 500 * time.Millisecond}))
	st := r.Session.(*session).st
	var dead, alive []string
	for i := range 60 {
		key := fmt.Sprint("key ", i) // hashed keys, too
		r.set(key, key)
		item, _, err := itemKey(sha, r.name, key)
		ok(t, err)
		if st.ring.node(item).addr.text == addrs[0] {
			dead = append(dead, key)
		} else {
			alive = append(alive, key)
		}
	}
	if len(dead) < 5 || len(alive) < 20 {
		t.Fatalf("%d and %d keys", len(dead), len(alive))
	}
	for name, fail := range map[string]func() error{"frozen": all[0].Pause, "killed": all[0].Kill} {
		t.Run(name, func(t *testing.T) {
			ok(t, fail())
			start := time.Now()
			for _, key := range dead {
				_, err := r.Get(soon(t), key)
				var e *store.Error
				if !errors.As(err, &e) || !e.Unavailable || e.Addr != addrs[0] {
					t.Fatalf("Get of the dead server's key = %v, want an unavailable error that names %s", err, addrs[0])
				}
			}
			if took, most := time.Since(start), time.Duration(len(dead)+5)*200*time.Millisecond; took > most {
				t.Errorf("%d calls took %v", len(dead), took)
			}
			for _, key := range alive {
				r.holds(key, key)
			}
			if err := r.Invalidate(soon(t), dead[0], alive[0]); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("Invalidate on a dead and a living server = %v, want an unavailable error", err)
			}
			r.absent(alive[0]) // it was applied where it could be
			r.set(alive[0], alive[0])
			if err := r.Ping(soon(t)); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("Ping = %v, want an unavailable error", err)
			}
			if name == "frozen" {
				ok(t, all[0].Continue())
			} else {
				ok(t, all[0].RestartEmpty(context.Background()))
			}
			eventually(t, "it is used again", func() bool {
				_, err := r.Set(soon(t), dead[0], []byte(dead[0]), long)
				return err == nil
			})
			// One operation may still meet the connection that was silent, whose time is over
			// just then; nobody has to do anything about that.
			failed := 0
			for _, key := range dead {
				for {
					// What may fail does so by StallTimeout; its context is no reason.
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					_, err := r.Set(ctx, key, []byte(key), long)
					if err == nil {
						var item store.Item
						if item, err = r.Get(ctx, key); err == nil && string(item.Data) != key {
							t.Fatalf("%s = %q", key, item.Data)
						}
					}
					cancel()
					if err == nil {
						break
					}
					if failed++; !errors.Is(err, store.ErrUnavailable) || failed > 1 {
						t.Fatalf("the server is back, and operation %d fails: %v", failed, err)
					}
				}
			}
		})
	}
}

// A server with hardly any memory throws out what it has, leases too. What is read
// is nevertheless the key's own last value or nothing; a fill whose lease was thrown
// out is refused.
func TestMemoryPressure(t *testing.T) {
	t.Parallel()
	server := servertest.Memcached(t, servers.MemcachedOptions{Args: []string{"-m", "8"}})
	r := attach(t, open(t, server.Addr()))
	const keys, workers = 4000, 8
	value := func(key string, round int) string {
		return key + " " + strconv.Itoa(round) + strings.Repeat("x", 2000+round%3*2000)
	}
	var mu sync.Mutex
	counts := map[string]int{}
	count := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		counts[what]++
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			last, held := map[string]string{}, map[string]store.Lease{}
			for i := range 6 * keys / workers {
				key := fmt.Sprintf("worker %d key %d", w, i%(keys/workers)) // its own keys
				if i%5 == 0 {
					key = fmt.Sprintf("w%dk%d", w, i%(keys/workers))
				}
				item, err := r.Get(r.ctx, key)
				switch {
				case err != nil:
					t.Errorf("Get: %v", err)
				case item.Found && string(item.Data) != last[key]:
					t.Errorf("Get(%q) = %.40q, want %.40q or a miss", key, item.Data, last[key])
				case !item.Found && last[key] != "":
					count("evicted values")
				}
				if l := held[key]; l != nil { // from the round before
					fresh := value(key, i)
					filled, err := l.Fill(r.ctx, []byte(fresh), long)
					delete(held, key)
					switch {
					case err != nil && errors.Is(err, store.ErrUnavailable):
						t.Errorf("Fill: %v", err)
					case err != nil:
						count("out of memory")
						last[key] = ""
						r.Invalidate(r.ctx, key)
					case filled:
						count("fills")
						last[key] = fresh
					default:
						count("refused fills")
					}
					continue
				}
				var seen []byte
				if item.Found {
					seen = mark(last[key])
				}
				a, err := r.Acquire(r.ctx, key, store.Request{Token: store.NewToken(), TTL: long, Seen: seen})
				switch {
				case err != nil && errors.Is(err, store.ErrUnavailable):
					t.Errorf("Acquire: %v", err)
				case err != nil:
					count("out of memory")
				case a.State == store.Won:
					held[key] = a.Lease
					if !a.Item.Found {
						last[key] = "" // it may have gone since the Get
					}
				default:
					t.Errorf("Acquire of a worker's own key = %v", a.State)
				}
			}
		})
	}
	wg.Wait()
	t.Log(counts)
	evictions, _ := strconv.Atoi(dialWire(t, server.Addr()).stats()["evictions"])
	if evictions == 0 || counts["fills"] == 0 || counts["refused fills"]+counts["evicted values"] == 0 {
		t.Errorf("%d evictions, %v: the server was not short of memory", evictions, counts)
	}
}
