package sqsqueue

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/onefill/onefill/queue"
)

// The operations, by the names that errors carry.
const (
	opNew        = "new"
	opCreate     = "create"
	opCheck      = "check"
	opEnqueue    = "enqueue"
	opReceive    = "receive"
	opAck        = "ack"
	opExtend     = "extend"
	opNack       = "nack"
	opDead       = "dead"
	opListDead   = "list dead"
	opReplayDead = "replay dead"
	opDropDead   = "drop dead"
	opStats      = "stats"
	opClose      = "close"
)

// failure is what an operation returns for an error of the SDK, or for one of ours.
func failure(addr, op string, err error) *queue.Error {
	if e := (*queue.Error)(nil); errors.As(err, &e) {
		return e
	}
	e := &queue.Error{Service: "sqs", Addr: addr, Op: op, Err: err}
	var call *smithy.OperationError // what the SDK wraps all of its errors in
	var api smithy.APIError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.Unavailable = true
		return e
	case errors.Is(err, context.Canceled), !errors.As(err, &call):
		return e
	case !errors.As(err, &api):
		e.Unavailable = true // no answer, or none that could be read
		return e
	}
	e.Unavailable = mayPass(err, api)
	if hint := hintFor(err, api); hint != "" {
		e.Err = fmt.Errorf("%s: %w", hint, err)
	}
	return e
}

// refusal is an error of our own making: asking again is no use.
func refusal(addr, op string, err error) *queue.Error {
	return &queue.Error{Service: "sqs", Addr: addr, Op: op, Err: err}
}

// ErrSettings is wrapped by the error of New and Check that refuses a queue for its
// settings.
var ErrSettings = errors.New("the queue's settings do not fit")

// errNoResult is the result of an entry that the answer to its batch does not name.
var errNoResult = errors.New("the answer says nothing about this entry")

// mayPass says whether an answer that is an error may be another one later.
func mayPass(err error, api smithy.APIError) bool {
	if api.ErrorFault() == smithy.FaultServer || throttled(api.ErrorCode()) {
		return true
	}
	var res *smithyhttp.ResponseError
	return errors.As(err, &res) && (res.HTTPStatusCode() >= 500 || res.HTTPStatusCode() == http.StatusTooManyRequests)
}

func throttled(code string) bool {
	switch trimCode(code) {
	case "RequestThrottled", "ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded", "KmsThrottled", "OverLimit":
		return true
	}
	return false
}

// hintFor says what to do, where SQS's own words do not.
func hintFor(err error, api smithy.APIError) string {
	var missing *types.QueueDoesNotExist
	switch code := trimCode(api.ErrorCode()); {
	case errors.As(err, &missing), code == "NonExistentQueue":
		return "there is no such queue for this account and region; make it with sqsqueue.Create, or check the URL and the client's region"
	case strings.HasPrefix(code, "AccessDenied"):
		return "the rights are missing; sqs:GetQueueAttributes, GetQueueUrl, SendMessage, ReceiveMessage, DeleteMessage and ChangeMessageVisibility are needed on the queue and on its dead-letter queue"
	case code == "OverLimit":
		return fmt.Sprintf("too many messages are in flight (about %d is the most): somebody receives without deleting", maxInFlight)
	case code == "QueueDeletedRecently":
		return "a queue of this name was deleted within the last 60 s"
	case code == "QueueNameExists":
		return "a queue of this name exists with other settings; open it with sqsqueue.New, with Options.Adjust to change them"
	}
	return ""
}

// trimCode takes away what the older protocol puts in front of its codes.
func trimCode(code string) string { return strings.TrimPrefix(code, "AWS.SimpleQueueService.") }

// entryFailure is one entry's part of a batch that was answered; claimed: the entry names
// a claim.
func entryFailure(addr, op string, f types.BatchResultErrorEntry, claimed bool) error {
	code, message := trimCode(aws.ToString(f.Code)), aws.ToString(f.Message)
	if claimed && leaseLost(code, message) {
		return queue.ErrLeaseLost
	}
	return &queue.Error{Service: "sqs", Addr: addr, Op: op, Err: fmt.Errorf("%s: %s", code, message), Unavailable: !f.SenderFault || throttled(code)}
}

// leaseLost says whether SQS means that the receipt handle, which was a good one, is not
// good any more: the message is gone, visible again, or somebody else's.
func leaseLost(code, message string) bool {
	switch code {
	case "ReceiptHandleIsInvalid", "MessageNotInflight":
		return true
	case "InvalidParameterValue":
		return strings.Contains(strings.ToLower(strings.ReplaceAll(message, " ", "")), "receipthandle")
	}
	return false
}
