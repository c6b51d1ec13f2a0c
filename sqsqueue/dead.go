package sqsqueue

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/queue"
)

const (
	maxPage = 1000
	// lookHold is for how long a look through the dead letters hides those that it has
	// seen, if the process dies in the middle; otherwise they are given back at the end.
	lookHold = 2 * time.Minute
	// lookWait is the long poll that says that there are no more. A short one asks some
	// of SQS's servers only.
	lookWait = time.Second
	// lookPatience is how long a look waits for letters that are in other hands.
	lookPatience = 5 * time.Second
)

// letter is a message of the dead-letter queue.
type letter struct {
	queue.DeadLetter
	message string // its ID there
	handle  string
}

// look is one walk through the dead letters. SQS has no other way to see them than to
// receive them, which hides them from everybody else meanwhile.
type look struct {
	q       *Queue
	handles map[string]string // of what is hidden by this look, by message ID
	others  int64             // letters that somebody else hides, as far as SQS says
}

// look shows the letters to visit until it has seen enough. The caller must end it.
func (q *Queue) look(ctx context.Context, op string, visit func(*letter) (enough bool)) (*look, error) {
	select {
	case q.looking <- struct{}{}:
	case <-ctx.Done():
		return nil, failure(q.dead, op, ctx.Err())
	}
	l := &look{q: q, handles: make(map[string]string)}
	var end time.Time
	for {
		out, err := q.ask(ctx, q.dead, queue.Request{Max: maxEntries, Wait: lookWait, Lease: lookHold})
		if err != nil {
			l.end(ctx)
			return nil, failure(q.dead, op, err)
		}
		if l.show(out.Messages, visit) {
			return l, nil
		}
		if len(out.Messages) > 0 {
			continue
		}
		n, err := q.counts(ctx, q.dead)
		if err != nil {
			l.end(ctx)
			return nil, failure(q.dead, op, err)
		}
		if end.IsZero() {
			end = time.Now().Add(lookPatience)
		}
		l.others = max(0, n.notVisible+n.visible-int64(len(l.handles)))
		if l.others == 0 || time.Now().After(end) {
			return l, nil
		}
	}
}

// show shows messages to visit. It says whether that was enough, or the walk has come
// round.
func (l *look) show(messages []types.Message, visit func(*letter) bool) (enough bool) {
	round := false
	for i := range messages {
		m := &messages[i]
		_, seen := l.handles[aws.ToString(m.MessageId)]
		l.handles[aws.ToString(m.MessageId)] = aws.ToString(m.ReceiptHandle)
		if seen {
			round = true
		} else if !enough {
			enough = visit(readLetter(m))
		}
	}
	return enough || round
}

// end makes the letters visible again, but for those that are gone, and lets others look.
func (l *look) end(ctx context.Context) {
	defer func() { <-l.q.looking }()
	messages := make([]types.Message, 0, len(l.handles))
	for _, handle := range l.handles {
		messages = append(messages, types.Message{ReceiptHandle: &handle})
	}
	l.q.giveBack(ctx, l.q.dead, messages)
}

// missing is the error about a letter that was not seen.
func (l *look) missing(op, id string) error {
	if l.others == 0 {
		return queue.ErrUnknown
	}
	return &queue.Error{Service: "sqs", Addr: l.q.dead, Op: op, Unavailable: true,
		Err: fmt.Errorf("letter %s was not seen, but %d letters are in other hands (another list or replay, or a message that SQS still counts); try again", id, l.others)}
}

func readLetter(m *types.Message) *letter {
	job, e := decode(aws.ToString(m.Body), aws.ToString(m.MessageId))
	l := &letter{message: aws.ToString(m.MessageId), handle: aws.ToString(m.ReceiptHandle)}
	l.Job = job
	a := func(name types.MessageSystemAttributeName) string { return m.Attributes[string(name)] }
	if e.Dead != nil && e.Dead.ID != "" {
		l.ID, l.Attempts, l.Reason, l.LastError = e.Dead.ID, e.Dead.Attempts, e.Dead.Reason, e.Dead.Error
		l.Died = millis(a(types.MessageSystemAttributeNameSentTimestamp))
		return l
	}
	// SQS's own doing: the message is the job's, with its age; this receive has counted.
	l.ID, l.Attempts = l.message, max(0, int(number(a(types.MessageSystemAttributeNameApproximateReceiveCount)))-1)
	l.Reason = "moved by SQS: it was received more often than the queue's maxReceiveCount, and never acknowledged"
	return l
}

// ListDead implements queue.Queue. Each page receives all dead letters, hides them from
// others meanwhile, and makes them visible again; the order is that of the IDs. Of the
// letters that SQS itself has moved to a FIFO dead-letter queue only the first ten of each
// key can be seen at a time.
func (q *Queue) ListDead(ctx context.Context, query queue.DeadQuery) ([]queue.DeadLetter, error) {
	if err := ctx.Err(); err != nil {
		return nil, failure(q.dead, opListDead, err)
	}
	size := query.Max
	if size <= 0 || size > maxPage {
		size = maxPage
	}
	var page []queue.DeadLetter
	l, err := q.look(ctx, opListDead, func(l *letter) bool {
		if matches(&l.DeadLetter, query) {
			page = append(page, l.DeadLetter)
		}
		if len(page) >= 2*size { // what is beyond the page need not be kept
			page = slices.Clip(firstByID(page, size))
		}
		return query.ID != "" && len(page) > 0
	})
	if err != nil {
		return nil, err
	}
	l.end(ctx)
	if l.others > 0 && query.ID == "" {
		q.opts.Logger.WarnContext(ctx, "sqsqueue: the list of dead letters is not complete: some are in other hands (another list or replay)", "queue", q.dead, "letters", l.others)
	}
	return firstByID(page, size), nil
}

func matches(l *queue.DeadLetter, q queue.DeadQuery) bool {
	return (q.Kind == "" || q.Kind == l.Kind) && (q.Key == "" || q.Key == l.Key) && (q.ID == "" || q.ID == l.ID) && l.ID > q.After
}

func firstByID(ls []queue.DeadLetter, n int) []queue.DeadLetter {
	slices.SortFunc(ls, func(a, b queue.DeadLetter) int { return cmp.Compare(a.ID, b.ID) })
	return ls[:min(n, len(ls))]
}

// find receives the letters of these IDs. Where one is asked for twice, the second is
// unknown.
func (q *Queue) find(ctx context.Context, op string, ids []string) (found []*letter, l *look, errs []error, err error) {
	place := make(map[string]int, len(ids))
	for i, id := range slices.Backward(ids) {
		place[id] = i
	}
	found, errs = make([]*letter, len(ids)), make([]error, len(ids))
	left := len(place)
	l, err = q.look(ctx, op, func(l *letter) bool {
		if i, wanted := place[l.ID]; wanted && found[i] == nil {
			found[i] = l
			left--
		}
		return left == 0
	})
	if err != nil {
		return nil, nil, nil, err
	}
	for i, f := range found {
		if f != nil {
			continue
		}
		errs[i] = queue.ErrUnknown
		if place[ids[i]] == i {
			errs[i] = l.missing(op, ids[i])
		}
	}
	return found, l, errs, nil
}

// ReplayDead implements queue.Queue, in two steps: the job is sent, as a new message with
// no receives, and the letter deleted. A process that dies between the two leaves both.
func (q *Queue) ReplayDead(ctx context.Context, ids ...string) ([]string, error) {
	newIDs := make([]string, len(ids))
	if err := ctx.Err(); err != nil {
		return newIDs, failure(q.dead, opReplayDead, err)
	}
	if len(ids) == 0 {
		return newIDs, nil
	}
	found, l, errs, err := q.find(ctx, opReplayDead, ids)
	if err != nil {
		return newIDs, err
	}
	defer l.end(ctx)
	messages := make([]outgoing, len(ids))
	for i, f := range found {
		if f == nil {
			continue
		}
		body, err := encodeAgain(&f.Job)
		if err != nil {
			errs[i] = refusal(q.dead, opReplayDead, err)
			continue
		}
		messages[i] = outgoing{body: body}
		if q.fifo {
			messages[i].group, messages[i].dedup = messageGroup(f.Key), rand.Text()
		}
	}
	newIDs = q.send(ctx, opReplayDead, q.url, messages, errs)
	for i, err := range q.remove(ctx, opReplayDead, l, found, errs) {
		if err != nil && errs[i] == nil {
			errs[i] = &queue.Error{Service: "sqs", Addr: q.dead, Op: opReplayDead, Unavailable: errors.Is(err, queue.ErrUnavailable),
				Err: fmt.Errorf("the job was sent as %s, but its letter is still there: %w", newIDs[i], err)}
			newIDs[i] = ""
		}
	}
	return newIDs, result(errs)
}

// DropDead implements queue.Queue.
func (q *Queue) DropDead(ctx context.Context, ids ...string) error {
	if err := ctx.Err(); err != nil {
		return failure(q.dead, opDropDead, err)
	}
	if len(ids) == 0 {
		return nil
	}
	found, l, errs, err := q.find(ctx, opDropDead, ids)
	if err != nil {
		return err
	}
	defer l.end(ctx)
	return result(q.remove(ctx, opDropDead, l, found, errs))
}

// remove deletes letters, but for those that have an error.
func (q *Queue) remove(ctx context.Context, op string, l *look, found []*letter, errs []error) []error {
	handles := make([]string, len(found))
	for i, f := range found {
		if f != nil {
			handles[i] = f.handle
		}
	}
	removed := slices.Clone(errs)
	q.delete(ctx, op, q.dead, handles, removed)
	for i, f := range found {
		if f != nil && removed[i] == nil {
			delete(l.handles, f.message)
		}
		if removed[i] != nil && errors.Is(removed[i], queue.ErrLeaseLost) {
			removed[i] = queue.ErrUnknown // somebody else was faster
		}
	}
	return removed
}
