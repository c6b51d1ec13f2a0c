package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The replies as Redis 7.0.15 and Valkey 8.0.1 give them, shortened.
func TestReadIdentity(t *testing.T) {
	const server = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nprocess_id:1\r\nrun_id:aaaa\r\ntcp_port:6379\r\n"
	const valkey = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:cluster\r\nrun_id:bbbb\r\n"
	cluster := strings.Replace(server, "standalone", "cluster", 1)
	replication := func(role, second string) string {
		return "# Replication\r\nrole:" + role + "\r\nconnected_slaves:0\r\nmaster_replid:1111\r\nmaster_replid2:" + second + "\r\nmaster_repl_offset:0\r\n"
	}
	for _, tt := range []struct {
		server, replication string
		want                identity
	}{
		{server, replication("master", noReplID), identity{runID: "aaaa", replID: "1111"}},
		{server, replication("slave", noReplID), identity{runID: "aaaa", replID: "1111", replica: true}},
		{cluster, replication("master", "2222"), identity{runID: "aaaa", replID: "1111", promoted: true, cluster: true}},
		{valkey, replication("master", noReplID), identity{runID: "bbbb", replID: "1111", cluster: true}},
		{"", "", identity{}},
		{"ok", "role", identity{}},
	} {
		if got := readIdentity(tt.server, tt.replication); got != tt.want {
			t.Errorf("%q, %q: %+v, want %+v", tt.server, tt.replication, got, tt.want)
		}
	}
}

// Each step is a connection that is about to carry its first operation, and whether the
// sessions are told before it does.
func TestRoster(t *testing.T) {
	type step struct {
		addr string
		id   identity
		told bool
	}
	p1, p2 := identity{runID: "1", replID: "a"}, identity{runID: "2", replID: "a"}
	promoted := identity{runID: "2", replID: "b", promoted: true}
	node := func(run, repl string, promoted bool) identity {
		return identity{runID: run, replID: repl, promoted: promoted, cluster: true}
	}
	for name, steps := range map[string][]step{
		"the same server":                {{"a", p1, false}, {"a", p1, false}, {"b", p1, false}},
		"restarted":                      {{"a", p1, false}, {"a", p2, true}, {"a", p2, false}},
		"a promoted replica":             {{"a", p1, false}, {"b", promoted, true}, {"b", promoted, false}},
		"and back":                       {{"a", p1, false}, {"b", promoted, true}, {"a", p1, true}},
		"promoted before we came":        {{"a", promoted, false}, {"a", promoted, false}},
		"its first replica":              {{"a", p1, false}, {"a", identity{runID: "1", replID: "c"}, false}},
		"demoted and promoted":           {{"a", p1, false}, {"a", identity{runID: "1", replID: "c", promoted: true}, true}},
		"it does not say":                {{"a", identity{}, false}, {"a", identity{}, true}, {"a", identity{}, true}},
		"it says and then does not":      {{"a", p1, false}, {"a", identity{}, true}, {"a", p1, true}, {"a", p1, false}},
		"cluster: its nodes":             {{"a", node("1", "a", false), false}, {"b", node("2", "b", false), false}, {"a", node("1", "a", false), false}},
		"cluster: a replica promoted":    {{"a", node("1", "a", false), false}, {"b", node("2", "b", true), true}, {"b", node("2", "b", true), false}},
		"cluster: a node restarted":      {{"a", node("1", "a", false), false}, {"b", node("2", "b", false), false}, {"b", node("3", "b", false), true}},
		"cluster: a node is a new one":   {{"a", node("1", "a", false), false}, {"a", node("2", "b", false), true}},
		"cluster: the first is promoted": {{"a", node("1", "a", true), false}, {"b", node("2", "b", true), true}},
	} {
		told := 0
		r := newRoster(func() { told++ })
		for i, s := range steps {
			before := told
			if err := r.admit(s.addr, s.id); err != nil {
				t.Errorf("%s, step %d: %v", name, i, err)
			}
			if (told > before) != s.told {
				t.Errorf("%s, step %d: told %v, want %v", name, i, told > before, s.told)
			}
		}
		if n := r.changes.Load(); int(n) != told {
			t.Errorf("%s: %d changes, told %d times", name, n, told)
		}
	}
}

// A replica is refused and leaves nothing behind.
func TestRosterRefusesReplicas(t *testing.T) {
	r := newRoster(func() { t.Error("told") })
	if err := r.admit("h:1", identity{runID: "1", replica: true}); !errors.Is(err, errReplica) {
		t.Errorf("%v, want the error that says replica", err)
	}
	if !r.empty() {
		t.Error("the replica is in the roster")
	}
}

// Nodes that come and go do not fill the memory; who is forgotten counts as replaced.
func TestRosterIsBounded(t *testing.T) {
	told := 0
	r := newRoster(func() { told++ })
	for i := range 3 * maxRoster {
		if err := r.admit(fmt.Sprint(i), identity{runID: fmt.Sprint(i), cluster: true}); err != nil {
			t.Fatal(err)
		}
		if n := len(r.answered); n > maxRoster {
			t.Fatalf("%d nodes are remembered", n)
		}
	}
	if told < 2*maxRoster {
		t.Errorf("told %d times, want once for each node since the first was forgotten", told)
	}
}

// Whoever comes second to the new server waits until everybody has been told.
// Interleaving: a connection to it makes the roster tell, which blocks | another
// connection to it asks, and gets no answer | everybody has been told | it gets one.
func TestRosterSecondWaits(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	r := newRoster(func() { close(entered); <-leave })
	if err := r.admit("h:1", identity{runID: "1"}); err != nil {
		t.Fatal(err)
	}
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- r.admit("h:1", identity{runID: "2"}) }()
	<-entered
	asked := make(chan struct{})
	go func() { close(asked); second <- r.admit("h:1", identity{runID: "2"}) }()
	<-asked
	select { // that it waits cannot be seen; that it does not, within this time
	case <-second:
		close(leave)
		t.Fatal("admitted before everybody had been told")
	case <-time.After(50 * time.Millisecond):
	}
	close(leave)
	ok(t, <-first)
	ok(t, <-second)
}
