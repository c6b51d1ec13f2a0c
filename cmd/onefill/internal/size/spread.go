package size

import (
	"context"
	"math"
)

const (
	// parts are the samples of the sample.
	parts = 8
	// student is how many standard errors, estimated from so many parts, hold the
	// truth in 95 of 100 cases: Student's t with 7 degrees of freedom.
	student = 2.36
)

// split returns the parts of a sample.
func split(t *trace) []*trace {
	all := make([]*trace, parts)
	for i := range all {
		all[i] = t.part(uint64(i), parts)
	}
	return all
}

// spreadError is the half width of the interval that holds the whole trace's miss
// ratio in 95 of 100 cases, from the miss ratios of the parts. rate is the share
// of the keys that are in the sample: one of all keys has no error.
func spreadError(ratios []float64, rate float64) float64 {
	mean, squares := 0.0, 0.0
	for _, r := range ratios {
		mean += r / float64(len(ratios))
	}
	for _, r := range ratios {
		squares += (r - mean) * (r - mean)
	}
	n := float64(len(ratios))
	return student * math.Sqrt(squares/(n-1)/n*(1-rate))
}

// lruErrors are the errors of the miss ratios at capacities of the sample.
func lruErrors(samples []*trace, capacities []uint64, rate float64) []float64 {
	curves := make([]*lruCurve, len(samples))
	for i, t := range samples {
		curves[i] = newLRUCurve(t)
	}
	errors := make([]float64, len(capacities))
	ratios := make([]float64, len(curves))
	for i, c := range capacities {
		for j, curve := range curves {
			ratios[j] = curve.trace.missRatio(curve.misses(c / parts))
		}
		errors[i] = spreadError(ratios, rate)
	}
	return errors
}

// wtinylfuError is the error of W-TinyLFU's miss ratio at a capacity of the sample.
func wtinylfuError(ctx context.Context, samples []*trace, capacity uint64, rate float64, each func()) (float64, error) {
	ratios := make([]float64, len(samples))
	for i, t := range samples {
		misses, err := runWTinyLFU(ctx, t, max(capacity/parts, 1))
		if err != nil {
			return 0, err
		}
		ratios[i] = t.missRatio(misses)
		each()
	}
	return spreadError(ratios, rate), nil
}
