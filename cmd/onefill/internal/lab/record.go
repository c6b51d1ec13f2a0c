package lab

import "time"

// Kind says how a call ended.
type Kind string

// The kinds of an outcome.
const (
	KindValue     Kind = "value"
	KindNotFound  Kind = "not_found" // the origin says that the row does not exist: an answer, no error
	KindError     Kind = "error"
	KindTimeout   Kind = "timeout"   // a deadline or the cache's own bound on waiting
	KindCancelled Kind = "cancelled" // the call's context was cancelled, or somebody else's whom it depended on
)

// Failed says whether the outcome counts as an error.
func (k Kind) Failed() bool { return k != KindValue && k != KindNotFound }

// Call is one caller's question to the cache; a line of calls.jsonl. Times are
// microseconds since 1970 on this machine's clock.
type Call struct {
	Scenario string `json:"scenario"`
	Mode     string `json:"mode"`
	Process  int    `json:"process"`
	Caller   int    `json:"caller"`
	Phase    string `json:"phase"`
	// Key, where a scenario has several.
	Key     string `json:"key,omitempty"`
	StartUS int64  `json:"start_us"`
	EndUS   int64  `json:"end_us"`
	Kind    Kind   `json:"kind"`
	// Row is the row's text as the origin had it.
	Row string `json:"row,omitempty"`
	// Operation is the number of the origin operation that the answer came from.
	Operation int `json:"operation,omitempty"`
	// ReadUS is when that operation began, by the origin's clock.
	ReadUS int64 `json:"read_us,omitempty"`
	// Source is where the cache says that it had the answer: local, store or load.
	Source string `json:"source,omitempty"`
	// Stale: the cache says that the value is past its time, or may be.
	Stale bool   `json:"stale,omitempty"`
	Error string `json:"error,omitempty"`
}

// Wait is how long the caller waited for its answer.
func (c Call) Wait() time.Duration { return time.Duration(c.EndUS-c.StartUS) * time.Microsecond }

// The phases of a scenario.
const (
	phaseHerd   = "herd"   // released together at the barrier
	phaseFirst  = "first"  // the call that the scenario starts with
	phaseVerify = "verify" // a look afterwards, one a process
	phaseAgain  = "again"  // all of them once more, when the first have their answers
	phaseKnown  = "known"  // all of them, for a key that every process has read before
	// phaseTraffic is that of calls which come at even intervals.
	phaseTraffic = "traffic"
)

// Operation is one trip to the origin; a line of operations.jsonl. Times are
// microseconds since 1970, by the clock of the origin.
type Operation struct {
	Scenario string `json:"scenario"`
	Mode     string `json:"mode"`
	Key      string `json:"key,omitempty"` // where a scenario has several
	Number   int    `json:"number"`
	Process  int    `json:"process"`
	StartUS  int64  `json:"start_us"`
	EndUS    int64  `json:"end_us,omitempty"` // 0: it had not ended when the logs were read
	Outcome  string `json:"outcome,omitempty"`
}

// Result is what one scenario gave in one mode; a line of --json and of
// results.jsonl.
type Result struct {
	Scenario     string `json:"scenario"`
	Mode         string `json:"mode"`
	Store        string `json:"store"`
	StoreVersion string `json:"store_version"`
	Origin       string `json:"origin"`
	OriginVer    string `json:"origin_version"`
	Processes    int    `json:"processes"`
	Callers      int    `json:"callers"` // with traffic: calls
	// Loads is the origin's own count of its operations.
	Loads int `json:"loads"`
	// Groups is how many groups of callers waited for the same row, and
	// OpsPerGroup is loads per group: 1 is the least that can be.
	Groups      int     `json:"miss_groups"`
	OpsPerGroup float64 `json:"operations_per_miss_group"`
	// Errors counts the callers without an answer, without the one whose own
	// context was cancelled. "Not found" is an answer.
	Errors    int  `json:"errors"`
	NotFound  int  `json:"not_found"`
	Timeouts  int  `json:"timeouts"`
	Identical bool `json:"identical"`
	// Ok says whether the scenario's demand was met; Asserted whether the run
	// fails otherwise. Failed names what was not met.
	Ok       bool     `json:"ok"`
	Asserted bool     `json:"asserted"`
	Failed   []string `json:"failed,omitempty"`
	// Sanity, for naive in S1: whether the barrier did what it is for. A run fails
	// if it did not, since then no other figure means anything.
	Sanity string `json:"sanity,omitempty"`

	ElapsedMS int64   `json:"elapsed_ms"`
	LoadMS    float64 `json:"load_ms"`
	LeaseMS   float64 `json:"lease_ms"`
	// Extra is the callers' wait beyond one load; absent where the scenario makes
	// callers come at different times.
	ExtraP50MS *float64 `json:"extra_p50_ms,omitempty"`
	ExtraP99MS *float64 `json:"extra_p99_ms,omitempty"`
	ExtraMaxMS *float64 `json:"extra_max_ms,omitempty"`
	// AgeMaxMS is how old the oldest answer was, since the origin began to read it.
	AgeMaxMS float64 `json:"value_age_max_ms"`
	// Commands is what the store's server executed meanwhile, a script and the
	// commands in it counted each; CommandStats is the same by command.
	Commands     int64            `json:"commands"`
	CommandStats map[string]int64 `json:"command_stats,omitempty"`

	// S5: what the readers and the caches had after the invalidation.
	StaleAnswers *int   `json:"stale_answers,omitempty"`
	StoreHolds   string `json:"store_holds,omitempty"` // "new", "old" or "nothing"
	StaleReaders *int   `json:"stale_processes,omitempty"`
	// Release: what the wrong owner could do.
	Freed     *bool `json:"freed_anothers_lease,omitempty"`
	Accepted  *bool `json:"release_accepted,omitempty"`
	Published *bool `json:"late_value_stored,omitempty"`
	Holders   int   `json:"holders,omitempty"`

	// MaxInFlight, where something happens to the store: the most operations that the
	// origin had at once.
	MaxInFlight *int    `json:"max_in_flight,omitempty"`
	Waves       []Wave  `json:"waves,omitempty"`  // S7
	Outage      *Outage `json:"outage,omitempty"` // scenarios with traffic
	Commit      *Commit `json:"commit,omitempty"` // the scenario of that name
}
