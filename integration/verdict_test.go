package integration

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// What TestHistory makes of the journals.

// acked is the writes of one key that have been acknowledged, by time, with the newest
// version up to each.
type acked []ack

func newAcked(all []ack) map[string]acked {
	slices.SortFunc(all, func(a, b ack) int { return cmp.Compare(a.at, b.at) })
	byKey := map[string]acked{}
	for _, a := range all {
		before := byKey[a.key]
		if n := len(before); n > 0 {
			a.version = max(a.version, before[n-1].version)
		}
		byKey[a.key] = append(before, a)
	}
	return byKey
}

// at is the newest version that had been acknowledged before the moment.
func (a acked) at(moment int64) int64 {
	n := sort.Search(len(a), func(i int) bool { return a[i].at >= moment })
	if n == 0 {
		return 0
	}
	return a[n-1].version
}

// since is when a version newer than v was first acknowledged.
func (a acked) since(v int64) int64 {
	n := sort.Search(len(a), func(i int) bool { return a[i].version > v })
	if n == len(a) {
		return 0
	}
	return a[n].at
}

// checkReads looks at every Get: no older than what its own process had written
// before, no older than what others had written pushBound before.
func (h *history) checkReads() {
	var all []ack
	reads := 0
	for _, p := range h.processes {
		all = append(all, p.acks...)
		reads += len(p.gets)
	}
	everybody := newAcked(slices.Clone(all))
	var worst time.Duration
	for index, p := range h.processes {
		for _, failed := range p.failed {
			h.t.Errorf("process %d: %s", index, failed)
		}
		own := newAcked(slices.Clone(p.acks))
		for _, r := range p.gets {
			if v := own[r.key].at(r.begin); r.version < v {
				h.t.Errorf("process %d read version %d of %s (begun %d, ended %d), %v after it had itself written version %d",
					index, r.version, r.key, r.begin, r.end, time.Duration(r.begin-own[r.key].since(r.version)), v)
			}
			if since := everybody[r.key].since(r.version); since > 0 && since < r.begin && !h.paused(index, since, r.begin) {
				lag := time.Duration(r.begin - since)
				worst = max(worst, lag)
				if lag > pushBound() {
					h.t.Errorf("process %d read version %d of %s %v after a newer one had been written", index, r.version, r.key, lag)
				}
			}
		}
	}
	h.t.Logf("%d processes, %d reads, %d writes; the oldest row was read elsewhere %v after its successor was written",
		len(h.processes), reads, len(all), worst)
	if reads < 100 || len(all) < 10 {
		h.t.Errorf("%d reads and %d writes are too few to say anything", reads, len(all))
	}
}

// paused says whether the process was paused between two moments, or had just been
// resumed: then it can have heard late.
func (h *history) paused(index int, begin, end int64) bool {
	for _, p := range h.pauses {
		if p.proc == index && p.begin < end && begin < p.end+int64(pushBound()) {
			return true
		}
	}
	return false
}

// checkLoads compares the origin's count with what can have made values disappear.
func (h *history) checkLoads() {
	loads := h.origin.loads(h.t, h.keys...)
	tries, storeErrors, down := 0, 0, 0
	for _, p := range h.processes {
		tries += p.tries
		storeErrors += p.storeErrors
		down += p.down
	}
	interrupted := (h.kills + len(h.pauses)) * len(h.keys)
	taken := h.done["take a lease away"]
	limit := len(h.keys)*2 + tries + storeErrors + interrupted + taken
	h.t.Logf("%d loads; %d tries to write, %d store errors, %d outages; at most %d loads are explained", loads, tries, storeErrors, down, limit)
	if loads > limit {
		h.t.Errorf("%d loads, at most %d are explained", loads, limit)
	}
}
