package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

// The modes: ways to put a cache before the database.
const (
	ModeNaive   = "naive"   // plain cache-aside: GET, load, SET
	ModeLocal   = "local"   // the same behind x/sync/singleflight: one load a process
	ModeLock    = "lock"    // the common lock recipe
	ModeOnefill = "onefill" // what is to be proved
)

// Modes are all modes, in the order of reports.
var Modes = []string{ModeNaive, ModeLocal, ModeLock, ModeOnefill}

// reader is a cache in a reader process, in one of the modes.
type reader interface {
	Get(ctx context.Context, key string) (answer, error)
	Invalidate(ctx context.Context, key string) error
	// Stored returns what the store holds for key, past every local cache.
	Stored(ctx context.Context, key string) (payload string, found bool, err error)
	Close() error
}

// leaser is a reader whose lock or lease can be taken by hand.
type leaser interface {
	Take(ctx context.Context, key, holder string) (bool, error)
	// Publish stores what holder has loaded, and says whether the store let it.
	Publish(ctx context.Context, key, holder, payload string) (bool, error)
	// Drop gives back what holder took, and says whether the store let it.
	Drop(ctx context.Context, key, holder string) (bool, error)
}

type answer = recipe.Answer

// load is what every mode calls when it has to: one operation of the origin.
type load func(ctx context.Context, key string) (string, error)

// readerConfig is what a mode needs to know.
type readerConfig struct {
	run     string // random part of all names
	load    load
	ttl     time.Duration // of values
	lease   time.Duration // of the lease, and the lock's expiry
	timeout time.Duration // of everything in this cell
	push    bool
	policy  policy
}

// policy is what a scenario sets otherwise than the others do; what is zero is as in
// those. Times are nanoseconds in JSON.
type policy struct {
	// StoreTimeout bounds one operation of the store, in every mode.
	StoreTimeout time.Duration `json:"store_timeout,omitempty"`

	// The others are onefill's options of the same names.
	LocalTTL         time.Duration `json:"local_ttl,omitempty"`
	StaleFor         time.Duration `json:"stale_for,omitempty"`
	StaleOnError     time.Duration `json:"stale_on_error,omitempty"`
	LoadTimeout      time.Duration `json:"load_timeout,omitempty"`
	WaitTimeout      time.Duration `json:"wait_timeout,omitempty"`
	MaxLoads         int           `json:"max_loads,omitempty"`
	MaxLoadsDegraded int           `json:"max_loads_degraded,omitempty"`
}

func openReader(ctx context.Context, mode string, spec storeSpec, cfg readerConfig) (reader, error) {
	if mode == ModeOnefill {
		return openOnefill(ctx, spec, cfg)
	}
	plain, err := openPlain(ctx, spec)
	if err != nil {
		return nil, err
	}
	if cfg.policy.StoreTimeout > 0 {
		plain = recipe.Bounded{Store: plain, Timeout: cfg.policy.StoreTimeout}
	}
	base := recipe.Naive{Store: plain, Config: recipe.Config{
		Load:    cfg.load,
		TTL:     func(ctx context.Context) time.Duration { return ttlOf(ctx, cfg.ttl) },
		Lease:   cfg.lease,
		Key:     func(key string) string { return plainKey(cfg.run, key) },
		LockKey: func(key string) string { return lockKey(cfg.run, key) },
	}}
	switch mode {
	case ModeNaive:
		return &base, nil
	case ModeLocal:
		return &recipe.Local{Naive: base}, nil
	case ModeLock:
		return &recipe.Lock{Naive: base}, nil
	}
	plain.Close()
	return nil, fmt.Errorf("unknown mode %q", mode)
}

// plainKey is the key of a value in the modes without onefill. The cell's key
// names scenario and mode, so no two modes meet.
func plainKey(run, key string) string { return "onefill-lab-" + run + ":" + key }

func lockKey(run, key string) string { return plainKey(run, key) + ":lock" }
