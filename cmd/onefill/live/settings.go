package live

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// The modes: ways to put a cache before the database.
const (
	ModeNaive   = "naive"   // plain cache-aside: get, load, set
	ModeLocal   = "local"   // the same behind x/sync/singleflight: one load a process
	ModeLock    = "lock"    // the common lock recipe: SET NX, and the losers poll
	ModeOnefill = "onefill" // a onefill.Cache in each process
)

// Modes are all modes, in the order of the page.
var Modes = []string{ModeNaive, ModeLocal, ModeLock, ModeOnefill}

// Settings are what the page's controls set.
type Settings struct {
	Modes     []string `json:"modes"`       // those that play, of Modes; at least one
	Callers   int      `json:"callers"`     // in all processes of a mode together
	Processes int      `json:"processes"`   // caches of each mode
	LoadMS    int      `json:"load_ms"`     // what one operation of the database takes
	LeaseMS   int      `json:"lease_ms"`    // onefill's LeaseTTL, and the lock's expiry
	TTLMS     int      `json:"ttl_ms"`      // of values
	JitterPct int      `json:"jitter_pct"`  // of the TTL, added at random
	FailPct   int      `json:"failure_pct"` // of the database's operations
	Traffic   bool     `json:"traffic"`     // callers also ask at even pace, between the herds
}

// Defaults are the settings of a page that is opened.
func Defaults() Settings {
	return Settings{
		Modes: slices.Clone(Modes), Callers: 12, Processes: 3,
		LoadMS: 400, LeaseMS: 2000, TTLMS: 4000, JitterPct: 10, Traffic: true,
	}
}

// Limit bounds one number of the Settings, both ends allowed.
type Limit struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Limits are the bounds of the Settings, by their JSON names.
var Limits = map[string]Limit{
	"callers":     {1, 200},
	"processes":   {1, 8},
	"load_ms":     {50, 3000},
	"lease_ms":    {200, 10_000},
	"ttl_ms":      {500, 30_000},
	"jitter_pct":  {0, 100},
	"failure_pct": {0, 100},
}

// FieldError says which of the Settings is wrong, by its JSON name.
type FieldError struct {
	Field string
	Text  string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Text }

// Validate returns a *FieldError for the first setting that is not within Limits.
func (s Settings) Validate() error {
	for _, n := range []struct {
		name  string
		value int
	}{
		{"callers", s.Callers}, {"processes", s.Processes}, {"load_ms", s.LoadMS}, {"lease_ms", s.LeaseMS},
		{"ttl_ms", s.TTLMS}, {"jitter_pct", s.JitterPct}, {"failure_pct", s.FailPct},
	} {
		if l := Limits[n.name]; n.value < l.Min || n.value > l.Max {
			return &FieldError{n.name, fmt.Sprintf("%d; allowed is %d to %d", n.value, l.Min, l.Max)}
		}
	}
	if len(s.Modes) == 0 || len(s.Modes) > len(Modes) {
		return &FieldError{"modes", fmt.Sprintf("%d modes; name one at least, of %s", len(s.Modes), strings.Join(Modes, ", "))}
	}
	for i, mode := range s.Modes {
		switch {
		case !slices.Contains(Modes, mode):
			return &FieldError{"modes", fmt.Sprintf("unknown mode %q; known: %s", mode, strings.Join(Modes, ", "))}
		case slices.Contains(s.Modes[:i], mode):
			return &FieldError{"modes", fmt.Sprintf("%q is named twice", mode)}
		}
	}
	return nil
}

func (s Settings) load() time.Duration  { return time.Duration(s.LoadMS) * time.Millisecond }
func (s Settings) lease() time.Duration { return time.Duration(s.LeaseMS) * time.Millisecond }
func (s Settings) ttl() time.Duration   { return time.Duration(s.TTLMS) * time.Millisecond }

// jitter is never 0, which onefill takes for its default.
func (s Settings) jitter() float64 { return max(float64(s.JitterPct)/100, math.SmallestNonzeroFloat64) }

// needsCaches says whether going from s to next needs other caches: their options
// are fixed.
func (s Settings) needsCaches(next Settings) bool {
	return s.Processes != next.Processes || s.LeaseMS != next.LeaseMS || s.TTLMS != next.TTLMS || s.JitterPct != next.JitterPct ||
		!slices.Equal(s.Modes, next.Modes)
}
