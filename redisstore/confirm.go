package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// Confirm makes Set, Invalidate, Expire and VoidTags wait until so many replicas have
// acknowledged the write, for as long as within at most. If fewer have by then, the
// error wraps store.ErrNotReplicated and says how many: the write was applied, and a
// failover may lose it. That is no unavailability, whatever the reason. A shorter
// deadline of the context shortens the wait.
//
// Acknowledged means received, not chosen: a failover to a replica that is not among
// them loses the write all the same. Ask for as many as there may be promoted.
//
// Each such write costs three round trips more, on a connection of its own for as long
// as it waits, 64 of them at most for each store; a bulk waits once for each server. The
// user needs the right to +wait. replicas must be 1 at least, within 1 ms.
func Confirm(replicas int, within time.Duration) Option {
	return func(o *options) {
		o.confirm = &confirmation{replicas: replicas, within: within, places: make(chan struct{}, maxConfirming)}
	}
}

const maxConfirming = 64

type confirmation struct {
	replicas int
	within   time.Duration
	places   chan struct{} // one for each connection that waits
}

func (c *confirmation) check() error {
	switch {
	case c == nil:
		return nil
	case c.replicas < 1:
		return misuse(fmt.Sprintf("Confirm: %d replicas: give 1 at least, or leave Confirm out", c.replicas))
	case c.within < time.Millisecond:
		return misuse(fmt.Sprintf("Confirm: within %s: give 1ms at least, or leave Confirm out", c.within))
	}
	return nil
}

// confirming is called before keys are written; what it returns is called when that has
// been answered, and waits for the replicas.
func (s *Store) confirming(c *conn, values ...string) func(context.Context) error {
	if s.confirmation == nil {
		return func(context.Context) error { return nil }
	}
	changes := s.roster.changes.Load()
	return func(ctx context.Context) error {
		keys, err := patiently(ctx, func() ([]string, error) { return onePerNode(ctx, c, values) })
		if err != nil {
			return fmt.Errorf("%w: %w", store.ErrNotReplicated, err)
		}
		outcomes := make(chan error, len(keys))
		for _, key := range keys {
			go func() { outcomes <- s.confirm(ctx, c, key) }()
		}
		for range keys {
			if outcome := <-outcomes; err == nil {
				err = outcome
			}
		}
		if err == nil && s.roster.changes.Load() != changes {
			err = errors.New("another server has taken over meanwhile")
		}
		if err != nil {
			return fmt.Errorf("%w: %w", store.ErrNotReplicated, err)
		}
		return nil
	}
}

// confirm waits for the replicas of one key's server.
func (s *Store) confirm(ctx context.Context, c *conn, key string) error {
	places := s.confirmation.places
	select {
	case places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	within, start := s.confirmation.within, time.Now()
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, deadline.Sub(start))
	}
	_, err := patiently(ctx, func() (struct{}, error) {
		d, giveBack := c.client.Dedicate()
		err := s.waitAt(ctx, d, key, max(within, time.Millisecond))
		if err != nil {
			d.Close() // WAIT may be under way
		}
		go func() { // rueidis tidies the connection up first, which takes a round trip
			giveBack()
			<-places
		}()
		return struct{}{}, err
	})
	if err != nil && ctx.Err() != nil { // Redis may look at its timeouts a tenth of a second late
		return fmt.Errorf("not %d within %s: %w", s.confirmation.replicas, time.Since(start).Round(time.Millisecond), ctx.Err())
	}
	return err
}

// waitAt asks WAIT on a connection that becomes one to the key's server, which it blocks. WAIT is about
// the writes of its own connection; from Redis 7.2 on it knows no other offset than that
// of the last one that was replicated. So the connection makes such a write first, behind
// the one that is to be confirmed, and makes sure that both went to the same server.
func (s *Store) waitAt(ctx context.Context, d rueidis.DedicatedClient, key string, within time.Duration) error {
	mark := call{script: confirmScript, keys: []string{key + confirmSuffix}}
	marked := d.Do(ctx, mark.byHash(d.B())).Error()
	if unknownScript(marked) {
		marked = d.Do(ctx, mark.byText(d.B())).Error()
	}
	if marked != nil {
		return marked
	}
	id, err := askIdentity(ctx, d)
	if err != nil {
		return err
	}
	if !s.roster.has(id.runID) {
		return errors.New("the connection is to another server than the write's")
	}
	want := s.confirmation.replicas
	got, err := d.Do(ctx, d.B().Wait().Numreplicas(int64(want)).Timeout(wholeMillis(within)).Build()).AsInt64()
	if err != nil {
		return err
	}
	if got < int64(want) {
		return fmt.Errorf("%d of %d within %s", got, want, within)
	}
	return nil
}

// onePerNode picks one of the keys that each server has. It asks the server of one of
// them: any other one, as rueidis would choose it, may be down.
func onePerNode(ctx context.Context, c *conn, keys []string) ([]string, error) {
	if len(keys) <= 1 || c.client.Mode() != rueidis.ClientModeCluster {
		return keys[:1], nil
	}
	d, cancel := c.client.Dedicate()
	defer cancel()
	results := d.DoMulti(ctx, d.B().Arbitrary("EXISTS").Keys(keys[0]).Build(), d.B().Arbitrary("CLUSTER", "SLOTS").Build())
	shards, err := results[1].ToArray()
	if err != nil {
		return nil, fmt.Errorf("CLUSTER SLOTS: %w", err)
	}
	owners, err := readSlots(shards)
	if err != nil {
		return nil, err
	}
	var picked []string
	seen := map[string]bool{}
	for _, key := range keys {
		cmd := c.B().Arbitrary("EXISTS").Keys(key).Build()
		node := owners.of(int64(cmd.Slot()))
		if !seen[node] {
			seen[node] = true
			picked = append(picked, key)
		}
	}
	return picked, nil
}

// slots says which node has which range of slots.
type slots []struct {
	first, last int64
	node        string
}

func (s slots) of(slot int64) string {
	for _, r := range s {
		if r.first <= slot && slot <= r.last {
			return r.node
		}
	}
	return ""
}

// readSlots reads CLUSTER SLOTS: for each range its ends, and its nodes, the primary
// first: address, port, ...
func readSlots(ranges []rueidis.RedisMessage) (slots, error) {
	s := make(slots, len(ranges))
	for i := range ranges {
		fields, err := ranges[i].ToArray()
		if err == nil && len(fields) < 3 {
			err = fmt.Errorf("a range of %d fields", len(fields))
		}
		if err != nil {
			return nil, fmt.Errorf("CLUSTER SLOTS: %w", err)
		}
		first, err1 := fields[0].AsInt64()
		last, err2 := fields[1].AsInt64()
		node, err3 := fields[2].ToArray()
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("CLUSTER SLOTS: %w", err)
		}
		s[i].first, s[i].last = first, last
		for _, part := range node[:min(2, len(node))] {
			s[i].node += " " + part.String()
		}
	}
	return s, nil
}
