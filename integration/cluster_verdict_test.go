package integration

import (
	"slices"
	"strings"
	"time"
)

// What TestClusterUnderLoad makes of what was seen.

// checkStore: below the caches nothing was refused, and only the dead node's keys failed.
func (l *clusterLoad) checkStore() {
	for _, failed := range l.failed {
		l.t.Error(failed)
	}
	count := map[string]int{}
	for _, e := range l.storeErrors {
		for _, word := range []string{"CROSSSLOT", "MOVED", "ASK ", "TRYAGAIN"} {
			if strings.Contains(e.err, word) {
				l.t.Errorf("cache %d, %s: %s", e.cache, e.phase, e.err)
			}
		}
		where := "several keys"
		if e.of != nil {
			where = placeNames[e.of.place]
		}
		count[e.phase+", "+where]++
		if e.of == nil || e.of.place == dying && e.phase == "dead" {
			continue
		}
		l.t.Errorf("cache %d, %s, %s key %s: %s", e.cache, e.phase, placeNames[e.of.place], e.of.key, e.err)
	}
	l.t.Logf("operations of the store that failed: %v", count)
}

// checkReads looks at every Get.
func (l *clusterLoad) checkReads() {
	acks := map[string]acked{}
	writes := 0
	for _, r := range l.all {
		if writes += len(r.acks); len(r.acks) > 0 {
			acks[r.key] = newAcked(slices.Clone(r.acks))[r.key]
		}
	}
	var worst time.Duration
	for _, g := range l.gets {
		since := acks[g.of.key].since(g.version)
		if since == 0 || since >= g.begin {
			continue
		}
		if g.of.place == dying && g.end > l.killed && g.begin < l.back+int64(degraded+l.bounds[g.cache]) {
			if since < l.killed-int64(time.Second) {
				l.t.Errorf("cache %d read version %d of %s, which a newer one had replaced %v before the kill",
					g.cache, g.version, g.of.key, time.Duration(l.killed-since))
			}
			continue
		}
		lag := time.Duration(g.begin - since)
		if g.cache < 3 {
			worst = max(worst, lag)
		}
		if lag > l.bounds[g.cache] {
			l.t.Errorf("cache %d, %s: read version %d of %s key %s %v after a newer one had been acknowledged", g.cache, g.phase,
				g.version, placeNames[g.of.place], g.of.key, lag)
		}
	}
	l.t.Logf("%d reads, %d writes; with pushes the oldest row was read %v after its successor was acknowledged", len(l.gets), writes, worst)
	if len(l.gets) < 2000 || writes < 100 {
		l.t.Errorf("%d reads and %d writes are too few to say anything", len(l.gets), writes)
	}
}

// checkLoads: one load for each miss group but those of the dead node.
func (l *clusterLoad) checkLoads() {
	for phase, sums := range l.herdsOf {
		for at, sum := range sums {
			l.t.Logf("%s, %s: %d herds, %d loads", phase, placeNames[at], sum[0], sum[1])
			most := sum[0]
			if at == dying && phase == "dead" {
				most *= 2 * len(l.caches) // by each caller, if what his cache has is not trusted
			}
			if sum[1] > most {
				l.t.Errorf("%s, %s: %d herds made %d loads, want %d at most", phase, placeNames[at], sum[0], sum[1], most)
			}
		}
	}
	again, died := 0, 0
	for _, r := range l.all {
		loads, tries := int(r.loads.Load()), int(r.tries.Load())
		most := 1
		switch {
		case tries > 0:
			most += tries + len(l.caches) // each cache repeats its last writes after the failover
		case r.place == dying:
			most += l.aloneAtMost()
		}
		if r.place == dying && r.gate != nil { // its lease was held when the primary died
			most = len(l.caches)
			died += loads - 1
		} else if r.place == dying && tries == 0 {
			again += max(loads-1, 0)
		}
		if r.place == dying && tries > 0 {
			most += l.aloneAtMost()
		}
		if loads > most {
			l.t.Errorf("%s key %s: %d loads, %d tries to write it; want %d loads at most", placeNames[r.place], r.key, loads, tries, most)
		}
	}
	l.t.Logf("the primary's death cost %d loads more of %d keys whose leases it had, and %d of %d others that nobody wrote",
		died, heldKeys, again, quietKeys+freshKeys)
}

// aloneAtMost is how often a key may be loaded without a lease while its node is dead: by
// each cache, whenever what it has loaded last is too old.
func (l *clusterLoad) aloneAtMost() (n int) {
	dead := time.Duration(l.back - l.killed)
	for i := range l.caches {
		keeps := degraded
		if i == len(l.caches)-1 {
			keeps = clusterLocalTTL
		}
		n += 2 + int(dead/keeps)
	}
	return n
}

// checkTimes: the 99th percentile of the Gets of each phase and place, but for those that
// wait for a held load.
func (l *clusterLoad) checkTimes() {
	times := map[string][]time.Duration{}
	for _, g := range l.gets {
		if g.of.gate == nil {
			name := g.phase + ", " + placeNames[g.of.place]
			times[name] = append(times[name], time.Duration(g.end-g.begin))
		}
	}
	bound := clusterStoreTimeout + clusterLoadTime + slack()/4
	for name, all := range times {
		slices.Sort(all)
		p99 := all[len(all)*99/100]
		l.t.Logf("%s: %d Gets, p99 %v, the slowest %v", name, len(all), p99.Round(10*time.Microsecond), all[len(all)-1].Round(10*time.Microsecond))
		if p99 > bound {
			l.t.Errorf("%s: p99 of the Gets is %v, want %v at most", name, p99, bound)
		}
		alive := !strings.HasSuffix(name, placeNames[dying])
		if alive && p99 > slack()/4 {
			l.t.Errorf("%s: p99 of the Gets is %v, want %v at most, as nothing there is down", name, p99, slack()/4)
		}
	}
}
