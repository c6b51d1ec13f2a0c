package pgqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/onefill/onefill/queue"
)

// entry is a job on its way to enqueue.sql or merge.sql.
type entry struct {
	N       int             `json:"n"`
	Kind    string          `json:"kind"`
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Version uint64          `json:"version,omitempty"`
	Dedupe  string          `json:"dedupe,omitempty"`
	Delay   int64           `json:"delay,omitempty"`

	merges bool
	of     []int // the jobs that it is made of: several if they were merged
}

// Enqueue implements queue.Queue. Up to 1,000 jobs are added in one transaction, more
// in several.
func (q *Queue) Enqueue(ctx context.Context, jobs ...queue.Job) ([]string, error) {
	ids := make([]string, len(jobs))
	err := q.split(ctx, "enqueue", len(jobs), func(from, to int, errs queue.Errors) error {
		for _, part := range q.parts(jobs, from, to, errs) {
			if err := q.add(ctx, part, ids, errs); err != nil {
				return err
			}
		}
		return nil
	})
	return ids, added(ids, err)
}

// added is the error of an Enqueue that has added those that have an ID: they are there,
// although what came behind them in one part has failed as a whole.
func added(ids []string, err error) error {
	if err == nil || !slices.ContainsFunc(ids, func(id string) bool { return id != "" }) {
		return err
	}
	errs := make(queue.Errors, len(ids))
	for i, id := range ids {
		if id == "" {
			errs[i] = queue.ErrorOf(err, i)
		}
	}
	return errs.Err()
}

// add adds entries in a transaction. If the server refuses the data of one of them, each
// is tried alone.
func (q *Queue) add(ctx context.Context, part []*entry, ids []string, errs queue.Errors) error {
	results, err := q.exec(ctx, q.adding(part)...)
	switch {
	case err == nil:
		return take(slices.Concat(results...), part, ids)
	case !refused(err):
		return err
	case len(part) == 1:
		for _, i := range part[0].of {
			errs[i] = q.fail("enqueue", fmt.Errorf("%w: PostgreSQL refuses the job: %w", queue.ErrInvalid, err))
		}
		return nil
	}
	for i := range part {
		if err := q.add(ctx, part[i:i+1], ids, errs); err != nil {
			return err
		}
	}
	return nil
}

// adding are the statements that add entries. All but that for notifications return
// n, id.
func (q *Queue) adding(part []*entry) []stmt {
	var plain, merging []*entry
	for _, e := range part {
		if e.merges {
			merging = append(merging, e)
		} else {
			plain = append(plain, e)
		}
	}
	var stmts []stmt
	if len(plain) > 0 {
		stmts = append(stmts, stmt{sql: q.sql.enqueue, args: []string{asJSON(plain)}})
	}
	if len(merging) > 0 {
		stmts = append(stmts, stmt{sql: q.sql.merge, args: []string{asJSON(merging)}})
	}
	if q.opts.notify {
		stmts = append(stmts, stmt{sql: q.sql.notify, args: []string{q.wakeups.channel, ""}})
	}
	return stmts
}

// take reads the rows n, id; those of notifications are shorter.
func take(rows []row, part []*entry, ids []string) error {
	byN := make(map[int64]*entry, len(part))
	for _, e := range part {
		byN[int64(e.N)] = e
	}
	for _, r := range rows {
		if len(r) < 2 {
			continue
		}
		n, err := r.int64(0)
		if err != nil || byN[n] == nil {
			return fmt.Errorf("%w: an id for entry %q, which was not enqueued", errAnswer, r[0])
		}
		for _, i := range byN[n].of {
			ids[i] = r.text(1)
		}
		delete(byN, n)
	}
	if len(byN) > 0 {
		return fmt.Errorf("%w: no ids for %d of %d entries", errAnswer, len(byN), len(part))
	}
	return nil
}

// parts are the valid ones of some jobs as entries, in parts small enough for one
// statement. What is invalid fails alone.
func (q *Queue) parts(jobs []queue.Job, from, to int, errs queue.Errors) (parts [][]*entry) {
	type name struct{ kind, key string }
	first := map[name]*entry{} // of those that are merged in this part
	bytes := 0
	for i := from; i < to; i++ {
		j := &jobs[i]
		if err := q.Caps().Check(*j); err != nil {
			errs[i] = q.fail("enqueue", err)
			continue
		}
		e := &entry{N: i, Kind: j.Kind, Key: j.Key, Payload: j.Payload, Version: j.Version, Dedupe: j.DedupeKey, Delay: micros(j.Delay),
			merges: j.Merge, of: []int{i}}
		if f := first[name{e.Kind, e.Key}]; f != nil && e.merges {
			f.merge(e)
			continue
		}
		if bytes += len(e.Payload); bytes > maxBytes || len(parts) == 0 {
			parts, bytes = append(parts, nil), len(e.Payload)
			clear(first)
		}
		if e.merges {
			first[name{e.Kind, e.Key}] = e
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], e)
	}
	return parts
}

// merge is what merge.sql does, for two jobs of one call: one statement cannot touch a
// row twice.
func (e *entry) merge(later *entry) {
	none := later.Version == 0 || e.Version == 0
	if later.Version >= e.Version || none {
		e.Payload, e.Version, e.Dedupe = later.Payload, later.Version, later.Dedupe
	}
	if none {
		e.Version = 0
	}
	e.Delay = min(e.Delay, later.Delay)
	e.of = append(e.of, later.of...)
}
