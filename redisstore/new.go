package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// New makes a store on a client of yours, with whatever options you made it. The
// client stays yours: [Store.Close] does not close it. Close the store first.
//
// On a single server or with sentinels the store takes one connection of the
// client's pool for itself and has it tracked, so pushes work whatever the client's
// own tracking is. With a cluster client it does without pushes: use [Open] there.
func New(client rueidis.Client, opts ...Option) *Store {
	o := apply(opts)
	s := newStore(defaultPlaces)
	if client == nil {
		s.link = &link{addr: func() string { return "no address" }, dial: func() (*conn, error) { return nil, errNoClient }}
		return s
	}
	dial := func() (*conn, error) { return &conn{CommandClient: client, borrowed: true}, nil }
	if !o.noTracking && client.Mode() != rueidis.ClientModeCluster {
		dial = func() (*conn, error) { return s.dedicate(client) }
	}
	s.link = &link{addr: func() string { return nodes(client) }, dial: dial}
	return s
}

// errNoClient is what Attach says: New has no error to return.
var errNoClient = errors.New("redisstore.New was given a nil client")

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

// dedicate takes a connection from the client's pool and has it tracked. All
// commands of the store go over it: a connection that rueidis hands out pipelines
// concurrent commands like any other of its connections.
//
// If the server cannot track, the commands go to the client itself.
func (s *Store) dedicate(client rueidis.Client) (*conn, error) {
	moved := moves(client) // before the connection is taken
	wire, cancel := client.Dedicate()
	ctx, done := context.WithTimeout(context.Background(), setupTimeout)
	defer done()
	hello, err := wire.Do(ctx, wire.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil {
		if _, refused := asRefusal(err); refused {
			cancel()
			return &conn{CommandClient: client, borrowed: true}, nil
		}
		wire.Close()
		return nil, err
	}
	if proto := hello["proto"]; !atLeast3(proto) {
		cancel()
		return &conn{CommandClient: client, borrowed: true}, nil // RESP2 has no pushes
	}
	c := &conn{CommandClient: wire, push: true, shut: wire.Close}
	var ended <-chan error
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
		s.pushed(keys)
	})
	close(known)
	for _, args := range [][]string{{"OFF"}, append([]string{"ON"}, trackingOptions...)} {
		err := wire.Do(ctx, wire.B().Arbitrary("CLIENT", "TRACKING").Args(args...).Build()).Error()
		if _, refused := asRefusal(err); refused {
			cancel()
			return &conn{CommandClient: client, borrowed: true}, nil
		}
		if err != nil {
			wire.Close()
			return nil, fmt.Errorf("CLIENT TRACKING: %w", err)
		}
	}
	go s.attend(c, wire, ended, moved)
	return c, nil
}

func atLeast3(proto rueidis.RedisMessage) bool {
	n, err := proto.AsInt64()
	return err == nil && n >= 3
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
	s.lost()
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
