package cli

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/onefill/onefill/watch"
)

// topReport is a page, and what --json prints.
type topReport struct {
	At     time.Time   `json:"at"`
	Apps   []topApp    `json:"apps"`
	Caches []topCache  `json:"caches"`
	Hot    []topHot    `json:"hot"`
	Slow   []topSlow   `json:"slow"`
	Missed []topMissed `json:"missed"`
	Extra  []topMissed `json:"extra"`
	Live   int         `json:"live"` // miss groups that are waited for now

	more int // caches that are left out
}

// first is the report with so many rows of each kind at most.
func (r topReport) first(rows int) topReport {
	if left := len(r.Caches) - rows; left > 0 {
		r.more += left
	}
	r.Caches, r.Hot, r.Slow = upTo(r.Caches, rows), upTo(r.Hot, rows), upTo(r.Slow, rows)
	r.Missed, r.Extra = upTo(r.Missed, rows), upTo(r.Extra, rows)
	return r
}

func upTo[T any](all []T, most int) []T { return all[:min(len(all), most)] }

type topApp struct {
	App     string  `json:"app"`
	Process string  `json:"process,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Error   string  `json:"error,omitempty"`
}

type topCache struct {
	watch.CacheStat
	LoadsPerGroup float64 `json:"loads_per_group"`
}

type topHot struct {
	Cache       string  `json:"cache"`
	Key         string  `json:"key"`
	CallsPerSec float64 `json:"calls_per_s"`
	PlusMinus   float64 `json:"plus_minus"`
}

type topSlow struct {
	Cache     string  `json:"cache"`
	Key       string  `json:"key"`
	Loads     uint64  `json:"loads"`
	Failed    uint64  `json:"failed"`
	TotalMS   float64 `json:"total_ms"`
	ErrorMS   float64 `json:"error_ms,omitempty"`
	LongestMS float64 `json:"longest_ms"`
}

type topMissed struct {
	Cache         string  `json:"cache"`
	Key           string  `json:"key"`
	Groups        uint64  `json:"groups"`
	Error         uint64  `json:"error,omitempty"`
	Loads         uint64  `json:"loads"`
	LoadsPerGroup float64 `json:"loads_per_group"`
}

type topKey struct{ cache, key string }

// topSum adds up snapshots.
type topSum struct {
	answers, absent []topApp
	at              time.Time
	live            int
	caches          map[string]*watch.CacheStat
	hot             map[topKey]*topHot
	slow            map[topKey]*topSlow
	missed, extra   map[topKey]*topMissed
}

func newTopSum() *topSum {
	return &topSum{
		at: time.Now(), caches: map[string]*watch.CacheStat{}, hot: map[topKey]*topHot{}, slow: map[topKey]*topSlow{},
		missed: map[topKey]*topMissed{}, extra: map[topKey]*topMissed{},
	}
}

func (t *topSum) add(app string, s *watch.Snapshot) {
	seconds := max(s.Seconds, 1)
	t.answers = append(t.answers, topApp{App: app, Process: s.Process, Seconds: s.Seconds})
	t.live += len(s.Live)
	for _, c := range s.Caches {
		sum := entry(t.caches, c.Cache, watch.CacheStat{Cache: c.Cache})
		sum.LocalHits, sum.StoreHits = sum.LocalHits+c.LocalHits, sum.StoreHits+c.StoreHits
		sum.Groups, sum.GroupLoads = sum.Groups+c.Groups, sum.GroupLoads+c.GroupLoads
		sum.Loads, sum.LoadErrors = sum.Loads+c.Loads, sum.LoadErrors+c.LoadErrors
		sum.FillsRefused, sum.Stale, sum.StoreErrors = sum.FillsRefused+c.FillsRefused, sum.Stale+c.Stale, sum.StoreErrors+c.StoreErrors
	}
	for _, h := range s.Hot {
		sum := entry(t.hot, topKey{h.Cache, h.Key}, topHot{Cache: h.Cache, Key: h.Key})
		sum.CallsPerSec += h.Calls / seconds
		sum.PlusMinus += h.Error / seconds
	}
	for _, k := range s.Slow {
		sum := entry(t.slow, topKey{k.Cache, k.Key}, topSlow{Cache: k.Cache, Key: k.Key})
		sum.Loads, sum.Failed = sum.Loads+k.Loads, sum.Failed+k.Failed
		sum.TotalMS, sum.ErrorMS, sum.LongestMS = sum.TotalMS+k.TotalMS, sum.ErrorMS+k.ErrorMS, max(sum.LongestMS, k.LongestMS)
	}
	for into, from := range map[*map[topKey]*topMissed][]watch.MissedKey{&t.missed: s.Missed, &t.extra: s.Extra} {
		for _, k := range from {
			sum := entry(*into, topKey{k.Cache, k.Key}, topMissed{Cache: k.Cache, Key: k.Key})
			sum.Groups, sum.Error, sum.Loads = sum.Groups+k.Groups, sum.Error+k.Error, sum.Loads+k.Loads
		}
	}
}

// entry is that of a key, made if there is none.
func entry[K comparable, V any](m map[K]*V, k K, zero V) *V {
	v := m[k]
	if v == nil {
		v = &zero
		m[k] = v
	}
	return v
}

// report is what is shown: the first keys of each kind.
func (t *topSum) report(keys int) topReport {
	r := topReport{At: t.at, Apps: append(t.answers, t.absent...), Live: t.live, Caches: []topCache{}}
	for _, c := range t.caches {
		r.Caches = append(r.Caches, topCache{*c, ratio(c.GroupLoads, c.Groups)})
	}
	slices.SortFunc(r.Caches, func(a, b topCache) int { return strings.Compare(a.Cache, b.Cache) })
	r.Hot = first(t.hot, keys, func(h *topHot) (float64, topKey) {
		return h.CallsPerSec - h.PlusMinus, topKey{h.Cache, h.Key}
	})
	r.Slow = first(t.slow, keys, func(k *topSlow) (float64, topKey) { return k.TotalMS - k.ErrorMS, topKey{k.Cache, k.Key} })
	groups := func(k *topMissed) (float64, topKey) {
		k.LoadsPerGroup = ratio(k.Loads, max(k.Groups-k.Error, 1))
		return float64(k.Groups - k.Error), topKey{k.Cache, k.Key}
	}
	r.Missed = first(t.missed, keys, groups)
	r.Extra = first(t.extra, keys, func(k *topMissed) (float64, topKey) {
		groups(k)
		return float64(k.Loads - k.Groups), topKey{k.Cache, k.Key}
	})
	return r
}

func ratio(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// first are the heaviest, and of equals the first by name.
func first[V any](all map[topKey]*V, most int, weigh func(*V) (float64, topKey)) []V {
	kept := make([]V, 0, len(all))
	for _, v := range all {
		weigh(v)
		kept = append(kept, *v)
	}
	slices.SortFunc(kept, func(a, b V) int {
		wa, ka := weigh(&a)
		wb, kb := weigh(&b)
		return cmp.Or(cmp.Compare(wb, wa), strings.Compare(ka.cache, kb.cache), strings.Compare(ka.key, kb.key))
	})
	return upTo(kept, most)
}
