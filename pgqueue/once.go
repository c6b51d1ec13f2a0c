package pgqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/onefill/onefill/queue"
)

// Once says whether dedupeKey is new, and remembers it, in the handler's own
// transaction: the work and the memory of it are committed together, or neither. So a
// handler that is called again for what it has done does nothing:
//
//	tx, err := pool.Begin(ctx)
//	...
//	first, err := q.Once(ctx, tx, d.DedupeKey)
//	if err != nil || !first {
//		return err
//	}
//	// the work, in tx
//	return tx.Commit(ctx)
//
// Two transactions with the same key: the second one waits for the first one's end. The
// keys are kept until [Queue.Forget] removes them.
func (q *Queue) Once(ctx context.Context, tx Tx, dedupeKey string) (first bool, err error) {
	job := queue.Job{Kind: "once", DedupeKey: dedupeKey}
	if dedupeKey == "" {
		return false, q.fail("once", fmt.Errorf("%w: the dedupe key is empty", queue.ErrInvalid))
	}
	if err := q.Caps().Check(job); err != nil {
		return false, q.fail("once", err)
	}
	ask, err := asker(tx)
	if err != nil {
		return false, q.fail("once", err)
	}
	rows, err := ask(ctx, stmt{sql: q.sql.once, args: []string{dedupeKey}})
	if err != nil {
		return false, q.failed(ctx, "once", ofTx(err))
	}
	return len(rows) > 0, nil
}

// forgetBatch is how many rows one statement of Forget removes.
const forgetBatch = 10_000

// Forget removes the keys that [Queue.Once] has kept for longer than age, and the dead
// letters that were replayed longer ago than that, and returns how many there were. A job
// that is delivered again after its key was forgotten is done again: let age be longer
// than any job is retried, and than any dead letter waits for its replay; 30 days are
// plenty. Call it once a day, from anywhere.
func (q *Queue) Forget(ctx context.Context, age time.Duration) (removed int64, err error) {
	for _, sql := range []string{q.sql.forgetOnce, q.sql.forgetLetters} {
		for {
			results, err := q.exec(ctx, stmt{sql: limited(sql, forgetBatch), args: []string{text(micros(age))}})
			if err != nil {
				return removed, q.failed(ctx, "forget", err)
			}
			n := len(results[0])
			if removed += int64(n); n < forgetBatch {
				break
			}
		}
	}
	return removed, nil
}
