package pgqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill/queue"
)

// Receive implements queue.Queue. While it waits it looks again every [PollInterval],
// with jitter, and holds no connection in between.
func (q *Queue) Receive(ctx context.Context, r queue.Request) ([]queue.Delivery, error) {
	if err := q.Caps().CheckRequest(r); err != nil {
		return nil, q.fail("receive", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, q.fail("receive", err)
	}
	r.Max = min(r.Max, maxBatch)
	over := time.NewTimer(max(r.Wait, 0))
	defer over.Stop()
	if r.Wait > 0 {
		q.wakeups.listen()
	}
	for last := r.Wait <= 0; !stopped(r.Stop); {
		woken := q.wakeups.next()
		ds, err := q.claim(ctx, r, last)
		if err != nil || len(ds) > 0 || last {
			return ds, err
		}
		poll := time.NewTimer(q.pause())
		select {
		case <-poll.C:
		case <-woken:
		case <-over.C:
			last = true
		case <-r.Stop:
		case <-ctx.Done():
			err = q.fail("receive", ctx.Err())
		}
		poll.Stop()
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func stopped(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pause is random, so that those who began together do not look together for ever.
func (q *Queue) pause() time.Duration {
	half := q.opts.poll / 2
	return half + rand.N(half+1)
}

// claim is one look. The last one before Receive returns with nothing sees all, unless the
// caller does not want to be sure.
func (q *Queue) claim(ctx context.Context, r queue.Request, last bool) ([]queue.Delivery, error) {
	l := q.floor.next(q.opts.noFloor)
	ds, err := q.look(ctx, r, l)
	if err == nil && len(ds) == 0 && last && !r.AtHand && !l.sweep {
		ds, err = q.look(ctx, r, q.floor.next(true))
	}
	if err != nil {
		return nil, q.failed(ctx, "receive", err)
	}
	return ds, nil
}

func (q *Queue) look(ctx context.Context, r queue.Request, l look) (ds []queue.Delivery, err error) {
	defer func() {
		full := len(ds) == r.Max
		var lastLag time.Duration
		if full {
			lastLag = ds[len(ds)-1].Lag
		}
		q.floor.done(l, err != nil, full, lastLag)
	}()
	sent := time.Now() // the lease begins when the server hears of it, so this is early
	results, err := q.exec(ctx, q.claiming(r, l)...)
	if err != nil {
		return nil, err
	}
	if n := len(results[1]); n > r.Max {
		return nil, fmt.Errorf("%w: %d jobs were claimed, %d were wanted; they come back when their lease ends", errAnswer, n, r.Max)
	}
	ds = make([]queue.Delivery, len(results[1]))
	for i, row := range results[1] {
		if err := read(row, &ds[i]); err != nil {
			return nil, fmt.Errorf("%w: %w", errAnswer, err)
		}
		ds[i].Deadline = sent.Add(r.Lease)
	}
	slices.SortFunc(ds, func(a, b queue.Delivery) int { return cmp.Compare(b.Lag, a.Lag) })
	return ds, nil
}

// inOrder makes a claim walk the index on run_at and stop when it has enough. Statistics
// that say that next to nothing is due, of a table that was filled a moment ago, could
// make the planner collect all that is due and sort it, for each claim.
var inOrder = stmt{sql: "SET LOCAL enable_sort = off"}

func (q *Queue) claiming(r queue.Request, l look) []stmt {
	args := []string{text(micros(r.Lease))}
	floor := ""
	if !l.sweep {
		floor = q.sql.floor
		args = append(args, text(micros(l.back)))
	}
	return []stmt{inOrder, {sql: limited(strings.Replace(q.sql.claim, "{floor}", floor, 1), r.Max), args: args, formats: claimFormats}}
}

// claimFormats are those of claim.sql's columns.
var claimFormats = []int16{asBinary, asBinary, asBinary, asBinary, asBinary, asBinary, asText, asText, asText, asText, asText, asText}

// read reads a row of claim.sql.
func read(r row, d *queue.Delivery) error {
	var c claim
	var attempts, due, enqueued, now int64
	if err := r.binary(0, &c.id, &c.fence, &attempts, &due, &enqueued, &now); err != nil {
		return err
	}
	version, err := strconv.ParseUint(r.text(9), 10, 64)
	if err != nil {
		return fmt.Errorf("job %d has version %s", c.id, r[9])
	}
	token := c.token()
	*d = queue.Delivery{
		Job:       queue.Job{Kind: r.text(6), Key: r.text(7), Payload: json.RawMessage(r[8]), Version: version, DedupeKey: r.text(10)},
		ID:        string(token)[:strings.IndexByte(string(token), '.')],
		Token:     token,
		Attempt:   int(attempts),
		Lag:       age(now, due),
		Age:       age(now, enqueued),
		LastError: r.text(11),
	}
	return nil
}

// age is how long before now a moment was, both in microseconds; 0 if it is to come.
func age(now, moment int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Microsecond)
	return time.Duration(min(max(now-moment, 0), most)) * time.Microsecond
}
