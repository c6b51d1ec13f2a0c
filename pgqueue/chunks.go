package pgqueue

import (
	"context"

	"github.com/onefill/onefill/queue"
)

// split runs act for one part of n entries after the other, and collects the results.
// act puts the results of single entries into errs and returns what has failed for its
// whole part; after that the rest is not tried.
func (q *Queue) split(ctx context.Context, op string, n int, act func(from, to int, errs queue.Errors) error) error {
	if err := ctx.Err(); err != nil {
		return q.fail(op, err)
	}
	errs := make(queue.Errors, n)
	for from := 0; from < n; from += maxBatch {
		err := act(from, min(from+maxBatch, n), errs)
		if err == nil {
			continue
		}
		whole := q.failed(ctx, op, err)
		if from == 0 && errs.Err() == nil {
			return whole
		}
		for i := from; i < n; i++ {
			if errs[i] == nil {
				errs[i] = whole
			}
		}
		break
	}
	return errs.Err()
}
