package metrics

import (
	"math"
	"slices"

	"github.com/onefill/onefill/queue"
)

type workerStats = queue.WorkerStats

var workerReadings = []Reading[workerStats]{
	counter("onefill.queue.received", "{job}", "Jobs that the worker has claimed.", func(s *workerStats) int64 { return s.Received }),
	finished(),
	counter("onefill.queue.unknown", "{job}", "Of the received, those of a kind without a handler.", func(s *workerStats) int64 { return s.Unknown }),
	counter("onefill.queue.overruns", "{job}", "Handlers that have run for their MaxRunTime.", func(s *workerStats) int64 { return s.Overruns }),
	queueErrors(),
	gauge("onefill.queue.in_hand", "{job}", "Jobs received and not at their end.", func(s *workerStats) int { return s.InHand }),
	gauge("onefill.queue.running", "{call}", "Calls of handlers.", func(s *workerStats) int { return s.Running }),
}

// finished has a value for each end to which a received job can come, and no other.
func finished() Reading[workerStats] {
	r := by[workerStats](Counter, "onefill.queue.finished", "{job}", "Received jobs by the end they came to.", "outcome")
	r = and(r, "done", func(s *workerStats) int64 { return s.Done })
	r = and(r, "retried", func(s *workerStats) int64 { return s.Retried })
	r = and(r, "postponed", func(s *workerStats) int64 { return s.Postponed })
	r = and(r, "dead", func(s *workerStats) int64 { return s.Dead })
	r = and(r, "handed_back", func(s *workerStats) int64 { return s.HandedBack })
	r = and(r, "lease_lost", func(s *workerStats) int64 { return s.LeaseLost })
	return and(r, "abandoned", func(s *workerStats) int64 { return s.Abandoned })
}

func queueErrors() Reading[workerStats] {
	r := by[workerStats](Counter, "onefill.queue.errors", "{operation}", "Operations of the queue that failed for the worker, and are tried again.", "operation")
	r = and(r, "receive", func(s *workerStats) int64 { return s.ReceiveErrors })
	r = and(r, "extend", func(s *workerStats) int64 { return s.ExtendErrors })
	return and(r, "settle", func(s *workerStats) int64 { return s.SettleErrors })
}

// Workers are the metrics that are read from a worker's Stats.
func Workers() []Reading[queue.WorkerStats] { return workerReadings }

var backendReadings = []Reading[Backend]{
	jobs(),
	gauge("onefill.queue.dead", "{job}", "Dead letters that were not replayed.", func(b *Backend) int64 { return told(b, b.Stats.Dead) }),
	{Metric{Kind: Gauge, Name: "onefill.queue.lag", Unit: "s", Help: "For how long the job that has been due for longest has been due.", Values: []string{""}},
		[]func(*Backend) float64{func(b *Backend) float64 {
			if told(b, int64(b.Stats.Lag)) < 0 {
				return math.NaN()
			}
			return b.Stats.Lag.Seconds()
		}}},
	gauge("onefill.queue.up", "", "1 if the queue has answered when it was asked for its numbers, 0 if it could not in time.", func(b *Backend) int {
		if b.Err != nil {
			return 0
		}
		return 1
	}),
}

func jobs() Reading[Backend] {
	r := by[Backend](Gauge, "onefill.queue.jobs", "{job}", "Jobs that could be claimed now (ready), and those that are claimed or whose delay is not over (not_ready).", "state")
	r = and(r, "ready", func(b *Backend) int64 { return told(b, b.Stats.Ready) })
	return and(r, "not_ready", func(b *Backend) int64 { return told(b, b.Stats.NotReady) })
}

// told is -1, nobody can tell, when the queue has not answered.
func told(b *Backend, n int64) int64 {
	if b.Err != nil {
		return -1
	}
	return n
}

// Backends are the metrics that are read from a queue's Stats, through a [Poll].
func Backends() []Reading[Backend] { return backendReadings }

// The histograms of queues, in the order of QueueHistograms.
const (
	jobLag = iota
	jobDuration
	jobAttempts
)

// ends are the values of the label outcome of onefill.job.duration.
var ends = []queue.EventKind{queue.EventDone, queue.EventRetry, queue.EventPostponed, queue.EventDead}

var queueHistograms = []Metric{
	jobLag:      histogram("onefill.job.lag", "s", "For how long jobs had been due when they were claimed.", lags, ""),
	jobDuration: histogram("onefill.job.duration", "s", "How long handlers took, by the end of the job.", durations, "outcome", "done", "retried", "postponed", "dead"),
	jobAttempts: histogram("onefill.job.attempts", "{attempt}", "Attempts that jobs had had when they were done or died.", attemptCounts, "outcome", "done", "dead"),
}

// QueueHistograms are the metrics of queues that RecordQueue records. They have one more label,
// kind, the job's.
func QueueHistograms() []Metric { return queueHistograms }

// RecordQueue records an event of a worker.
func RecordQueue(e queue.Event, to Recorder) {
	switch e.Kind {
	case queue.EventReceived:
		to.Record(jobLag, 0, e.Lag.Seconds(), 1)
		return
	case queue.EventDone:
		to.Record(jobAttempts, 0, float64(e.Attempt), 1)
	case queue.EventDead:
		to.Record(jobAttempts, 1, float64(e.Attempt), 1)
	}
	if i := slices.Index(ends, e.Kind); i >= 0 {
		to.Record(jobDuration, i, e.Took.Seconds(), 1)
	}
}
