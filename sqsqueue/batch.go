package sqsqueue

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/onefill/onefill/queue"
)

const (
	maxEntries = 10
	// An entry that has failed in a batch that was answered, and that is not the sender's
	// fault, is sent again: the SDK repeats whole requests only.
	entryTries    = 4
	entryPauseMin = 100 * time.Millisecond
	// parallelBatches is how many batches of one call are under way at once.
	parallelBatches = 4
)

// answer is what SQS says of a batch: the IDs of the entries that were done, and those
// that were not.
type answer struct {
	done   []string
	failed []types.BatchResultErrorEntry
}

// batch is one call of many entries.
type batch struct {
	q    *Queue
	op   string
	addr string
	// claimed: the entries name claims, so that some failures mean that the lease is lost.
	claimed bool
	// call sends some of the entries, under their numbers as IDs.
	call func(ctx context.Context, part []int) (answer, error)
	errs []error // by entry
}

// run sends the entries in batches of ten, several at once, and returns the result of
// each entry. Entries that have an error already are left out.
func (b *batch) run(ctx context.Context, size func(i int) int, limit int) []error {
	var wg sync.WaitGroup
	places := make(chan struct{}, parallelBatches)
	for _, part := range b.parts(size, limit) {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			b.send(ctx, part)
		})
	}
	wg.Wait()
	return b.errs
}

// parts cuts the entries into batches of at most ten and at most limit bytes.
func (b *batch) parts(size func(i int) int, limit int) (parts [][]int) {
	var part []int
	bytes := 0
	for i := range b.errs {
		if b.errs[i] != nil {
			continue
		}
		n := 0
		if size != nil {
			n = size(i)
		}
		if len(part) == maxEntries || len(part) > 0 && bytes+n > limit {
			parts, part, bytes = append(parts, part), nil, 0
		}
		part, bytes = append(part, i), bytes+n
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	return parts
}

// send sends one batch, and again those of its entries that failed by no fault of ours.
func (b *batch) send(ctx context.Context, part []int) {
	for try := 1; ; try++ {
		a, err := b.call(ctx, part)
		if err != nil {
			for _, i := range part {
				b.errs[i] = failure(b.addr, b.op, err)
			}
			return
		}
		again := b.judge(part, a)
		if len(again) == 0 || try == entryTries || !pause(ctx, entryPauseMin<<try) {
			b.q.metrics.entryFailures.Add(int64(len(again)))
			return
		}
		b.q.metrics.entryRetries.Add(int64(len(again)))
		part = again
	}
}

// judge notes the result of each entry and returns those to be sent again.
func (b *batch) judge(part []int, a answer) (again []int) {
	byID := make(map[string]error, len(part))
	for _, id := range a.done {
		byID[id] = nil
	}
	for _, f := range a.failed {
		byID[aws.ToString(f.Id)] = entryFailure(b.addr, b.op, f, b.claimed)
	}
	for _, i := range part {
		err, told := byID[strconv.Itoa(i)]
		if !told {
			err = &queue.Error{Service: "sqs", Addr: b.addr, Op: b.op, Err: errNoResult, Unavailable: true}
		}
		b.errs[i] = err
		if e, ok := err.(*queue.Error); ok && e.Unavailable {
			again = append(again, i)
		}
	}
	return again
}

// pause is random between half of d and d; false if the context ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + rand.N(d/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// result is what a call with several entries returns.
func result(errs []error) error { return queue.Errors(errs).Err() }
