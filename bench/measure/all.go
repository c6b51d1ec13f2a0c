package measure

// All are the measures, in the order of the report.
func All(s Sizes, traces string) []*Measure {
	return []*Measure{
		Limits(s), FleetHerds(s), Herds(s), StoreHits(s), ManyHits(s), LocalHits(s), HitRatios(s, traces), Overheads(s), Outages(s), Queues(s),
		GrowingFleet(s), GrowingHerd(s), GrowingCache(s), GrowingFlights(s), ColdStarts(s),
	}
}
