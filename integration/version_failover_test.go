package integration

import (
	"context"
	"strconv"
	"testing"

	"github.com/onefill/onefill/internal/faultproxy"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestVersionsAcrossAFailover makes a replica a primary that has the old row of one key
// and the lease of an old load of another one, and lacks the Sets of both. With
// Options.Version, once B has repeated what it wrote, no older row replaces a newer one:
// not in the store, not in either local cache. The interleaving:
//
//	A: load of k begins, reads v1, is held | A, B: v1 of m in local
//	| replica: REPLICAOF NO ONE, with A's lease of k and v1 of m
//	| k, m := v2; B: Set(k, v2), Set(m, v2) on the primary, nil
//	| all connections are cut, and made anew to the former replica
//	| "late": B repeats its writes there; A's load of k returns v1, its fill is sent
//	| "early": A's load returns first, and its fill may find its old lease; B repeats
//	| A: Set(k, v1), Set(m, v1), and loads of both that bring v1 from a lagging database
func TestVersionsAcrossAFailover(t *testing.T) {
	for _, when := range []string{"late", "early"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t, onRedis, 2, func(o *worldOptions) {
				o.Version = func(r row) uint64 { return uint64(r.Version) }
				o.LoadTimeout, o.WaitTimeout = patience, 2*patience
			})
			adminOf(t, w.server).do("CONFIG", "SET", "repl-diskless-sync-delay", "0") // else it waits for more replicas
			replica := servertest.Redis(t, servers.RedisOptions{Args: []string{"--replicaof", "127.0.0.1", strconv.Itoa(w.server.Port())}})
			s := &secondHand{t, w, adminOf(t, replica), w.members[0], w.members[1], w.origin.add(0), w.origin.add(0)}
			release, answer := s.prepare()
			s.failover(replica)
			if when == "early" {
				release()
			}
			poll(t, "B has repeated its writes", func() bool {
				s.b.get(s.k)
				return s.b.cache.Stats().Replayed >= 2 && s.b.cache.Stats().ReplaysWaiting == 0
			})
			release()
			if r := <-answer; r.Class != "" {
				t.Errorf("who had waited for the load got %s", r.Err)
			}
			w.recovered(t)
			s.wantNew("after the failover")
			s.oldRows()
			st := s.a.cache.Stats()
			t.Logf("A: %d fills, %d refused; B repeated %d writes", st.Fills, st.FillsRefused, s.b.cache.Stats().Replayed)
		})
	}
}

// secondHand is a fleet whose store is a former replica.
type secondHand struct {
	t    *testing.T
	w    *world
	now  *admin // of the former replica
	a, b *member
	k, m string
}

// prepare brings A's load of k to where it is held, and v1 of m everywhere.
func (s *secondHand) prepare() (release func(), answer <-chan result) {
	s.t.Helper()
	for _, member := range s.w.members {
		member.get(s.m)
	}
	poll(s.t, "the replica has the old row", func() bool { _, found := s.now.stored(s.w.name, s.m); return found })
	release = s.w.origin.hold(s.k)
	s.t.Cleanup(release)
	got := make(chan result, 1)
	go func() { got <- s.a.get(s.k) }()
	poll(s.t, "A loads", func() bool { return s.w.origin.loads(s.k) == 1 })
	poll(s.t, "the replica has A's lease", func() bool {
		n, err := s.now.do("EXISTS", leaseKey(s.w.name, s.k)).AsInt64()
		return err == nil && n == 1
	})
	return release, got
}

func (s *secondHand) failover(replica *servers.Server) {
	s.t.Helper()
	s.now.do("REPLICAOF", "NO", "ONE")
	s.w.origin.letPass(s.k) // A's load goes on waiting
	for _, key := range []string{s.k, s.m} {
		version := s.w.origin.write(key)
		must(s.t, s.b.cache.Set(s.t.Context(), key, row{Value: "v2", Version: version}))
	}
	for _, member := range s.w.members {
		member.proxy.SetTarget(replica.Addr())
	}
	for _, member := range s.w.members {
		member.proxy.Cut(faultproxy.RST)
	}
	must(s.t, s.w.server.Kill())
}

// wantNew wants version 2 in both caches, again and again, and nothing else in the store.
func (s *secondHand) wantNew(when string) {
	s.t.Helper()
	for range 20 {
		for i, member := range s.w.members {
			for _, key := range []string{s.k, s.m} {
				if r := member.get(key); r.Class != "" || r.Row.Version != 2 {
					s.t.Errorf("%s: cache %d has version %d of %q, %s", when, i, r.Row.Version, key, r.Err)
				}
			}
		}
	}
	for _, key := range []string{s.k, s.m} {
		s.now.wantStored(s.w.name, key, 2)
	}
}

// oldRows offers version 1 again, in every way.
func (s *secondHand) oldRows() {
	s.t.Helper()
	old := row{Value: "v1", Version: 1}
	lagging := func(context.Context, string) (row, error) { return old, nil }
	for _, key := range []string{s.k, s.m} {
		for _, member := range s.w.members {
			must(s.t, member.cache.Set(s.t.Context(), key, old))
		}
	}
	s.wantNew("after Set of an older row")
	for _, key := range []string{s.k, s.m} {
		must(s.t, s.b.cache.Expire(s.t.Context(), key))
		loads := s.a.cache.Stats().Loads
		// Who asks with that loader gets what it brought, or what the store has.
		poll(s.t, "A has heard of it, and asks the lagging database", func() bool {
			_, err := s.a.cache.GetOrLoad(s.t.Context(), key, lagging)
			return err == nil && s.a.cache.Stats().Loads > loads
		})
		s.now.wantStored(s.w.name, key, 2)
	}
	s.wantNew("after a load of an older row")
}
