package sqsqueue

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/queue"
)

// Metrics are counters since the queue was opened, of this Queue value only.
type Metrics struct {
	Sent     int64 // jobs
	Received int64
	Deleted  int64 // acknowledged
	Extended int64
	Returned int64 // given back
	Buried   int64 // moved to the dead letters, those not counted that SQS moves by itself

	EntryRetries  int64 // entries that failed in a batch that was answered, and were sent again
	EntryFailures int64 // of those, the ones that failed to the end
	PollsLeft     int64 // polls whose caller's context ended
	GivenBack     int64 // messages that those had brought
	Foreign       int64 // messages that are not this package's, delivered as RawKind
	Floods        int64 // warnings that so many messages are in flight that SQS delivers none

	Held int // messages received and not settled
	// HotGroup is the group of a FIFO queue that was delivered most often. The messages of
	// a group are done one after the other: one whose Lag grows needs a finer Key.
	HotGroup Group
}

// Group is what is known of one message group.
type Group struct {
	Name       string
	Deliveries int64         // since the queue was opened, roughly
	Lag        time.Duration // of the last one at its first attempt
}

type counters struct {
	sent, received, deleted, extended, returned, buried                atomic.Int64
	entryRetries, entryFailures, pollsLeft, givenBack, foreign, floods atomic.Int64
}

// Metrics returns the counters.
func (q *Queue) Metrics() Metrics {
	c := &q.metrics
	return Metrics{
		Sent: c.sent.Load(), Received: c.received.Load(), Deleted: c.deleted.Load(), Extended: c.extended.Load(),
		Returned: c.returned.Load(), Buried: c.buried.Load(),
		EntryRetries: c.entryRetries.Load(), EntryFailures: c.entryFailures.Load(),
		PollsLeft: c.pollsLeft.Load(), GivenBack: c.givenBack.Load(), Foreign: c.foreign.Load(), Floods: c.floods.Load(),
		Held: q.claims.count(), HotGroup: q.groups.hottest(),
	}
}

// groups counts the deliveries of groups in a fixed number of places: a group that has
// none takes the place, and the count, of the one that was seen least often. A group with
// more than one in maxGroups of all deliveries keeps its place.
type groups struct {
	mu     sync.Mutex
	byName map[string]*Group
}

const maxGroups = 32

func (g *groups) delivered(name string, lag time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byName == nil {
		g.byName = make(map[string]*Group)
	}
	group := g.byName[name]
	if group == nil {
		group = &Group{Name: name}
		if len(g.byName) >= maxGroups {
			least := g.extreme(func(a, b *Group) bool { return a.Deliveries < b.Deliveries })
			delete(g.byName, least.Name)
			group.Deliveries = least.Deliveries
		}
		g.byName[name] = group
	}
	group.Deliveries++
	if lag > 0 {
		group.Lag = lag
	}
}

func (g *groups) hottest() Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	if hot := g.extreme(func(a, b *Group) bool { return a.Deliveries > b.Deliveries }); hot != nil {
		return *hot
	}
	return Group{}
}

func (g *groups) extreme(before func(a, b *Group) bool) (found *Group) {
	for _, group := range g.byName {
		if found == nil || before(group, found) {
			found = group
		}
	}
	return found
}

// sometimes lets something happen at most once in a time.
type sometimes struct {
	mu   sync.Mutex
	last time.Time
}

func (s *sometimes) may(every time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.last.IsZero() && time.Since(s.last) < every {
		return false
	}
	s.last = time.Now()
	return true
}

const (
	// maxInFlight is how many messages of a queue can be received and not deleted. When
	// there are more, a long poll says that the queue is empty.
	maxInFlight = 120_000
	floodEvery  = time.Minute
)

// lookForFlood looks, once in a while after an empty answer, whether it is empty because
// too many messages are in flight.
func (q *Queue) lookForFlood(ctx context.Context) {
	if !q.warned.may(floodEvery) {
		return
	}
	n, err := q.counts(ctx, q.url)
	if err != nil || n.visible == 0 || n.notVisible < maxInFlight*95/100 {
		return
	}
	q.metrics.floods.Add(1)
	q.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "sqsqueue: SQS delivers nothing since too many messages are in flight: somebody receives and neither deletes nor gives back, or there are too many workers",
		slog.String("queue", q.url), slog.Int64("in flight", n.notVisible), slog.Int64("waiting", n.visible), slog.Int("limit", maxInFlight))
}

// counts are SQS's own approximate numbers.
type counts struct{ visible, notVisible, delayed int64 }

func (q *Queue) counts(ctx context.Context, queueURL string) (counts, error) {
	out, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &queueURL,
		AttributeNames: []types.QueueAttributeName{visibleAttr, notVisibleAttr, delayedAttr}})
	if err != nil {
		return counts{}, err
	}
	a := out.Attributes
	return counts{number(a[visibleAttr]), number(a[notVisibleAttr]), number(a[delayedAttr])}, nil
}

// Stats implements queue.Queue. The numbers are SQS's approximate ones, which may lag a
// minute behind; those of a FIFO queue count jobs as ready whose delay nobody has looked
// at yet. SQS does not tell the lag: it is -1.
func (q *Queue) Stats(ctx context.Context) (queue.Stats, error) {
	if err := ctx.Err(); err != nil {
		return queue.Stats{}, failure(q.url, opStats, err)
	}
	n, err := q.counts(ctx, q.url)
	if err != nil {
		return queue.Stats{}, failure(q.url, opStats, err)
	}
	dead, err := q.counts(ctx, q.dead)
	if err != nil {
		return queue.Stats{}, failure(q.dead, opStats, err)
	}
	return queue.Stats{
		Ready: n.visible, NotReady: n.notVisible + n.delayed,
		Dead: dead.visible + dead.notVisible + dead.delayed, Lag: -1,
	}, nil
}
