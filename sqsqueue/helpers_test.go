package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clientOf is an SDK client of a server at a URL, or of the fake itself.
func clientOf(endpoint string, http sqs.HTTPClient, opts ...func(*sqs.Options)) *sqs.Client {
	return sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, HTTPClient: http,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	}, opts...)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// world is a fake SQS in a bubble, with one queue.
type world struct {
	*testing.T
	fake   *sqsfake.Server
	client *sqs.Client
	q      *Queue
	name   string
}

// inBubble runs a test on a queue of its own, in fake time.
func inBubble(t *testing.T, name string, o Options, test func(w *world)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		fake := &sqsfake.Server{}
		defer fake.Close() // a bubble ends when all has ended in it
		client := clientOf("http://sqs.test", fake)
		if o.Logger == nil {
			o.Logger = quiet()
		}
		q, err := Create(t.Context(), client, name, o)
		must(t, err)
		test(&world{t, fake, client, q, name})
		must(t, q.Close(t.Context()))
	})
}

func (w *world) enqueue(jobs ...queue.Job) []string {
	w.Helper()
	ids, err := w.q.Enqueue(w.Context(), jobs...)
	must(w, err)
	return ids
}

func (w *world) receive(max int, lease time.Duration) []queue.Delivery {
	w.Helper()
	return receive(w, w.q, max, lease)
}

func receive(t testing.TB, q *Queue, max int, lease time.Duration) []queue.Delivery {
	t.Helper()
	ds, err := q.Receive(t.Context(), queue.Request{Max: max, Lease: lease})
	must(t, err)
	return ds
}

func (w *world) one(lease time.Duration) queue.Delivery {
	w.Helper()
	ds := w.receive(1, lease)
	if len(ds) != 1 {
		w.Fatalf("%d jobs were delivered, want 1", len(ds))
	}
	return ds[0]
}

// visible are the messages of a queue that can be received now.
func (w *world) visible(name string) (n int) {
	for _, m := range w.fake.Messages(name) {
		if m.Left == 0 {
			n++
		}
	}
	return n
}

// worker starts a worker on the queue; stop it with Stop.
func (w *world) worker(o queue.WorkerOptions) *queue.Worker {
	w.Helper()
	if o.Queue == nil {
		o.Queue = w.q
	}
	o.Logger = quiet()
	worker, err := queue.NewWorker(o)
	must(w, err)
	must(w, worker.Start(w.Context()))
	return worker
}

// until lets time go by until cond holds, in a bubble.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	for range 10_000 {
		if cond() {
			return
		}
		bubble.After(100 * time.Millisecond)
	}
	w.Fatalf("not within 1,000 s: %s", what)
}

func job(kind string) queue.Job {
	return queue.Job{Kind: kind, Payload: []byte(fmt.Sprintf(`{"kind":%q}`, kind))}
}

func keyed(kind, key string) queue.Job {
	j := job(kind)
	j.Key = key
	return j
}

func kinds(ds []queue.Delivery) string {
	var ks []string
	for _, d := range ds {
		ks = append(ks, d.Kind)
	}
	return strings.Join(ks, " ")
}

// logged keeps what a logger was told.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func isUnavailable(err error) bool { return errors.Is(err, queue.ErrUnavailable) }
