package memqueue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/onefill/onefill/queue"
)

const maxPage = 1000

// letter is a dead letter, under the ID of the job that it was.
type letter struct {
	id int64
	queue.DeadLetter
}

// Dead implements queue.Queue.
func (q *Queue) Dead(ctx context.Context, deaths ...queue.Death) error {
	return q.each(ctx, OpDead, len(deaths), func(i int) error {
		it, err := q.claimed(deaths[i].Token)
		if err != nil {
			return err
		}
		q.remove(it)
		q.dead[it.id] = &letter{it.id, queue.DeadLetter{
			Job: it.job, ID: id(it.id), Attempts: it.claims - it.uncounted,
			Reason: queue.ErrorText(deaths[i].Reason), LastError: queue.ErrorText(deaths[i].Err), Died: time.Now(),
		}}
		return nil
	})
}

// ListDead implements queue.Queue. Its cost grows with the dead letters.
func (q *Queue) ListDead(ctx context.Context, query queue.DeadQuery) ([]queue.DeadLetter, error) {
	if q.options.NoReplay {
		return nil, fail(OpListDead, errors.ErrUnsupported)
	}
	after, err := strconv.ParseInt(cmp.Or(query.After, "0"), 10, 64)
	if err != nil {
		return nil, fail(OpListDead, queue.ErrUnknown)
	}
	var found []*letter
	err = q.do(ctx, OpListDead, 0, func(Fault) {
		for _, l := range q.dead {
			if l.id > after && matches(&l.DeadLetter, query) {
				found = append(found, l)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b *letter) int { return cmp.Compare(a.id, b.id) })
	page := query.Max
	if page <= 0 || page > maxPage {
		page = maxPage
	}
	return q.copies(found[:min(page, len(found))]), nil
}

func matches(l *queue.DeadLetter, q queue.DeadQuery) bool {
	return (q.Kind == "" || q.Kind == l.Kind) && (q.Key == "" || q.Key == l.Key) && (q.ID == "" || q.ID == l.ID) &&
		(q.Replayed || l.ReplayedAs == "")
}

func (q *Queue) copies(found []*letter) []queue.DeadLetter {
	q.mu.Lock()
	defer q.mu.Unlock()
	letters := make([]queue.DeadLetter, len(found))
	for i, l := range found {
		letters[i] = l.DeadLetter
		letters[i].Payload = clonePayload(l.Payload)
	}
	return letters
}

// ReplayDead implements queue.Queue.
func (q *Queue) ReplayDead(ctx context.Context, ids ...string) ([]string, error) {
	newIDs := make([]string, len(ids))
	if q.options.NoReplay {
		return newIDs, fail(OpReplayDead, errors.ErrUnsupported)
	}
	err := q.each(ctx, OpReplayDead, len(ids), func(i int) error {
		l, err := q.letter(ids[i])
		if err != nil || l.ReplayedAs != "" {
			return queue.ErrUnknown
		}
		now := time.Now()
		it, err := q.add(OpReplayDead, l.Job, now, now)
		if err != nil {
			return err
		}
		l.ReplayedAs = id(it.id)
		newIDs[i] = l.ReplayedAs
		return nil
	})
	return newIDs, err
}

// DropDead implements queue.Queue.
func (q *Queue) DropDead(ctx context.Context, ids ...string) error {
	if q.options.NoReplay {
		return fail(OpDropDead, errors.ErrUnsupported)
	}
	return q.each(ctx, OpDropDead, len(ids), func(i int) error {
		l, err := q.letter(ids[i])
		if err == nil {
			delete(q.dead, l.id)
		}
		return err
	})
}

func (q *Queue) letter(id string) (*letter, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || q.dead[n] == nil {
		return nil, queue.ErrUnknown
	}
	return q.dead[n], nil
}
