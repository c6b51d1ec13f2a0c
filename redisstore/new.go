package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// New makes a store on a client of yours, with whatever options you made it. The
// client stays yours: [Store.Close] does not close it. Close the store first.
//
// On a single server or with sentinels the store takes one connection of the
// client's pool for itself and has it tracked, so pushes work whatever the client's
// own tracking is. With a cluster client it does without pushes, and hears of a
// failover up to a quarter of a second late: use [Open] there.
func New(client rueidis.Client, opts ...Option) *Store {
	o, err := apply(opts)
	s := newStore(defaultPlaces, o)
	if client == nil {
		err = errNoClient
	}
	if err != nil {
		s.link = &link{addr: func() string { return "no address" }, dial: func() (*conn, error) { return nil, err }}
		return s
	}
	dial := func() (*conn, error) { return s.dedicate(client, !o.noTracking) }
	if client.Mode() == rueidis.ClientModeCluster {
		s.cluster = true
		dial = func() (*conn, error) { return s.borrow(client), nil }
	}
	s.link = &link{addr: func() string { return nodes(client) }, dial: dial}
	return s
}

// errNoClient is what Attach says, as with options that are wrong: New has no error to
// return.
const errNoClient = misuse("redisstore.New was given a nil client")

func nodes(client rueidis.Client) string {
	var addrs []string
	for addr := range client.Nodes() {
		addrs = append(addrs, addr)
	}
	slices.Sort(addrs)
	return strings.Join(addrs, ",")
}

// setupTimeout bounds the few commands that make a connection a tracked one.
const setupTimeout = 5 * time.Second

// dedicate takes a connection from the client's pool and has it tracked if that is
// wanted and the server can. All commands of the store go over it: a connection that
// rueidis hands out pipelines concurrent commands like any other of its connections. It
// is never made again unseen, so a server that has been replaced is known before an
// operation gets hold of the connection to it.
func (s *Store) dedicate(client rueidis.Client, tracked bool) (*conn, error) {
	moved := moves(client) // before the connection is taken
	wire, cancel := client.Dedicate()
	ctx, done := context.WithTimeout(context.Background(), setupTimeout)
	defer done()
	three, err := speaks3(ctx, wire)
	if err != nil {
		wire.Close()
		return nil, err
	}
	c := &conn{CommandClient: wire, client: client, push: tracked && three}
	var ended <-chan error
	if three {
		ended = s.hearEnd(c, wire, tracked)
	} else {
		ended = s.seeEnd(c)
	}
	if c.push {
		err := track(ctx, wire)
		if _, refused := asRefusal(err); refused {
			cancel()
			return s.dedicate(client, false)
		}
		if err != nil {
			wire.Close()
			return nil, err
		}
	}
	id, err := askIdentity(ctx, wire)
	if err == nil {
		err = s.roster.admit(s.link.addr(), id)
	}
	if err != nil {
		wire.Close()
		return nil, err
	}
	go s.attend(c, wire, ended, moved)
	return c, nil
}

// speaks3 says whether a connection speaks RESP3, which has pushes.
func speaks3(ctx context.Context, wire rueidis.DedicatedClient) (bool, error) {
	hello, err := wire.Do(ctx, wire.B().Arbitrary("HELLO").Build()).AsMap()
	if _, refused := asRefusal(err); refused {
		return false, nil // a test double, or an old server
	}
	proto := hello["proto"]
	n, _ := proto.AsInt64()
	return n >= 3, err
}

// hearEnd makes rueidis tell of pushes and of the connection's end.
func (s *Store) hearEnd(c *conn, wire rueidis.DedicatedClient, tracked bool) (ended <-chan error) {
	c.shut = wire.Close
	known := make(chan struct{}) // closed when ended is set
	ended = wire.SetOnInvalidations(func(keys []rueidis.RedisMessage) {
		if keys == nil {
			// FLUSHALL, or the end of the connection, which rueidis has put into ended by
			// then: who is woken must not ask over the dead one again.
			<-known
			select {
			case <-ended: //nolint:errcheck // which error ended it does not matter
				s.link.drop(c)
			default:
			}
		}
		if tracked {
			s.pushed(keys)
		}
	})
	close(known)
	return ended
}

// seeEnd is for RESP2, where nobody tells: the connection has ended when a command fails
// on it. Nor does rueidis heed cancellation there, as little as on borrowed connections.
func (s *Store) seeEnd(c *conn) (ended <-chan error) {
	gone := make(chan error)
	c.borrowed = true
	c.shut = sync.OnceFunc(func() { close(gone) })
	c.failed = func() {
		s.link.drop(c)
		c.shut()
	}
	return gone
}

func track(ctx context.Context, wire rueidis.DedicatedClient) error {
	for _, args := range [][]string{{"OFF"}, append([]string{"ON"}, trackingOptions...)} {
		if err := wire.Do(ctx, wire.B().Arbitrary("CLIENT", "TRACKING").Args(args...).Build()).Error(); err != nil {
			return fmt.Errorf("CLIENT TRACKING: %w", err)
		}
	}
	return nil
}

// askIdentity asks a client's server who it is, in one round trip. A refusal is an
// identity that is not known.
func askIdentity(ctx context.Context, client rueidis.CommandClient) (identity, error) {
	sections, info := [...]string{"server", "replication"}, [2]string{}
	var cmds []rueidis.Completed
	for _, section := range sections {
		cmds = append(cmds, client.B().Arbitrary("INFO", section).Build())
	}
	for i, result := range client.DoMulti(ctx, cmds...) {
		text, err := result.ToString()
		if _, refused := asRefusal(err); refused {
			return identity{}, nil
		}
		if err != nil {
			return identity{}, fmt.Errorf("INFO %s: %w", sections[i], err)
		}
		info[i] = text
	}
	return readIdentity(info[0], info[1]), nil
}

// attend waits for the end of a dedicated connection, lets the next operation make
// another, and gives the place in the client's pool back.
func (s *Store) attend(c *conn, wire rueidis.DedicatedClient, ended <-chan error, moved func() bool) {
	tick := time.NewTicker(primaryCheck)
	defer tick.Stop()
	for open := true; open; {
		select {
		case _, open = <-ended: // one error at most, then it is closed
		case <-tick.C:
			open = !moved()
		}
	}
	s.link.drop(c)
	if c.push {
		s.lost()
	}
	wire.Close()
}

// primaryCheck is how often a store on a sentinel client of the user's looks whether
// the client has gone to another primary. rueidis tells nobody, and the connection to
// the old one breaks late or never: a sentinel leaves an old primary that is still
// alive as it is for about ten seconds, and then makes it a replica.
const primaryCheck = 250 * time.Millisecond

// moves says whether the client's primary is another than now.
func moves(client rueidis.Client) func() bool {
	if client.Mode() != rueidis.ClientModeSentinel {
		return func() bool { return false }
	}
	before := nodes(client)
	return func() bool { return nodes(client) != before }
}
