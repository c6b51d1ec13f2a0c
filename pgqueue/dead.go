package pgqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill/queue"
)

const maxPage = 1000

// ListDead implements queue.Queue.
func (q *Queue) ListDead(ctx context.Context, query queue.DeadQuery) ([]queue.DeadLetter, error) {
	if query.After != "" {
		if _, ok := parseID(query.After); !ok {
			return nil, q.fail("list dead", fmt.Errorf("DeadQuery.After is %q: %w", query.After, queue.ErrUnknown))
		}
	}
	if _, ok := parseID(query.ID); query.ID != "" && !ok {
		return nil, nil // nobody has this name
	}
	if queue.ErrorText(query.Kind) != query.Kind || queue.ErrorText(query.Key) != query.Key {
		return nil, nil // no text of PostgreSQL's, and so no job's
	}
	page := query.Max
	if page <= 0 || page > maxPage {
		page = maxPage
	}
	results, err := q.exec(ctx, stmt{sql: limited(q.sql.listDead, page),
		args: []string{cmp.Or(query.After, "0"), query.Kind, query.Key, query.ID, strconv.FormatBool(query.Replayed)}})
	if err != nil {
		return nil, q.failed(ctx, "list dead", err)
	}
	letters := make([]queue.DeadLetter, len(results[0]))
	for i, r := range results[0] {
		if err := readLetter(r, &letters[i]); err != nil {
			return nil, q.fail("list dead", fmt.Errorf("%w: %w", errAnswer, err))
		}
	}
	return letters, nil
}

func readLetter(r row, l *queue.DeadLetter) error {
	var attempts, died int64
	if err := r.ints(map[int]*int64{6: &attempts, 9: &died}); err != nil {
		return err
	}
	version, err := strconv.ParseUint(r.text(4), 10, 64)
	if err != nil {
		return fmt.Errorf("dead letter %s has version %s", r[0], r[4])
	}
	*l = queue.DeadLetter{
		Job:      queue.Job{Kind: r.text(1), Key: r.text(2), Payload: json.RawMessage(r[3]), Version: version, DedupeKey: r.text(5)},
		ID:       r.text(0),
		Attempts: int(attempts),
		Reason:   r.text(7), LastError: r.text(8),
		Died:       time.UnixMicro(died),
		ReplayedAs: r.text(10),
	}
	return nil
}

// ReplayDead implements queue.Queue.
func (q *Queue) ReplayDead(ctx context.Context, ids ...string) ([]string, error) {
	newIDs := make([]string, len(ids))
	err := q.byID(ctx, "replay dead", ids, q.sql.replayDead, func(i int, r row) { newIDs[i] = r.text(1) })
	return newIDs, err
}

// DropDead implements queue.Queue.
func (q *Queue) DropDead(ctx context.Context, ids ...string) error {
	return q.byID(ctx, "drop dead", ids, q.sql.dropDead, func(int, row) {})
}

// byID runs a statement about dead letters, which returns a row for each that it has
// found, the id first.
func (q *Queue) byID(ctx context.Context, op string, ids []string, sql string, found func(i int, r row)) error {
	return q.split(ctx, op, len(ids), func(from, to int, errs queue.Errors) error {
		open := make(map[string]int, to-from)
		var known []string
		for i := from; i < to; i++ {
			errs[i] = queue.ErrUnknown
			if _, ok := parseID(ids[i]); !ok {
				continue
			}
			if _, twice := open[ids[i]]; !twice {
				open[ids[i]] = i
				known = append(known, ids[i])
			}
		}
		if len(known) == 0 {
			return nil
		}
		results, err := q.exec(ctx, stmt{sql: sql, args: []string{"{" + strings.Join(known, ",") + "}"}})
		if err != nil {
			clear(errs[from:to]) // split says what it was
			return err
		}
		for _, r := range results[0] {
			if i, ok := open[r.text(0)]; ok {
				errs[i] = nil
				found(i, r)
			}
		}
		return nil
	})
}
