package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// Store is a shared cache in Redis or Valkey. It is safe for concurrent use and
// serves any number of caches.
type Store struct {
	link   *link
	guard  *guard                 // of the only server
	atlas  *atlas                 // of a cluster's
	survey atomic.Pointer[survey] // nil: not a cluster, or not known
	// cluster: it is one for sure, also before it can be reached.
	cluster bool
	board   *board
	roster  *roster
	wires   wires
	// confirmation is what writes wait for, nil: nothing.
	confirmation *confirmation
	// noMGET: the server has refused MGET.
	noMGET atomic.Bool
	// product is what the server calls itself, "" until it has been asked.
	product atomic.Pointer[string]

	// mu guards the writing of sessions; readers load it. The map and its slices
	// are never changed in place.
	mu       sync.Mutex
	sessions atomic.Pointer[map[string][]*session]
}

var _ store.Store = (*Store)(nil)

func newStore(places int, o options) *Store {
	s := &Store{board: newBoard(), guard: newGuard(places), atlas: newAtlas(places), confirmation: o.confirm}
	s.roster = newRoster(s.replaced)
	s.sessions.Store(&map[string][]*session{})
	return s
}

// Close ends the store: its sessions fail from now on, and their waiters are woken.
// It closes the client that [Open] or [OpenOption] made; a client given to [New]
// stays open. Closing twice is fine.
func (s *Store) Close() error {
	s.link.close()
	s.lost()
	return nil
}

func (s *Store) service() string {
	if p := s.product.Load(); p != nil {
		return *p
	}
	return "redis"
}

// Attach implements store.Store. It asks the server who it is, whether it is a
// primary, and whether it runs scripts. With cfg.AllowDown a server that cannot be
// reached or is not ready is no error; a wrong password, missing rights or a port
// that speaks another protocol are.
func (s *Store) Attach(ctx context.Context, cfg store.Config) (store.Session, error) {
	for _, err := range []error{store.ValidName(cfg.Name), store.ValidOwner(cfg.Owner)} {
		if err != nil {
			return nil, &store.Error{Service: s.service(), Addr: s.link.addr(), Op: "attach", Err: err}
		}
	}
	sess := &session{store: s, name: cfg.Name, prefix: sessionPrefix(cfg.Name), owner: ownerField(cfg.Owner), events: cfg.Events}
	s.enlist(sess)
	if err := s.probe(ctx, sess); err != nil {
		if !cfg.AllowDown || !unreachable(err) {
			sess.Close()
			return nil, s.failure("attach", err)
		}
	}
	if s.inCluster() {
		return &shardedSession{sess}, nil
	}
	return sess, nil
}

var errReplica = errors.New("READONLY: the server is a replica; give the address of its primary")

func (s *Store) probe(ctx context.Context, sess *session) error {
	c, err := s.conn(ctx)
	if err != nil {
		return err
	}
	hello, err := s.guard.do(ctx, c, c.B().Arbitrary("HELLO").Build()).AsMap()
	if _, refused := asRefusal(err); refused {
		// Test doubles and old servers have no HELLO.
		err = s.guard.do(ctx, c, c.B().Arbitrary("PING").Build()).Error()
	}
	if err != nil {
		return err
	}
	product, role, mode := text(hello, "server"), text(hello, "role"), text(hello, "mode")
	if product != "" {
		s.product.Store(&product)
	}
	// In a cluster any node may have answered.
	if mode != "cluster" && (role == "replica" || role == "slave") {
		return errReplica
	}
	if err := s.run(ctx, c, call{script: probeScript, keys: []string{valueKey(sess.prefix, "")}}).Error(); err != nil {
		return fmt.Errorf("run a script: %w", err)
	}
	return nil
}

func text(m map[string]rueidis.RedisMessage, field string) string {
	message, ok := m[field]
	if !ok {
		return ""
	}
	s, _ := message.ToString()
	return s
}

// conn returns a connection to a server that all sessions know of.
func (s *Store) conn(ctx context.Context) (*conn, error) {
	c, err := s.link.get(ctx)
	if err != nil {
		return nil, err
	}
	if c.watch != nil {
		c.watch.look()
	}
	return c, nil
}

// run runs one script, by its text if the server does not know its hash.
func (s *Store) run(ctx context.Context, c *conn, script call) rueidis.RedisResult {
	return s.whileMoving(ctx, func() rueidis.RedisResult {
		g := s.guardOf(script.keys[0])
		result := g.do(ctx, c, script.byHash(c.B()))
		if unknownScript(result.Error()) {
			result = g.do(ctx, c, script.byText(c.B()))
		}
		s.noteError(c, result.Error())
		return result
	})
}

// runMarked is run in a pipeline with a marker: when that has been answered, the
// pushes that the script has caused have been heard.
func (s *Store) runMarked(ctx context.Context, c *conn, script call) rueidis.RedisResult {
	if !c.push {
		return s.run(ctx, c, script)
	}
	return s.whileMoving(ctx, func() rueidis.RedisResult {
		g := s.guardOf(script.keys[0])
		results := g.doMulti(ctx, c, []rueidis.Completed{script.byHash(c.B()), marker(c, script)})
		if unknownScript(results[0].Error()) {
			results = g.doMulti(ctx, c, []rueidis.Completed{script.byText(c.B()), marker(c, script)})
		}
		s.noteError(c, results[0].Error())
		if err := results[1].NonRedisError(); err != nil && results[0].Error() == nil {
			return rueidis.NewErrorResult(err)
		}
		return results[0]
	})
}

// Pauses between attempts at keys that are on their way.
const (
	minMovingPause = time.Millisecond
	maxMovingPause = 16 * time.Millisecond
)

// whileMoving repeats a script as long as the cluster says TRYAGAIN: the slot is on its
// way to another node, and the two keys of a value are not both on one side of it, or are
// absent. Nothing has been done then. It ends as soon as the slot has arrived, and at the
// latest a moment before the context.
func (s *Store) whileMoving(ctx context.Context, run func() rueidis.RedisResult) rueidis.RedisResult {
	var began time.Time       // the last attempt, but for the first one
	var slowest time.Duration // of the attempts
	for pause := minMovingPause; ; pause = min(2*pause, maxMovingPause) {
		result := run()
		if !isTryAgain(result.Error()) {
			return result
		}
		if !began.IsZero() {
			slowest = max(slowest, time.Since(began))
		}
		// An attempt that the deadline cuts off would leave it open whether it was applied, and
		// count as one that the server has not answered.
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 2*(pause+slowest) {
			return result
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return result
		}
		began = time.Now()
	}
}

// marker goes to the node that the script goes to, hence the key. It is an arbitrary
// command of any outcome.
func marker(c *conn, script call) rueidis.Completed {
	return c.B().Arbitrary("EXISTS").Keys(script.keys[0]).Build()
}

// runAll runs scripts in pipelines, in a cluster one for each server at the same time:
// one that is down holds up its own keys only. The error is the first one of a server that
// has one.
func (s *Store) runAll(ctx context.Context, c *conn, calls []call) error {
	groups := s.byServer(calls)
	if len(groups) == 1 {
		return s.runPipelines(ctx, c, groups[0])
	}
	errs := make([]error, len(groups))
	var all sync.WaitGroup
	for i, group := range groups {
		all.Go(func() { errs[i] = s.runPipelines(ctx, c, group) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) byServer(calls []call) [][]call {
	if s.atlas.present.Load() == nil || len(calls) == 1 {
		return [][]call{calls}
	}
	var groups [][]call
	places := map[string]int{}
	for _, each := range calls {
		server := s.atlas.server(slotOfFull(each.keys[0]))
		i, ok := places[server]
		if !ok {
			i = len(groups)
			places[server], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], each)
	}
	return groups
}

// runPipelines runs the scripts of one server, until the first error. A pipeline is kept
// short: rueidis sends one of 2,000 commands or more over a connection of its own.
func (s *Store) runPipelines(ctx context.Context, c *conn, calls []call) error {
	const longest = 256
	for chunk := range slices.Chunk(calls, longest) {
		if err := s.runPipeline(ctx, c, chunk); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) runPipeline(ctx context.Context, c *conn, calls []call) error {
	cmds := make([]rueidis.Completed, 0, 2*len(calls))
	for _, each := range calls {
		cmds = append(cmds, each.byHash(c.B()))
	}
	if c.push {
		for _, each := range calls {
			cmds = append(cmds, marker(c, each))
		}
	}
	results := s.guardOf(calls[0].keys[0]).doMulti(ctx, c, cmds)
	var first error
	for i, each := range calls {
		err := results[i].Error()
		if unknownScript(err) || isTryAgain(err) {
			err = s.runMarked(ctx, c, each).Error() // and the others after it find it known
		}
		if err != nil && first == nil {
			first = err
		}
	}
	s.noteError(c, first)
	return first
}

// noteError gives a connection of ours up when its server turns out to be a primary
// no more. rueidis does so for its own connections when a sentinel says it, but
// knows nothing of what a dedicated one is used for; and if that server becomes the
// primary again, by then with what another one has had, a new connection must tell.
func (s *Store) noteError(c *conn, err error) {
	if err == nil || !isReadOnly(err) {
		return
	}
	s.wires.cut()
	if _, dedicated := c.CommandClient.(rueidis.DedicatedClient); dedicated {
		s.link.drop(c)
		go c.close() // it may wait for the commands under way
	}
}

// enlist adds a session to those that hear pushes.
func (s *Store) enlist(added *session) {
	s.change(added.name, func(old []*session) []*session {
		return append(old[:len(old):len(old)], added)
	})
}

func (s *Store) delist(gone *session) {
	s.change(gone.name, func(old []*session) []*session {
		var kept []*session
		for _, each := range old {
			if each != gone {
				kept = append(kept, each)
			}
		}
		return kept
	})
}

func (s *Store) change(name string, edit func([]*session) []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[string][]*session{}
	for each, list := range *s.sessions.Load() {
		next[each] = list
	}
	if next[name] = edit(next[name]); len(next[name]) == 0 {
		delete(next, name)
	}
	s.sessions.Store(&next)
}
