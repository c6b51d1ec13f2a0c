package cli

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
)

// diesAgain is a queue whose worker buries each replayed job before the next page is read.
type diesAgain struct {
	*memqueue.Queue
	replays int
	give    context.CancelFunc
}

func (q *diesAgain) ReplayDead(ctx context.Context, ids ...string) ([]string, error) {
	newIDs, err := q.Queue.ReplayDead(ctx, ids...)
	if q.replays += len(ids); q.replays > 3*deadPage {
		q.give()
	}
	buryAll(q.Queue)
	return newIDs, err
}

func buryAll(q *memqueue.Queue) {
	ds, _ := q.Receive(context.Background(), queue.Request{Max: 1 << 20, Lease: time.Hour})
	deaths := make([]queue.Death, len(ds))
	for i, d := range ds {
		deaths[i] = queue.Death{Token: d.Token, Reason: "permanent error"}
	}
	q.Dead(context.Background(), deaths...)
}

// Interleaving: a page of letters is replayed; a worker finds the cause not mended and
// buries the jobs again, as new letters, behind the page; the next page is read. "All
// that were not replayed" are those that were there when the command began.
func TestReplayAllEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q := &diesAgain{Queue: memqueue.New(), give: cancel}
	js := make([]queue.Job, deadPage)
	for i := range js {
		js[i] = queue.Job{Kind: "poison"}
	}
	if _, err := q.Enqueue(ctx, js...); err != nil {
		t.Fatal(err)
	}
	buryAll(q.Queue)
	run := &deadRun{d: &database{timeout: time.Minute}, w: io.Discard, q: q, action: deadAction{done: "replayed",
		do: func(ctx context.Context, q queue.Queue, ids []string) ([]string, error) {
			return q.ReplayDead(ctx, ids...)
		}}}
	err := run.all(ctx, selection{})
	if err != nil || run.done != deadPage {
		t.Errorf("%d replayed of %d: %v", run.done, deadPage, err)
	}
}
