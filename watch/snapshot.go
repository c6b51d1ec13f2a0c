package watch

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Snapshot is what a Recorder knows at a moment. Keys are of the last Seconds, about a minute;
// the counters of Caches count since Since.
type Snapshot struct {
	At         time.Time `json:"at"`
	Since      time.Time `json:"since"`
	Process    string    `json:"process"` // host and process id
	Seconds    float64   `json:"seconds"`
	KeysHidden bool      `json:"keys_hidden,omitempty"`

	Caches []CacheStat `json:"caches"`
	Hot    []HotKey    `json:"hot"`    // by calls
	Missed []MissedKey `json:"missed"` // by miss groups
	Extra  []MissedKey `json:"extra"`  // by loads beyond one for a miss group; empty if all is well
	Slow   []SlowKey   `json:"slow"`   // by the time that their loads took
	Live   []Group     `json:"live"`   // the longest first
	Recent []Group     `json:"recent"` // the latest first
	// Unfollowed is how many flights found no room (Options.Flights).
	Unfollowed uint64 `json:"unfollowed,omitempty"`
}

// CacheStat counts what a Recorder was told of a cache.
type CacheStat struct {
	Cache        string `json:"cache"`
	LocalHits    uint64 `json:"local_hits"` // estimated from one in 64
	StoreHits    uint64 `json:"store_hits"`
	Groups       uint64 `json:"groups"`      // miss groups that ended
	GroupLoads   uint64 `json:"group_loads"` // loads that they waited for
	Loads        uint64 `json:"loads"`       // of this process, refreshes included
	LoadErrors   uint64 `json:"load_errors"`
	FillsRefused uint64 `json:"fills_refused"`
	Stale        uint64 `json:"stale"`
	StoreErrors  uint64 `json:"store_errors"`
}

// HotKey is a key by its calls: hits in local, estimated from samples, hits in the store, and calls
// that waited. The true number lies within Calls ± Error in 95 of 100 cases.
type HotKey struct {
	Cache string  `json:"cache"`
	Key   string  `json:"key"`
	Calls float64 `json:"calls"`
	Error float64 `json:"error"`
}

// MissedKey is a key by its miss groups. The number of groups is at most Error too high; Loads are
// those of Seen groups, which Groups-Error is at least.
type MissedKey struct {
	Cache  string `json:"cache"`
	Key    string `json:"key"`
	Groups uint64 `json:"groups"`
	Error  uint64 `json:"error,omitempty"`
	Loads  uint64 `json:"loads"`
}

// SlowKey is a key by the time that its loads took in this process, in milliseconds. TotalMS is at most
// ErrorMS too high.
type SlowKey struct {
	Cache     string  `json:"cache"`
	Key       string  `json:"key"`
	TotalMS   float64 `json:"total_ms"`
	ErrorMS   float64 `json:"error_ms,omitempty"`
	Loads     uint64  `json:"loads"`
	Failed    uint64  `json:"failed"`
	LongestMS float64 `json:"longest_ms"`
}

// Filter leaves out what is not of a cache, or not of a key as it is shown. Empty: all.
type Filter struct{ Cache, Key string }

func (f Filter) matches(cache, key string) bool {
	return (f.Cache == "" || f.Cache == cache) && (f.Key == "" || f.Key == key)
}

// Snapshot returns what is known now, with at most top keys of each kind.
func (r *Recorder) Snapshot(top int, filter Filter) Snapshot {
	now := time.Now()
	s := Snapshot{At: now, Since: r.start, Process: process(), KeysHidden: r.opts.HideKeys, Seconds: covered(now, r.start).Seconds(),
		Hot: []HotKey{}, Missed: []MissedKey{}, Extra: []MissedKey{}, Slow: []SlowKey{}} // none is [], not null
	for _, c := range r.heaviest(now, byCalls, top, filter) {
		calls, spread := middle(c)
		s.Hot = append(s.Hot, HotKey{c.cache, r.opts.shown(c.key), calls, spread})
	}
	for _, c := range r.heaviest(now, byGroups, top, filter) {
		s.Missed = append(s.Missed, MissedKey{c.cache, r.opts.shown(c.key), c.weight, c.error, c.loads})
	}
	for _, c := range r.heaviest(now, byExtra, top, filter) {
		s.Extra = append(s.Extra, MissedKey{Cache: c.cache, Key: r.opts.shown(c.key), Groups: c.loads - (c.weight - c.error), Loads: c.loads})
	}
	for _, c := range r.heaviest(now, byLoad, top, filter) {
		s.Slow = append(s.Slow, SlowKey{c.cache, r.opts.shown(c.key), float64(c.weight) / 1000, float64(c.error) / 1000, c.loads, c.failed, float64(c.longest) / 1000})
	}
	s.Caches, s.Recent, s.Unfollowed = r.past(filter)
	s.Live = r.Live(0, filter)
	return s
}

// middle is the middle of what a weight may be, and how far from it the truth may lie: the sketch's
// error is certain, that of the samples is two standard deviations.
func middle(c *cell) (calls, spread float64) {
	most, least := float64(c.weight), float64(c.weight-c.error)
	return (most + least) / 2, (most-least)/2 + 2*math.Sqrt(c.variance)
}

// heaviest are the keys that weigh most for certain.
func (r *Recorder) heaviest(now time.Time, k kind, top int, filter Filter) []*cell {
	var cells []*cell
	for _, c := range r.keys.merged(now, k) {
		if c.weight > c.error && filter.matches(c.cache, r.opts.shown(c.key)) {
			cells = append(cells, c)
		}
	}
	slices.SortFunc(cells, func(a, b *cell) int {
		return cmp.Or(cmp.Compare(b.weight-b.error, a.weight-a.error), strings.Compare(a.cache, b.cache), strings.Compare(a.key, b.key))
	})
	return cells[:min(len(cells), top)]
}

// past are the counters and the groups that have ended.
func (r *Recorder) past(filter Filter) (caches []CacheStat, recent []Group, unfollowed uint64) {
	caches, recent = []CacheStat{}, []Group{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range slices.Sorted(maps.Keys(r.caches)) {
		if filter.Cache == "" || filter.Cache == of {
			caches = append(caches, *r.caches[of])
		}
	}
	for i := range r.recent {
		g := r.show(r.recent[(r.next+len(r.recent)-1-i)%len(r.recent)])
		if filter.matches(g.Cache, g.Key) {
			recent = append(recent, g)
		}
	}
	return caches, recent, r.dulled
}

// Live are the groups that are waited for or loaded now, and have been for so long, the
// longest first.
func (r *Recorder) Live(since time.Duration, filter Filter) []Group {
	groups := []Group{}
	now := time.Now()
	r.mu.Lock()
	for _, f := range r.air {
		if !f.idle && now.Sub(f.start) >= since {
			groups = append(groups, f.live(now))
		}
	}
	r.mu.Unlock()
	shown := groups[:0]
	for _, g := range groups {
		if g = r.show(g); filter.matches(g.Cache, g.Key) {
			shown = append(shown, g)
		}
	}
	slices.SortFunc(shown, func(a, b Group) int { return cmp.Or(cmp.Compare(b.TookMS, a.TookMS), strings.Compare(a.Key, b.Key)) })
	return shown
}
