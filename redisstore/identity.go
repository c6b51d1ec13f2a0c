package redisstore

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// identity is which server it is and which history of writes it has, as INFO says. A
// restart changes the run id, a promotion the replication id; both may have lost
// writes that had been answered. The zero value is a server that does not say.
type identity struct {
	runID  string
	replID string
	// promoted: it has been a replica since it was started, and is a primary now.
	promoted bool
	replica  bool
	cluster  bool
}

func (id identity) known() bool { return id.runID != "" }

// follows says that a server has kept all that it had answered as before. A primary
// that gets its first replica begins a new history without having lost the old one.
func (id identity) follows(before identity) bool {
	return id.known() && id.runID == before.runID && (id.replID == before.replID || !id.promoted)
}

// noReplID is the second replication id of a server that has never been promoted.
const noReplID = "0000000000000000000000000000000000000000"

// readIdentity reads INFO server and INFO replication.
func readIdentity(server, replication string) identity {
	second := infoField(replication, "master_replid2")
	return identity{
		runID:    infoField(server, "run_id"),
		replID:   infoField(replication, "master_replid"),
		promoted: second != "" && second != noReplID,
		replica:  infoField(replication, "role") == "slave",
		cluster:  infoField(server, "redis_mode") == "cluster" || infoField(server, "server_mode") == "cluster", // of Redis, of Valkey
	}
}

func infoField(info, field string) string {
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, field); ok && strings.HasPrefix(rest, ":") {
			return strings.TrimSpace(rest[1:])
		}
	}
	return ""
}

// roster knows which servers have answered, and tells when one that may lack writes
// takes over. Whoever is about to send an operation over a connection that has carried
// none asks it first (Open), or whoever makes the connection known (New).
type roster struct {
	// tell is called with mu held: an operation that comes second to a new server must
	// wait until everybody has been told. So what it calls must not call the store.
	tell func()

	// mu guards the rest.
	mu sync.Mutex
	// answered has the server at each place: in a cluster its address is its place, else
	// there is only one.
	answered map[string]identity
	// overflowed: the roster was full and was forgotten.
	overflowed bool

	// changes counts the calls of tell.
	changes atomic.Uint64
}

// maxRoster bounds the addresses that a cluster whose nodes come and go leaves behind.
const maxRoster = 1024

func newRoster(tell func()) *roster {
	return &roster{tell: tell, answered: map[string]identity{}}
}

// admit is called before the first operation goes over a connection. The error says
// that it must not: a replica does not answer for the primary, and if it becomes one, a
// new connection has to find that out.
func (r *roster) admit(addr string, id identity) error {
	if id.replica {
		return fmt.Errorf("%s: %w", addr, errReplica)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	place := ""
	if id.cluster {
		place = addr
	}
	before, seen := r.answered[place]
	if len(r.answered) >= maxRoster && !seen {
		clear(r.answered)
		r.overflowed = true
	}
	first := len(r.answered) == 0 && !r.overflowed
	r.answered[place] = id
	switch {
	case first:
		return nil
	case !seen && id.known():
		// A node of the cluster that has not answered yet. It has what others had
		// written there if it has been a replica; it brings nothing old if not.
		if !id.promoted && !r.overflowed {
			return nil
		}
	case id.follows(before):
		return nil
	}
	// Where the server does not say who it is, any new connection may be to another one.
	r.changes.Add(1)
	r.tell()
	return nil
}

// has says whether a server is one of those that have answered last, also when either
// of them does not say who it is.
func (r *roster) has(runID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range r.answered {
		if runID == "" || !id.known() || id.runID == runID {
			return true
		}
	}
	return false
}

// replaced tells all sessions that the server which answers from now on may lack what
// was answered before.
func (s *Store) replaced() {
	s.lost()
	for _, list := range *s.sessions.Load() {
		for _, each := range list {
			each.replaced()
		}
	}
}

func (r *roster) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.answered) == 0
}
