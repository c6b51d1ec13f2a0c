package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

// childEnv holds the config of a child. A child ends when its input does.
const childEnv = "ONEFILL_INTEGRATION_CHILD"

// child is a process of a test: one cache, its store, and its connections to the
// origin.
type child struct {
	cfg    config
	source *source
	cache  *onefill.Cache[string, row] // nil if naive
	aside  rueidis.Client              // if naive
	finish []func() error
	heard  func(onefill.Event) // set by opHistory, guarded by mu

	mu      sync.Mutex // guards what follows, and the output
	out     *json.Encoder
	running map[int]*task
}

// task is a request that is being worked on.
type task struct {
	start  chan struct{} // closed by opGo
	cancel context.CancelFunc
}

func childMain(text string) int {
	c := &child{out: json.NewEncoder(os.Stdout), running: map[int]*task{}}
	if err := json.Unmarshal([]byte(text), &c.cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := c.open(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c.send(message{Event: evUp})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		if r.Op == opClose {
			return c.close(r)
		}
		c.take(r)
	}
	return 0
}

func (c *child) open(ctx context.Context) error {
	pool, err := openPool(ctx, c.cfg.Postgres, c.cfg.Origin)
	if err != nil {
		return err
	}
	c.source = &source{pool: pool, tell: func(begin bool, key string, r row) {
		event := evLoaded
		if begin {
			event = evLoad
		}
		c.send(message{Event: event, Key: key, Row: r})
	}}
	if c.cfg.Naive {
		c.aside, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: mustAddress(c.cfg.Redis), DisableCache: true})
		return err
	}
	st, closeStore, err := c.openStore()
	if err != nil {
		return err
	}
	if c.cache, err = onefill.New(c.options(st)); err != nil {
		return err
	}
	c.finish = []func() error{c.cache.Close, closeStore}
	return nil
}

func (c *child) options(st store.Store) onefill.Options[string, row] {
	o := onefill.Options[string, row]{
		Name: c.cfg.Name, Load: c.source.load, Store: st,
		TTL: c.cfg.TTL, LeaseTTL: c.cfg.LeaseTTL, ErrorTTL: c.cfg.ErrorTTL, StaleOnError: c.cfg.StaleOnError,
		StoreTimeout: c.cfg.StoreTimeout, LoadTimeout: c.cfg.LoadTimeout, WaitTimeout: c.cfg.WaitTimeout,
		MaxLoads: c.cfg.MaxLoads, MaxLoadsDegraded: c.cfg.MaxLoadsDegraded,
		Local: onefill.LocalOptions{TTL: c.cfg.LocalTTL},
		Observer: onefill.ObserverFunc(func(e onefill.Event) {
			c.mu.Lock()
			heard := c.heard
			c.mu.Unlock()
			if heard != nil {
				heard(e)
			}
		}),
	}
	if c.cfg.Bulk {
		o.LoadMany = c.source.loadMany
	}
	return o
}

func (c *child) openStore() (store.Store, func() error, error) {
	if c.cfg.Memcached != nil {
		st := memcachestore.New(c.cfg.Memcached...)
		return st, st.Close, nil
	}
	return openStore(c.cfg.Redis, c.cfg.Store)
}

// openStore makes a store on Redis the way a user would.
func openStore(url string, kind storeKind) (st *redisstore.Store, done func() error, err error) {
	switch kind {
	case viaNew:
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: mustAddress(url)})
		if err != nil {
			return nil, nil, err
		}
		st = redisstore.New(client)
		return st, func() error {
			defer client.Close()
			return st.Close()
		}, nil
	case noTracking:
		st, err = redisstore.Open(url, redisstore.NoTracking())
	default:
		st, err = redisstore.Open(url)
	}
	if err != nil {
		return nil, nil, err
	}
	return st, st.Close, nil
}

func mustAddress(url string) []string {
	option, err := rueidis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	return option.InitAddress
}

func (c *child) send(m message) {
	if m.At.IsZero() {
		m.At = time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(m); err != nil {
		os.Exit(0) // the test is gone
	}
}

// take starts a request, or tells a running one what to do.
func (c *child) take(r request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch t := c.running[r.Of]; r.Op {
	case opGo:
		close(t.start)
		return
	case opCancel:
		t.cancel()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t := &task{start: make(chan struct{}), cancel: cancel}
	c.running[r.ID] = t
	go func() {
		defer cancel()
		m := c.run(ctx, r, t)
		m.Event, m.ID = evReply, r.ID
		c.send(m)
	}()
}

func (c *child) run(ctx context.Context, r request, t *task) message {
	var err error
	var m message
	switch r.Op {
	case opCallers:
		m.Results = c.callers(ctx, r, t)
	case opSets:
		m.Many = c.getSets(ctx, r, t)
	case opInvalidate:
		err = c.cache.Invalidate(ctx, r.Keys...)
	case opSet:
		err = c.cache.Set(ctx, r.Keys[0], r.Row)
	case opUntil:
		m.Results, err = c.until(ctx, r)
	case opStats:
		m.Peak = c.source.peak()
		if c.cache != nil {
			s := c.cache.Stats()
			m.Stats = &s
		}
	case opHistory:
		err = c.history(ctx, r.Work)
	default:
		err = fmt.Errorf("the child does not know %q", r.Op)
	}
	m.At = time.Now()
	if err != nil {
		m.Err = err.Error()
	}
	return m
}

// callers lets goroutines stand at a barrier and Get; the i-th gets the i-th key,
// beginning again when there are fewer keys.
func (c *child) callers(ctx context.Context, r request, t *task) []result {
	results := make([]result, r.Callers)
	var ready, done sync.WaitGroup
	for i := range results {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-t.start
			results[i] = c.get(ctx, r.Keys[i%len(r.Keys)])
		})
	}
	ready.Wait()
	c.send(message{Event: evReady, ID: r.ID})
	done.Wait()
	return results
}

func (c *child) get(ctx context.Context, key string) result {
	start := time.Now()
	var (
		got onefill.Result[row]
		err error
	)
	if c.cache == nil {
		got.Value, err = c.cacheAside(ctx, key)
	} else {
		got, err = c.cache.Fetch(ctx, key)
	}
	r := result{Key: key, Row: got.Value, Class: classOf(err), Source: got.Source, Stale: got.Stale,
		Coalesced: got.Coalesced, Start: start, Took: time.Since(start)}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// cacheAside is what everybody writes first.
func (c *child) cacheAside(ctx context.Context, key string) (r row, err error) {
	name := c.cfg.Name + ":" + key
	text, err := c.aside.Do(ctx, c.aside.B().Get().Key(name).Build()).AsBytes()
	if err == nil {
		return r, json.Unmarshal(text, &r)
	}
	if !rueidis.IsRedisNil(err) {
		return r, err
	}
	if r, err = c.source.load(ctx, key); err != nil {
		return r, err
	}
	text, err = json.Marshal(r)
	if err != nil {
		return r, err
	}
	return r, c.aside.Do(ctx, c.aside.B().Set().Key(name).Value(string(text)).ExSeconds(60).Build()).Error()
}

// until gets a key until a version is there, and returns the Gets that said
// something new.
func (c *child) until(ctx context.Context, r request) (seen []result, err error) {
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for {
		got := c.get(ctx, r.Keys[0])
		if n := len(seen); n == 0 || seen[n-1].Row != got.Row || seen[n-1].Class != got.Class {
			seen = append(seen, got)
		}
		if got.Class == "" && got.Row.Version >= r.Row.Version {
			return seen, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return seen, fmt.Errorf("version %d of %q did not come; the last answer was %+v", r.Row.Version, r.Keys[0], got)
		}
	}
}

func (c *child) close(r request) int {
	var errs []error
	for _, finish := range c.finish {
		errs = append(errs, finish())
	}
	c.source.pool.Close()
	m := message{Event: evReply, ID: r.ID}
	if err := errors.Join(errs...); err != nil {
		m.Err = err.Error()
	}
	c.send(m)
	return 0
}
