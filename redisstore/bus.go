package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/bus"
	"github.com/onefill/onefill/store"
	"github.com/redis/rueidis"
)

// Bus is a [bus.Bus] on the pub/sub of Redis or Valkey, for Options.Bus of caches whose
// store cannot push: memcached, or a Redis without client tracking. It stores nothing.
//
// Each cache that subscribes takes one connection. A message goes over the client's other
// connections. The channel of the cache "users" is "of:{users}:bus". On a cluster it is
// sharded pub/sub (SPUBLISH, SSUBSCRIBE), so that a message goes to one shard only; that
// needs Redis 7.0. A user with these rights will do:
//
//	ACL SETUSER bus on >password resetchannels &of:* -@all +publish +subscribe +hello +ping
//
// and on a cluster, or with sentinels, with what rueidis asks there.
//
// A connection that is half open is noticed by a ping that is not answered, within about 3
// seconds, or within a second and the client's ConnWriteTimeout (10 seconds by default) if it
// is yours.
type Bus struct {
	client  rueidis.Client
	sharded bool
	own     bool // the client is closed with the bus

	life  context.Context
	end   context.CancelFunc
	mu    sync.Mutex     // guards the step to the closed state: nothing blocks under it
	aloft sync.WaitGroup // subscriptions; added to under mu
}

var _ bus.Bus = (*Bus)(nil)

// NewBus makes a bus on a client of yours, which stays open when the bus is closed. Close
// the bus first.
func NewBus(client rueidis.Client) *Bus {
	b := &Bus{client: client}
	b.life, b.end = context.WithCancel(context.Background())
	if client != nil {
		b.sharded = client.Mode() == rueidis.ClientModeCluster
	}
	return b
}

// OpenBus makes a bus with a client of its own for the server at url, as [Open] has it.
// Other than there the server must be up.
func OpenBus(url string) (*Bus, error) {
	if url == "" {
		return nil, errors.New("redisstore: open the bus: the URL is empty; give one such as redis://localhost:6379")
	}
	option, err := rueidis.ParseURL(withoutSlash(url))
	if err != nil {
		return nil, fmt.Errorf("redisstore: open the bus: not a Redis URL (%s)", redact(err, url))
	}
	option.DisableCache = true // nothing is read, so nothing is to be tracked
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = busPatience
	}
	client, err := rueidis.NewClient(option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, busError(strings.Join(option.InitAddress, ","), "open the bus", err)
	}
	b := NewBus(client)
	b.own = true
	return b, nil
}

// busPatience is what a server has to answer a ping: less than Local.TTL where a store
// cannot push, so that a connection that is half open is noticed before it matters.
const busPatience = 2 * time.Second

// Close ends all subscriptions, and the client that [OpenBus] made. Closing twice is fine.
func (b *Bus) Close() error {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.aloft.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(time.Second): // one dials, and is left behind
	}
	if b.own {
		b.client.Close()
	}
	return nil
}

func (b *Bus) failure(op string, err error) error {
	if b.life.Err() != nil {
		err = bus.ErrClosed
	}
	if b.client == nil {
		return busError("no address", op, errNoBusClient)
	}
	return busError(nodes(b.client), op, err)
}

func busError(addr, op string, err error) error {
	closed := errors.Is(err, bus.ErrClosed)
	return &store.Error{Service: "redis", Addr: addr, Op: op, Err: err, Unavailable: unavailable(err) && !closed}
}

const errNoBusClient = misuse("redisstore.NewBus was given a nil client")

const busSuffix = keySuffix + ":bus"

func channel(topic string) string { return keyPrefix + topic + busSuffix }

// Publish implements [bus.Bus].
func (b *Bus) Publish(ctx context.Context, topic string, message []byte) error {
	switch {
	case b.client == nil || b.life.Err() != nil:
		return b.failure("publish", nil)
	case ctx.Err() != nil:
		return b.failure("publish", ctx.Err())
	}
	text := string(message) // a copy: rueidis may still be sending when ctx has ended
	var cmd rueidis.Completed
	if b.sharded {
		cmd = b.client.B().Spublish().Channel(channel(topic)).Message(text).Build()
	} else {
		cmd = b.client.B().Publish().Channel(channel(topic)).Message(text).Build()
	}
	// Some waits of rueidis know no context: see guard.
	_, err := patiently(ctx, func() (struct{}, error) { return struct{}{}, b.client.Do(ctx, cmd).Error() })
	if err != nil {
		return b.failure("publish", err)
	}
	return nil
}

// Subscribe implements [bus.Bus].
func (b *Bus) Subscribe(ctx context.Context, topic string, heard func([]byte), lost func()) (stop func(), err error) {
	if b.client == nil {
		return nil, b.failure("subscribe", nil)
	}
	s := &subscription{bus: b, channel: channel(topic), heard: heard, lost: lost, first: make(chan error, 1)}
	s.life, s.end = context.WithCancel(b.life)
	b.mu.Lock()
	if b.life.Err() != nil {
		b.mu.Unlock()
		return nil, b.failure("subscribe", nil)
	}
	b.aloft.Add(1)
	b.mu.Unlock()
	go s.run()
	select {
	case err = <-s.first:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		err = ctx.Err() // it had ended before
	}
	if err != nil {
		s.end()
		return nil, b.failure("subscribe", err)
	}
	return s.stop, nil
}

// subscription keeps one connection subscribed to a channel.
type subscription struct {
	bus     *Bus
	channel string
	heard   func([]byte)
	lost    func()
	first   chan error // how the first attempt has ended
	life    context.Context
	end     context.CancelFunc

	calls sync.Mutex // held while heard or lost is called
}

// stop does not wait for an attempt to connect, which knows no context.
func (s *subscription) stop() {
	s.end()
	s.calls.Lock() // a call under way ends first
	defer s.calls.Unlock()
}

// Pauses between attempts to subscribe that fail.
const (
	minBusRetry = 10 * time.Millisecond
	maxBusRetry = time.Second
)

// run subscribes, and again whenever the connection has ended. If the first attempt fails
// there is no second one: Subscribe has failed.
func (s *subscription) run() {
	defer s.bus.aloft.Done()
	pause := minBusRetry
	for first := true; s.life.Err() == nil; {
		ended, moved, hangUp, err := s.dial()
		if first {
			if s.first <- err; err != nil {
				return
			}
			first = false
		} else if err == nil {
			s.call(s.lost)
		}
		if err == nil {
			pause = minBusRetry
			s.attend(ended, moved)
			hangUp()
			continue
		}
		select {
		case <-time.After(pause):
		case <-s.life.Done():
		}
		pause = min(2*pause, maxBusRetry)
	}
}

// call calls a function of the subscriber, if it still wants to be called.
func (s *subscription) call(fn func()) {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.life.Err() == nil {
		fn()
	}
}

// dial takes a connection of its own and subscribes it. ended is closed when nothing will
// be heard on it any more.
func (s *subscription) dial() (ended <-chan struct{}, moved func() bool, hangUp func(), err error) {
	client := s.bus.client
	moved = moves(client) // before the connection is taken
	wire, _ := client.Dedicate()
	over := make(chan struct{})
	end := sync.OnceFunc(func() { close(over) })
	broken := wire.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			s.call(func() { s.heard([]byte(m.Message)) })
		},
		OnSubscription: func(p rueidis.PubSubSubscription) {
			if strings.HasSuffix(p.Kind, "unsubscribe") { // the slot has moved to another shard
				end()
			}
		},
	})
	var cmd rueidis.Completed
	if s.bus.sharded {
		cmd = wire.B().Ssubscribe().Channel(s.channel).Build()
	} else {
		cmd = wire.B().Subscribe().Channel(s.channel).Build()
	}
	ctx, cancel := context.WithTimeout(s.life, setupTimeout)
	defer cancel()
	if err := wire.Do(ctx, cmd).Error(); err != nil {
		wire.Close()
		return nil, nil, nil, err
	}
	go func() {
		<-broken //nolint:errcheck // which error ended it does not matter
		end()
	}()
	return over, moved, wire.Close, nil
}

// attend waits for the end of the connection, or of the subscription, or for the client of
// a sentinel to go to another primary.
func (s *subscription) attend(ended <-chan struct{}, moved func() bool) {
	var look <-chan time.Time
	if s.bus.client.Mode() == rueidis.ClientModeSentinel {
		tick := time.NewTicker(primaryCheck)
		defer tick.Stop()
		look = tick.C
	}
	for {
		select {
		case <-ended:
			return
		case <-s.life.Done():
			return
		case <-look:
			if moved() {
				return
			}
		}
	}
}
