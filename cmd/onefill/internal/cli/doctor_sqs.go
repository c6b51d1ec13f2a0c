package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/onefill/onefill/sqsqueue"
)

// sqsRoundTrips bounds what is measured: each request is paid for.
const sqsRoundTrips = 10

// checkSQS finds out whether a queue's URL is one.
func checkSQS(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") == "" {
		return badInput("--sqs: not the URL of a queue; it looks like https://sqs.eu-west-1.amazonaws.com/123456789012/jobs")
	}
	return nil
}

// sqsClient takes region and credentials from where every AWS program does. A queue that is
// not at Amazon is asked at its URL's own host, or where AWS_ENDPOINT_URL_SQS says.
func sqsClient(ctx context.Context, queueURL string) (*sqs.Client, error) {
	u, err := url.Parse(queueURL)
	if err != nil {
		return nil, err
	}
	var opts []func(*config.LoadOptions) error
	parts := strings.Split(u.Hostname(), ".") // sqs.REGION.amazonaws.com
	amazon := len(parts) >= 4 && parts[0] == "sqs" && parts[2] == "amazonaws"
	if amazon {
		opts = append(opts, config.WithRegion(parts[1]))
	} else {
		opts = append(opts, config.WithDefaultRegion("us-east-1"))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		if !amazon && o.BaseEndpoint == nil { // AWS_ENDPOINT_URL_SQS goes first
			o.BaseEndpoint = aws.String(u.Scheme + "://" + u.Host)
		}
	}), nil
}

func examineSQS(ctx context.Context, d *doctorFlags) {
	at := "sqs at " + d.sqs
	var client *sqs.Client
	q, err := bounded(ctx, d.timeout, func(ctx context.Context) (*sqsqueue.Queue, error) {
		var err error
		if client, err = sqsClient(ctx, d.sqs); err != nil {
			return nil, err
		}
		return sqsqueue.New(ctx, client, d.sqs, sqsqueue.Options{HandlerTimeout: d.handlerTimeout, Logger: slog.New(slog.DiscardHandler)})
	})
	switch {
	case errors.Is(err, sqsqueue.ErrSettings):
		d.note(at, "settings", failed("A worker refuses to work on such a queue: jobs would come twice, come back for ever, or be lost. docs/sqs.md says which settings a queue needs, and why.", "%v", err))
		return
	case err != nil:
		d.note(at, "connect", failed("Nothing can be enqueued, and no job is done. Region and credentials are those of the environment, of AWS's configuration files, or of the machine's role.", "%v", err))
		return
	}
	d.note(at, "settings", fine("visibility timeout, long polls, redrive policy and the dead letters' retention fit; handlers may take %v", handlerTime(d.handlerTimeout)))
	stats, err := bounded(ctx, d.timeout, q.Stats)
	switch {
	case err != nil:
		d.note(at, "dead-letters", unknown("%v", err))
	case stats.Dead > 0:
		d.note(at, "dead-letters", warn("Nobody tries them any more. Mend the cause, and replay them.", "about %s, and %d jobs", plural(int(stats.Dead), "letter"), stats.Ready+stats.NotReady))
	default:
		d.note(at, "dead-letters", fine("none, and about %d jobs", stats.Ready+stats.NotReady))
	}
	few := *d
	few.trips = min(d.trips, sqsRoundTrips)
	took, err := few.measure(ctx, func(ctx context.Context) error {
		_, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &d.sqs})
		return err
	})
	if err != nil {
		d.note(at, "round-trips", failed("The service does not answer.", "%v", err))
		return
	}
	d.note(at, "round-trips", d.roundTripResult(took, time.Second, "a second"))
}

func handlerTime(d time.Duration) string {
	if d == 0 {
		return "as long as they extend their leases"
	}
	return fmt.Sprint(d)
}
