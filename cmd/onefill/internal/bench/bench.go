// Package bench measures onefill against a store that exists, gently: for a second or so each
// measure, with a bounded number of callers, in a namespace of its own that it empties afterwards.
package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/memcachestore"
	"github.com/onefill/onefill/redisstore"
	"github.com/onefill/onefill/store"
)

// Config says what to measure.
type Config struct {
	Store     string        // "redis" or "memcached"
	URL       string        // of a Redis
	Servers   []string      // of memcached
	Private   bool          // the server was started for this run
	Callers   int           // of a herd, in all processes together
	Processes int           // of a herd
	Rounds    int           // of herds, and of invalidations ten times as many
	Load      time.Duration // of a herd's loader
	For       time.Duration // each measure of latency
}

// The most that a run may do: it is for servers that others use as well.
const (
	MostCallers   = 1000
	MostProcesses = 16
	MostRounds    = 200
	mostKeys      = 20_000 // that are written
)

// Report is what was measured.
type Report struct {
	Store   string `json:"store"`
	Version string `json:"version,omitempty"`
	Private bool   `json:"private"`
	CPUs    int    `json:"cpus"`
	Go      string `json:"go"`

	LocalHitNS    float64   `json:"local_hit_ns"`
	LocalPerSec   float64   `json:"local_hits_per_s"` // of all CPUs
	StoreHits     []Latency `json:"store_hit"`
	Miss          Latency   `json:"miss"`
	Many          Latency   `json:"get_many_100"`
	Herd          Herd      `json:"herd"`
	Invalidation  *Latency  `json:"invalidation,omitempty"` // nil: the store tells nobody
	LocalTTLMS    float64   `json:"local_ttl_ms"`           // the bound where it is not told
	TookMS        float64   `json:"took_ms"`
	KeysLeft      int       `json:"keys_left"` // that could not be removed; they end within LeftFor
	LeftForMS     float64   `json:"left_for_ms,omitempty"`
	CleanupFailed string    `json:"cleanup_failed,omitempty"`
}

// Latency is the time of a call, as its caller sees it.
type Latency struct {
	Callers int     `json:"callers"`
	Calls   int     `json:"calls"`
	PerSec  float64 `json:"calls_per_s,omitempty"`
	P50US   float64 `json:"p50_us"`
	P99US   float64 `json:"p99_us"`
}

// Herd is callers in several processes who miss a key at once.
type Herd struct {
	Callers   int     `json:"callers"`
	Processes int     `json:"processes"`
	Rounds    int     `json:"rounds"`
	LoadMS    float64 `json:"load_ms"`
	Loads     int     `json:"loads"` // in all rounds; ideal is as many as rounds
	Errors    int     `json:"errors"`
	// P50MS and P99MS are the callers' waits beyond the load.
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	// Commands that the server executed for a herd, all clients of the server counted.
	Commands *float64 `json:"commands,omitempty"`
}

// left is how long what could not be removed stays.
const left = 5 * time.Minute

// OpenStore opens the store.
func (c *Config) OpenStore() (store.Store, func(), error) {
	switch c.Store {
	case "redis":
		s, err := redisstore.Open(c.URL)
		if err != nil {
			return nil, nil, err
		}
		return s, func() { s.Close() }, nil
	case "memcached":
		s := memcachestore.New(c.Servers...)
		return s, func() { s.Close() }, nil
	}
	return nil, nil, fmt.Errorf("unknown store %q", c.Store)
}

type cache = onefill.Cache[string, string]

// newCache is one of the run's caches. All share their entries.
func newCache(st store.Store, name string, load func(context.Context, string) (string, error), o onefill.LocalOptions) (*cache, error) {
	return onefill.New(onefill.Options[string, string]{
		Name: name, Store: st, Load: load, Local: o,
		TTL: left, Jitter: onefill.NoJitter, StoreTimeout: 2 * time.Second, LoadTimeout: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
}

// bench is one run.
type bench struct {
	cfg    Config
	argv   []string // this program as a process of a herd
	name   string   // of the caches
	store  store.Store
	report *Report
	keys   []string // that were written
}

// Run measures. step hears of each measure before it begins. argv is the command of a process
// that calls RunChild. The report is that of what was done, also with an error.
func Run(ctx context.Context, cfg Config, argv []string, step func(what string, number, of int)) (report *Report, err error) {
	start := time.Now()
	st, closeStore, err := cfg.OpenStore()
	if err != nil {
		return nil, err
	}
	defer closeStore()
	b := &bench{cfg: cfg, argv: argv, store: st, name: "onefill-bench-" + strings.ToLower(rand.Text()[:12]),
		report: &Report{Store: cfg.Store, Private: cfg.Private, CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version()}}
	server, err := askServer(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer server.close()
	b.report.Version = server.version
	defer func() {
		b.clean(ctx)
		b.report.TookMS = float64(time.Since(start).Milliseconds())
	}()
	measures := []struct {
		what string
		do   func(context.Context) error
	}{
		{"hits in local", b.localHits},
		{"hits in the store", b.storeHits},
		{"misses", b.misses},
		{"GetMany of 100", b.many},
		{"herds", func(ctx context.Context) error { return b.herds(ctx, server) }},
		{"invalidations", b.invalidations},
	}
	for i, m := range measures {
		step(m.what, i+1, len(measures))
		if err := m.do(ctx); err != nil {
			return b.report, fmt.Errorf("%s: %w", m.what, err)
		}
		if ctx.Err() != nil {
			return b.report, ctx.Err()
		}
	}
	return b.report, nil
}

// clean removes what was written, also after an interruption. What cannot be removed ends
// by itself, within left.
func (b *bench) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	c, err := newCache(b.store, b.name, nil, onefill.LocalOptions{})
	for err == nil && len(b.keys) > 0 {
		n := min(len(b.keys), 200)
		if err = c.Invalidate(ctx, b.keys[:n]...); err == nil {
			b.keys = b.keys[n:]
		}
	}
	if c != nil {
		err = errors.Join(err, c.Close())
	}
	if b.report.KeysLeft = len(b.keys); b.report.KeysLeft > 0 {
		b.report.LeftForMS, b.report.CleanupFailed = float64(left.Milliseconds()), fmt.Sprint(err)
	}
}
