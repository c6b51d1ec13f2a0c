package sqsqueue

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/queue"
)

// outgoing is a message to be sent.
type outgoing struct {
	body  string
	delay int32 // seconds
	group string
	dedup string
}

// Enqueue implements queue.Queue. On a FIFO queue the jobs of one key are sent one after
// the other, and when SQS cannot be told of one, those behind it are not sent either.
func (q *Queue) Enqueue(ctx context.Context, jobs ...queue.Job) ([]string, error) {
	return q.enqueue(ctx, jobs, func(int) string { return rand.Text() })
}

// enqueue sends jobs; dedup makes the deduplication ID of each, for FIFO queues.
func (q *Queue) enqueue(ctx context.Context, jobs []queue.Job, dedup func(i int) string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return make([]string, len(jobs)), failure(q.url, opEnqueue, err)
	}
	messages := make([]outgoing, len(jobs))
	errs := make([]error, len(jobs))
	for i := range jobs {
		var err error
		if messages[i], err = q.outgoing(jobs[i]); err != nil {
			errs[i] = refusal(q.url, opEnqueue, err)
			continue
		}
		if q.fifo && messages[i].dedup == "" {
			messages[i].dedup = dedup(i)
		}
	}
	ids := q.send(ctx, opEnqueue, q.url, messages, errs)
	q.metrics.sent.Add(countNil(errs))
	return ids, result(errs)
}

// outgoing is a job as a message.
func (q *Queue) outgoing(j queue.Job) (m outgoing, err error) {
	if err := q.caps.Check(j); err != nil {
		return m, err
	}
	j.Delay = seconds(j.Delay)
	if j.DedupeKey == "" {
		j.DedupeKey = rand.Text()
	}
	if m.body, err = encode(&j, nil); err != nil {
		return m, err
	}
	if most := q.limit - deathBytes; len(m.body) > most {
		return m, fmt.Errorf("%w: as a message the job of kind %q has %d bytes, this queue takes at most %d; store the data elsewhere and enqueue its name", queue.ErrInvalid, j.Kind, len(m.body), most)
	}
	if !q.fifo {
		m.delay = int32(j.Delay.Seconds())
		return m, nil
	}
	m.group = messageGroup(j.Key)
	if q.opts.DedupeByVersion && j.Version != 0 {
		m.dedup = digest(j.Kind, j.Key, strconv.FormatUint(j.Version, 10))
	}
	return m, nil
}

// send sends messages to this queue or to its dead letters, and returns their IDs. It
// leaves out those that have an error and notes those of the others.
func (q *Queue) send(ctx context.Context, op, queueURL string, messages []outgoing, errs []error) []string {
	ids := make([]string, len(messages))
	b := &batch{q: q, op: op, addr: queueURL, errs: errs}
	b.call = func(ctx context.Context, part []int) (answer, error) {
		entries := make([]types.SendMessageBatchRequestEntry, len(part))
		for i, n := range part {
			entries[i] = entry(n, &messages[n])
		}
		out, err := q.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &queueURL, Entries: entries})
		if err != nil {
			return answer{}, err
		}
		a := answer{failed: out.Failed}
		for _, e := range out.Successful {
			a.done = append(a.done, aws.ToString(e.Id))
			if n, err := strconv.Atoi(aws.ToString(e.Id)); err == nil && n < len(ids) {
				ids[n] = aws.ToString(e.MessageId)
			}
		}
		return a, nil
	}
	size := func(i int) int { return len(messages[i].body) }
	if q.fifo {
		q.sendInOrder(ctx, b, messages, size)
	} else {
		b.run(ctx, size, q.limit)
	}
	for i := range ids {
		if errs[i] != nil {
			ids[i] = ""
		}
	}
	return ids
}

func entry(n int, m *outgoing) types.SendMessageBatchRequestEntry {
	id := strconv.Itoa(n)
	e := types.SendMessageBatchRequestEntry{Id: &id, MessageBody: &m.body, DelaySeconds: m.delay}
	if m.group != "" {
		e.MessageGroupId, e.MessageDeduplicationId = &m.group, &m.dedup
	}
	return e
}

// sendInOrder keeps the order of each group also where single entries fail: no batch
// holds two messages of one group, and what is behind one that failed is not sent.
func (q *Queue) sendInOrder(ctx context.Context, b *batch, messages []outgoing, size func(i int) int) {
	var todo []int
	for i := range messages {
		if b.errs[i] == nil {
			todo = append(todo, i)
		}
	}
	failed := make(map[string]*queue.Error)
	for len(todo) > 0 {
		var part, rest []int
		bytes := 0
		taken := make(map[string]bool)
		for _, i := range todo {
			group := messages[i].group
			if front := failed[group]; front != nil {
				behind := *front
				behind.Err = fmt.Errorf("an earlier job of the same key could not be sent: %w", front.Err)
				b.errs[i] = &behind
				continue
			}
			if taken[group] || len(part) == maxEntries || len(part) > 0 && bytes+size(i) > q.limit {
				rest = append(rest, i)
			} else {
				part, bytes = append(part, i), bytes+size(i)
			}
			taken[group] = true
		}
		if len(part) > 0 {
			b.send(ctx, part)
		}
		for _, i := range part {
			var e *queue.Error
			if errors.As(b.errs[i], &e) && e.Unavailable { // what was refused fails alone
				failed[messages[i].group] = e
			}
		}
		todo = rest
	}
}

func countNil(errs []error) (n int64) {
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}
