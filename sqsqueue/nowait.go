package sqsqueue

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// noWait makes a ReceiveMessage that shall not wait say so. The SDK leaves out a
// WaitTimeSeconds of 0, and then the queue's own setting holds: 20 s.
func noWait(wait time.Duration) func(*sqs.Options) {
	return func(o *sqs.Options) {
		if wait <= 0 {
			o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
				return stack.Serialize.Add(middleware.SerializeMiddlewareFunc("onefill.NoWait", sayZero), middleware.After)
			})
		}
	}
}

func sayZero(ctx context.Context, in middleware.SerializeInput, next middleware.SerializeHandler) (out middleware.SerializeOutput, meta middleware.Metadata, err error) {
	req, ok := in.Request.(*smithyhttp.Request)
	if !ok || !strings.Contains(req.Header.Get("Content-Type"), "json") {
		return next.HandleSerialize(ctx, in) // another protocol: it waits for longer
	}
	body, err := io.ReadAll(req.GetStream())
	if err != nil {
		return out, meta, fmt.Errorf("reading the request: %w", err)
	}
	if rest, ok := bytes.CutPrefix(body, []byte("{")); ok { // never empty: it names the queue
		body = append([]byte(`{"WaitTimeSeconds":0,`), rest...)
	}
	if in.Request, err = req.SetStream(bytes.NewReader(body)); err != nil {
		return out, meta, err
	}
	return next.HandleSerialize(ctx, in)
}
