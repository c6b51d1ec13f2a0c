package sqsqueue

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/queue"
)

// systemAttributes are what is asked for with each message.
var systemAttributes = []types.MessageSystemAttributeName{
	types.MessageSystemAttributeNameApproximateReceiveCount,
	types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp,
	types.MessageSystemAttributeNameSentTimestamp,
	types.MessageSystemAttributeNameMessageGroupId,
}

// Receive implements queue.Queue. A long poll that is under way cannot be called back:
// after Request.Stop it ends by itself, and what it brings is returned. When the context
// ends, Receive returns at once; the poll goes on in the background, and what it brings
// is given back (Close waits for that), since messages of a poll that is cut are hidden
// from everybody until their lease ends, time after time, until they die unseen.
func (q *Queue) Receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	if err := ctx.Err(); err != nil {
		return nil, failure(q.url, opReceive, err)
	}
	if err := q.caps.CheckRequest(r); err != nil {
		return nil, refusal(q.url, opReceive, err)
	}
	r.Max = min(r.Max, maxEntries)
	r.Wait = seconds(min(r.Wait, q.opts.Wait))
	long := r.Wait > 0
	for end := time.Now().Add(r.Wait); !isClosed(r.Stop); r.Wait = seconds(time.Until(end)) {
		ds, err := q.receive(ctx, r)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		if time.Until(end) <= 0 {
			if long {
				q.lookForFlood(ctx)
			}
			return nil, nil
		}
		// An empty answer before its time, or one of jobs whose delay is not over.
		if !pause(ctx, min(time.Second, time.Until(end)+2)) {
			return nil, failure(q.url, opReceive, ctx.Err())
		}
	}
	return nil, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// receive is one look. On a FIFO queue each poll asks for one message: SQS would fill the
// answer with messages of one group, but those behind the first are not to be delivered
// before it is done, and each time that they were given back would count as a receive and
// take them nearer to the dead letters. Further polls, more at once each time, bring
// messages of other groups until there are enough or no more.
func (q *Queue) receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	if !q.fifo {
		return q.poll(ctx, r)
	}
	most := r.Max
	r.Max = 1
	ds, err := q.poll(ctx, r)
	r.Wait = 0
	for more := 1; err == nil && len(ds) > 0 && len(ds) < most && !isClosed(r.Stop); more *= 2 {
		n := min(more, most-len(ds))
		found := q.pollAtOnce(ctx, r, n)
		ds = append(ds, found...)
		if len(found) < n {
			break
		}
	}
	return ds, err
}

// pollAtOnce is n polls at once. Their errors do not matter: the next Receive has them,
// too.
func (q *Queue) pollAtOnce(ctx context.Context, r queue.Request, n int) (ds []queue.Delivery) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range n {
		wg.Go(func() {
			found, _ := q.poll(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			ds = append(ds, found...)
		})
	}
	wg.Wait()
	return ds
}

// poll is one ReceiveMessage from the queue.
func (q *Queue) poll(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	out, err := q.ask(ctx, q.url, r)
	if err != nil {
		return nil, failure(q.url, opReceive, err)
	}
	return q.deliveries(ctx, out, r), nil
}

// ask is one ReceiveMessage, which goes on when ctx ends and gives back what it brings
// then.
func (q *Queue) ask(ctx context.Context, queueURL string, r queue.Request) (*sqs.ReceiveMessageOutput, error) {
	type reply struct {
		out *sqs.ReceiveMessageOutput
		err error
	}
	// Not buffered: either the caller has the reply, or the poll knows that nobody has.
	replies := make(chan reply)
	q.polls.begin()
	go func() {
		defer q.polls.end()
		pollCtx, cancel := q.background(ctx, r.Wait+pollSlack)
		defer cancel()
		var rep reply
		rep.out, rep.err = q.client.ReceiveMessage(pollCtx, receiveInput(queueURL, r), noWait(r.Wait))
		select {
		case replies <- rep:
		case <-ctx.Done():
			if rep.err == nil {
				q.giveBack(ctx, queueURL, rep.out.Messages)
			}
		}
	}()
	select {
	case rep := <-replies:
		return rep.out, rep.err
	case <-ctx.Done():
		q.metrics.pollsLeft.Add(1)
		return nil, ctx.Err()
	}
}

// background is a context with ctx's values for what must go on when ctx ends.
func (q *Queue) background(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	stop := context.AfterFunc(q.ending, cancel)
	return ctx, func() { stop(); cancel() }
}

func receiveInput(queueURL string, r queue.Request) *sqs.ReceiveMessageInput {
	return &sqs.ReceiveMessageInput{
		QueueUrl: &queueURL, MaxNumberOfMessages: int32(r.Max),
		VisibilityTimeout: int32(seconds(r.Lease).Seconds()), WaitTimeSeconds: int32(r.Wait.Seconds()),
		MessageSystemAttributeNames: systemAttributes,
	}
}

// giveBack makes messages visible again that nobody has asked for any more.
func (q *Queue) giveBack(ctx context.Context, queueURL string, messages []types.Message) {
	if len(messages) == 0 {
		return
	}
	ctx, cancel := q.background(ctx, pollSlack)
	defer cancel()
	handles := make([]string, len(messages))
	for i := range messages {
		handles[i] = aws.ToString(messages[i].ReceiptHandle)
	}
	errs := q.changeVisibility(ctx, opNack, queueURL, handles, make([]int32, len(handles)), make([]error, len(handles)))
	q.metrics.givenBack.Add(countNil(errs))
}

// deliveries are the messages of an answer as deliveries, but for those whose delay is
// not over.
func (q *Queue) deliveries(ctx context.Context, out *sqs.ReceiveMessageOutput, r queue.Request) []queue.Delivery {
	now := time.Now()
	serverNow, ok := awsmiddleware.GetServerTime(out.ResultMetadata)
	if !ok {
		serverNow = now
	}
	var ds []queue.Delivery
	var early []tooEarly
	for i := range out.Messages {
		m := received{Message: &out.Messages[i]}
		m.job, m.envelope = decode(aws.ToString(m.Body), aws.ToString(m.MessageId))
		m.read(serverNow)
		if left := m.due.Sub(m.now); q.fifo && left > 0 {
			early = append(early, tooEarly{aws.ToString(m.ReceiptHandle), int32(seconds(left).Seconds())})
			continue
		}
		ds = append(ds, q.deliver(&m, r.Lease, now))
	}
	q.metrics.received.Add(int64(len(ds)))
	q.putOff(ctx, early)
	return ds
}

// received is a message and what its attributes say.
type received struct {
	*types.Message
	job      queue.Job
	envelope *envelope
	count    int
	sent     time.Time
	first    time.Time // received for the first time
	due      time.Time
	now      time.Time // by the queue's clock
}

func (m *received) read(serverNow time.Time) {
	a := func(name types.MessageSystemAttributeName) string { return m.Attributes[string(name)] }
	m.count = max(1, int(number(a(types.MessageSystemAttributeNameApproximateReceiveCount))))
	m.sent = millis(a(types.MessageSystemAttributeNameSentTimestamp))
	m.first = millis(a(types.MessageSystemAttributeNameApproximateFirstReceiveTimestamp))
	m.due = m.sent.Add(time.Duration(m.envelope.Delay) * time.Second)
	m.now = serverNow // in whole seconds
	if m.count == 1 || m.first.After(m.now) {
		m.now = m.first
	}
}

func millis(text string) time.Time {
	ms, _ := strconv.ParseInt(text, 10, 64)
	return time.UnixMilli(ms)
}

// deliver makes a delivery of a message and keeps what is needed to settle it.
func (q *Queue) deliver(m *received, lease time.Duration, now time.Time) queue.Delivery {
	attempt := m.count
	if q.fifo && m.envelope.Delay > 0 && m.first.Before(m.due) && attempt > 1 {
		attempt-- // the first look came before it was due
	}
	d := queue.Delivery{
		Job: m.job, ID: aws.ToString(m.MessageId), Attempt: attempt,
		Token: q.token(parts{aws.ToString(m.MessageId), aws.ToString(m.ReceiptHandle), attempt, aws.ToString(m.Body)}),
		// The lease began before the answer came, we do not know when.
		Deadline: now.Add(seconds(lease) - min(lease/10, time.Second)),
		Age:      max(0, m.now.Sub(m.sent)),
	}
	if attempt == 1 {
		d.Lag = max(0, m.now.Sub(m.due)) // later ones: when the lease before has ended SQS does not say
	}
	if d.Kind == RawKind {
		q.metrics.foreign.Add(1)
	}
	q.claims.add(&claim{id: d.ID, handle: aws.ToString(m.ReceiptHandle), received: now, deadline: now.Add(seconds(lease))})
	if q.fifo {
		q.groups.delivered(m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)], d.Lag)
	}
	return d
}

// tooEarly is a message of a FIFO queue, which knows no delays of single messages, that
// was received before it is due: it is hidden for what is left.
type tooEarly struct {
	handle string
	left   int32 // seconds
}

func (q *Queue) putOff(ctx context.Context, es []tooEarly) {
	if len(es) == 0 {
		return
	}
	ctx, cancel := q.background(ctx, pollSlack)
	defer cancel()
	handles, left := make([]string, len(es)), make([]int32, len(es))
	for i, e := range es {
		handles[i], left[i] = e.handle, e.left
	}
	// If it fails, the message comes back when the lease ends, and is put off then.
	q.changeVisibility(ctx, opReceive, q.url, handles, left, make([]error, len(es)))
}
