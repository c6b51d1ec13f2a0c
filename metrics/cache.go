package metrics

import "github.com/onefill/onefill"

type stats = onefill.Stats

var cacheReadings = []Reading[stats]{
	counter("onefill.local.hits", "{call}", "Calls answered from local with a fresh value.", func(s *stats) uint64 { return s.LocalHits }),
	counter("onefill.store.hits", "{flight}", "Flights answered by a fresh value in the store.", func(s *stats) uint64 { return s.StoreHits }),
	counter("onefill.stale.served", "{call}", "Calls answered with a stale value.", func(s *stats) uint64 { return s.StaleServed }),
	counter("onefill.not_found", "{call}", "Calls answered by ErrNotFound.", func(s *stats) uint64 { return s.NotFound }),
	counter("onefill.collapsed", "{call}", "Calls that joined another call's flight.", func(s *stats) uint64 { return s.Coalesced }),
	counter("onefill.lease.waits", "{flight}", "Flights that waited for a load in another flight or process.", func(s *stats) uint64 { return s.LeaseWaits }),
	counter("onefill.wait.timeouts", "{call}", "Calls that ended with ErrWaitTimeout.", func(s *stats) uint64 { return s.WaitTimeouts }),
	counter("onefill.shared_failures", "{flight}", "Flights answered by the remembered failure of another load.", func(s *stats) uint64 { return s.SharedFailures }),

	counter("onefill.loads", "{load}", "Calls of the loader.", func(s *stats) uint64 { return s.Loads }),
	counter("onefill.load.errors", "{load}", "Loads that failed, of a LoadMany for each key; panics included, ErrNotFound not.", func(s *stats) uint64 { return s.LoadErrors }),
	counter("onefill.load.panics", "{load}", "Loads that panicked or called runtime.Goexit.", func(s *stats) uint64 { return s.Panics }),
	counter("onefill.loads.abandoned", "{load}", "Loads whose loader had not returned after LoadTimeout.", func(s *stats) uint64 { return s.LoadsAbandoned }),
	counter("onefill.origin.busy", "{flight}", "Flights that got no place at the origin in time.", func(s *stats) uint64 { return s.OriginBusy }),

	fills(),
	counter("onefill.leases.lost", "{lease}", "Leases that were found lost while the load ran.", func(s *stats) uint64 { return s.LeasesLost }),
	refreshes(),
	counter("onefill.refresh.failures", "{refresh}", "Background flights that brought nothing.", func(s *stats) uint64 { return s.RefreshesFailed }),

	counter("onefill.store.errors", "{operation}", "Operations of the store that failed.", func(s *stats) uint64 { return s.StoreErrors }),
	counter("onefill.replays", "{write}", "Writes of keys and tags repeated after an outage or a failover.", func(s *stats) uint64 { return s.Replayed }),
	counter("onefill.undecodable", "{entry}", "Stored entries that could not be read.", func(s *stats) uint64 { return s.Undecodable }),
	counter("onefill.unstorable", "{value}", "Loaded values that could not be encoded or were too large.", func(s *stats) uint64 { return s.Unstorable }),

	busMessages(),
	counter("onefill.bus.gaps", "{gap}", "Times that all of local was taken for old, as something may have gone unheard.", func(s *stats) uint64 { return s.BusGaps }),
	counter("onefill.bus.errors", "{message}", "Attempts to publish a message that failed.", func(s *stats) uint64 { return s.BusErrors }),
	counter("onefill.bus.foreign", "{message}", "Messages that could not be understood.", func(s *stats) uint64 { return s.BusForeign }),

	gauge("onefill.loads.in_flight", "{load}", "Places at the origin in use.", func(s *stats) int { return s.LoadsInFlight }),
	gauge("onefill.load.limit", "{load}", "Places at the origin now, from MaxLoadsDegraded to MaxLoads.", func(s *stats) int { return s.LoadLimit }),
	gauge("onefill.loads.waiting", "{flight}", "Flights that wait for a place at the origin.", func(s *stats) int { return s.LoadsWaiting }),
	gauge("onefill.loads.stray", "{load}", "Loads that were left behind and whose loader still runs.", func(s *stats) int { return s.LoadsStray }),
	gauge("onefill.replays.waiting", "{write}", "Keys and tags whose write failed, and is to be repeated.", func(s *stats) int { return s.ReplaysWaiting }),
	gauge("onefill.local.entries", "{entry}", "Entries in local, including some that have expired.", func(s *stats) int { return s.LocalEntries }),
	gauge("onefill.local.size", "By", "What the entries in local weigh, where Local.MaxBytes is set.", func(s *stats) uint64 { return s.LocalBytes }),
	gauge("onefill.store.down", "", "1 while the breaker is open: the store, or one of its servers, is taken for unreachable.", func(s *stats) int {
		if s.StoreDown {
			return 1
		}
		return 0
	}),
}

func fills() Reading[stats] {
	r := by[stats](Counter, "onefill.fills", "{value}", "Loaded values that the store accepted (stored), and those that it refused because their lease was lost (refused).", "outcome")
	r = and(r, "stored", func(s *stats) uint64 { return s.Fills })
	return and(r, "refused", func(s *stats) uint64 { return s.FillsRefused })
}

func refreshes() Reading[stats] {
	r := by[stats](Counter, "onefill.refreshes", "{refresh}", "Background flights begun for a stale value (stale), and before a value's expiry (early).", "reason")
	r = and(r, "stale", func(s *stats) uint64 { return s.Refreshes })
	return and(r, "early", func(s *stats) uint64 { return s.EarlyRefreshes })
}

func busMessages() Reading[stats] {
	r := by[stats](Counter, "onefill.bus.messages", "{message}", "Messages about writes that the bus has taken (published), and those of other processes (heard).", "direction")
	r = and(r, "published", func(s *stats) uint64 { return s.BusPublished })
	return and(r, "heard", func(s *stats) uint64 { return s.BusHeard })
}

// Caches are the metrics that are read from a cache's Stats.
func Caches() []Reading[onefill.Stats] { return cacheReadings }
