package sqsqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsarn "github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Names of attributes, without a type: the SDK wants some as strings.
const (
	arnAttr        = "QueueArn"
	visibilityAttr = "VisibilityTimeout"
	waitAttr       = "ReceiveMessageWaitTimeSeconds"
	retentionAttr  = "MessageRetentionPeriod"
	redriveAttr    = "RedrivePolicy"
	sizeAttr       = "MaximumMessageSize"
	fifoAttr       = "FifoQueue"
	visibleAttr    = "ApproximateNumberOfMessages"
	notVisibleAttr = "ApproximateNumberOfMessagesNotVisible"
	delayedAttr    = "ApproximateNumberOfMessagesDelayed"
)

// leastBytes is the smallest MaximumMessageSize that leaves room for payloads.
const leastBytes = 32 << 10

// settings are those of a queue, as far as they matter here.
type settings struct {
	arn         string
	visibility  time.Duration
	wait        time.Duration
	retention   time.Duration
	maxBytes    int
	fifo        bool
	deadARN     string
	maxReceives int
	deadURL     string
}

// settle reads a queue's settings and compares them with what the options ask for; with
// Adjust it changes them first.
func settle(ctx context.Context, client *sqs.Client, queueURL string, o *Options) (settings, error) {
	s, err := readSettings(ctx, client, queueURL)
	if err != nil {
		return s, err
	}
	if o.Adjust {
		if err := s.adjust(ctx, client, queueURL, o); err != nil {
			return s, err
		}
	}
	wrong := s.differ(o)
	if s.deadARN != "" {
		dead, deadURL, err := readDead(ctx, client, s.deadARN)
		if err != nil {
			return s, err
		}
		if o.Adjust && dead.retention <= s.retention && s.retention < maxRetention {
			if err := set(ctx, client, deadURL, map[string]string{retentionAttr: inSeconds(maxRetention)}); err != nil {
				return s, err
			}
			dead.retention = maxRetention
		}
		s.deadURL = deadURL
		wrong = append(wrong, s.deadDiffers(&dead)...)
	}
	if len(wrong) > 0 {
		advice := "Change them, or the Options; Options.Adjust makes sqsqueue.New change them"
		if o.Adjust {
			advice = "Options.Adjust does not change these; change them, or the Options"
		}
		return s, fmt.Errorf("%w: %s. %s", ErrSettings, strings.Join(wrong, "; "), advice)
	}
	return s, nil
}

// differ says what does not fit, each with both values.
func (s *settings) differ(o *Options) (wrong []string) {
	switch {
	case s.visibility < o.HandlerTimeout:
		wrong = append(wrong, fmt.Sprintf("its VisibilityTimeout is %v, but a handler may take %v (Options.HandlerTimeout): the message would come back while it runs", s.visibility, o.HandlerTimeout))
	case s.visibility < o.Visibility:
		wrong = append(wrong, fmt.Sprintf("its VisibilityTimeout is %v, at least %v is asked for (Options.Visibility)", s.visibility, o.Visibility))
	}
	if s.wait < o.Wait {
		wrong = append(wrong, fmt.Sprintf("its ReceiveMessageWaitTimeSeconds is %v, at least %v is asked for (Options.Wait)", s.wait, o.Wait))
	}
	if s.maxBytes < leastBytes {
		wrong = append(wrong, fmt.Sprintf("its MaximumMessageSize is %d bytes, at least %d are needed", s.maxBytes, leastBytes))
	}
	switch {
	case s.deadARN == "":
		wrong = append(wrong, "it has no RedrivePolicy, so that what fails for ever would come back for ever, and dead jobs have no place")
	case s.maxReceives < o.MaxReceives:
		wrong = append(wrong, fmt.Sprintf("its maxReceiveCount is %d, at least %d is asked for (Options.MaxReceives)", s.maxReceives, o.MaxReceives))
	}
	return wrong
}

func (s *settings) deadDiffers(dead *settings) (wrong []string) {
	if dead.retention <= s.retention {
		wrong = append(wrong, fmt.Sprintf("its dead-letter queue keeps messages for %v, the queue for %v: the age counts from when the job was sent first, so letters would be dropped unseen; the dead-letter queue's MessageRetentionPeriod must be the longer one (14 d is the most)",
			dead.retention, s.retention))
	}
	if dead.maxBytes < s.maxBytes {
		wrong = append(wrong, fmt.Sprintf("its dead-letter queue takes messages of %d bytes, the queue of %d: some could not be buried (MaximumMessageSize)", dead.maxBytes, s.maxBytes))
	}
	return wrong
}

// adjust changes what differs, but nothing that is larger than asked for.
func (s *settings) adjust(ctx context.Context, client *sqs.Client, queueURL string, o *Options) error {
	attrs := make(map[string]string)
	if s.visibility < o.Visibility { // which covers HandlerTimeout
		s.visibility = o.Visibility
		attrs[visibilityAttr] = inSeconds(s.visibility)
	}
	if s.wait < o.Wait {
		s.wait = o.Wait
		attrs[waitAttr] = inSeconds(s.wait)
	}
	if s.deadARN == "" {
		_, arn, err := createDead(ctx, client, queueURL[strings.LastIndexByte(queueURL, '/')+1:])
		if err != nil {
			return err
		}
		s.deadARN, s.maxReceives = arn, 0
	}
	if s.maxReceives < o.MaxReceives {
		s.maxReceives = o.MaxReceives
		attrs[redriveAttr] = redrivePolicy(s.deadARN, s.maxReceives)
	}
	return set(ctx, client, queueURL, attrs)
}

func set(ctx context.Context, client *sqs.Client, queueURL string, attrs map[string]string) error {
	if len(attrs) == 0 {
		return nil
	}
	_, err := client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{QueueUrl: &queueURL, Attributes: attrs})
	return err
}

func readSettings(ctx context.Context, client *sqs.Client, queueURL string) (s settings, err error) {
	out, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &queueURL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		return s, err
	}
	a := out.Attributes
	s = settings{
		arn: a[arnAttr], fifo: a[fifoAttr] == "true", maxBytes: int(number(a[sizeAttr])),
		visibility: time.Duration(number(a[visibilityAttr])) * time.Second,
		wait:       time.Duration(number(a[waitAttr])) * time.Second,
		retention:  time.Duration(number(a[retentionAttr])) * time.Second,
	}
	s.deadARN, s.maxReceives, err = parseRedrive(a[redriveAttr])
	return s, err
}

// readDead finds the dead-letter queue that a redrive policy names.
func readDead(ctx context.Context, client *sqs.Client, arn string) (s settings, deadURL string, err error) {
	parsed, err := awsarn.Parse(arn)
	if err != nil {
		return s, "", fmt.Errorf("the RedrivePolicy names %q: %w", arn, err)
	}
	input := &sqs.GetQueueUrlInput{QueueName: &parsed.Resource}
	if parsed.AccountID != "" {
		input.QueueOwnerAWSAccountId = &parsed.AccountID
	}
	got, err := client.GetQueueUrl(ctx, input)
	if err != nil {
		return s, "", fmt.Errorf("the dead-letter queue %s: %w", arn, err)
	}
	deadURL = aws.ToString(got.QueueUrl)
	s, err = readSettings(ctx, client, deadURL)
	if err != nil {
		err = fmt.Errorf("the dead-letter queue %s: %w", arn, err)
	}
	return s, deadURL, err
}

func redrivePolicy(arn string, receives int) string {
	return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, arn, receives)
}

// parseRedrive reads a redrive policy. SQS gives the count as a number or as a string, as
// it was set.
func parseRedrive(policy string) (arn string, receives int, err error) {
	if policy == "" {
		return "", 0, nil
	}
	var p struct {
		Target   string `json:"deadLetterTargetArn"`
		Receives any    `json:"maxReceiveCount"`
	}
	if err := json.Unmarshal([]byte(policy), &p); err != nil {
		return "", 0, fmt.Errorf("the queue's RedrivePolicy %q: %w", policy, err)
	}
	return p.Target, int(number(fmt.Sprint(p.Receives))), nil
}

// number is an attribute's value; what is not there or no number is 0.
func number(text string) int64 {
	n, _ := strconv.ParseFloat(text, 64)
	return int64(n)
}
