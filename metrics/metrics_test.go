package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/metrics"
	"github.com/onefill/onefill/queue"
)

// numbered returns a snapshot whose fields hold 1, 2, 3, ... (1 for a bool, which is a gauge of its
// own), and how many there are.
func numbered[S any]() (s S, n int) {
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Uint64:
			f.SetUint(uint64(i) + 1)
		default:
			f.SetInt(int64(i) + 1)
		}
	}
	return s, v.NumField()
}

// covers says that every field of a snapshot is read by exactly one number of the list: none is
// forgotten, none is counted twice, none is mixed up with another.
func covers[S any](t *testing.T, list []metrics.Reading[S], s *S, fields int, isTrue int) {
	t.Helper()
	got := map[float64]string{}
	for _, r := range list {
		for i, label := range r.Values {
			name := r.Name + "/" + label
			v := r.Read(s, i)
			if r.Name == "onefill.store.down" {
				if v != 1 {
					t.Errorf("%s is %v, want 1", name, v)
				}
				continue
			}
			if other, twice := got[v]; twice {
				t.Errorf("%s and %s both read field %v", name, other, v)
			}
			got[v] = name
		}
	}
	if len(got) != fields-isTrue {
		t.Errorf("%d of %d fields are read", len(got)+isTrue, fields)
	}
	for v := range got {
		if v != math.Trunc(v) || v < 1 || int(v) > fields {
			t.Errorf("%s is %v, which is in no field", got[v], v)
		}
	}
}

func TestEveryNumberOfACacheIsRead(t *testing.T) {
	s, n := numbered[onefill.Stats]()
	covers(t, metrics.Caches(), &s, n, 1)
}

func TestEveryNumberOfAWorkerIsRead(t *testing.T) {
	s, n := numbered[queue.WorkerStats]()
	covers(t, metrics.Workers(), &s, n, 0)
}

func TestEveryNumberOfAQueueIsRead(t *testing.T) {
	b := metrics.Backend{Stats: queue.Stats{Ready: 10, NotReady: 20, Dead: 30, Lag: 1500 * time.Millisecond}}
	if got := read(metrics.Backends(), &b); got != "onefill.queue.jobs/ready=10 onefill.queue.jobs/not_ready=20 onefill.queue.dead=30 onefill.queue.lag=1.5 onefill.queue.up=1" {
		t.Error(got)
	}
	b = metrics.Backend{Stats: queue.Stats{Ready: 10, NotReady: -1, Dead: -1, Lag: -1}}
	if got := read(metrics.Backends(), &b); got != "onefill.queue.jobs/ready=10 onefill.queue.up=1" {
		t.Errorf("where the queue cannot tell: %s", got)
	}
	b.Err = errors.New("no answer")
	if got := read(metrics.Backends(), &b); got != "onefill.queue.up=0" {
		t.Errorf("without an answer: %s", got)
	}
}

func read[S any](list []metrics.Reading[S], s *S) (text string) {
	for _, r := range list {
		for i, label := range r.Values {
			if label != "" {
				label = "/" + label
			}
			if v := r.Read(s, i); !math.IsNaN(v) {
				text += fmt.Sprintf(" %s%s=%v", r.Name, label, v)
			}
		}
	}
	return text[1:]
}

// all are the metrics, each once.
func all() (ms []metrics.Metric) {
	for _, r := range metrics.Caches() {
		ms = append(ms, r.Metric)
	}
	for _, r := range metrics.Workers() {
		ms = append(ms, r.Metric)
	}
	for _, r := range metrics.Backends() {
		ms = append(ms, r.Metric)
	}
	return slices.Concat(ms, metrics.CacheHistograms(), metrics.QueueHistograms())
}

// Names are unique, also as Prometheus spells them, and formed alike; labels are fixed words.
func TestNames(t *testing.T) {
	dotted := regexp.MustCompile(`^onefill(\.[a-z_]+)+$`)
	word := regexp.MustCompile(`^[a-z_]+$`)
	unit := regexp.MustCompile(`^(s|By|\{[a-z]+\})?$`)
	seen := map[string]bool{}
	for _, m := range all() {
		if seen[m.Name] || seen[m.PrometheusName()] {
			t.Errorf("%s is there twice", m.Name)
		}
		seen[m.Name], seen[m.PrometheusName()] = true, true
		if !dotted.MatchString(m.Name) || !unit.MatchString(m.Unit) || m.Help == "" || m.Help[len(m.Help)-1] != '.' {
			t.Errorf("%+v is badly formed", m)
		}
		if (m.Label == "") != slices.Equal(m.Values, []string{""}) {
			t.Errorf("%s: label %q with the values %q", m.Name, m.Label, m.Values)
		}
		for _, v := range m.Values {
			if m.Label != "" && !word.MatchString(v) {
				t.Errorf("%s: %q is no word", m.Name, v)
			}
		}
		if (m.Kind == metrics.Histogram) != (len(m.Bounds) > 0) || !slices.IsSorted(m.Bounds) {
			t.Errorf("%s, a %v, has the bounds %v", m.Name, m.Kind, m.Bounds)
		}
	}
}

// record writes down what is recorded.
type record struct {
	of   []metrics.Metric
	text []string
}

func (r *record) Record(i, label int, v float64, n int) {
	m := r.of[i]
	r.text = append(r.text, fmt.Sprintf("%s %s %v×%d", m.Name, m.Values[label], v, n))
}

func TestRecordCache(t *testing.T) {
	s := time.Second
	for _, tt := range []struct {
		event onefill.Event
		want  []string
	}{
		{onefill.Event{Kind: onefill.EventLoad, Took: s}, []string{"onefill.load.duration ok 1×1"}},
		{onefill.Event{Kind: onefill.EventLoad, Took: s, Err: fmt.Errorf("no row: %w", onefill.ErrNotFound)}, []string{"onefill.load.duration not_found 1×1"}},
		{onefill.Event{Kind: onefill.EventLoad, Took: s, Err: errors.New("refused")}, []string{"onefill.load.duration error 1×1"}},
		{onefill.Event{Kind: onefill.EventLoad, Took: s, Err: context.Canceled}, []string{"onefill.load.duration error 1×1"}},
		{onefill.Event{Kind: onefill.EventLoad, Took: s, Err: &onefill.PanicError{Value: 1}}, []string{"onefill.load.duration panic 1×1"}},
		{onefill.Event{Kind: onefill.EventLoad, Took: s, Err: onefill.ErrGoexit}, []string{"onefill.load.duration panic 1×1"}},
		{onefill.Event{Kind: onefill.EventLoad, Took: s, Err: fmt.Errorf("slow: %w", context.DeadlineExceeded)}, []string{"onefill.load.duration timeout 1×1"}},
		{onefill.Event{Kind: onefill.EventWait, Took: s}, []string{"onefill.wait.duration answered 1×1"}},
		{onefill.Event{Kind: onefill.EventWait, Took: s, Err: fmt.Errorf("%w after 1s", onefill.ErrWaitTimeout)}, []string{"onefill.wait.duration timeout 1×1"}},
		{onefill.Event{Kind: onefill.EventWait, Took: s, Err: context.DeadlineExceeded}, []string{"onefill.wait.duration left 1×1"}},
		{onefill.Event{Kind: onefill.EventLeaseWait, Took: s}, []string{"onefill.lease_wait.duration  1×1"}},
		{onefill.Event{Kind: onefill.EventMiss, Took: s, N: 2, Callers: 9}, []string{"onefill.miss.duration  1×1", "onefill.miss.loads  2×1", "onefill.miss.callers  9×1"}},
		{onefill.Event{Kind: onefill.EventLocalHit, Age: s, N: 64}, []string{"onefill.served.age local 1×64"}},
		{onefill.Event{Kind: onefill.EventStoreHit, Age: s}, []string{"onefill.served.age store 1×1"}},
		{onefill.Event{Kind: onefill.EventStale, Age: s}, []string{"onefill.served.age stale 1×1"}},
		{onefill.Event{Kind: onefill.EventFill}, nil},
	} {
		r := &record{of: metrics.CacheHistograms()}
		metrics.RecordCache(tt.event, r)
		if !slices.Equal(r.text, tt.want) {
			t.Errorf("%v %v: recorded %q, want %q", tt.event.Kind, tt.event.Err, r.text, tt.want)
		}
	}
}

func TestRecordQueue(t *testing.T) {
	s := time.Second
	for _, tt := range []struct {
		event queue.Event
		want  []string
	}{
		{queue.Event{Kind: queue.EventReceived, Lag: s}, []string{"onefill.job.lag  1×1"}},
		{queue.Event{Kind: queue.EventDone, Lag: s, Took: 2 * s, Attempt: 3}, []string{"onefill.job.attempts done 3×1", "onefill.job.duration done 2×1"}},
		{queue.Event{Kind: queue.EventRetry, Took: s, Attempt: 3}, []string{"onefill.job.duration retried 1×1"}},
		{queue.Event{Kind: queue.EventPostponed, Took: s}, []string{"onefill.job.duration postponed 1×1"}},
		{queue.Event{Kind: queue.EventDead, Took: s, Attempt: 20}, []string{"onefill.job.attempts dead 20×1", "onefill.job.duration dead 1×1"}},
		{queue.Event{Kind: queue.EventHandedBack}, nil},
	} {
		r := &record{of: metrics.QueueHistograms()}
		metrics.RecordQueue(tt.event, r)
		if !slices.Equal(r.text, tt.want) {
			t.Errorf("%v: recorded %q, want %q", tt.event.Kind, r.text, tt.want)
		}
	}
}
