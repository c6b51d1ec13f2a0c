package promonefill_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/metrics"
	"github.com/onefill/onefill/promonefill"
	"github.com/onefill/onefill/store/memstore"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

type options = onefill.Options[string, string]

// Twelve callers of an absent key in three processes, at one moment. The loader returns when
// all twelve wait. Each process has a miss group; all three have waited for the one load.
func TestHerd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		st := memstore.New()
		var loads atomic.Int64
		load := func(context.Context, string) (string, error) {
			loads.Add(1)
			time.Sleep(100 * time.Millisecond) // of the bubble: until nobody else can go on
			return "Ada", nil
		}
		var caches []*onefill.Cache[string, string]
		var shown []*promonefill.Collector // one for each process
		for range 3 {
			m := newCollector(t)
			shown = append(shown, m)
			caches = append(caches, newCache(t, m, options{Name: "users", Store: st, Load: load}))
		}
		var herd sync.WaitGroup
		for i := range 12 {
			herd.Go(func() {
				if v, err := caches[i%3].Get(t.Context(), "ada"); v != "Ada" || err != nil {
					t.Errorf("Get: %q, %v", v, err)
				}
			})
		}
		herd.Wait()
		synctest.Wait() // the flights have told of their end

		sum := map[string]sample{}
		for i, m := range shown {
			s := caches[i].Stats()
			got := scrape(t, m)
			equalsStats(t, got, "users", s)
			expect(t, got, map[string]sample{
				`onefill_miss_loads{cache="users"}`:                              {value: 1, count: 1},
				`onefill_miss_callers{cache="users"}`:                            {value: 4, count: 1},
				`onefill_wait_duration_seconds{cache="users",outcome="timeout"}`: {},
			})
			for name, v := range got {
				sum[name] = sample{sum[name].value + v.value, sum[name].count + v.count}
			}
		}
		expect(t, sum, map[string]sample{
			`onefill_loads_total{cache="users"}`:                           {value: 1},
			`onefill_collapsed_total{cache="users"}`:                       {value: 9},
			`onefill_lease_waits_total{cache="users"}`:                     {value: 2},
			`onefill_fills_total{cache="users",outcome="stored"}`:          {value: 1},
			`onefill_fills_total{cache="users",outcome="refused"}`:         {},
			`onefill_load_duration_seconds{cache="users",outcome="ok"}`:    {value: .1, count: 1},
			`onefill_load_duration_seconds{cache="users",outcome="error"}`: {},
			`onefill_miss_loads{cache="users"}`:                            {value: 3, count: 3},
			`onefill_miss_callers{cache="users"}`:                          {value: 12, count: 3},
		})
		if waits := sum[`onefill_wait_duration_seconds{cache="users",outcome="answered"}`]; waits.count != 12 || waits.value < 1.1 {
			t.Errorf("%v waits of %v s in all, want 12 of about 0.1 s", waits.count, waits.value)
		}
		if loads.Load() != 1 {
			t.Errorf("%d loads", loads.Load())
		}
	})
}

// equalsStats says that a scrape has what the cache's own Stats have.
func equalsStats(t *testing.T, got map[string]sample, name string, s onefill.Stats) {
	t.Helper()
	for _, r := range metrics.Caches() {
		for i, label := range r.Values {
			id := fmt.Sprintf("%s{cache=%q}", r.PrometheusName(), name)
			if r.Label != "" {
				id = fmt.Sprintf("%s{cache=%q,%s=%q}", r.PrometheusName(), name, r.Label, label)
			}
			expect(t, got, map[string]sample{id: {value: r.Read(&s, i)}})
		}
	}
}

// fixed is a cache of which only the numbers exist.
type fixed onefill.Stats

func (f *fixed) Stats() onefill.Stats { return onefill.Stats(*f) }

// Every series is there from Add on, at 0, and no event makes another one.
func TestSeriesStartAtZero(t *testing.T) {
	m := newCollector(t)
	if got := scrape(t, m); len(got) != 0 {
		t.Errorf("without a cache: %v", got)
	}
	c := &fixed{}
	check(t, m.Add("users", c))
	before := scrape(t, m)
	for name, s := range before {
		if s != (sample{}) {
			t.Errorf("%s starts at %v", name, s)
		}
	}
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Uint64 {
			f.SetUint(uint64(i) + 1)
		}
	}
	for kind := onefill.EventKind(1); !strings.HasPrefix(kind.String(), "EventKind"); kind++ {
		for _, err := range []error{nil, errors.New("refused"), onefill.ErrNotFound, onefill.ErrWaitTimeout, context.Canceled, context.DeadlineExceeded, onefill.ErrGoexit} {
			m.Observe(onefill.Event{Kind: kind, Cache: "users", Key: "secret", Err: err, N: 1, Callers: 1, Took: time.Second, Age: time.Second})
		}
	}
	after := scrape(t, m)
	if len(after) != len(before) {
		t.Errorf("%d series before, %d after", len(before), len(after))
	}
	for name, s := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s was not there from the start", name)
		}
		if strings.Contains(name, "secret") {
			t.Errorf("%s names a key", name)
		}
		if strings.Contains(name, "_seconds") && s.count == 0 {
			t.Errorf("%s was never recorded: no event leads to it", name)
		}
	}
}

func TestLint(t *testing.T) {
	m, q := newCollector(t), newQueues(t, promonefill.QueueOptions{})
	check(t, m.Add("users", &fixed{}))
	showQueue(t, q)
	for _, c := range []prometheus.Collector{m, q} {
		problems, err := testutil.CollectAndLint(c)
		check(t, err)
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestAdd(t *testing.T) {
	m := newCollector(t)
	says := func(err error, words string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got the error %v, want one with %q", err, words)
		}
	}
	says(m.Add("users", nil), `"users" is nil`)
	says(m.Add("\xff", &fixed{}), "not UTF-8")
	check(t, m.Add("users", &fixed{Loads: 1}))
	says(m.Add("users", &fixed{}), `"users" is shown already; give each an Options.Name of its own`)
	check(t, m.Add("orders", &fixed{Loads: 2}))
	expect(t, scrape(t, m), map[string]sample{
		`onefill_loads_total{cache="users"}`:  {value: 1},
		`onefill_loads_total{cache="orders"}`: {value: 2},
	})

	if !m.Remove("users") || m.Remove("users") || m.Remove("nobody") {
		t.Error("Remove does not tell whether there was one")
	}
	if got := scrape(t, m); len(got) == 0 || got[`onefill_loads_total{cache="users"}`] != (sample{}) {
		t.Errorf("after Remove: %v", got)
	}
	check(t, m.Add("users", &fixed{Loads: 3}))
	expect(t, scrape(t, m), map[string]sample{`onefill_loads_total{cache="users"}`: {value: 3}})
}

// What a collector hears of a cache before Add is shown after it, and not before.
func TestEventsBeforeAdd(t *testing.T) {
	m := newCollector(t)
	m.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "users", N: 2, Callers: 5})
	if got := scrape(t, m); len(got) != 0 {
		t.Errorf("before Add: %v", got)
	}
	check(t, m.Add("users", &fixed{}))
	expect(t, scrape(t, m), map[string]sample{`onefill_miss_loads{cache="users"}`: {value: 2, count: 1}})
}

func TestRegistration(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newCollector(t)
	check(t, m.Add("users", &fixed{}))
	check(t, r.Register(m))
	var twice prometheus.AlreadyRegisteredError
	if err := r.Register(m); !errors.As(err, &twice) || twice.ExistingCollector != m {
		t.Errorf("registered twice: %v", err)
	}
	other := newCollector(t)
	if err := r.Register(other); !errors.As(err, &twice) || twice.ExistingCollector != m {
		t.Errorf("two collectors in one registry: %v", err)
	}
	check(t, other.Add("users", &fixed{}))
	both := prometheus.NewRegistry()
	for tenant, c := range map[string]*promonefill.Collector{"a": m, "b": other} {
		check(t, prometheus.WrapRegistererWith(prometheus.Labels{"tenant": tenant}, both).Register(c))
	}
	if n, err := testutil.GatherAndCount(both, "onefill_loads_total"); n != 2 || err != nil {
		t.Errorf("%d series of loads, %v", n, err)
	}
	if !r.Unregister(m) || r.Unregister(m) {
		t.Error("Unregister does not know the collector")
	}
	check(t, r.Register(m))
	check(t, r.Register(newQueues(t, promonefill.QueueOptions{}))) // they have nothing in common
}

func TestBuckets(t *testing.T) {
	m, err := promonefill.New(promonefill.Options{Buckets: map[string][]float64{"onefill_miss_loads": {1, 2}}})
	check(t, err)
	check(t, m.Add("users", &fixed{}))
	m.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "users", N: 3})
	const want = `
# HELP onefill_miss_loads Loads that a miss group of this process has waited for; 1 is ideal.
# TYPE onefill_miss_loads histogram
onefill_miss_loads_bucket{cache="users",le="1"} 0
onefill_miss_loads_bucket{cache="users",le="2"} 0
onefill_miss_loads_bucket{cache="users",le="+Inf"} 1
onefill_miss_loads_sum{cache="users"} 3
onefill_miss_loads_count{cache="users"} 1
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "onefill_miss_loads"); err != nil {
		t.Error(err)
	}
	for _, bad := range []map[string][]float64{
		{"onefill_miss_loads": {}}, {"onefill_miss_loads": {2, 2}}, {"onefill_miss_loads": {2, 1}}, {"onefill_loads_total": {1}}, {"onefill_job_lag_seconds": {1}},
	} {
		if _, err := promonefill.New(promonefill.Options{Buckets: bad}); err == nil || !strings.Contains(err.Error(), "Options.Buckets[") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// One event of a hit in local stands for 64.
func TestWeights(t *testing.T) {
	m := newCollector(t)
	check(t, m.Add("users", &fixed{}))
	m.Observe(onefill.Event{Kind: onefill.EventLocalHit, Cache: "users", Age: 2 * time.Second, N: 64})
	m.Observe(onefill.Event{Kind: onefill.EventLocalHit, Cache: "users", Age: time.Second, N: 64}) // a bound belongs to its bucket
	got := scrape(t, m)
	expect(t, got, map[string]sample{`onefill_served_age_seconds{cache="users",source="local"}`: {value: 192, count: 128}})
}

// Events, scrapes, and caches that come and go, all at once. Property: every event of the cache
// that stays is counted, once, and each scrape of a histogram is one whose count fits its buckets
// (the pedantic registry of CollectAndLint checks that).
func TestConcurrentUse(t *testing.T) {
	m := newCollector(t)
	check(t, m.Add("users", &fixed{}))
	const each = 2000
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range each {
				m.Observe(onefill.Event{Kind: onefill.EventMiss, Cache: "users", N: 1, Callers: 1})
			}
		})
	}
	all.Go(func() {
		for i := range 200 {
			name := fmt.Sprint("cache", i%7)
			m.Observe(onefill.Event{Kind: onefill.EventLoad, Cache: name})
			if err := m.Add(name, &fixed{}); err != nil || !m.Remove(name) {
				t.Error(name, "was not added, or not removed:", err)
			}
		}
	})
	all.Go(func() {
		for range 20 {
			if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
				t.Error(problems, err)
			}
		}
	})
	all.Wait()
	expect(t, scrape(t, m), map[string]sample{`onefill_miss_loads{cache="users"}`: {value: 4 * each, count: 4 * each}})
}

// Neither an event nor a hit costs an allocation. (Of a hit in 64 the core tells; that it makes
// something for it is the core's affair, and less than one in 64 hits.)
func TestAllocations(t *testing.T) {
	m := newCollector(t)
	c := newCache(t, m, options{Name: "users", Load: func(context.Context, string) (string, error) { return "Ada", nil }})
	for kind := onefill.EventKind(1); !strings.HasPrefix(kind.String(), "EventKind"); kind++ {
		e := onefill.Event{Kind: kind, Cache: "users", N: 1, Callers: 1, Took: time.Second, Age: time.Second}
		if n := testing.AllocsPerRun(100, func() { m.Observe(e) }); n != 0 {
			t.Errorf("%v: %v allocations", kind, n)
		}
	}
	get := func() {
		if _, err := c.Get(t.Context(), "ada"); err != nil {
			t.Error(err)
		}
	}
	if n := testing.AllocsPerRun(6400, get); n != 0 {
		t.Errorf("a hit: %v allocations", n)
	}
}
