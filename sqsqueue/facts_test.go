package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// The facts about the real service on which this package rests, stated against the bare
// SDK: first of all they say that the fake behaves so.
var facts = []struct {
	name      string
	fifo      bool
	notFauxqs string // why it does not hold there
	test      func(b *bare)
}{
	{"an expired handle deletes if nobody has received the message since", false, "", func(b *bare) {
		b.send("m", "")
		m := b.one(1)
		b.pass(2 * time.Second)
		b.ok(b.delete(*m.ReceiptHandle))
		b.nothing()
	}},
	{"an old handle deletes nothing, and says that it has", false, "", func(b *bare) {
		b.send("m", "")
		old := b.one(1)
		b.pass(2 * time.Second)
		m := b.one(1)
		b.ok(b.delete(*old.ReceiptHandle))
		b.pass(2 * time.Second)
		if again := b.one(60); *again.MessageId != *m.MessageId {
			b.Errorf("another message")
		}
	}},
	{"deleting twice is fine", false, "", func(b *bare) {
		b.send("m", "")
		m := b.one(60)
		b.ok(b.delete(*m.ReceiptHandle))
		b.ok(b.delete(*m.ReceiptHandle))
	}},
	{"a handle that is none is invalid", false, "a bad handle in a batch of deletes reports success", func(b *bare) {
		b.fails("ReceiptHandleIsInvalid")(b.delete("garbage"))
	}},
	{"a handle that is none is invalid for a change", false, "", func(b *bare) {
		b.fails("ReceiptHandleIsInvalid")(b.change("garbage", 1))
	}},
	{"a FIFO queue refuses an expired handle", true, "deletes with an expired handle until somebody polls", func(b *bare) {
		b.send("m", "g")
		m := b.one(1)
		b.pass(2 * time.Second)
		b.fails("InvalidParameterValue")(b.delete(*m.ReceiptHandle))
		b.one(60)
	}},
	{"extending one message of a group hides only later ones", true, "one message of a group at a time", func(b *bare) {
		for _, body := range []string{"1", "2", "3"} {
			b.send(body, "g")
		}
		ms := b.receive(10, 1)
		if len(ms) != 3 {
			b.Fatalf("%d messages at once, want 3", len(ms))
		}
		b.ok(b.change(*ms[1].ReceiptHandle, 60))
		b.pass(2 * time.Second)
		if got := bodies(b.receive(10, 60)); got != "1" {
			b.Errorf("received %q, want only the one before it", got)
		}
	}},
	{"no message of a group while an earlier one is in flight", true, "", func(b *bare) {
		b.send("1", "g")
		b.send("2", "g")
		b.send("3", "other")
		first := b.receive(1, 60)
		if got := bodies(b.receive(10, 60)); got != "3" {
			b.Errorf("received %q, want that of the other group", got)
		}
		b.ok(b.delete(*first[0].ReceiptHandle))
		if got := bodies(b.receive(10, 60)); got != "2" {
			b.Errorf("received %q, want the next of the group", got)
		}
	}},
	{"a deduplication ID blocks also after the delete", true, "", func(b *bare) {
		id := b.sendDeduped("m", "g", "d")
		b.ok(b.delete(*b.one(60).ReceiptHandle))
		if again := b.sendDeduped("m", "g", "d"); again != id {
			b.Errorf("the second has ID %s, the first %s", again, id)
		}
		b.nothing()
	}},
	{"a change beyond 12 hours in all is refused", false, "does not count from the receipt", func(b *bare) {
		b.send("m", "")
		m := b.one(60)
		b.pass(time.Second)
		b.fails("InvalidParameterValue")(b.change(*m.ReceiptHandle, 43200))
		b.ok(b.change(*m.ReceiptHandle, 43190))
	}},
	{"what is received more often than maxReceiveCount is moved, with its ID", false, "", func(b *bare) {
		id := b.send("m", "")
		for range maxReceiveCount {
			b.ok(b.change(*b.one(60).ReceiptHandle, 0))
		}
		b.nothing()
		b.url = b.dead
		if m := b.one(60); *m.MessageId != id || m.Attributes["ApproximateReceiveCount"] == "1" {
			b.Errorf("in the dead-letter queue: %+v", m)
		}
	}},
	{"a poll that is cut hides what it was about to bring", false, "", func(b *bare) {
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error)
		go func() {
			_, err := b.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &b.url, WaitTimeSeconds: 5, VisibilityTimeout: 2})
			ended <- err
		}()
		b.pass(500 * time.Millisecond) // it waits at the server
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			b.Fatalf("the poll: %v", err)
		}
		b.send("m", "")
		b.pass(500 * time.Millisecond) // the poll takes it
		b.nothing()
		b.pass(3 * time.Second)
		if m := b.one(60); m.Attributes["ApproximateReceiveCount"] != "2" {
			b.Errorf("receives: %s, want 2", m.Attributes["ApproximateReceiveCount"])
		}
	}},
	{"the SDK leaves out a wait of 0, and the queue's own holds", false, "", func(b *bare) {
		b.ok(nil, func() error {
			_, err := b.client.SetQueueAttributes(b.Context(), &sqs.SetQueueAttributesInput{QueueUrl: &b.url, Attributes: map[string]string{waitAttr: "2"}})
			return err
		}())
		for _, tt := range []struct {
			opts []func(*sqs.Options)
			wait bool
		}{{nil, true}, {[]func(*sqs.Options){noWait(0)}, false}} {
			start := time.Now()
			_, err := b.client.ReceiveMessage(b.Context(), &sqs.ReceiveMessageInput{QueueUrl: &b.url, WaitTimeSeconds: 0}, tt.opts...)
			b.ok(nil, err)
			if waited := time.Since(start) >= 2*time.Second; waited != tt.wait {
				b.Errorf("with %d options the answer took %v", len(tt.opts), time.Since(start))
			}
		}
	}},
}

func TestFacts(t *testing.T) {
	for _, f := range facts {
		t.Run(f.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				fake := &sqsfake.Server{}
				defer fake.Close() // a bubble ends when all has ended in it
				f.test(newBare(t, clientOf("http://sqs.test", fake), f.fifo))
			})
		})
	}
}

const maxReceiveCount = 3

// bare is a queue as the SDK shows it.
type bare struct {
	*testing.T
	client    *sqs.Client
	url, dead string
	sent      int
}

func newBare(t *testing.T, client *sqs.Client, fifo bool) *bare {
	t.Helper()
	b := &bare{T: t, client: client}
	name := fmt.Sprintf("facts-%d", queueNumber.Add(1))
	if fifo {
		name += ".fifo"
	}
	deadURL, arn, err := createDead(t.Context(), client, name)
	must(t, err)
	out, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name,
		Attributes: kinded(name, map[string]string{redriveAttr: redrivePolicy(arn, maxReceiveCount)})})
	must(t, err)
	b.url, b.dead = *out.QueueUrl, deadURL
	return b
}

// pass lets time go by, which at another's fake is real time: the facts are about timeouts
// of the server.
func (b *bare) pass(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.Context().Done():
	}
}

func (b *bare) send(body, group string) (id string) {
	b.Helper()
	b.sent++
	return b.sendDeduped(body, group, fmt.Sprint(b.sent))
}

func (b *bare) sendDeduped(body, group, dedup string) (id string) {
	b.Helper()
	in := &sqs.SendMessageInput{QueueUrl: &b.url, MessageBody: &body}
	if group != "" {
		in.MessageGroupId, in.MessageDeduplicationId = &group, &dedup
	}
	out, err := b.client.SendMessage(b.Context(), in)
	must(b, err)
	return *out.MessageId
}

func (b *bare) receive(max, visibility int32) []types.Message {
	b.Helper()
	out, err := b.client.ReceiveMessage(b.Context(), &sqs.ReceiveMessageInput{QueueUrl: &b.url, MaxNumberOfMessages: max, VisibilityTimeout: visibility,
		MessageSystemAttributeNames: systemAttributes})
	must(b, err)
	return out.Messages
}

func (b *bare) one(visibility int32) types.Message {
	b.Helper()
	ms := b.receive(1, visibility)
	if len(ms) != 1 {
		b.Fatalf("%d messages, want 1", len(ms))
	}
	return ms[0]
}

func (b *bare) nothing() {
	b.Helper()
	if got := b.receive(10, 60); len(got) > 0 {
		b.Errorf("received %q, want nothing", bodies(got))
	}
}

func (b *bare) delete(handle string) ([]types.BatchResultErrorEntry, error) {
	out, err := b.client.DeleteMessageBatch(b.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: &b.url,
		Entries: []types.DeleteMessageBatchRequestEntry{{Id: aws.String("a"), ReceiptHandle: &handle}}})
	if err != nil {
		return nil, err
	}
	return out.Failed, nil
}

func (b *bare) change(handle string, after int32) ([]types.BatchResultErrorEntry, error) {
	out, err := b.client.ChangeMessageVisibilityBatch(b.Context(), &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &b.url,
		Entries: []types.ChangeMessageVisibilityBatchRequestEntry{{Id: aws.String("a"), ReceiptHandle: &handle, VisibilityTimeout: after}}})
	if err != nil {
		return nil, err
	}
	return out.Failed, nil
}

func (b *bare) ok(failed []types.BatchResultErrorEntry, err error) {
	b.Helper()
	must(b, err)
	if len(failed) > 0 {
		b.Fatalf("failed: %s: %s", *failed[0].Code, *failed[0].Message)
	}
}

// fails checks that the entry fails, by its sender's fault.
func (b *bare) fails(code string) func([]types.BatchResultErrorEntry, error) {
	return func(failed []types.BatchResultErrorEntry, err error) {
		b.Helper()
		must(b, err)
		if len(failed) != 1 || *failed[0].Code != code || !failed[0].SenderFault {
			b.Errorf("failed: %+v, want %s", failed, code)
		}
	}
}

func bodies(ms []types.Message) string {
	var bs []string
	for _, m := range ms {
		bs = append(bs, *m.Body)
	}
	slices.Sort(bs)
	return strings.Join(bs, " ")
}
