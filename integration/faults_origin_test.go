package integration

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// An origin that hangs or fails behind values that are stale, and loaders that never
// return.

// background is how many goroutines the caches of the world have.
func (w *world) background() (n int) {
	for _, stack := range w.goroutines() {
		if strings.Contains(stack, "github.com/onefill/onefill.") {
			first, _, _ := strings.Cut(stack, " ")
			times, _ := strconv.Atoi(first)
			n += times
		}
	}
	return n
}

// stale makes a row whose value is stale in local and in the store: the next Get is a
// stale hit, which starts a refresh.
func (w *world) stale(t *testing.T, members ...*member) (key string) {
	t.Helper()
	key = w.origin.add(0)
	for _, m := range members {
		if r := m.get(key); r.Class != "" {
			t.Fatal(r.Err)
		}
	}
	for _, m := range members {
		poll(t, "the value is stale", func() bool {
			r, ok, err := m.cache.Peek(t.Context(), key)
			return ok && err == nil && r.Stale
		})
	}
	return key
}

// wantStale wants a stale value at once.
func wantStale(t *testing.T, results []result, version int64) {
	t.Helper()
	for i, r := range results {
		if r.Class != "" || !r.Stale || r.Row.Version != version {
			t.Fatalf("hit %d: version %d, stale: %v, %q; want version %d, stale", i, r.Row.Version, r.Stale, r.Err, version)
		}
	}
	if p99 := percentile(took(results), 99); p99 > 5*time.Millisecond {
		t.Errorf("p99 of %d hits is %v, want 5ms at most", len(results), p99)
	}
}

func staleOptions(o *worldOptions) {
	o.TTL, o.StaleFor, o.Local.TTL = 100*time.Millisecond, worldTTL, worldTTL
}

// A thousand hits of a stale value while its refresh hangs: each is answered at once,
// and they have started one refresh: its flight, its loader and its lease's renewal,
// and nothing besides. When the origin answers, its value is there.
func TestStaleHitsWithAHungOrigin(t *testing.T) {
	for _, on := range bothStores {
		t.Run(on, func(t *testing.T) {
			w := newWorld(t, on, 1, staleOptions)
			m := w.members[0]
			key := w.stale(t, m)
			w.origin.write(key)
			release := w.origin.hold(key)
			defer release()
			before := w.background()
			loads := w.origin.loads(key)

			results := make([]result, 1000)
			var crowd sync.WaitGroup
			for i := range 20 {
				crowd.Go(func() {
					for j := i * 25; j < (i+1)*25; j++ {
						results[j] = m.get(key)
					}
				})
			}
			crowd.Wait()
			poll(t, "the refresh is at the origin", func() bool { return w.origin.loads(key) == loads+1 })
			for i := 500; i < len(results); i++ {
				results[i] = m.get(key)
			}
			wantStale(t, results, 1)
			more := w.background() - before
			if more > 3 {
				t.Errorf("%d goroutines more than before, want 3 at most: a flight, its loader, its lease's renewal:\n%s", more, strings.Join(w.goroutines(), "\n\n"))
			}
			s := m.cache.Stats()
			if n := w.origin.loads(key) - loads; n != 1 || s.Refreshes != 1 || s.LoadsInFlight != 1 {
				t.Errorf("%d loads, %d refreshes, %d loads in flight, want 1 of each", n, s.Refreshes, s.LoadsInFlight)
			}
			t.Logf("1,000 stale hits: median %v, p99 %v, longest %v; %d goroutines more", percentile(took(results), 50), percentile(took(results), 99), percentile(took(results), 100), more)
			release()
			poll(t, "the new version is there", func() bool { return m.get(key).Row.Version == 2 })
		})
	}
}

// attemptsWithin is how many loads there may be in a time in which all fail, if the
// pauses between them are 1, 2, 4, 8, 16, 16, 16, ... times ErrorTTL.
func attemptsWithin(d, errorTTL time.Duration) int {
	n, pause := 1, errorTTL
	for at := errorTTL; at <= d; at += pause {
		n++
		pause = min(2*pause, 16*errorTTL)
	}
	return n
}

// A thousand hits of a stale value, one after the other, while its origin fails: each
// is answered at once, and the whole fleet asks the origin as often as the back-off
// lets it, not once for every ErrorTTL.
func TestStaleHitsWithAFailingOrigin(t *testing.T) {
	const errorTTL = 20 * time.Millisecond
	for _, on := range bothStores {
		t.Run(on, func(t *testing.T) {
			w := newWorld(t, on, 2, func(o *worldOptions) {
				staleOptions(o)
				o.ErrorTTL = errorTTL
			})
			key := w.stale(t, w.members...)
			w.origin.change(key, func(r *memRow) { r.fails = true })
			loads := w.origin.loads(key)
			results := make([]result, 1000)
			start := time.Now()
			tick := time.NewTicker(1500 * time.Microsecond)
			defer tick.Stop()
			for i := range results {
				results[i] = w.members[i%2].get(key)
				<-tick.C
			}
			d := time.Since(start)
			wantStale(t, results, 1)
			n, most := w.origin.loads(key)-loads, attemptsWithin(d, errorTTL)
			t.Logf("1,000 stale hits in %v, ErrorTTL %v: %d attempts to refresh by two caches; %d are allowed, %d would be without a back-off", d, errorTTL, n, most, int(d/errorTTL))
			if n > most {
				t.Errorf("%d attempts in %v, want at most %d", n, d, most)
			}
			if on == onRedis && n < 3 { // memcached remembers a failure for two seconds at least
				t.Errorf("%d attempts in %v: nobody tries again", n, d)
			}
			w.origin.change(key, func(r *memRow) { r.fails = false; r.version = 2 })
			for _, m := range w.members {
				poll(t, "the origin is asked again", func() bool { return m.get(key).Row.Version == 2 })
			}
		})
	}
}

// Loaders that ignore their context for ever: their places come back at LoadTimeout, and
// others load. What goes on behind is counted, and when MaxLoads of them (64 at least)
// still run no load begins any more: callers are told so, in time. It mends when they
// return.
func TestDeafLoaders(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, on := range bothStores {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, on, 1, func(o *worldOptions) {
				o.LoadTimeout, o.WaitTimeout, o.MaxLoads, o.MaxLoadsDegraded = 150*time.Millisecond, time.Second, deafMaxLoads, 16
			})
			m := w.members[0]
			deaf := &deafRows{w: w}
			defer deaf.release()
			placesComeBack(t, m, deaf)
			straysAreBounded(t, m, deaf)
			deaf.release()
			poll(t, "all have returned", func() bool { return m.cache.Stats().LoadsStray == 0 })
			if r := m.get(w.origin.add(0)); r.Class != "" {
				t.Errorf("after they have returned: %s", r.Err)
			}
		})
	}
}

const deafMaxLoads, deafStrays = 32, 64

// deafRows are rows whose loads end when they are released, and do not heed their context.
type deafRows struct {
	w        *world
	releases []func()
}

func (d *deafRows) add(n int) []string {
	keys := d.w.origin.addMany(n, 0)
	for _, key := range keys {
		d.releases = append(d.releases, d.w.origin.hold(key))
		d.w.origin.change(key, func(r *memRow) { r.deaf = true })
	}
	return keys
}

func (d *deafRows) release() {
	for _, release := range d.releases {
		release()
	}
}

// All places are taken by loads that never end, and a healthy one waits: until LoadTimeout.
func placesComeBack(t *testing.T, m *member, deaf *deafRows) {
	t.Helper()
	hung := storming([]*member{m}, deafMaxLoads, deaf.add(deafMaxLoads)...)
	poll(t, "all places are taken", func() bool { return m.cache.Stats().LoadsInFlight == deafMaxLoads })
	r := m.get(m.w.origin.add(0))
	if limit := m.w.opts.LoadTimeout + slack(); r.Class != "" || r.Took > limit {
		t.Errorf("a healthy load behind those that hang: %q after %v, want it served within %v", r.Err, r.Took, limit)
	}
	for _, r := range hung()[0] {
		if r.Class == "" {
			t.Error("a load that hangs has brought something")
		}
	}
	if s := m.cache.Stats(); s.LoadsAbandoned != deafMaxLoads || s.LoadsStray != deafMaxLoads {
		t.Errorf("%d loads abandoned, %d of them still run, want %d of both", s.LoadsAbandoned, s.LoadsStray, deafMaxLoads)
	}
}

// More and more of them, until no load begins.
func straysAreBounded(t *testing.T, m *member, deaf *deafRows) {
	t.Helper()
	storming([]*member{m}, 3*deafStrays, deaf.add(3*deafStrays)...)()
	s, running := m.cache.Stats(), m.loads.peak()
	if most := deafStrays + deafMaxLoads; s.LoadsStray < deafStrays || s.LoadsStray > most || running > most {
		t.Errorf("%d abandoned loads run, %d loads at once at most; want from %d to %d", s.LoadsStray, running, deafStrays, most)
	}
	r := m.get(m.w.origin.add(0))
	if limit := m.w.opts.WaitTimeout/2 + slack(); r.Class != "origin busy" || r.Took > limit {
		t.Errorf("with %d abandoned loads: %q after %v, want origin busy within %v", s.LoadsStray, r.Err, r.Took, limit)
	}
	if n := m.cache.Stats().Loads - s.Loads; n != 0 {
		t.Errorf("%d loads began all the same", n)
	}
	t.Logf("%d loads were abandoned, %d at once; then: %s", s.LoadsAbandoned, s.LoadsStray, r.Err)
}
