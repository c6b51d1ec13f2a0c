package peers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// What services write by hand over go-redis when they have no library.

const goRedisModule = "github.com/redis/go-redis/v9"

func naive() Peer {
	return Peer{Name: "naive", Module: goRedisModule, OneLoad: NoScope, How: "GET, load, SET over go-redis",
		New: func(at Servers) (Cache, error) { return &byHand{rdb: newGoRedis(at)}, nil }}
}

func singleflightPeer() Peer {
	return Peer{Name: "singleflight", Module: "golang.org/x/sync", OneLoad: Process, How: "the naive way inside a singleflight.Group",
		New: func(at Servers) (Cache, error) {
			return &byHand{rdb: newGoRedis(at), flights: new(singleflight.Group)}, nil
		}}
}

func setnxPoll(coalesced bool, poll time.Duration) Peer {
	name := fmt.Sprintf("SET NX, poll %v", poll)
	how := "a lock by SET NX PX 5 s, released by a script; who has lost polls"
	if coalesced {
		name, how = "singleflight + "+name, how+"; inside a singleflight.Group"
	}
	return Peer{Name: name, Module: goRedisModule, OneLoad: Fleet, How: how, Extra: !coalesced || poll > 10*time.Millisecond, New: func(at Servers) (Cache, error) {
		h := &byHand{rdb: newGoRedis(at), lock: true, poll: poll}
		if coalesced {
			h.flights = new(singleflight.Group)
		}
		return h, nil
	}}
}

func pubsub() Peer {
	return Peer{Name: "singleflight + SET NX + pub/sub", Module: goRedisModule, OneLoad: Fleet,
		How: "the best of those written by hand: who has lost waits for a message, 250 ms at most", New: func(at Servers) (Cache, error) {
			h := &byHand{rdb: newGoRedis(at), lock: true, flights: new(singleflight.Group)}
			var err error
			if h.fills, err = listen(h.rdb); err != nil {
				h.Close()
				return nil, err
			}
			return h, nil
		}}
}

type byHand struct {
	rdb     *redis.Client
	flights *singleflight.Group // nil: callers of a process do not share
	lock    bool                // one load in the fleet, by SET NX
	poll    time.Duration       // how long who has lost sleeps
	fills   *fills              // instead of polling
}

func (h *byHand) Close() {
	if h.fills != nil {
		h.fills.sub.Close()
	}
	h.rdb.Close()
}

func (h *byHand) Get(ctx context.Context, key string, load Loader) ([]byte, error) {
	if h.flights == nil {
		return h.get(ctx, key, load)
	}
	v, err, _ := h.flights.Do(key, func() (any, error) { return h.get(ctx, key, load) })
	if err != nil {
		return nil, err
	}
	return v.([]byte), nil
}

func (h *byHand) get(ctx context.Context, key string, load Loader) ([]byte, error) {
	b, err := h.rdb.Get(ctx, key).Bytes()
	switch {
	case err == nil:
		return b, nil
	case !errors.Is(err, redis.Nil):
		return nil, err
	case h.lock:
		return h.getLocked(ctx, key, load)
	}
	if b, err = load(ctx, key); err != nil {
		return nil, err
	}
	return b, h.rdb.Set(ctx, key, b, TTL).Err()
}

const unlock = `if redis.call("GET",KEYS[1])==ARGV[1] then return redis.call("DEL",KEYS[1]) end return 0`

func (h *byHand) getLocked(ctx context.Context, key string, load Loader) ([]byte, error) {
	token, lock := strconv.FormatUint(rand.Uint64(), 36), "lock:"+key
	for {
		won, err := h.rdb.SetNX(ctx, lock, token, 5*time.Second).Result()
		if err != nil {
			return nil, err
		}
		if won {
			return h.loadLocked(ctx, key, lock, token, load)
		}
		if b, err := h.lost(ctx, key); err != nil || b != nil {
			return b, err
		}
		if b, err := h.rdb.Get(ctx, key).Bytes(); err == nil {
			return b, nil
		}
	}
}

func (h *byHand) loadLocked(ctx context.Context, key, lock, token string, load Loader) ([]byte, error) {
	release := func() error { return redis.NewScript(unlock).Run(ctx, h.rdb, []string{lock}, token).Err() }
	// Another owner may have filled the key between our GET and our SET NX.
	if b, err := h.rdb.Get(ctx, key).Bytes(); err == nil {
		return b, release()
	}
	b, err := load(ctx, key)
	if err != nil {
		return nil, err
	}
	if err := h.rdb.Set(ctx, key, b, TTL).Err(); err != nil {
		return nil, err
	}
	if h.fills != nil {
		if err := h.rdb.Publish(ctx, fillChannel, key).Err(); err != nil {
			return nil, err
		}
	}
	return b, release()
}

// lost waits until it is worth looking again. A value is one that was there before it
// began to wait.
func (h *byHand) lost(ctx context.Context, key string) ([]byte, error) {
	if h.fills == nil {
		select {
		case <-time.After(h.poll):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	filled := h.fills.wait(key)
	if b, err := h.rdb.Get(ctx, key).Bytes(); err == nil {
		return b, nil
	}
	select {
	case <-filled:
	case <-time.After(250 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return nil, nil
}

const fillChannel = "fills"

// fills wakes who waits in this process when any process has filled a key.
type fills struct {
	sub *redis.PubSub

	// mu guards waits; nothing blocks under it.
	mu    sync.Mutex
	waits map[string]chan struct{}
}

func listen(rdb *redis.Client) (*fills, error) {
	f := &fills{sub: rdb.Subscribe(context.Background(), fillChannel), waits: map[string]chan struct{}{}}
	if _, err := f.sub.Receive(context.Background()); err != nil {
		return nil, errors.Join(err, f.sub.Close())
	}
	go func() {
		for message := range f.sub.Channel() {
			f.wake(message.Payload)
		}
	}()
	return f, nil
}

func (f *fills) wait(key string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.waits[key]
	if c == nil {
		c = make(chan struct{})
		f.waits[key] = c
	}
	return c
}

func (f *fills) wake(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.waits[key]; c != nil {
		close(c)
		delete(f.waits, key)
	}
}
