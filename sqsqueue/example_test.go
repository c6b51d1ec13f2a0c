package sqsqueue_test

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/sqsqueue"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// A queue is made, a worker does its jobs. The client is one of a fake here; in a program
// it is sqs.NewFromConfig(cfg).
func Example() {
	ctx := context.Background()
	client := sqs.New(sqs.Options{
		Region: "eu-west-1", BaseEndpoint: aws.String("http://sqs.test"), HTTPClient: &sqsfake.Server{},
		Credentials: aws.AnonymousCredentials{},
	})
	q, err := sqsqueue.Create(ctx, client, "mails")
	if err != nil {
		fmt.Println(err)
		return
	}
	done := make(chan struct{})
	worker, err := queue.NewWorker(queue.WorkerOptions{
		Queue: q,
		Handlers: map[string]queue.Handler{"mail": {Job: func(_ context.Context, d queue.Delivery) error {
			fmt.Printf("%s to %s, attempt %d\n", d.Kind, d.Payload, d.Attempt)
			close(done)
			return nil
		}}},
		MaxAttempts: 4,           // below the queue's maxReceiveCount, so that dead letters have their error
		Wait:        time.Second, // 1 s instead of 20 s, for a quick Stop
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := worker.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := q.Enqueue(ctx, queue.Job{Kind: "mail", Payload: []byte(`"a@example.org"`)}); err != nil {
		fmt.Println(err)
	}
	<-done
	if err := worker.Stop(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: mail to "a@example.org", attempt 1
}
