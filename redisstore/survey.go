package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// survey keeps the chart of a cluster, by asking its nodes in turn.
//
// It is there for the breakers, to which a chart that is a moment old does no harm: an
// operation is sent to where rueidis believes the key to be, and from there to where it is;
// only its outcome counts for another server than the one that gave it. Failures that count
// for the wrong one, enough to open its breaker, close it for a quarter of a second.
//
// And it is there for the pushes. A node tells who has read a key when the key is moved
// away, as when it is deleted. But it tells nothing of a key that was absent when it was
// read: that one is made at the new node, which knows of no reader. So when the survey finds
// that slots have gone elsewhere, it tells all sessions that changes may have gone unheard.
// It finds that out with the next answer of a primary that knows of it, mostly within
// surveyEvery, or at once if one of our own commands is sent on.
// (As long as the slot is on its way nobody can write an absent value: the scripts have two
// keys, and the servers refuse them; see whileMoving.)
type survey struct {
	store  *Store
	client rueidis.Client
	watch  *lookout // of a client of the user's
	wake   chan struct{}
	end    chan struct{}
	stop   func() // may be called more than once
}

const (
	// surveyEvery is how often a node is asked for the chart, and what it has to answer.
	surveyEvery = 250 * time.Millisecond
	// surveyRest comes after all nodes have been asked, and is doubled up to surveyEvery while
	// there is nothing new: a client that is behind is sent on with every command, and as long
	// as a node is dead something fails all the time.
	surveyRest = 20 * time.Millisecond
)

// explore draws the first chart and begins the survey. Where a server refuses that, there is
// none (nil), and the cluster counts as one server.
func (s *Store) explore(client rueidis.Client, watch *lookout) *survey {
	v := &survey{store: s, client: client, watch: watch, wake: make(chan struct{}, 1), end: make(chan struct{})}
	v.stop = sync.OnceFunc(func() { close(v.end) })
	answered := make(chan struct{}, 1)
	var refused atomic.Bool
	v.each(nodeTimeout, client.Nodes(), func(ctx context.Context, addr string, node rueidis.Client) {
		nodes, err := v.ask(ctx, addr, node)
		if _, no := asRefusal(err); no {
			refused.Store(true)
		} else if err != nil {
			return
		} else {
			if s.atlas.learn(nodes, time.Now()) {
				s.lost() // it came behind the first, whose chart was in use
			}
		}
		select {
		case answered <- struct{}{}:
		default:
		}
	}, answered)
	if refused.Load() && s.atlas.present.Load() == nil {
		return nil
	}
	s.survey.Store(v)
	go v.run()
	return v
}

// each does something with every node at the same time, and waits for all of them, or for
// enough, but not longer than the limit.
func (v *survey) each(limit time.Duration, nodes map[string]rueidis.Client, do func(ctx context.Context, addr string, node rueidis.Client), enough <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	var all sync.WaitGroup
	for addr, node := range nodes {
		all.Go(func() { do(ctx, addr, node) })
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		cancel()
		close(done)
	}()
	select {
	case <-done:
	case <-enough:
	case <-ctx.Done():
	}
}

// hurry has all nodes asked at once.
func (v *survey) hurry() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

func (v *survey) run() {
	tick := time.NewTicker(surveyEvery)
	defer tick.Stop()
	rest := surveyRest
	for turn := 0; ; turn++ {
		select {
		case <-v.end:
			return
		case <-tick.C:
			v.askOne(turn)
			continue
		case <-v.wake:
		}
		before := v.store.atlas.present.Load()
		v.askAll()
		if rest = min(2*rest, surveyEvery); v.store.atlas.present.Load() != before {
			rest = surveyRest // there is more to come: a reshard, say
		}
		select {
		case <-v.end:
			return
		case <-time.After(rest):
		}
	}
}

// askOne asks one of the primaries. If it does not answer, all nodes are asked.
func (v *survey) askOne(turn int) {
	nodes := v.primaries()
	if len(nodes) == 0 {
		return
	}
	addrs := make([]string, 0, len(nodes))
	for addr := range nodes {
		addrs = append(addrs, addr)
	}
	slices.Sort(addrs)
	ctx, cancel := context.WithTimeout(context.Background(), surveyEvery)
	defer cancel()
	addr := addrs[turn%len(addrs)]
	seen, err := v.ask(ctx, addr, nodes[addr])
	if err != nil {
		v.hurry()
		return
	}
	v.learn(seen)
}

// primaries are the nodes but for those that are known to be replicas.
func (v *survey) primaries() map[string]rueidis.Client {
	nodes, c := v.client.Nodes(), v.store.atlas.present.Load()
	for addr := range nodes {
		if c != nil && slices.Contains(c.replicas, addr) {
			delete(nodes, addr)
		}
	}
	return nodes
}

// askAll asks all nodes, and greets those that have slots, so that a store hears soon of one
// that has been replaced, also if nobody asks it anything.
func (v *survey) askAll() {
	v.each(surveyEvery, v.client.Nodes(), func(ctx context.Context, addr string, node rueidis.Client) {
		nodes, err := v.ask(ctx, addr, node)
		if err != nil {
			return
		}
		v.learn(nodes)
		if v.watch == nil && ownsSlots(nodes) {
			_ = v.greet(ctx, node) // it is asked again by whoever needs it
		}
	}, nil)
}

// ask asks one node, at an address, for its view.
func (v *survey) ask(ctx context.Context, addr string, node rueidis.Client) (nodes []clusterNode, err error) {
	err = v.say(ctx, node, node.B().Arbitrary("CLUSTER", "NODES").Build(), func(reply rueidis.RedisResult) error {
		text, err := reply.ToString()
		if err != nil {
			return fmt.Errorf("CLUSTER NODES: %w", err)
		}
		nodes, err = readNodes(text)
		return err
	})
	sayWhere(nodes, addr)
	return nodes, err
}

// sayWhere fills in the address of a node that does not know its own: it hears of that from the others, and
// that of a cluster of one node has none. addr is where it was asked.
func sayWhere(nodes []clusterNode, addr string) {
	for i := range nodes {
		if nodes[i].myself && strings.HasPrefix(nodes[i].addr, ":") {
			nodes[i].addr = addr
		}
	}
}

func (v *survey) greet(ctx context.Context, node rueidis.Client) error {
	return v.say(ctx, node, greeting(node), func(reply rueidis.RedisResult) error { return reply.Error() })
}

// say sends a command to a node. When ctx ends, nobody waits any more; but what it sends
// may have begun to connect, and others wait for that.
func (v *survey) say(ctx context.Context, node rueidis.Client, cmd rueidis.Completed, read func(rueidis.RedisResult) error) error {
	reply, err := patiently(ctx, func() (rueidis.RedisResult, error) {
		ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
		defer cancel()
		return node.Do(ctx, cmd), nil
	})
	if err != nil {
		return err
	}
	return read(reply)
}

// learn takes in a view, and tells the sessions if slots have gone elsewhere.
func (v *survey) learn(nodes []clusterNode) {
	first := v.store.atlas.present.Load() == nil // what was read before it may have moved
	if !v.store.atlas.learn(nodes, time.Now()) && !first {
		return
	}
	if v.store.link.pushes.Load() {
		v.store.lost()
	}
	if v.watch != nil {
		v.watch.next.Store(0)
		v.watch.look()
	}
	v.hurry()
}

// ping asks every primary. The error is that of one which has not answered.
func (v *survey) ping(ctx context.Context) error {
	nodes := v.primaries()
	errs := make(chan error, len(nodes))
	for addr, node := range nodes {
		go func() {
			err := v.greet(ctx, node)
			if err != nil {
				err = fmt.Errorf("%s: %w", addr, err)
			}
			errs <- err
		}()
	}
	for range nodes {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// ownsSlots says whether the node that has this view has slots.
func ownsSlots(nodes []clusterNode) bool {
	return slices.ContainsFunc(nodes, func(n clusterNode) bool { return n.myself && len(n.ranges) > 0 })
}

// shardedSession is a session on a cluster. It implements store.Sharded.
type shardedSession struct{ *session }

var _ store.Sharded = (*shardedSession)(nil)

// Server implements store.Sharded. The name is the address that the server's first primary
// had: a replica that takes its place keeps it.
func (s *shardedSession) Server(key string) string {
	return s.store.atlas.server(slotOf(s.prefix, key))
}

// inCluster says whether the store is on a cluster, as far as that is known before the
// servers can be reached.
func (s *Store) inCluster() bool { return s.cluster || s.survey.Load() != nil }
