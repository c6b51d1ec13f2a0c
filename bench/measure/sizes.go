package measure

import "time"

// Sizes are how much is measured.
type Sizes struct {
	Rounds int
	Extras bool // also the peers that are variants of others

	Slice      time.Duration // of a throughput: how long one number is measured for
	LocalKeys  int
	StoreKeys  int
	ColdKeys   int // read once each
	ManyCalls  int
	Widths     []int // goroutines of a hit in the store
	HerdSizes  []int // callers of one process
	HerdLoad   time.Duration
	Herds      int // in a round
	FleetProcs int
	FleetSize  int // callers of each process
	FleetLoad  time.Duration
	FleetHerds int // in a round
	Accesses   int // of a hit ratio's pattern
	Entries    int // of the overhead
	OutageWait time.Duration
	Jobs       int
	GrowTo     int   // entries
	Callers    []int // of a growing herd
	Processes  []int
	InFlight   []int
	ColdStart  ColdStart
}

// ColdStart is the recovery from an empty cache.
type ColdStart struct {
	Keys, Callers int
	Load          time.Duration // of the origin, alone
	Capacity      int           // loads at once that the origin takes without getting slower
}

// Full is what docs/benchmarks.md is made with.
func Full() Sizes {
	return Sizes{Rounds: 5, Extras: true,
		Slice: 250 * time.Millisecond, LocalKeys: 100_000, StoreKeys: 10_000, ColdKeys: 60_000, ManyCalls: 200, Widths: []int{1, 8, 64, 256},
		HerdSizes: []int{12, 100, 1000, 10_000}, HerdLoad: 50 * time.Millisecond, Herds: 4,
		FleetProcs: 4, FleetSize: 100, FleetLoad: 250 * time.Millisecond, FleetHerds: 5,
		Accesses: 1_000_000, Entries: 200_000, OutageWait: 15 * time.Second, Jobs: 60_000,
		GrowTo: 10_000_000, Callers: []int{10, 100, 1000, 10_000}, Processes: []int{1, 2, 4, 8}, InFlight: []int{1, 100, 10_000, 100_000},
		ColdStart: ColdStart{Keys: 2000, Callers: 500, Load: 10 * time.Millisecond, Capacity: 10},
	}
}

// Quick is for a look, in a few minutes.
func Quick() Sizes {
	s := Full()
	s.Extras = false
	s.Rounds, s.Slice, s.LocalKeys, s.StoreKeys, s.ColdKeys, s.ManyCalls = 3, 80*time.Millisecond, 50_000, 2000, 15_000, 60
	s.Widths = []int{1, 64}
	s.HerdSizes, s.Herds, s.HerdLoad, s.FleetHerds, s.FleetLoad = []int{100, 10_000}, 2, 30*time.Millisecond, 1, 60*time.Millisecond
	s.Accesses, s.Entries, s.OutageWait, s.Jobs = 100_000, 30_000, 2*time.Second, 20_000
	s.GrowTo, s.Callers, s.Processes, s.InFlight = 100_000, []int{10, 1000, 10_000}, []int{1, 4}, []int{1, 1000, 100_000}
	s.ColdStart.Keys = 500
	return s
}

// Tiny shows that everything runs, in seconds.
func Tiny() Sizes {
	s := Quick()
	s.Extras = true
	s.Rounds, s.Slice, s.LocalKeys, s.StoreKeys, s.ColdKeys, s.ManyCalls, s.Widths = 1, 2*time.Millisecond, 500, 100, 500, 3, []int{1, 8}
	s.HerdSizes, s.Herds, s.HerdLoad = []int{20}, 1, 5*time.Millisecond
	s.FleetProcs, s.FleetSize, s.FleetHerds, s.FleetLoad = 2, 5, 1, 20*time.Millisecond
	s.Accesses, s.Entries, s.OutageWait, s.Jobs = 5_000, 2_000, 50*time.Millisecond, 500
	s.GrowTo, s.Callers, s.Processes, s.InFlight = 10_000, []int{10, 100}, []int{1, 2}, []int{1, 100}
	s.ColdStart = ColdStart{Keys: 100, Callers: 50, Load: time.Millisecond, Capacity: 5}
	return s
}
