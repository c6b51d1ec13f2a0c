package promonefill

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Cache is what a [Collector] reads: a *onefill.Cache of any types.
type Cache interface {
	Stats() onefill.Stats
}

// Collector is a prometheus.Collector of caches, and their onefill.Observer. It is safe
// for concurrent use.
//
// Registering it twice, or two of them in one registry, is an error of the registry's
// (prometheus.AlreadyRegisteredError): one serves all caches. If there must be two, register
// each under a label of its own, with prometheus.WrapRegistererWith.
type Collector struct {
	readings      []reading[onefill.Stats]
	distributions []distribution

	mu    sync.Mutex // guards changes of known; nothing blocks under it
	known atomic.Pointer[map[string]observed]
}

var (
	_ prometheus.Collector = (*Collector)(nil)
	_ onefill.Observer     = (*Collector)(nil)
)

// observed is one cache. Its histograms may fill before it is added.
type observed struct {
	cache    Cache // nil before Add
	recorder *recorder
}

// New makes a Collector. Its error names the option that is wrong.
func New(o Options) (*Collector, error) {
	ds, err := distributions(o, metrics.CacheHistograms(), "cache")
	if err != nil {
		return nil, err
	}
	c := &Collector{readings: readings(metrics.Caches(), "cache"), distributions: ds}
	c.known.Store(&map[string]observed{})
	return c, nil
}

// Add shows a cache from now on, under the label cache=name. The name must be its
// Options.Name, under which the Collector hears of it as its Observer; events that came
// before are not lost. It is an error if a cache of that name is shown already. Two caches of
// one name in one process, which stand for two processes in a test, say, need a Collector and
// a registry each.
func (c *Collector) Add(name string, cache Cache) error {
	if err := checkName("cache", name, cache == nil); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o, met := (*c.known.Load())[name]
	if o.cache != nil {
		return fmt.Errorf("promonefill: a cache named %q is shown already; give each an Options.Name of its own, or Remove the other one first", name)
	}
	if !met {
		o.recorder = newRecorder(c.distributions)
	}
	o.cache = cache
	c.set(name, o)
	return nil
}

// Remove ends the showing of a cache, when it is closed, say. It says whether there was one.
func (c *Collector) Remove(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (*c.known.Load())[name].cache == nil {
		return false
	}
	next := maps.Clone(*c.known.Load())
	delete(next, name)
	c.known.Store(&next)
	return true
}

// set changes known by a copy, since Observe reads it without a lock. mu is held.
func (c *Collector) set(name string, o observed) {
	next := maps.Clone(*c.known.Load())
	next[name] = o
	c.known.Store(&next)
}

// Observe counts an event of a cache in its histograms.
func (c *Collector) Observe(e onefill.Event) {
	o, ok := (*c.known.Load())[e.Cache]
	if !ok {
		o = c.meet(e.Cache)
	}
	metrics.RecordCache(e, o.recorder)
}

// meet makes the histograms of a cache that was not heard of before.
func (c *Collector) meet(name string) observed {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := (*c.known.Load())[name]
	if !ok {
		o = observed{recorder: newRecorder(c.distributions)}
		c.set(name, o)
	}
	return o
}

// Describe is for the registry.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, r := range c.readings {
		ch <- r.desc
	}
	for _, d := range c.distributions {
		ch <- d.desc
	}
}

// Collect is for the registry. It reads each cache's Stats once.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	known := *c.known.Load()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		o := known[name]
		if o.cache == nil {
			continue
		}
		s := o.cache.Stats()
		for i := range c.readings {
			c.readings[i].collect(ch, &s, name)
		}
		o.recorder.collect(ch, c.distributions, name)
	}
}

func checkName(what, name string, missing bool) error {
	if missing {
		return fmt.Errorf("promonefill: the %s to add as %q is nil", what, name)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("promonefill: the name %q of a %s is not UTF-8, which a label must be", name, what)
	}
	return nil
}
