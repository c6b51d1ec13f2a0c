package sqsqueue

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/sqsqueue/internal/sqsfake"
)

// mentions checks that an error is a *queue.Error that holds all of the texts.
func mentions(t testing.TB, err error, texts ...string) {
	t.Helper()
	var e *queue.Error
	if !errors.As(err, &e) {
		t.Errorf("error %v is no *queue.Error", err)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not mention %q", err, text)
		}
	}
}

// Settings that lose or repeat work are refused, with both numbers and what to do.
func TestSettingsAreChecked(t *testing.T) {
	for _, tt := range []struct {
		name  string
		attrs map[string]string // of the queue
		dead  map[string]string
		o     Options
		want  []string
	}{
		{"visibility", map[string]string{visibilityAttr: "30"}, nil, Options{}, []string{"VisibilityTimeout", "30s", "2m0s"}},
		{"visibility below the handler's timeout", map[string]string{visibilityAttr: "120"}, nil, Options{HandlerTimeout: 5 * time.Minute}, []string{"VisibilityTimeout", "2m0s", "5m0s", "HandlerTimeout"}},
		{"wait", map[string]string{waitAttr: "0"}, nil, Options{}, []string{"ReceiveMessageWaitTimeSeconds", "0s", "20s"}},
		{"no redrive policy", map[string]string{redriveAttr: ""}, nil, Options{}, []string{"RedrivePolicy"}},
		{"receives", nil, nil, Options{MaxReceives: 6}, []string{"maxReceiveCount", "5", "6"}},
		{"size", map[string]string{sizeAttr: "1024"}, nil, Options{}, []string{"MaximumMessageSize", "1024"}},
		{"retention", nil, map[string]string{retentionAttr: "345600"}, Options{}, []string{"96h0m0s", "14 d"}},
		{"size of dead letters", nil, map[string]string{sizeAttr: "262144"}, Options{}, []string{"262144", "1048576"}},
		{"two at once", map[string]string{visibilityAttr: "30", waitAttr: "0"}, nil, Options{}, []string{"VisibilityTimeout", "ReceiveMessageWaitTimeSeconds", "Options.Adjust"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, "q", Options{}, func(w *world) {
				must(w, set(w.Context(), w.client, w.q.url, tt.attrs))
				must(w, set(w.Context(), w.client, w.q.dead, tt.dead))
				_, err := New(w.Context(), w.client, w.q.url, tt.o)
				mentions(w, err, tt.want...)
				if isUnavailable(err) || !errors.Is(err, ErrSettings) {
					w.Errorf("%v, want ErrSettings, and not ErrUnavailable", err)
				}
			})
		})
	}
}

// The worker's Start asks again: somebody has changed the queue since New.
func TestCheckSeesChanges(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		must(w, w.q.Check(w.Context()))
		must(w, set(w.Context(), w.client, w.q.url, map[string]string{visibilityAttr: "5"}))
		mentions(w, w.q.Check(w.Context()), "VisibilityTimeout", "5s", "2m0s")
		worker, err := queue.NewWorker(queue.WorkerOptions{Queue: w.q, Handlers: map[string]queue.Handler{"k": {Job: func(context.Context, queue.Delivery) error { return nil }}}})
		must(w, err)
		mentions(w, worker.Start(w.Context()), "VisibilityTimeout")
	})
}

func TestAdjust(t *testing.T) {
	for _, name := range []string{"old", "old.fifo"} {
		bubble.Test(t, func(t *testing.T) {
			fake := &sqsfake.Server{}
			client := clientOf("http://sqs.test", fake)
			made, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: kinded(name, map[string]string{})})
			must(t, err)
			_, err = New(t.Context(), client, *made.QueueUrl)
			mentions(t, err, "30s", "RedrivePolicy")
			o := Options{Adjust: true, HandlerTimeout: 150 * time.Second}
			q, err := New(t.Context(), client, *made.QueueUrl, o)
			must(t, err)
			s, err := readSettings(t.Context(), client, q.URL())
			must(t, err)
			if s.visibility != 150*time.Second || s.wait != 20*time.Second || s.maxReceives != 5 {
				t.Errorf("adjusted to %+v", s)
			}
			// Nothing is made smaller, and what fits is left alone.
			must(t, set(t.Context(), client, q.URL(), map[string]string{visibilityAttr: "600"}))
			must(t, set(t.Context(), client, q.DeadURL(), map[string]string{retentionAttr: "60"}))
			_, err = New(t.Context(), client, q.URL(), o)
			must(t, err)
			before := fake.Counts()["SetQueueAttributes"]
			_, err = New(t.Context(), client, q.URL(), o)
			must(t, err)
			if s, err = readSettings(t.Context(), client, q.URL()); err != nil || s.visibility != 10*time.Minute {
				t.Errorf("visibility %v, %v", s.visibility, err)
			}
			if after := fake.Counts()["SetQueueAttributes"]; after != before {
				t.Errorf("%d changes of what fits", after-before)
			}
		})
	}
}

func TestCreateAndNew(t *testing.T) {
	inBubble(t, "q", Options{}, func(w *world) {
		same, err := Create(w.Context(), w.client, "q")
		must(w, err)
		if same.URL() != w.q.URL() || same.DeadURL() != w.q.DeadURL() {
			w.Errorf("created %s again", same.URL())
		}
		_, err = Create(w.Context(), w.client, "q", Options{MaxReceives: 7})
		mentions(w, err, "other settings", "sqsqueue.New", "QueueNameExists")
		_, err = New(w.Context(), w.client, w.q.URL()+"x")
		mentions(w, err, "no such queue", "sqsqueue.Create", w.q.URL()+"x")
		if isUnavailable(err) {
			w.Error("a queue that does not exist is unavailable")
		}
		for _, bad := range []string{"", "q", "http://sqs.test", "arn:aws:sqs:us-east-1:000000000000:q", "ftp://sqs.test/0/q"} {
			_, err = New(w.Context(), w.client, bad)
			mentions(w, err, "no queue URL")
		}
		_, err = w.client.DeleteQueue(w.Context(), &sqs.DeleteQueueInput{QueueUrl: &w.q.dead})
		must(w, err)
		_, err = New(w.Context(), w.client, w.q.URL())
		mentions(w, err, "dead-letter queue", "q-dead", "no such queue")
		_, err = New(w.Context(), nil, w.q.URL())
		mentions(w, err, "nil")
		_, err = w.client.DeleteQueue(w.Context(), &sqs.DeleteQueueInput{QueueUrl: &w.q.url})
		must(w, err)
		// Deleted under a running worker: every call says so.
		_, err = w.q.Receive(w.Context(), queue.Request{Max: 1, Lease: time.Second})
		mentions(w, err, "no such queue")
		_, err = w.q.Enqueue(w.Context(), job("k"))
		mentions(w, queue.ErrorOf(err, 0), "no such queue")
	})
}

func TestOptionsAreValidated(t *testing.T) {
	client := clientOf("http://sqs.test", &sqsfake.Server{})
	for _, tt := range []struct {
		o    Options
		want []string
	}{
		{Options{Visibility: time.Millisecond}, []string{"Visibility", "1ms"}},
		{Options{Visibility: 13 * time.Hour}, []string{"Visibility", "12h"}},
		{Options{Wait: 21 * time.Second}, []string{"Wait", "21s", "20s"}},
		{Options{Wait: 1500 * time.Millisecond}, []string{"Wait", "whole seconds"}},
		{Options{Retention: 14 * 24 * time.Hour}, []string{"Retention"}},
		{Options{MaxReceives: -1}, []string{"MaxReceives", "-1"}},
		{Options{HandlerTimeout: -1}, []string{"HandlerTimeout"}},
		{Options{HandlerTimeout: 5 * time.Minute, Visibility: time.Minute}, []string{"1m0s", "5m0s"}},
	} {
		_, err := Create(t.Context(), client, "q", tt.o)
		mentions(t, err, tt.want...)
		_, err = New(t.Context(), client, "http://sqs.test/0/q", tt.o)
		mentions(t, err, tt.want...)
	}
	_, err := New(t.Context(), client, "http://sqs.test/0/q", Options{}, Options{})
	mentions(t, err, "more than one")
}

// An HTTP client that gives up before a long poll does would hide, with each poll, what
// it was about to bring: it is refused before anything is asked.
func TestClientTimeouts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		client sqs.HTTPClient
		wait   time.Duration
		bad    bool
	}{
		{"none", &http.Client{}, 0, false},
		{"timeout of 29s", &http.Client{Timeout: 29 * time.Second}, 0, true},
		{"timeout of 30s", &http.Client{Timeout: 30 * time.Second}, 0, false},
		{"timeout of 29s, wait of 19s", &http.Client{Timeout: 29 * time.Second}, 19 * time.Second, false},
		{"header timeout of 5s", &http.Client{Transport: &http.Transport{ResponseHeaderTimeout: 5 * time.Second}}, 0, true},
		{"SDK's", awshttp.NewBuildableClient(), 0, false},
		{"SDK's, 20s", awshttp.NewBuildableClient().WithTimeout(20 * time.Second), 0, true},
		{"SDK's, reading 20s", awshttp.NewBuildableClient().WithReadTimeout(20 * time.Second), 0, true},
		{"SDK's, header 20s", awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.ResponseHeaderTimeout = 20 * time.Second }), 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := one([]Options{{Wait: tt.wait}})
			must(t, err)
			err = checkClient(clientOf("http://sqs.test", tt.client), o.Wait)
			if (err != nil) != tt.bad {
				t.Errorf("checkClient: %v, want an error: %t", err, tt.bad)
			}
			if err != nil && (!strings.Contains(err.Error(), "20s") || !strings.Contains(err.Error(), "30s")) {
				t.Errorf("%v does not name both times", err)
			}
		})
	}
}
