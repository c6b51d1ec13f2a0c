package lab

import (
	"slices"
	"testing"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/recipe"
)

func op(startMS, endMS int64) Operation {
	return Operation{StartUS: startMS * 1000, EndUS: endMS * 1000}
}

func TestAtOnce(t *testing.T) {
	ms := func(n int64) time.Time { return time.UnixMilli(n) }
	for _, tt := range []struct {
		name     string
		ops      []Operation
		from, to int64
		want     int
	}{
		{"none", nil, 0, 100, 0},
		{"one after the other", []Operation{op(10, 20), op(20, 30), op(30, 40)}, 0, 100, 1},
		{"together", []Operation{op(10, 30), op(20, 40), op(29, 50)}, 0, 100, 3},
		{"only what lies in the span", []Operation{op(10, 30), op(20, 40), op(29, 50)}, 31, 100, 2},
		{"ended as it begins", []Operation{op(10, 31), op(20, 40)}, 31, 100, 1},
		{"begun as it ends", []Operation{op(10, 90), op(50, 90)}, 20, 50, 1},
		{"begun with it", []Operation{op(20, 90), op(20, 60)}, 20, 50, 2},
		{"never ended", []Operation{op(10, 0), op(20, 0), op(90, 95)}, 50, 80, 2},
		{"through all of it", []Operation{op(0, 100), op(10, 20), op(70, 80)}, 30, 60, 1},
	} {
		if got := atOnce(tt.ops, ms(tt.from), ms(tt.to)); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	if got := mostAtOnce([]Operation{op(10, 30), op(20, 40)}); got != 2 {
		t.Errorf("of all time: %d", got)
	}
}

// at makes a call that began at ms after the epoch.
func at(ms, wait int64, kind Kind, source string, stale bool) Call {
	return Call{StartUS: ms * 1000, EndUS: (ms + wait) * 1000, Kind: kind, Source: source, Stale: stale}
}

// TestSeries: a call belongs to the span in which it began, an operation, by the
// origin's clock, to all in which it runs.
func TestSeries(t *testing.T) {
	const ahead = 7 * time.Millisecond // the origin's clock
	zero := time.UnixMilli(1000)
	calls := []Call{
		at(1000, 1, KindValue, recipe.SourceLocal, false),
		at(1049, 60, KindValue, recipe.SourceLoad, false),
		at(1050, 3, KindValue, recipe.SourceStore, true),
		at(1060, 500, KindError, "", false),
		at(1100, 2, KindNotFound, recipe.SourceLocal, false),
		at(999, 1, KindValue, recipe.SourceLocal, false), // before
	}
	ops := []Operation{op(1049+7, 1109+7), op(1060+7, 1070+7), op(1160+7, 0)}
	s := makeSeries(calls, ops, zero, ahead, 201*time.Millisecond)
	for _, tt := range []struct {
		name      string
		got, want []int
	}{
		{"calls", s.Calls, []int{2, 2, 1, 0, 0}},
		{"failed", s.Failed, []int{0, 1, 0, 0, 0}},
		{"cached", s.Cached, []int{1, 1, 1, 0, 0}},
		{"stale", s.Stale, []int{0, 1, 0, 0, 0}},
		{"in flight", s.InFlight, []int{1, 2, 1, 1, 1}},
	} {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
	if !slices.Equal(s.P50MS, []float64{1, 3, 2, 0, 0}) || !slices.Equal(s.P99MS, []float64{60, 500, 2, 0, 0}) || s.BucketMS != 50 {
		t.Errorf("waits: %v, %v, buckets of %v ms", s.P50MS, s.P99MS, s.BucketMS)
	}
}

func TestRecovery(t *testing.T) {
	before := tally{Calls: 100, Cached: 95}
	good := func(n int) Series {
		s := Series{}
		for range n {
			s.Calls, s.Cached = append(s.Calls, 10), append(s.Cached, 10)
			s.Failed, s.Stale = append(s.Failed, 0), append(s.Stale, 0)
		}
		return s
	}
	for _, tt := range []struct {
		name   string
		change func(*Series)
		back   time.Duration
		want   time.Duration
		ok     bool
	}{
		{"never left", func(*Series) {}, 100 * time.Millisecond, 0, true},
		{"the store was back in mid-bucket", func(*Series) {}, 110 * time.Millisecond, 0, true},
		{"a failure", func(s *Series) { s.Failed[4] = 1 }, 100 * time.Millisecond, 150 * time.Millisecond, true},
		{"nine tenths are enough", func(s *Series) { s.Cached[2], s.Cached[3] = 8, 8 }, 100 * time.Millisecond, 0, true},
		{"fewer are not", func(s *Series) { s.Cached[2] = 2 }, 100 * time.Millisecond, 50 * time.Millisecond, true},
		{"too late to be steady", func(s *Series) { s.Failed[16] = 1 }, 700 * time.Millisecond, 0, false},
		{"nobody came", func(s *Series) { clear(s.Calls); clear(s.Cached) }, 0, 0, false},
	} {
		s := good(20)
		tt.change(&s)
		if got, ok := s.recovery(before, tt.back); ok != tt.ok || got != tt.want {
			t.Errorf("%s: %v, %v; want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}
