package redisstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// lookout finds out who is behind the connections of a cluster client of the user's.
// rueidis makes them again unseen, and knows of the nodes' roles what it likes, so the
// nodes are asked again and again: at the first operation after one that has failed, but
// surveyRest after the last time, as with a dead node something fails all the time; and at
// the first that comes primaryCheck after the last time. No operation waits for that,
// since one node that hangs must not hold up the keys of the others.
//
// So a node that is replaced is asked for up to primaryCheck, or nodeTimeout if another
// one hangs, before the sessions are told.
type lookout struct {
	store  *Store
	client rueidis.Client
	start  time.Time
	// next is when to look again, in nanoseconds since start; soon, if an operation has failed.
	next, soon atomic.Int64
	// failed: an operation has ended without an answer.
	failed atomic.Bool
	// looking: somebody does.
	looking atomic.Bool
}

// nodeTimeout bounds a look: a node that hangs is the very one that another will take the
// place of, and the next look must find that out.
const nodeTimeout = time.Second

// borrow makes a conn of a cluster client.
func (s *Store) borrow(client rueidis.Client) *conn {
	l := &lookout{store: s, client: client, start: time.Now()}
	c := &conn{CommandClient: client, client: client, borrowed: true, watch: l, survey: s.explore(client, l),
		failed: func() { l.failed.Store(true) }}
	if v := c.survey; v != nil {
		c.shut = v.stop
		c.failed = func() {
			l.failed.Store(true)
			v.hurry()
		}
	}
	return c
}

// look asks the nodes who they are, if that is due.
func (l *lookout) look() {
	now := int64(time.Since(l.start))
	due := l.failed.Load() && now >= l.soon.Load() || now >= l.next.Load()
	if due && l.looking.CompareAndSwap(false, true) {
		go l.run()
	}
}

func (l *lookout) run() {
	defer l.looking.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), nodeTimeout)
	defer cancel()
	failed := l.failed.Swap(false)
	nodes := l.client.Nodes()
	done := make(chan struct{}, len(nodes))
	for addr, node := range nodes {
		go func() {
			l.ask(ctx, addr, node, failed)
			done <- struct{}{}
		}()
	}
	for range nodes {
		<-done
	}
	l.soon.Store(int64(time.Since(l.start) + surveyRest))
	l.next.Store(int64(time.Since(l.start) + primaryCheck))
}

func (l *lookout) ask(ctx context.Context, addr string, node rueidis.Client, failed bool) {
	// The wait for somebody else's dial knows no context: see guard.
	id, err := patiently(ctx, func() (identity, error) { return askIdentity(ctx, node) })
	if err != nil {
		return // the next look asks again
	}
	if !id.known() && !failed && !l.store.roster.empty() {
		return // who does not say who it is counts as another one after a loss only
	}
	_ = l.store.roster.admit(addr, id) // a replica will be asked again as long as it is a node
}
