package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/queue"
)

// Queue is a queue on Amazon SQS, standard or FIFO. It implements queue.Queue; the
// package comment says which parts SQS makes impossible.
type Queue struct {
	client *sqs.Client
	url    string
	dead   string // the dead-letter queue's URL
	opts   Options
	caps   queue.Caps
	fifo   bool
	limit  int    // bytes of a message
	mark   string // what this queue's tokens begin with
	claims claims

	// looking is held, with its one place, by whoever looks through the dead letters: two
	// of one process would hide them from each other.
	looking chan struct{}

	// polls are the ReceiveMessages under way, those included that nobody waits for any
	// more. ending ends when Close has no more patience.
	polls   polls
	ending  context.Context //nolint:containedctx // the life of the polls, not a caller's
	end     context.CancelFunc
	metrics counters
	groups  groups
	warned  sometimes
}

var _ queue.Queue = (*Queue)(nil)

// New opens the queue at a URL. It asks SQS for the queue's settings and refuses it if
// they do not fit the options; the error names each with both values. At most one Options
// may be given.
//
// The client's region and credentials decide which account's SQS is asked. Its HTTP
// client must let a request take 10 s longer than Options.Wait.
func New(ctx context.Context, client *sqs.Client, queueURL string, opts ...Options) (*Queue, error) {
	o, err := one(opts)
	if err != nil {
		return nil, refusal(queueURL, opNew, err)
	}
	if err := checkClient(client, o.Wait); err != nil {
		return nil, refusal(queueURL, opNew, err)
	}
	if u, err := url.Parse(queueURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") == "" {
		return nil, refusal(queueURL, opNew, fmt.Errorf("%q is no queue URL; it looks like https://sqs.eu-west-1.amazonaws.com/123456789012/name", queueURL))
	}
	s, err := settle(ctx, client, queueURL, &o)
	if err != nil {
		return nil, failure(queueURL, opNew, err)
	}
	return open(client, queueURL, o, s), nil
}

func open(client *sqs.Client, queueURL string, o Options, s settings) *Queue {
	q := &Queue{
		client: client, url: queueURL, dead: s.deadURL, opts: o, fifo: s.fifo, limit: s.maxBytes,
		mark: "sqs1-" + digest(s.arn)[:8], looking: make(chan struct{}, 1),
	}
	q.ending, q.end = context.WithCancel(context.Background())
	q.caps = queue.Caps{
		OrderedKeys: s.fifo,
		Replay:      true,
		MaxAttempts: s.maxReceives,
		MaxBatch:    maxEntries,
		MaxDelay:    maxDelay,
		MaxLease:    maxVisibility,
		MaxWait:     o.Wait,
		MaxPayload:  s.maxBytes - envelopeBytes - deathBytes,
		Granularity: time.Second,
	}
	return q
}

// Create makes a queue of that name, and a dead-letter queue of the name with "-dead"
// added, with the settings that New asks for, and opens it. A name that ends in ".fifo"
// makes a FIFO queue. Where both are there with these settings it just opens the queue;
// with others it fails and changes nothing.
func Create(ctx context.Context, client *sqs.Client, name string, opts ...Options) (*Queue, error) {
	o, err := one(opts)
	if err != nil {
		return nil, refusal(name, opCreate, err)
	}
	if err := checkClient(client, o.Wait); err != nil {
		return nil, refusal(name, opCreate, err)
	}
	_, deadARN, err := createDead(ctx, client, name)
	if err != nil {
		return nil, failure(name, opCreate, err)
	}
	made, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: kinded(name, map[string]string{
		visibilityAttr: inSeconds(o.Visibility),
		waitAttr:       inSeconds(o.Wait),
		retentionAttr:  inSeconds(o.Retention),
		redriveAttr:    redrivePolicy(deadARN, o.MaxReceives),
	})})
	if err != nil {
		return nil, failure(name, opCreate, err)
	}
	return New(ctx, client, aws.ToString(made.QueueUrl), o)
}

// createDead makes the dead-letter queue of a queue, if it is not there.
func createDead(ctx context.Context, client *sqs.Client, name string) (deadURL, arn string, err error) {
	dead := deadName(name)
	made, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &dead, Attributes: kinded(dead, map[string]string{
		retentionAttr: inSeconds(maxRetention),
	})})
	if err != nil {
		return "", "", fmt.Errorf("the dead-letter queue %s: %w", dead, err)
	}
	deadURL = aws.ToString(made.QueueUrl)
	got, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &deadURL, AttributeNames: []types.QueueAttributeName{arnAttr}})
	if err != nil {
		return "", "", fmt.Errorf("the dead-letter queue %s: %w", dead, err)
	}
	return deadURL, got.Attributes[arnAttr], nil
}

func deadName(name string) string {
	base, fifo := strings.CutSuffix(name, ".fifo")
	if fifo {
		return base + "-dead.fifo"
	}
	return base + "-dead"
}

// kinded adds what makes a queue of that name a FIFO queue.
func kinded(name string, attrs map[string]string) map[string]string {
	if strings.HasSuffix(name, ".fifo") {
		attrs[fifoAttr] = "true"
	}
	return attrs
}

func inSeconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }

// pollSlack is what a long poll may take besides its wait.
const pollSlack = 10 * time.Second

// checkClient refuses a client whose HTTP client would end long polls: those that are cut
// hide the messages that they were about to bring.
func checkClient(client *sqs.Client, wait time.Duration) error {
	if client == nil {
		return errors.New("the client is nil")
	}
	for what, timeout := range httpTimeouts(client.Options().HTTPClient) {
		if timeout > 0 && timeout < wait+pollSlack {
			return fmt.Errorf("the HTTP client's %s is %v, but a long poll waits for %v: make it at least %v, or leave it out", what, timeout, wait, wait+pollSlack)
		}
	}
	return nil
}

func httpTimeouts(c sqs.HTTPClient) map[string]time.Duration {
	timeouts := make(map[string]time.Duration)
	if c, ok := c.(*http.Client); ok {
		timeouts["Timeout"] = c.Timeout
		if t, ok := c.Transport.(*http.Transport); ok {
			timeouts["Transport.ResponseHeaderTimeout"] = t.ResponseHeaderTimeout
		}
	}
	// The SDK's own, awshttp.BuildableClient.
	if c, ok := c.(interface{ GetTimeout() time.Duration }); ok {
		timeouts["timeout"] = c.GetTimeout()
	}
	if c, ok := c.(interface{ GetReadTimeout() (time.Duration, bool) }); ok {
		timeouts["read timeout"], _ = c.GetReadTimeout()
	}
	if c, ok := c.(interface{ GetTransport() *http.Transport }); ok {
		timeouts["transport's ResponseHeaderTimeout"] = c.GetTransport().ResponseHeaderTimeout
	}
	return timeouts
}

// URL returns the queue's URL.
func (q *Queue) URL() string { return q.url }

// DeadURL returns the URL of its dead-letter queue.
func (q *Queue) DeadURL() string { return q.dead }

// Caps implements queue.Queue.
func (q *Queue) Caps() queue.Caps { return q.caps }

// Check implements queue.Queue: it compares the queue's settings with the options again.
func (q *Queue) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return failure(q.url, opCheck, err)
	}
	o := q.opts
	o.Adjust = false
	s, err := settle(ctx, q.client, q.url, &o)
	switch {
	case err != nil:
		return failure(q.url, opCheck, err)
	case s.deadURL != q.dead:
		return refusal(q.url, opCheck, fmt.Errorf("the dead-letter queue is %s now, it was %s when the queue was opened; open it again", s.deadURL, q.dead))
	}
	return nil
}

// Close waits until the polls that callers have left (their contexts had ended) are over
// and what they brought is given back, or until ctx ends: then those polls are cut, and
// what they would have brought stays away until its lease ends. It is for the end of the
// process; the queue needs no closing otherwise.
func (q *Queue) Close(ctx context.Context) error {
	over := q.polls.over()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		q.end()
		<-over
		return failure(q.url, opClose, ctx.Err())
	}
}

// polls counts what is under way. A sync.WaitGroup would not do: there may be new ones
// while Close waits.
type polls struct {
	mu    sync.Mutex
	n     int
	waits []chan struct{} // closed when there are none
}

func (p *polls) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
}

func (p *polls) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n--; p.n > 0 {
		return
	}
	for _, c := range p.waits {
		close(c)
	}
	p.waits = nil
}

// over is closed when nothing is under way.
func (p *polls) over() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan struct{})
	if p.n == 0 {
		close(c)
	} else {
		p.waits = append(p.waits, c)
	}
	return c
}
