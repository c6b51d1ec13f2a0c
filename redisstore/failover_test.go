package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/store"
)

// pair is a primary and a replica in step with it.
func pair(t *testing.T) (primary, replica *servers.Server) {
	t.Helper()
	primary = servertest.Redis(t, servers.RedisOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
	replica = servertest.Redis(t, servers.RedisOptions{Args: []string{"--repl-diskless-sync-delay", "0",
		"--replicaof", fmt.Sprint("127.0.0.1 ", primary.Port())}})
	inStep(t, replica)
	return primary, replica
}

func inStep(t *testing.T, replica *servers.Server) {
	t.Helper()
	eventually(t, "the replica is in step", func() error {
		if info := sayTo(t, replica.Addr(), "INFO", "replication"); !strings.Contains(info, "master_link_status:up") {
			return errors.New(info)
		}
		return nil
	})
}

// replicated waits until a replica has a key's value.
func replicated(t *testing.T, replica *servers.Server, key, want string) {
	t.Helper()
	eventually(t, key+" is replicated", func() error {
		if got := sayTo(t, replica.Addr(), "GET", key); got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// allVariants are all the ways in which a store gets at its connections.
var allVariants = append(variants[:len(variants):len(variants)],
	variant{"open resp2", false, func(t testing.TB, url string) *Store { return opened(t, url+"?protocol=2&client_cache=0") }},
	variant{"new resp2", false, func(t testing.TB, url string) *Store { return New(client(t, url+"?protocol=2&client_cache=0")) }},
)

// succeeds repeats an operation until it is answered, and returns how often the session
// had been told of a replacement by then.
func (r *rig) succeeds(what string, do func(context.Context) error) int {
	r.t.Helper()
	told := 0
	eventually(r.t, what, func() error {
		err := do(r.ctx)
		told = r.replacements()
		return err
	})
	return told
}

// A replica that has not heard of the last writes takes the primary's place. Every
// session is told before anybody has an answer from it, whichever operation comes first.
// Interleaving: the replica is detached | an invalidation reaches the primary only | the
// primary dies | the replica answers.
func TestReplacedByAReplica(t *testing.T) {
	for _, v := range allVariants {
		for op := range every(nil, nil) {
			if !v.push && op != "get" && op != "set" && op != "ping" {
				continue // one script is like another
			}
			t.Run(v.name+"/"+op, func(t *testing.T) {
				t.Parallel()
				replacedByAReplica(t, v, op)
			})
		}
	}
}

func replacedByAReplica(t *testing.T, v variant, op string) {
	primary, replica := pair(t)
	front := behind(t, primary.Addr())
	s := v.on(t, "redis://"+front.Addr())
	a, b := attach(t, s, "n"), attach(t, s, "n")
	a.set("k", "old")
	replicated(t, replica, valueKey("of:{n:", "k"), "old")
	sayTo(t, replica.Addr(), "REPLICAOF", "NO", "ONE")
	l := a.win("leased")
	ok(t, a.Invalidate(a.ctx, "k"))
	if a.replacements()+b.replacements() != 0 {
		t.Fatal("told of a replacement before there was one")
	}
	ok(t, primary.Kill())
	if err := every(b, l)[op](a.ctx); err == nil {
		t.Fatal("a dead server has answered")
	}
	if a.replacements()+b.replacements() != 0 {
		t.Error("told of a replacement while nobody answers")
	}
	turn(front, replica.Addr())
	if told := b.succeeds(op, every(b, l)[op]); told == 0 {
		t.Errorf("%s was answered by the replica before its session was told", op)
	}
	if a.replacements() == 0 || a.losses == 0 {
		t.Errorf("the other session: told of %d replacements and %d losses", a.replacements(), a.losses)
	}
	if op == "get" {
		a.wantValue("k", "old") // that is why
	}
}

// Whoever comes second to the new server waits until everybody has been told.
// Interleaving: 40 operations of two sessions at once on a server that is being replaced.
func TestReplacedUnderACrowd(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			primary, replica := pair(t)
			front := behind(t, primary.Addr())
			s := v.on(t, "redis://"+front.Addr())
			a, b := attach(t, s, "n"), attach(t, s, "n")
			a.set("who", "primary")
			replicated(t, replica, valueKey("of:{n:", "who"), "primary")
			sayTo(t, replica.Addr(), "REPLICAOF", "NO", "ONE")
			sayTo(t, replica.Addr(), "SET", valueKey("of:{n:", "who"), "replica")
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for i := range 40 {
				r := a
				if i%2 == 0 {
					r = b
				}
				wg.Go(func() {
					for {
						item, err := r.Get(r.ctx, "who")
						told := r.replacements()
						if err == nil && string(item.Data) == "replica" {
							if told == 0 {
								t.Error("answered by the replica before the session was told")
							}
							return
						}
						select {
						case <-stop:
							t.Error("not answered by the replica")
							return
						default:
						}
					}
				})
			}
			timer := time.AfterFunc(patience, func() { close(stop) })
			defer timer.Stop()
			turn(front, replica.Addr())
			wg.Wait()
		})
	}
}

// A connection that is lost says nothing about the server behind it.
func TestCutIsNoReplacement(t *testing.T) {
	for _, v := range allVariants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, servers.RedisOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
			front := behind(t, server.Addr())
			a := attach(t, v.on(t, "redis://"+front.Addr()), "n")
			for i := range 5 {
				want := fmt.Sprint(i)
				a.succeeds("a set", func(ctx context.Context) error { _, err := a.Set(ctx, "k", []byte(want), time.Minute); return err })
				front.Cut(faultproxy.RST)
				a.succeeds("a get", func(ctx context.Context) error {
					item, err := a.Get(ctx, "k")
					if err == nil && string(item.Data) != want {
						t.Errorf("%q, want %q", item.Data, want)
					}
					return err
				})
			}
			// The first replica gives the primary a new replication id.
			replica := servertest.Redis(t, servers.RedisOptions{Args: []string{"--replicaof", fmt.Sprint("127.0.0.1 ", server.Port())}})
			inStep(t, replica)
			front.Cut(faultproxy.RST)
			a.succeeds("an answer", a.Ping)
			ok(t, server.Pause())
			ctx, cancel := context.WithTimeout(a.ctx, 50*time.Millisecond)
			defer cancel()
			if a.Ping(ctx) == nil {
				t.Error("a stopped server has answered")
			}
			ok(t, server.Continue())
			a.succeeds("an answer", a.Ping)
			sayTo(t, server.Addr(), "FLUSHALL")
			a.succeeds("a miss", func(ctx context.Context) error {
				item, err := a.Get(ctx, "k")
				if err == nil && item.Found {
					t.Error("a flushed value was found")
				}
				return err
			})
			if n := a.replacements(); n != 0 {
				t.Errorf("told of %d replacements", n)
			}
		})
	}
}

// A restarted server has what it had saved. While it is down nobody is told.
func TestReplacedByARestart(t *testing.T) {
	for _, v := range allVariants {
		for _, how := range []string{"keeping", "empty"} {
			t.Run(v.name+"/"+how, func(t *testing.T) {
				t.Parallel()
				server := servertest.Redis(t, servers.RedisOptions{})
				s := v.on(t, server.URL())
				a := attach(t, s, "n")
				a.set("k", "v")
				if how == "keeping" {
					ok(t, server.Restart(a.ctx))
				} else {
					ok(t, server.Kill())
					for range 5 {
						if a.Ping(a.ctx) == nil {
							t.Fatal("a dead server has answered")
						}
					}
					sess, err := s.Attach(a.ctx, store.Config{Name: "late", AllowDown: true})
					ok(t, err)
					defer sess.Close()
					if n := a.replacements(); n != 0 {
						t.Errorf("told of %d replacements while the server is down", n)
					}
					ok(t, server.RestartEmpty(a.ctx))
				}
				if told := a.succeeds("an answer", a.Ping); told != 1 {
					t.Errorf("told %d times by the first answer, want once", told)
				}
				for range 3 { // and over the other connections of a client of the user's
					a.succeeds("a set", func(ctx context.Context) error {
						_, err := a.Set(ctx, "k", []byte("v"), time.Minute)
						return err
					})
				}
				if n := a.replacements(); n != 1 {
					t.Errorf("told %d times, want once", n)
				}
			})
		}
	}
}

// Who may not ask INFO takes every new connection for another server.
func TestReplacedWithoutInfo(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	rules := strings.Fields(strings.ReplaceAll(minimalACL, " +info", ""))
	if got := sayTo(t, server.Addr(), append([]string{"ACL", "SETUSER", "cache", "on", ">secret"}, rules...)...); got != "OK" {
		t.Fatal(got)
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			front := behind(t, server.Addr())
			a := attach(t, v.on(t, "redis://cache:secret@"+front.Addr()), unique(t))
			a.set("k", "v")
			for range 20 {
				a.get("k")
			}
			if n := a.replacements(); n != 0 {
				t.Fatalf("told of %d replacements over the first connection", n)
			}
			for cuts := 1; cuts <= 3; cuts++ {
				front.Cut(faultproxy.RST)
				if told := a.succeeds("an answer", a.Ping); told < cuts {
					t.Errorf("told %d times after %d cuts", told, cuts)
				}
			}
		})
	}
}

// A primary becomes a replica and a primary again behind a connection that nobody cuts:
// by then it has what the other one had.
func TestDemotedAndPromotedAgain(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, servers.RedisOptions{})
			other := servertest.Redis(t, servers.RedisOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
			a := attach(t, v.on(t, server.URL()), "n")
			a.set("k", "v")
			sayTo(t, server.Addr(), "REPLICAOF", "127.0.0.1", fmt.Sprint(other.Port()))
			inStep(t, server)
			_, err := a.Set(a.ctx, "k", []byte("w"), time.Minute)
			wantError(t, err, "set", true)
			for range 3 {
				_, err := a.Get(a.ctx, "k")
				wantError(t, err, "get", true)
			}
			if n := a.replacements(); n != 0 {
				t.Errorf("told of %d replacements while there is no primary", n)
			}
			sayTo(t, server.Addr(), "REPLICAOF", "NO", "ONE")
			told := a.succeeds("an answer", func(ctx context.Context) error { _, err := a.Get(ctx, "k"); return err })
			if told == 0 {
				t.Error("answered before the session was told")
			}
			a.wantMiss("k")
		})
	}
}

// The server says why it turns a client away, also if it closes the connection at once.
func TestTurnedAway(t *testing.T) {
	server := servertest.Redis(t, servers.RedisOptions{})
	hold := client(t, server.URL())
	ok(t, hold.Do(t.Context(), hold.B().Arbitrary("CONFIG", "SET", "maxclients", "1").Build()).Error())
	for _, v := range []variant{variants[0], variants[2]} {
		t.Run(v.name, func(t *testing.T) {
			s := v.on(t, server.URL())
			_, err := s.Attach(t.Context(), store.Config{Name: "n"})
			wantError(t, err, "attach", true, "max number of clients reached")
		})
	}
}
