package integration

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// patience is how long a test waits for something that should come at once or, as
// with a lease's end, within seconds.
const patience = 30 * time.Second

// fleet is the processes of one test.
type fleet []*proc

// startFleet starts n processes. What they have in common is cfg, but for Store:
// where it is empty the processes take turns with the ways to make a store. They are
// ended, and judged, when the test ends.
func startFleet(t testing.TB, n int, cfg config) fleet {
	t.Helper()
	if cfg.Redis == "" && cfg.Memcached == nil {
		cfg.Redis = sharedRedis.Get(t).URL()
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("test-%d", serial.Add(1))
	}
	if cfg.Origin == 0 {
		cfg.Origin = 8
	}
	cfg.Postgres = origin(t).url
	f := make(fleet, n)
	for i := range f {
		own := cfg
		if own.Store == "" && own.Memcached == nil {
			own.Store = []storeKind{viaOpen, viaNew}[i%2]
		}
		if len(cfg.Taps) > 0 {
			own.Memcached = []string{cfg.Taps[i].addr}
		}
		f[i] = startProc(t, i, own)
	}
	for _, p := range f {
		p.await(func(m message) bool { return m.Event == evUp })
	}
	return f
}

// loading waits until the process has begun its n-th load of key: it has read the
// row, and the load has not returned if there is a gate.
func (p *proc) loading(key string, n int) message {
	p.t.Helper()
	return p.await(nth(n, func(m message) bool { return m.Event == evLoad && m.Key == key }))
}

// nth wants the n-th message of a kind.
func nth(n int, want func(message) bool) func(message) bool {
	return func(m message) bool {
		if want(m) {
			n--
		}
		return n == 0
	}
}

// begin sends a request.
func (p *proc) begin(r request) *pending {
	p.t.Helper()
	if r.ID == 0 {
		r.ID = int(p.ids.Add(1))
	}
	text, err := json.Marshal(r)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		p.t.Fatalf("process %d: %v; it said on standard error:\n%s", p.index, err, p.errors())
	}
	return &pending{p: p, id: r.ID}
}

// do sends a request and waits for its reply.
func (p *proc) do(r request) message {
	p.t.Helper()
	return p.begin(r).wait()
}

// must is do for a request that may not fail.
func (p *proc) must(r request) message {
	p.t.Helper()
	m := p.do(r)
	if m.Err != "" {
		p.t.Fatalf("process %d: %s %v: %s", p.index, r.Op, r.Keys, m.Err)
	}
	return m
}

// get is one Get.
func (p *proc) get(key string) result {
	p.t.Helper()
	return p.callers(1, key).release().wait().Results[0]
}

// callers sends goroutines to a barrier.
func (p *proc) callers(n int, keys ...string) *pending {
	p.t.Helper()
	return p.begin(request{Op: opCallers, Callers: n, Keys: keys})
}

func (p *proc) stats() message {
	p.t.Helper()
	return p.must(request{Op: opStats})
}

// pending is a request that was sent.
type pending struct {
	p  *proc
	id int
}

func (r *pending) wait() message {
	r.p.t.Helper()
	return r.p.await(func(m message) bool { return m.Event == evReply && m.ID == r.id })
}

// ready waits until all callers stand at the barrier.
func (r *pending) ready() *pending {
	r.p.t.Helper()
	r.p.await(func(m message) bool { return m.Event == evReady && m.ID == r.id })
	return r
}

// release opens the barrier.
func (r *pending) release() *pending {
	r.p.t.Helper()
	r.p.begin(request{ID: -1, Op: opGo, Of: r.id})
	return r
}

// cancel ends the context of the request.
func (r *pending) cancel() {
	r.p.t.Helper()
	r.p.begin(request{ID: -1, Op: opCancel, Of: r.id})
}

// herd lets n callers of each process stand at one barrier and opens it for all.
func (f fleet) herd(n int, keys ...string) [][]result {
	return f.wait(f.storm(n, keys...))
}

// storm is herd without waiting for the results.
func (f fleet) storm(n int, keys ...string) []*pending {
	all := make([]*pending, len(f))
	for i, p := range f {
		p.t.Helper()
		all[i] = p.callers(n, keys...)
	}
	for _, r := range all {
		r.ready()
	}
	for _, r := range all {
		r.release()
	}
	return all
}

func (f fleet) wait(all []*pending) [][]result {
	results := make([][]result, len(all))
	for i, r := range all {
		r.p.t.Helper()
		results[i] = r.wait().Results
	}
	return results
}

// loader is the process that loads key: the first that says so.
func (f fleet) loader(key string) *proc {
	f[0].t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		for _, p := range f {
			if _, ok := p.within(5*time.Millisecond, func(m message) bool { return m.Event == evLoad && m.Key == key }); ok {
				return p
			}
		}
	}
	f[0].t.Fatalf("nobody loads %q", key)
	return nil
}

// but is the fleet without one process.
func (f fleet) but(gone *proc) fleet {
	var rest fleet
	for _, p := range f {
		if p != gone {
			rest = append(rest, p)
		}
	}
	return rest
}

// waiting polls until as many flights of the process as told have waited for another
// one's lease.
func (p *proc) waiting(n uint64) {
	p.t.Helper()
	p.poll(fmt.Sprintf("%d flights wait for a lease", n), func(m message) bool { return m.Stats.LeaseWaits >= n })
}

// poll asks for the process's stats until they are as wanted.
func (p *proc) poll(what string, want func(message) bool) {
	p.t.Helper()
	poll(p.t, fmt.Sprintf("process %d: %s", p.index, what), func() bool { return want(p.stats()) })
}

// poll asks every few milliseconds, with the deadline patience.
func poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !pollFor(patience, ok) {
		t.Fatalf("waited %v in vain: %s", patience, what)
	}
}

// lasting lets a disturbance last for d, or until the test ends. It orders nothing: on a busy
// machine it takes longer, and what a check says of it goes by the times that were measured.
func lasting(t testing.TB, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// pollFor says whether ok came to be true in time.
func pollFor(d time.Duration, ok func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(d); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
