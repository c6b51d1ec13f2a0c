package pgqueue

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

// A child is this test binary run as a worker, to be killed.
const (
	childURL    = "ONEFILL_TEST_PGQUEUE_CHILD"
	childSchema = "ONEFILL_TEST_PGQUEUE_SCHEMA"
	childPoint  = "ONEFILL_TEST_PGQUEUE_POINT"
	childLease  = time.Second
)

// startChild starts a worker process that stops for ever at a point, or at none.
func startChild(t testing.TB, q *Queue, point string) *childProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+shared.Get(t).URL(), childSchema+"="+q.opts.schema, childPoint+"="+point)
	cmd.Stderr = os.Stderr
	dieWithParent(cmd)
	out, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	c := &childProcess{cmd: cmd, out: bufio.NewReader(out)}
	t.Cleanup(c.kill)
	return c
}

type childProcess struct {
	cmd  *exec.Cmd
	out  *bufio.Reader
	dead bool
}

// line is the next line that the child says.
func (c *childProcess) line(t testing.TB) string {
	t.Helper()
	said := make(chan string, 1)
	go func() {
		line, _ := c.out.ReadString('\n')
		said <- line
	}()
	select {
	case line := <-said:
		return line
	case <-time.After(patience):
		t.Fatal("the child says nothing")
		return ""
	}
}

func (c *childProcess) kill() {
	if !c.dead {
		c.cmd.Process.Kill()
		c.cmd.Wait()
		c.dead = true
	}
}

// child is the main function of a child.
func child() {
	q, err := Open(os.Getenv(childURL)+"&application_name=child", Schema(os.Getenv(childSchema)), PollInterval(10*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	s := &stopping{q, os.Getenv(childPoint)}
	worker, err := queue.NewWorker(queue.WorkerOptions{
		Queue: s,
		Lease: childLease,
		Handlers: map[string]queue.Handler{
			"done":   {Job: s.work},
			"failed": {Job: func(context.Context, queue.Delivery) error { return errors.New("failed") }},
			"dead":   {Job: func(context.Context, queue.Delivery) error { return queue.PermanentError(errors.New("dead")) }},
			"long": {Job: func(context.Context, queue.Delivery) error {
				select {} // it is extended meanwhile
			}},
		},
		RetryMin: time.Millisecond, RetryMax: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err == nil {
		err = worker.Start(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	select {}
}

// stopping is a queue that stops the process at a point: it says so and hangs.
type stopping struct {
	*Queue
	point string
}

func (s *stopping) at(point string) {
	if s.point == point {
		fmt.Println("at", point)
		select {}
	}
}

// say tells of what comes next, without stopping.
func (s *stopping) say(point string) {
	if s.point == point {
		fmt.Println("at", point)
	}
}

// work notes that the job was handled, as its transaction.
func (s *stopping) work(ctx context.Context, d queue.Delivery) error {
	s.at("in the handler")
	_, err := s.pool.Exec(ctx, inSchema("INSERT INTO {schema}.work (job) VALUES ($1)", s.opts.schema), d.ID)
	s.at("after the work")
	return err
}

func (s *stopping) Receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	s.say("in the claim")
	ds, err := s.Queue.Receive(ctx, r)
	if len(ds) > 0 {
		s.at("after the claim")
	}
	return ds, err
}

func (s *stopping) Ack(ctx context.Context, ts ...queue.Token) error {
	s.at("before the ack")
	s.say("in the ack")
	err := s.Queue.Ack(ctx, ts...)
	s.at("after the ack")
	return err
}

func (s *stopping) Extend(ctx context.Context, lease time.Duration, ts ...queue.Token) error {
	err := s.Queue.Extend(ctx, lease, ts...)
	s.at("after an extension")
	return err
}

func (s *stopping) Nack(ctx context.Context, rs ...queue.Return) error {
	s.at("before the nack")
	err := s.Queue.Nack(ctx, rs...)
	s.at("after the nack")
	return err
}

func (s *stopping) Dead(ctx context.Context, ds ...queue.Death) error {
	s.at("before the death")
	err := s.Queue.Dead(ctx, ds...)
	s.at("after the death")
	return err
}
