package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// confirmed makes stores whose writes wait for replicas.
func confirmed(v variant, replicas int, within time.Duration) variant {
	confirm := Confirm(replicas, within)
	made := map[string]func(t testing.TB, url string) *Store{
		"open":           func(t testing.TB, url string) *Store { return opened(t, url, confirm) },
		"new":            func(t testing.TB, url string) *Store { return New(client(t, url), confirm) },
		"notracking":     func(t testing.TB, url string) *Store { return opened(t, url, confirm, NoTracking()) },
		"new notracking": func(t testing.TB, url string) *Store { return New(client(t, url), confirm, NoTracking()) },
	}
	return variant{v.name, v.push, made[v.name]}
}

// confirmable are the operations that are confirmed.
func confirmable(sess store.Session) map[string]func(ctx context.Context, keys ...string) error {
	return map[string]func(ctx context.Context, keys ...string) error{
		"set": func(ctx context.Context, keys ...string) error {
			_, err := sess.Set(ctx, keys[0], []byte("v"), time.Minute)
			return err
		},
		"invalidate": sess.Invalidate,
		"expire":     func(ctx context.Context, keys ...string) error { return sess.Expire(ctx, time.Now(), keys...) },
		"void tags":  func(ctx context.Context, tags ...string) error { return tagger(sess).VoidTags(ctx, time.Hour, tags...) },
	}
}

func wantNotReplicated(t *testing.T, err error, op string, substrings ...string) {
	t.Helper()
	wantError(t, err, op, false, substrings...)
	if !errors.Is(err, store.ErrNotReplicated) {
		t.Errorf("%v does not wrap store.ErrNotReplicated", err)
	}
}

// A write is confirmed as long as the replica answers, and is not when it is stopped,
// though it was applied. Nobody else waits meanwhile.
func TestConfirm(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			primary, replica := pair(t)
			a := attach(t, confirmed(v, 1, 300*time.Millisecond).on(t, primary.URL()), "n")
			b := attach(t, confirmed(v, 1, patience).on(t, primary.URL()), "n")
			for op, do := range confirmable(b) {
				ok(t, do(b.ctx, "k", "l", "m"))
				for key, there := range map[string]bool{valueKey("of:{n:", "k"): op == "set", tagPrefix("n") + "k": op == "void tags"} {
					if got := sayTo(t, replica.Addr(), "EXISTS", key); (got == "1") != there {
						t.Errorf("confirmed, and not on the replica: EXISTS %s after %s is %s", key, op, got)
					}
				}
				sayTo(t, primary.Addr(), "DEL", tagPrefix("n")+"k")
				ok(t, b.Invalidate(b.ctx, "k"))
			}
			ok(t, replica.Pause())
			for op, do := range confirmable(a) {
				within(t, 2*time.Second, op, func() {
					wantNotReplicated(t, do(a.ctx, "k", "l"), op, "0 of 1 within 300ms")
				})
			}
			wantNotReplicated(t, confirmable(a)["set"](a.ctx, "there"), "set")
			a.wantValue("there", "v")

			// The connection that everybody shares is not the one that waits.
			waiting := make(chan error)
			ctx, cancel := context.WithCancel(b.ctx)
			go func() { waiting <- b.Invalidate(ctx, "k") }()
			within(t, patience/2, "100 reads while a write waits", func() {
				for range 100 {
					b.get("k")
				}
			})
			// Who fills waits for nobody.
			if !must(a.win("filled").Fill(a.ctx, []byte("v"), time.Minute))(t) {
				t.Error("the fill was refused")
			}
			select {
			case err := <-waiting:
				t.Errorf("the write has not waited: %v", err)
			default:
			}
			cancel()
			err := <-waiting
			wantNotReplicated(t, err, "invalidate")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want one that wraps context.Canceled", err)
			}
			ok(t, replica.Continue())
			ok(t, b.Invalidate(b.ctx, "k"))
		})
	}
}

// writeLog is a connection that notes what is written to it at a time. It does not write
// what rueidis tidies connections up with while tidying is locked.
type writeLog struct {
	net.Conn
	tidying *sync.Mutex
	mu      sync.Mutex
	writes  []string
}

func (l *writeLog) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "UNSUBSCRIBE") {
		l.tidying.Lock()
		defer l.tidying.Unlock()
		return l.Conn.Write(p)
	}
	l.mu.Lock()
	l.writes = append(l.writes, string(p))
	l.mu.Unlock()
	return l.Conn.Write(p)
}

func (l *writeLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.writes
	l.writes = nil
	return taken
}

// A confirmed write costs three round trips more, once there is a connection to wait on:
// what is written to that one is the script, the question who the server is, and WAIT.
// Nobody waits for it to be tidied up, which is held up here.
func TestConfirmRoundTrips(t *testing.T) {
	primary, _ := pair(t)
	var mu, tidying sync.Mutex
	var logs []*writeLog
	s := must(OpenOption(rueidis.ClientOption{InitAddress: []string{primary.Addr()},
		DialCtxFn: func(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "tcp", addr)
			mu.Lock()
			defer mu.Unlock()
			logs = append(logs, &writeLog{Conn: conn, tidying: &tidying})
			return logs[len(logs)-1], err
		}}, Confirm(1, patience)))(t)
	t.Cleanup(func() { s.Close() })
	a := attach(t, s, "n")
	ok(t, a.Invalidate(a.ctx, "k"))
	eventually(t, "the connection is tidied up", func() error {
		if n := len(s.confirmation.places); n != 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	mu.Lock()
	known := slices.Clone(logs)
	mu.Unlock()
	for _, l := range known {
		l.take()
	}
	tidying.Lock()
	defer tidying.Unlock()
	within(t, patience, "an invalidation", func() { ok(t, a.Invalidate(a.ctx, "k")) })
	waited := 0
	for _, l := range known {
		writes := slices.DeleteFunc(l.take(), func(w string) bool { return strings.HasSuffix(w, "\r\nPING\r\n") }) // rueidis' own
		if !strings.Contains(fmt.Sprint(writes), "WAIT") {
			continue
		}
		waited++
		if len(writes) != 3 {
			t.Errorf("%d round trips, want 3: %q", len(writes), writes)
		}
	}
	if waited != 1 {
		t.Errorf("%d connections have waited, want 1", waited)
	}
}

// The wait is no longer than what the context leaves.
func TestConfirmWithinTheDeadline(t *testing.T) {
	primary, replica := pair(t)
	a := attach(t, opened(t, primary.URL(), Confirm(1, patience)), "n")
	ok(t, replica.Pause())
	for range 3 {
		within(t, 2*time.Second, "an invalidation", func() {
			ctx, cancel := context.WithTimeout(a.ctx, 200*time.Millisecond)
			defer cancel()
			wantNotReplicated(t, a.Invalidate(ctx, "k"), "invalidate", "within")
		})
	}
}

// Two replicas are more than there are; a server that is full confirms invalidations; a
// server that has lost the scripts gets them again; who may not ask WAIT is told so.
func TestConfirmOnOddServers(t *testing.T) {
	primary, _ := pair(t)
	two := attach(t, opened(t, primary.URL(), Confirm(2, time.Second)), "n")
	wantNotReplicated(t, two.Invalidate(two.ctx, "k"), "invalidate", "1 of 2 within 1s")

	one := attach(t, opened(t, primary.URL(), Confirm(1, patience)), "n")
	ok(t, one.Invalidate(one.ctx, "k"))
	sayTo(t, primary.Addr(), "SCRIPT", "FLUSH")
	ok(t, one.Invalidate(one.ctx, "k"))
	sayTo(t, primary.Addr(), "CONFIG", "SET", "maxmemory-policy", "noeviction")
	sayTo(t, primary.Addr(), "CONFIG", "SET", "maxmemory", "1")
	ok(t, one.Invalidate(one.ctx, "k"))
	sayTo(t, primary.Addr(), "CONFIG", "SET", "maxmemory", "0")
	if got := sayTo(t, primary.Addr(), "DBSIZE"); got != "0" {
		t.Errorf("%s keys are left", got)
	}

	args := append([]string{"ACL", "SETUSER", "cache", "on", ">secret"}, strings.Fields(minimalACL)...)
	sayTo(t, primary.Addr(), args...)
	url := "redis://cache:secret@" + primary.Addr()
	noRight := attach(t, opened(t, url, Confirm(1, patience)), "n")
	wantNotReplicated(t, noRight.Invalidate(noRight.ctx, "k"), "invalidate", "NOPERM", "wait")
	sayTo(t, primary.Addr(), "ACL", "SETUSER", "cache", "+wait")
	ok(t, noRight.Invalidate(noRight.ctx, "k"))
}

// No more connections wait than there are places, and who gets none leaves with its
// context.
func TestConfirmIsBounded(t *testing.T) {
	primary, replica := pair(t)
	s := opened(t, primary.URL(), Confirm(1, patience))
	t.Cleanup(func() { s.Close() })
	a := attach(t, s, "n")
	ok(t, replica.Pause())
	ctx, cancel := context.WithTimeout(a.ctx, 2*time.Second)
	defer cancel()
	const n = 3 * maxConfirming
	errs := make(chan error)
	for i := range n {
		go func() { errs <- a.Invalidate(ctx, fmt.Sprint(i)) }()
	}
	eventually(t, "all places are taken", func() error {
		if got := len(s.confirmation.places); got != maxConfirming {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
	if got := sayTo(t, primary.Addr(), "CLIENT", "LIST", "TYPE", "normal"); strings.Count(got, "id=") > maxConfirming+5 {
		t.Errorf("%d connections", strings.Count(got, "id="))
	}
	for range n {
		if err := <-errs; !errors.Is(err, store.ErrNotReplicated) {
			t.Errorf("%v, want one that wraps store.ErrNotReplicated", err)
		}
	}
	ok(t, replica.Continue())
	eventually(t, "the places are free", func() error {
		if got := len(s.confirmation.places); got != 0 {
			return fmt.Errorf("%d are taken", got)
		}
		return nil
	})
	ok(t, a.Invalidate(a.ctx, "k"))
}

// A write that the old primary has answered is not confirmed by the new one. The
// interleaving: the replica is promoted and the primary is cut off from the client after
// the write was answered and before WAIT is asked.
func TestConfirmAcrossAFailover(t *testing.T) {
	primary, replica := pair(t)
	third := servertest.Redis(t, servers.RedisOptions{Args: []string{"--replicaof", fmt.Sprint("127.0.0.1 ", replica.Port())}})
	inStep(t, third)
	front := behind(t, primary.Addr())
	s := opened(t, "redis://"+front.Addr(), Confirm(1, patience))
	t.Cleanup(func() { s.Close() })
	a := attach(t, s, "n")
	a.get("warm up") // what was confirmed before has left a connection that would be cut
	c := must(s.conn(a.ctx))(t)
	value := valueKey("of:{n:", "k")
	confirm := s.confirming(c, value)
	ok(t, s.runAll(a.ctx, c, []call{{script: invalidateScript, keys: []string{value, leaseKey(value)}}}))
	sayTo(t, replica.Addr(), "REPLICAOF", "NO", "ONE")
	eventually(t, "the new primary's replica would acknowledge", func() error {
		if info := sayTo(t, replica.Addr(), "INFO", "replication"); !strings.Contains(info, "state=online") {
			return errors.New(info)
		}
		return nil
	})
	turn(front, replica.Addr())
	if err := confirm(a.ctx); !errors.Is(err, store.ErrNotReplicated) {
		t.Errorf("confirmed by the replica of another primary: %v", err)
	}
	a.succeeds("an invalidation of the new primary", func(ctx context.Context) error { return a.Invalidate(ctx, "k") })
}

// The connection that waits may be an old one, to a server that has been replaced for
// everybody else and has a replica that acknowledges everything. The interleaving: a
// write is confirmed | new connections lead to the other server | the shared connection
// is cut, the one that has waited is not | the next write.
func TestConfirmOnALeftConnection(t *testing.T) {
	primary, _ := pair(t)
	other := servertest.Redis(t, servers.RedisOptions{})
	front := behind(t, primary.Addr())
	s := opened(t, "redis://"+front.Addr(), Confirm(1, time.Second))
	t.Cleanup(func() { s.Close() })
	a := attach(t, s, "n")
	ok(t, a.Invalidate(a.ctx, "k"))
	front.SetTarget(other.Addr())
	for line := range strings.Lines(sayTo(t, primary.Addr(), "CLIENT", "LIST", "TYPE", "normal")) {
		if strings.Contains(line, "cmd=exists") { // the marker behind an invalidation
			id := strings.TrimPrefix(strings.Fields(line)[0], "id=")
			sayTo(t, primary.Addr(), "CLIENT", "KILL", "ID", id)
		}
	}
	eventually(t, "the shared connection leads to the other server", func() error {
		if err := a.Ping(a.ctx); err != nil {
			return err
		}
		if a.replacements() == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	if got := sayTo(t, primary.Addr(), "CLIENT", "LIST", "TYPE", "normal"); !strings.Contains(got, "resp=3") {
		t.Fatalf("no connection has been left:\n%s", got)
	}
	wantNotReplicated(t, a.Invalidate(a.ctx, "k"), "invalidate", "another server")
}

// Of several keys in a cluster each server is asked once, and one whose replica is
// stopped speaks for its own keys only.
func TestConfirmInACluster(t *testing.T) {
	shards := servertest.RedisCluster(t, 2)
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			a := attach(t, confirmed(v, 1, 500*time.Millisecond).on(t, shards[0].Primary.URL()+"?addr="+shards[1].Primary.Addr()), "n")
			keys := map[int][]string{}
			for i := range shards {
				for after := 0; len(keys[i]) < 5; after++ {
					key := ownedBy(t, shards[i].Primary, "n", after)
					keys[i] = append(keys[i], key)
				}
			}
			both := append(keys[0], keys[1]...)
			ok(t, a.Invalidate(a.ctx, both...))
			before := waits(t, shards)
			ok(t, a.Invalidate(a.ctx, both...))
			after := waits(t, shards)
			for i := range shards {
				if after[i]-before[i] != 1 {
					t.Errorf("server %d was asked WAIT %d times for %d keys, want once", i, after[i]-before[i], len(keys[i]))
				}
			}
			ok(t, shards[1].Replica.Pause())
			wantNotReplicated(t, a.Invalidate(a.ctx, both...), "invalidate", "0 of 1")
			wantNotReplicated(t, a.Invalidate(a.ctx, keys[1]...), "invalidate", "0 of 1")
			ok(t, a.Invalidate(a.ctx, keys[0]...))
			ok(t, shards[1].Replica.Continue())
			ok(t, a.Invalidate(a.ctx, keys[1]...))
		})
	}
}

// waits counts the WAITs that each primary has been asked.
func waits(t *testing.T, shards servertest.Cluster) []int {
	t.Helper()
	counts := make([]int, len(shards))
	for i, sh := range shards {
		for line := range strings.Lines(sayTo(t, sh.Primary.Addr(), "INFO", "commandstats")) {
			fmt.Sscanf(line, "cmdstat_wait:calls=%d,", &counts[i])
		}
	}
	return counts
}

func TestConfirmRefusesBadValues(t *testing.T) {
	for says, confirm := range map[string]Option{
		"0 replicas":  Confirm(0, time.Second),
		"-1 replicas": Confirm(-1, time.Second),
		"within 0s":   Confirm(1, 0),
		"within -1s":  Confirm(1, -time.Second),
		"within 1µs":  Confirm(1, time.Microsecond),
	} {
		if _, err := Open(shared.Get(t).URL(), confirm); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "Confirm") {
			t.Errorf("Open: %v, want an error that says %q", err, says)
		}
		s := New(client(t, shared.Get(t).URL()), confirm)
		for _, allow := range []bool{false, true} {
			_, err := s.Attach(t.Context(), store.Config{Name: "n", AllowDown: allow})
			wantError(t, err, "attach", false, "Confirm", says)
		}
	}
}

// What waits is not in the way of a server without replicas when nobody asked for it.
func TestWithoutConfirmNobodyWaits(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	for _, v := range variants {
		a := attach(t, v.on(t, server.URL()), unique(t))
		for op := range maps.Keys(confirmable(a)) {
			ok(t, confirmable(a)[op](a.ctx, "k"))
		}
	}
	if got := sayTo(t, server.Addr(), "INFO", "commandstats"); strings.Contains(got, "cmdstat_wait") {
		t.Error("WAIT was asked")
	}
}
