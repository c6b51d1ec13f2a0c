package memqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onefill/onefill/queue"
)

// ErrDown is wrapped by the error of every operation between [Queue.Down] and
// [Queue.Up].
var ErrDown = errors.New("the queue is down")

// ErrFull is wrapped by the error of an entry for which there is no room.
var ErrFull = errors.New("the queue is full")

const defaultMaxJobs = 1 << 20

// Options make the queue act as one that can do less than memory can, or more than
// most. The zero value is a queue that can do everything but order.
type Options struct {
	// Unfenced: an Ack that comes late or twice says nil, and one that comes late
	// removes a job that somebody else has claimed.
	Unfenced bool
	// CountsAll: every claim counts as an attempt, Return.Uncounted or not.
	CountsAll bool
	// ForgetsErrors: the error of a Nack is not kept.
	ForgetsErrors bool
	// NoMerge: Job.Merge does nothing.
	NoMerge bool
	// NoReplay: there is no way to list, replay and drop dead letters.
	NoReplay bool
	// OrderedKeys: of the jobs of one key only the first that is alive is delivered.
	OrderedKeys bool
	// MaxBatch, MaxDelay, MaxLease, MaxPayload and Granularity are those of queue.Caps,
	// 0 for no limit.
	MaxBatch           int
	MaxDelay, MaxLease time.Duration
	MaxPayload         int
	Granularity        time.Duration
	// MaxJobs is how many jobs and dead letters the queue holds; more are refused with
	// an error that wraps ErrFull. Default 1,048,576.
	MaxJobs int
}

// Queue is a queue in memory. Its methods are safe for concurrent use.
type Queue struct {
	options Options

	// mu guards everything below and in items. It is held for operations on maps and
	// the heap only: nothing waits, and no user's code runs, under it.
	mu     sync.Mutex
	lastID int64
	jobs   map[int64]*item
	due    dueHeap            // of the jobs that may be claimed next: all, or the first of each key
	lines  map[string][]*item // OrderedKeys: the jobs of a key, the first one is in due
	merges map[mergeID]*item  // jobs that another one may be merged with
	dead   map[int64]*letter  // dead letters
	more   chan struct{}      // closed when a job may have become due earlier than known
	counts map[Kind]int       // operations begun
	fault  func(Op) (f Fault) // nil for none
	down   bool
}

var _ queue.Queue = (*Queue)(nil)

type mergeID struct{ kind, key string }

// New makes an empty queue. At most one Options may be given.
func New(options ...Options) *Queue {
	if len(options) > 1 {
		panic("memqueue.New: more than one Options")
	}
	q := &Queue{
		jobs:   make(map[int64]*item),
		lines:  make(map[string][]*item),
		merges: make(map[mergeID]*item),
		dead:   make(map[int64]*letter),
		more:   make(chan struct{}),
		counts: make(map[Kind]int),
	}
	if len(options) == 1 {
		q.options = options[0]
	}
	if q.options.MaxJobs <= 0 {
		q.options.MaxJobs = defaultMaxJobs
	}
	return q
}

// Caps implements queue.Queue.
func (q *Queue) Caps() queue.Caps {
	o := q.options
	return queue.Caps{
		FencedAck:     !o.Unfenced,
		OrderedKeys:   o.OrderedKeys,
		AtomicDead:    true,
		Replay:        !o.NoReplay,
		AttemptsExact: !o.CountsAll,
		LastError:     !o.ForgetsErrors,
		Merge:         !o.NoMerge,
		MaxBatch:      o.MaxBatch,
		MaxDelay:      o.MaxDelay,
		MaxLease:      o.MaxLease,
		MaxWait:       math.MaxInt64,
		MaxPayload:    o.MaxPayload,
		Granularity:   o.Granularity,
	}
}

// Check implements queue.Queue.
func (q *Queue) Check(ctx context.Context) error {
	return q.do(ctx, OpCheck, 0, func(Fault) {})
}

// Enqueue implements queue.Queue.
func (q *Queue) Enqueue(ctx context.Context, jobs ...queue.Job) ([]string, error) {
	ids := make([]string, len(jobs))
	err := q.each(ctx, OpEnqueue, len(jobs), func(i int) (err error) {
		ids[i], err = q.enqueue(jobs[i])
		return err
	})
	if err != nil {
		for i := range ids {
			if queue.ErrorOf(err, i) != nil {
				ids[i] = ""
			}
		}
	}
	return ids, err
}

func (q *Queue) enqueue(j queue.Job) (string, error) {
	if err := q.Caps().Check(j); err != nil {
		return "", fail(OpEnqueue, err)
	}
	now := time.Now()
	due := now.Add(q.round(j.Delay))
	j.Payload = clonePayload(j.Payload)
	if j.DedupeKey == "" {
		j.DedupeKey = rand.Text()
	}
	if it := q.merges[mergeID{j.Kind, j.Key}]; it != nil && j.Merge && !q.options.NoMerge {
		q.merge(it, j, due)
		return id(it.id), nil
	}
	it, err := q.add(OpEnqueue, j, now, due)
	if err != nil {
		return "", err
	}
	return id(it.id), nil
}

func (q *Queue) merge(it *item, j queue.Job, due time.Time) {
	none := j.Version == 0 || it.job.Version == 0
	if j.Version >= it.job.Version || none {
		it.job.Payload, it.job.Version, it.job.DedupeKey = j.Payload, j.Version, j.DedupeKey
	}
	if none {
		it.job.Version = 0
	}
	if due.Before(it.due) {
		q.reschedule(it, due)
	}
}

// Ack implements queue.Queue.
func (q *Queue) Ack(ctx context.Context, tokens ...queue.Token) error {
	return q.each(ctx, OpAck, len(tokens), func(i int) error {
		it, err := q.claimed(tokens[i])
		if errors.Is(err, queue.ErrLeaseLost) && q.options.Unfenced {
			it, err = q.unfenced(tokens[i]), nil
		}
		if it != nil {
			q.remove(it)
		}
		return err
	})
}

// Extend implements queue.Queue.
func (q *Queue) Extend(ctx context.Context, lease time.Duration, tokens ...queue.Token) error {
	if err := q.Caps().CheckLease(lease); err != nil {
		return fail(OpExtend, err)
	}
	return q.each(ctx, OpExtend, len(tokens), func(i int) error {
		it, err := q.claimed(tokens[i])
		if err == nil {
			q.reschedule(it, time.Now().Add(q.round(lease)))
		}
		return err
	})
}

// Nack implements queue.Queue.
func (q *Queue) Nack(ctx context.Context, returns ...queue.Return) error {
	return q.each(ctx, OpNack, len(returns), func(i int) error {
		r := returns[i]
		it, err := q.claimed(r.Token)
		if err != nil {
			return err
		}
		if !q.options.ForgetsErrors {
			it.lastError = queue.ErrorText(r.Err)
		}
		if r.Uncounted && !q.options.CountsAll {
			it.uncounted++
		}
		it.held = false
		delay := r.Delay
		if q.options.MaxLease > 0 {
			delay = min(delay, q.options.MaxLease)
		}
		q.reschedule(it, time.Now().Add(q.round(delay)))
		return nil
	})
}

// Stats implements queue.Queue. Its cost grows with the queue.
func (q *Queue) Stats(ctx context.Context) (queue.Stats, error) {
	var s queue.Stats
	err := q.do(ctx, OpStats, 0, func(Fault) {
		s = queue.Stats{}
		now := time.Now()
		for _, it := range q.jobs {
			if lag := now.Sub(it.due); lag < 0 || it.index < 0 { // later, or behind another one
				s.NotReady++
			} else {
				s.Ready++
				s.Lag = max(s.Lag, lag)
			}
		}
		for _, l := range q.dead {
			if l.ReplayedAs == "" {
				s.Dead++
			}
		}
	})
	return s, err
}

// claimed is the job of a token that is its newest claim. A lease that has ended, but
// that nobody has taken over, counts still.
func (q *Queue) claimed(t queue.Token) (*item, error) {
	jobID, claim, ok := parse(t)
	if !ok {
		return nil, queue.ErrUnknown
	}
	it := q.jobs[jobID]
	if it == nil || !it.held || it.claims != claim {
		return nil, queue.ErrLeaseLost
	}
	return it, nil
}

// unfenced is the job of a token, whoever has claimed it since; nil if it is gone.
func (q *Queue) unfenced(t queue.Token) *item {
	jobID, claim, _ := parse(t)
	if it := q.jobs[jobID]; it != nil && 0 < claim && claim <= it.claims {
		return it
	}
	return nil
}

func token(it *item) queue.Token { return queue.Token(fmt.Sprintf("%d.%d", it.id, it.claims)) }

func parse(t queue.Token) (jobID int64, claim int, ok bool) {
	left, right, _ := strings.Cut(string(t), ".")
	jobID, err1 := strconv.ParseInt(left, 10, 64)
	claim, err2 := strconv.Atoi(right)
	return jobID, claim, err1 == nil && err2 == nil
}

func id(n int64) string { return strconv.FormatInt(n, 10) }

// round is a duration as the queue keeps it.
func (q *Queue) round(d time.Duration) time.Duration {
	step := q.options.Granularity
	if d <= 0 || step <= 0 || d > math.MaxInt64-step {
		return max(d, 0)
	}
	return (d + step - 1) / step * step
}
