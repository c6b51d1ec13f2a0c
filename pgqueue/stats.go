package pgqueue

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/onefill/onefill/queue"
)

// countLimit is how far Stats counts.
const countLimit = 100_000

// Stats implements queue.Queue. Ready, NotReady and Dead are exact up to 100,000 each;
// beyond it they are PostgreSQL's estimates, which are as fresh as the table's last
// ANALYZE, and never below 100,000. Lag is exact.
func (q *Queue) Stats(ctx context.Context) (queue.Stats, error) {
	s, err := q.stats(ctx)
	if err != nil {
		return queue.Stats{}, q.failed(ctx, "stats", err)
	}
	return s, nil
}

func (q *Queue) stats(ctx context.Context) (s queue.Stats, err error) {
	results, err := q.exec(ctx, stmt{sql: limited(q.sql.stats, countLimit)})
	if err != nil {
		return s, err
	}
	if len(results[0]) != 1 {
		return s, fmt.Errorf("%w: %d rows of counts", errAnswer, len(results[0]))
	}
	var lag int64
	if err := results[0][0].ints(map[int]*int64{0: &s.Ready, 1: &s.NotReady, 2: &s.Dead, 3: &lag}); err != nil {
		return s, err
	}
	s.Lag = age(lag, 0)
	for n, from := range map[*int64]string{
		&s.Ready:    "jobs WHERE run_at <= now()",
		&s.NotReady: "jobs WHERE run_at > now()",
		&s.Dead:     "jobs_dead WHERE replayed_as IS NULL",
	} {
		if *n >= countLimit {
			if err := q.estimate(ctx, from, n); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// estimate asks the planner, which knows the table's size and the distribution of
// run_at.
func (q *Queue) estimate(ctx context.Context, from string, n *int64) error {
	results, err := q.exec(ctx, stmt{sql: inSchema("EXPLAIN (FORMAT JSON) SELECT FROM {schema}."+from, q.opts.schema)})
	if err != nil {
		return err
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		}
	}
	if len(results[0]) != 1 || json.Unmarshal(results[0][0][0], &plans) != nil || len(plans) != 1 {
		return fmt.Errorf("%w to EXPLAIN", errAnswer)
	}
	*n = max(*n, int64(plans[0].Plan.Rows))
	return nil
}
