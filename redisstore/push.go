package redisstore

import (
	"slices"

	"github.com/redis/rueidis"
)

// The connection is tracked without NOLOOP, so the server tells it of its own writes
// too. With NOLOOP, Redis 7 is silent about everything that it removes while it works
// on a command of that connection: keys that have expired, keys that it evicts for
// memory, and keys that fall out of the tracking table. A local entry would then be
// served until its own end, whatever happens to the value.

// trackingOptions are those of CLIENT TRACKING ON.
var trackingOptions = []string{}

// pushed is called by rueidis' reader for every push: keys that were changed, or nil
// after FLUSHALL, FLUSHDB and the loss of a connection. Replies behind the push wait
// until it returns.
func (s *Store) pushed(keys []rueidis.RedisMessage) {
	if keys == nil {
		s.lost()
		return
	}
	for i := range keys {
		full, err := keys[i].ToString()
		if err != nil {
			continue
		}
		if k, ok := parseKey(full); ok {
			s.heard(k)
		}
	}
}

func (s *Store) heard(k parsed) {
	if k.kind != isLease {
		later := s.board.defers(k.full)
		for _, each := range (*s.sessions.Load())[k.name] {
			if !slices.Contains(later, each) {
				each.tell(k)
			}
		}
	}
	if k.kind == isValue || k.kind == isLease {
		s.board.wake(k.full)
	}
}

// lost tells all sessions that changes may have gone unheard.
func (s *Store) lost() {
	for _, list := range *s.sessions.Load() {
		for _, each := range list {
			each.lost()
		}
	}
	s.board.wakeAll(nil)
}
