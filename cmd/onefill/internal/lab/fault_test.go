package lab

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
)

// TestFaults: what the lab does to a store, on each of them. A killed one refuses, a
// frozen one says nothing, and a restarted one is empty and at the same address.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start func(t *testing.T) (*storeServer, error)
	}{
		{"redis", func(t *testing.T) (*storeServer, error) {
			servertest.Redis(t, servers.RedisOptions{}) // says what to install, or skips where that is allowed
			return startPrivateRedis(t.Context())
		}},
		{"memcached", func(t *testing.T) (*storeServer, error) {
			servertest.Memcached(t, servers.MemcachedOptions{})
			return startPrivateMemcached(t.Context())
		}},
		{"miniredis", func(*testing.T) (*storeServer, error) { return startMiniredis() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := tt.start(t)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			storeFaults(t, s)
		})
	}
}

func storeFaults(t *testing.T, s *storeServer) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	client := func() plainStore {
		t.Helper()
		p, err := openPlain(ctx, s.spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	p := client()
	if err := p.Set(ctx, "k", "v", time.Minute); err != nil {
		t.Fatal(err)
	}

	if err := s.damage.freeze(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, _, err := (recipe.Bounded{Store: p, Timeout: 50 * time.Millisecond}).Get(ctx, "k"); err == nil || time.Since(start) < 50*time.Millisecond {
		t.Errorf("frozen: answered with %v after %v", err, time.Since(start))
	}
	if err := s.damage.heal(ctx); err != nil {
		t.Fatal(err)
	}
	p = client()
	if value, found, err := p.Get(ctx, "k"); err != nil || !found || value != "v" {
		t.Errorf("thawed: %q, %v, %v", value, found, err)
	}

	if err := s.damage.kill(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Get(ctx, "k"); err == nil {
		t.Error("killed: answered")
	}
	if err := s.damage.heal(ctx); err != nil {
		t.Fatal(err)
	}
	p = client() // at the same address
	if value, found, err := p.Get(ctx, "k"); err != nil || found {
		t.Errorf("restarted: %q, %v, %v; expected an empty store", value, found, err)
	}
	if err := p.Set(ctx, "k", "w", time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := s.damage.heal(ctx); err != nil {
		t.Fatal(err)
	}
	if _, found, err := p.Get(ctx, "k"); err != nil || !found {
		t.Errorf("healed although nothing was wrong: %v, %v; the value should be there", found, err)
	}
}

// TestLeaveOut: a given store is left in peace, and a given database is not asked for
// more connections than it has.
func TestLeaveOut(t *testing.T) {
	own, given := &storeServer{damage: &damaged{faults: redisFaults{}}}, &storeServer{}
	forgetful := &storeServer{damage: &damaged{faults: processFaults{}}} // memcached
	for _, tt := range []struct {
		name       string
		scenarios  []string
		store      *storeServer
		free       int
		want       string // what is left
		note, fail string
	}{
		{"own servers", ScenarioIDs(), own, 0, "S1 S2 S3 S4 S5 S6 S7 release killed frozen cold commit", "", ""},
		{"memcached", ScenarioIDs(), forgetful, 0, "S1 S2 S3 S4 S5 S6 S7 release killed frozen cold", "commit, which needs a Redis", ""},
		{"given store", ScenarioIDs(), given, 0, "S1 S2 S3 S4 S5 S6 release", "S7, killed, frozen, cold and commit, which stop or kill the store", ""},
		{"small database", ScenarioIDs(), own, 30, "S1 S2 S3 S4 S5 S6 S7 release", "killed, frozen and cold, which need 66 connections to the database, of which the given one has 30 left", ""},
		{"smaller database", ScenarioIDs(), own, 30, "S1 S2 S3 S4 S5 S6 S7 release", "commit, which needs 33 connections to the database, of which the given one has 30 left", ""},
		{"room for one of them", ScenarioIDs(), own, 70, "S1 S2 S3 S4 S5 S6 S7 release killed frozen cold", "commit, which needs 81 connections to the database, of which the given one has 70 left", ""},
		{"nothing left", []string{"S7", "cold"}, given, 0, "", "", "S7 and cold, which stop or kill the store"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &run{cfg: Defaults(), store: tt.store, freeConnections: tt.free, spec: originSpec{Kind: originPostgres}, report: &Report{}}
			r.cfg.Scenarios = tt.scenarios
			err := r.leaveOut()
			var input *InputError
			if tt.fail != "" && (!errors.As(err, &input) || !strings.Contains(input.Msg, tt.fail)) || tt.fail == "" && err != nil {
				t.Errorf("%v", err)
			}
			var left []string
			for _, s := range r.playable {
				left = append(left, s.ID)
			}
			if got := strings.Join(left, " "); got != tt.want {
				t.Errorf("left: %s", got)
			}
			notes := r.report.Environment.Notes
			if tt.note == "" && len(notes) > 0 || tt.note != "" && !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, tt.note) }) {
				t.Errorf("notes: %q", notes)
			}
		})
	}
}

// TestPrivateDatabaseHasRoom: on servers of the lab's own nothing is left out, however many
// callers there are.
func TestPrivateDatabaseHasRoom(t *testing.T) {
	const reserved = 5 // for superusers, and what the server itself takes
	for _, callers := range []int{12, 90, 300} {
		r := &run{cfg: Defaults(), store: &storeServer{damage: &damaged{faults: redisFaults{}}}, spec: originSpec{Kind: originPostgres}, report: &Report{}}
		r.cfg.Callers = callers
		r.freeConnections = r.privateConnections() - reserved
		if err := r.leaveOut(); err != nil || len(r.playable) != len(Scenarios) {
			t.Errorf("%d callers: %d scenarios of %d, %v, %q", callers, len(r.playable), len(Scenarios), err, r.report.Environment.Notes)
		}
	}
}

func TestJoinWords(t *testing.T) {
	for want, words := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}} {
		if got := joinWords(words); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
