package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/queue"
)

// tokens are the entries of a call, taken apart.
type tokens struct {
	ids, handles []string
	parts        []parts
	errs         []error // ErrUnknown for those that are none of this queue's
}

func (q *Queue) tokens(n int, token func(i int) queue.Token) tokens {
	t := tokens{make([]string, n), make([]string, n), make([]parts, n), make([]error, n)}
	for i := range n {
		p, ok := q.parse(token(i))
		if !ok {
			t.errs[i] = queue.ErrUnknown
		}
		t.parts[i], t.ids[i], t.handles[i] = p, p.id, p.handle
	}
	return t
}

// Ack implements queue.Queue. It deletes with the newest receipt handle, if this Queue
// has received the message again since: the job is done, and an older handle would
// delete nothing and say that it had.
func (q *Queue) Ack(ctx context.Context, ts ...queue.Token) error {
	if err := ctx.Err(); err != nil {
		return failure(q.url, opAck, err)
	}
	t := q.tokens(len(ts), func(i int) queue.Token { return ts[i] })
	for i := range t.ids {
		if t.errs[i] == nil {
			t.handles[i] = q.claims.newest(t.ids[i], t.handles[i])
		}
	}
	q.delete(ctx, opAck, q.url, t.handles, t.errs)
	for i := range t.ids {
		if t.errs[i] == nil {
			q.claims.forget(t.ids[i], t.handles[i])
		}
	}
	q.metrics.deleted.Add(countNil(t.errs))
	return result(t.errs)
}

// delete deletes messages, but for those that have an error.
func (q *Queue) delete(ctx context.Context, op, queueURL string, handles []string, errs []error) {
	b := &batch{q: q, op: op, addr: queueURL, claimed: true, errs: errs}
	b.call = func(ctx context.Context, part []int) (answer, error) {
		entries := make([]types.DeleteMessageBatchRequestEntry, len(part))
		for i, n := range part {
			id := strconv.Itoa(n)
			entries[i] = types.DeleteMessageBatchRequestEntry{Id: &id, ReceiptHandle: &handles[n]}
		}
		out, err := q.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &queueURL, Entries: entries})
		if err != nil {
			return answer{}, err
		}
		a := answer{failed: out.Failed}
		for _, e := range out.Successful {
			a.done = append(a.done, aws.ToString(e.Id))
		}
		return a, nil
	}
	b.run(ctx, nil, 0)
}

// Extend implements queue.Queue. A message can be held for 12 h in all from its receipt;
// what would go beyond is cut.
func (q *Queue) Extend(ctx context.Context, lease time.Duration, ts ...queue.Token) error {
	if err := ctx.Err(); err != nil {
		return failure(q.url, opExtend, err)
	}
	if err := q.caps.CheckLease(lease); err != nil {
		return refusal(q.url, opExtend, err)
	}
	t := q.tokens(len(ts), func(i int) queue.Token { return ts[i] })
	lasts := make([]int32, len(ts))
	start := time.Now()
	for i := range ts {
		if t.errs[i] == nil {
			lasts[i], t.errs[i] = q.visibility(t.ids[i], t.handles[i], lease)
		}
		if t.errs[i] == nil && lasts[i] == 0 {
			t.errs[i] = refusal(q.url, opExtend, errHeldTooLong)
		}
	}
	q.changeVisibility(ctx, opExtend, q.url, t.handles, lasts, t.errs)
	for i := range ts {
		if t.errs[i] == nil {
			deadline := start.Add(time.Duration(lasts[i]) * time.Second)
			q.claims.change(t.ids[i], t.handles[i], func(c *claim) { c.deadline = deadline })
		}
	}
	q.metrics.extended.Add(countNil(t.errs))
	return result(t.errs)
}

var errHeldTooLong = errors.New("the message has been held for 12 h, longer than SQS lets anybody hold one: it comes back")

// visibility is for how long a message is to stay away, in seconds: as long as asked for,
// as far as the 12 h from its receipt allow.
func (q *Queue) visibility(id, handle string, d time.Duration) (int32, error) {
	c, ok, newer := q.claims.get(id, handle)
	if newer {
		return 0, queue.ErrLeaseLost
	}
	most := maxVisibility
	if ok {
		// SQS's 12 h began some time before we had the answer.
		most = max(0, (maxVisibility - time.Since(c.received) - pollSlack).Truncate(time.Second))
	}
	return int32(min(seconds(min(d, maxVisibility)), most).Seconds()), nil
}

// Nack implements queue.Queue. Delay is cut to the rest of the 12 h for which SQS can
// hide a message after its receipt.
func (q *Queue) Nack(ctx context.Context, returns ...queue.Return) error {
	if err := ctx.Err(); err != nil {
		return failure(q.url, opNack, err)
	}
	t := q.tokens(len(returns), func(i int) queue.Token { return returns[i].Token })
	delays := make([]int32, len(returns))
	for i := range returns {
		if t.errs[i] == nil {
			delays[i], t.errs[i] = q.visibility(t.ids[i], t.handles[i], returns[i].Delay)
		}
	}
	q.changeVisibility(ctx, opNack, q.url, t.handles, delays, t.errs)
	for i := range returns {
		if t.errs[i] == nil {
			q.claims.forget(t.ids[i], t.handles[i])
		}
	}
	q.metrics.returned.Add(countNil(t.errs))
	return result(t.errs)
}

// changeVisibility makes messages come back after so many seconds, but for those that
// have an error. It returns errs.
func (q *Queue) changeVisibility(ctx context.Context, op, queueURL string, handles []string, after []int32, errs []error) []error {
	b := &batch{q: q, op: op, addr: queueURL, claimed: true, errs: errs}
	b.call = func(ctx context.Context, part []int) (answer, error) {
		entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(part))
		for i, n := range part {
			id := strconv.Itoa(n)
			entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: &id, ReceiptHandle: &handles[n], VisibilityTimeout: after[n]}
		}
		out, err := q.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &queueURL, Entries: entries})
		if err != nil {
			return answer{}, err
		}
		a := answer{failed: out.Failed}
		for _, e := range out.Successful {
			a.done = append(a.done, aws.ToString(e.Id))
		}
		return a, nil
	}
	return b.run(ctx, nil, 0)
}

// Dead implements queue.Queue, in two steps: a letter is sent to the dead-letter queue,
// then the message is deleted. A process that dies between the two leaves both.
func (q *Queue) Dead(ctx context.Context, deaths ...queue.Death) error {
	if err := ctx.Err(); err != nil {
		return failure(q.url, opDead, err)
	}
	t := q.tokens(len(deaths), func(i int) queue.Token { return deaths[i].Token })
	held := make([]claim, len(deaths))
	for i := range deaths {
		if t.errs[i] != nil {
			continue
		}
		var newer bool
		if held[i], _, newer = q.claims.get(t.ids[i], t.handles[i]); newer {
			t.errs[i] = queue.ErrLeaseLost
		}
	}
	q.holdOn(ctx, held, t)
	q.sendLetters(ctx, deaths, held, t)
	q.delete(ctx, opDead, q.url, t.handles, t.errs)
	for i := range deaths {
		if t.errs[i] == nil {
			q.claims.forget(t.ids[i], t.handles[i])
		}
	}
	q.metrics.buried.Add(countNil(t.errs))
	return result(t.errs)
}

// errLeftOut marks an entry that is not part of a step.
var errLeftOut = errors.New("not part of this step")

// deadHold is for how long a message stays away whose letter is being sent.
const deadHold = 30

// holdOn takes the messages again whose leases have ended, or are not known here: if
// somebody else has one, or it is gone, no letter must be sent.
func (q *Queue) holdOn(ctx context.Context, held []claim, t tokens) {
	errs, lasts := make([]error, len(held)), make([]int32, len(held))
	for i := range held {
		lasts[i] = deadHold
		if t.errs[i] != nil || time.Now().Before(held[i].deadline) {
			errs[i] = errLeftOut
		}
	}
	for i, err := range q.changeVisibility(ctx, opDead, q.url, t.handles, lasts, errs) {
		if err != nil && err != errLeftOut {
			t.errs[i] = err
		}
	}
}

// sendLetters sends the letters that were not sent by an earlier try.
func (q *Queue) sendLetters(ctx context.Context, deaths []queue.Death, held []claim, t tokens) {
	letters := make([]outgoing, len(deaths))
	sent := make([]error, len(deaths))
	for i, d := range deaths {
		if sent[i] = t.errs[i]; sent[i] != nil || held[i].buried {
			sent[i] = errLeftOut
			continue
		}
		job, _ := decode(t.parts[i].body, t.ids[i])
		body, err := encodeDead(&job, death{t.ids[i], t.parts[i].attempts, queue.ErrorText(d.Reason), queue.ErrorText(d.Err)}, q.limit)
		if err != nil {
			t.errs[i] = refusal(q.dead, opDead, fmt.Errorf("making its letter: %w", err))
			sent[i] = t.errs[i]
			continue
		}
		// A group of its own: nobody waits for it, and a look at it hides no other.
		letters[i] = outgoing{body: body}
		if q.fifo {
			letters[i].group, letters[i].dedup = t.ids[i], "dead-"+t.ids[i]
		}
	}
	q.send(ctx, opDead, q.dead, letters, sent)
	for i := range deaths {
		switch {
		case letters[i].body == "":
		case sent[i] != nil:
			t.errs[i] = sent[i]
		default:
			q.claims.change(t.ids[i], t.handles[i], func(c *claim) { c.buried = true })
		}
	}
}
