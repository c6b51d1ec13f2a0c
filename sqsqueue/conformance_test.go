package sqsqueue

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/queuetest"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// queueNumber makes the names of the queues of one process differ.
var queueNumber atomic.Int64

// harness makes queues on a server that speaks SQS at endpoint, of the kind that suffix
// says. Jobs of the suite come back more often than five times, by chance.
func harness(endpoint, suffix string) queuetest.Harness {
	return queuetest.Harness{
		Lease: time.Second,
		New: func(t testing.TB) (a, b queue.Queue) {
			name := fmt.Sprintf("suite-%d%s", queueNumber.Add(1), suffix)
			o := Options{MaxReceives: 1000, Logger: quiet()}
			made := func(create func(ctx context.Context, client *sqs.Client) (*Queue, error)) queue.Queue {
				q, err := create(t.Context(), clientOf(endpoint, awshttp.NewBuildableClient()))
				must(t, err)
				t.Cleanup(func() { // the suite has left polls of 20 s: they are cut
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					defer cancel()
					q.Close(ctx)
				})
				if suffix != "" {
					return uncounted{q}
				}
				return q
			}
			a = made(func(ctx context.Context, client *sqs.Client) (*Queue, error) { return Create(ctx, client, name, o) })
			b = made(func(ctx context.Context, client *sqs.Client) (*Queue, error) { return New(ctx, client, urlOf(a), o) })
			return a, b
		},
	}
}

func urlOf(q queue.Queue) string { return q.(interface{ URL() string }).URL() }

// uncounted is a FIFO queue that tells no numbers: SQS counts a job as visible whose
// delay the receiver has to see to, until somebody has looked at it once, and the suite
// wants exact numbers. TestStatsOfFIFO has what they are.
type uncounted struct{ *Queue }

func (q uncounted) Stats(ctx context.Context) (queue.Stats, error) {
	s, err := q.Queue.Stats(ctx)
	s.Ready, s.NotReady = min(s.Ready, -1), min(s.NotReady, -1)
	return s, err
}

// TestConformance runs the suite on the fake, over real connections.
func TestConformance(t *testing.T) {
	for _, kind := range []struct{ name, suffix string }{{"standard", ""}, {"FIFO", ".fifo"}} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			s := startFake(t)
			h := harness("http://"+s.addr, kind.suffix)
			h.Restart, h.Break, h.Block = s.restart, s.restart, s.block
			queuetest.Run(t, h)
		})
	}
}

// served is the fake behind a real listener.
type served struct {
	fake *sqsfake.Server
	addr string
	http *http.Server
}

func startFake(t *testing.T) *served {
	t.Helper()
	s := &served{fake: &sqsfake.Server{}, addr: "127.0.0.1:0"}
	s.start(t)
	t.Cleanup(func() {
		s.fake.Close() // ends polls that nobody waits for any more
		s.http.Close()
	})
	return s
}

// start serves the fake, at the address of before if there was one.
func (s *served) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", s.addr)
	must(t, err)
	s.addr = l.Addr().String()
	s.http = &http.Server{Handler: s.fake, ErrorLog: log.New(io.Discard, "", 0)}
	go s.http.Serve(l)
}

// restart cuts all connections; the server is away for a moment and keeps its data. The
// suite runs nothing else meanwhile.
func (s *served) restart(t testing.TB) {
	must(t, s.http.Close())
	s.start(t)
}

// block makes the server answer nobody.
func (s *served) block(testing.TB) (unblock func()) {
	blocked := make(chan struct{})
	s.fake.SetFault(func(sqsfake.Call) sqsfake.Fault { return sqsfake.Fault{Hold: blocked} })
	return func() {
		s.fake.SetFault(nil)
		close(blocked)
	}
}

// TestUnreachable: a server that is not there is unavailable, and the error says which.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	client := clientOf("http://"+l.Addr().String(), &http.Client{}, func(o *sqs.Options) { o.RetryMaxAttempts = 1 })
	_, err = New(t.Context(), client, "http://sqs.test/000000000000/name")
	if !isUnavailable(err) {
		t.Errorf("New: %v, want ErrUnavailable", err)
	}
}
