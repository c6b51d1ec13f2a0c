package pgqueue

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onefill/onefill/queue"
)

// TestTrap4PlansOfAnEmptyTable: a snapshot is held, 40,000 jobs were done since, and
// ANALYZE has just said what is true: there is next to nothing in the table. It does not
// say that there are 80,000 versions of rows that cannot be removed. What is counted are
// the blocks that a statement looks at.
func TestTrap4PlansOfAnEmptyTable(t *testing.T) {
	t.Parallel()
	const n = 40_000
	t.Run("nothing", func(t *testing.T) {
		// Of a join, the planner thinks, the cheapest plan is to walk through all there is.
		// No statement may have that plan.
		q := bloated(t, n, 0)
		q.enqueued(t, jobs(40)...)
		ds := q.received(t, 30, time.Hour)
		cs := make([]claim, len(ds))
		given, graves := make([]returned, len(ds)), make([]buried, len(ds))
		for i, d := range ds {
			cs[i], _ = parseToken(d.Token)
			given[i], graves[i] = returned{ID: cs[i].id, Fence: cs[i].fence}, buried{ID: cs[i].id, Fence: cs[i].fence}
		}
		naive := inSchema("DELETE FROM {schema}.jobs USING unnest($1::bigint[], $2::int[]) AS t(id, fence) WHERE jobs.id = t.id AND jobs.fence = t.fence", q.opts.schema)
		for _, s := range []struct {
			name  string
			most  int64
			stmts []stmt
		}{
			{"naive ack", 1 << 40, []stmt{{sql: naive, args: arrays(cs)}}},
			{"claim", n / 10, q.claiming(queue.Request{Max: 100, Lease: time.Minute}, look{back: floorMargin})},
			{"ack", n / 10, q.acking(cs)},
			{"ack of several fences", n / 10, q.acking(append([]claim{{id: 1, fence: 7}}, cs...))},
			{"extend", n / 10, []stmt{{sql: q.sql.extend, args: append(arrays(cs), "1000000")}}},
			{"nack", n / 10, []stmt{{sql: q.sql.nack, args: append(arrays(cs), asJSON(given))}}},
			{"dead", n / 10, []stmt{{sql: q.sql.dead, args: append(arrays(cs), asJSON(graves))}}},
		} {
			blocks := q.cost(t, s.stmts...).blocks
			t.Logf("%s of %d jobs: %d blocks", s.name, len(ds), blocks)
			if blocks > s.most {
				t.Errorf("%s has looked at %d blocks for %d jobs", s.name, blocks, len(ds))
			}
		}
		ok(t, q.Ack(t.Context(), tokens(ds)...)) // everything was taken back
	})
	t.Run("hardly anything", func(t *testing.T) {
		// The morning comes, and the statistics are as they were. To collect the little that
		// is due and sort it is cheap, the planner thinks. A claim must take the first 100
		// and stop.
		q := bloated(t, n, 20)
		q.fill(t, n)
		//
		// Rows tell the two apart. Blocks hardly do: each of the 100 updates looks at 20.
		got := q.cost(t, q.claiming(queue.Request{Max: 100, Lease: time.Minute}, look{back: floorMargin})...)
		t.Logf("claim of 100 of %d jobs: %d rows in its largest step, %d blocks", n, got.rows, got.blocks)
		if got.rows > 100 || got.blocks > n/10 {
			t.Errorf("the claim has looked at %d rows and %d blocks for 100 jobs", got.rows, got.blocks)
		}
	})
}

// bloated is a queue under an old snapshot, without jobs, after done of them, whose
// statistics say that there are as many as alive.
func bloated(t *testing.T, done, alive int) *Queue {
	q := opened(t)
	held, err := conn(t, shared.Get(t).URL()).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	ok(t, err)
	_, err = held.Exec(t.Context(), inSchema("SELECT count(*) FROM {schema}.jobs", q.opts.schema))
	ok(t, err)
	q.fill(t, done)
	q.run(t, "UPDATE {schema}.jobs SET run_at = now() + interval '1 minute', fence = 1, attempts = 1")
	q.run(t, "DELETE FROM {schema}.jobs")
	q.fill(t, alive)
	q.run(t, "ANALYZE {schema}.jobs")
	ok(t, q.Ack(t.Context(), tokens(q.received(t, maxBatch, time.Minute))...))
	return q
}

// TestAckLocksInOrder: whatever the table is like, an acknowledgement meets its rows in the
// order of their ids. In the order in which they lie there it could deadlock with an
// Extend of the same jobs, since extended rows lie elsewhere.
func TestAckLocksInOrder(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 40, 5_000} {
		q := opened(t)
		q.fill(t, n)
		q.run(t, "VACUUM ANALYZE {schema}.jobs")
		ds := q.received(t, min(n, maxBatch), time.Hour)
		cs := make([]claim, len(ds))
		for i, d := range ds {
			cs[i], _ = parseToken(d.Token)
		}
		for _, cs := range [][]claim{cs, append([]claim{{id: 1, fence: 7}}, cs...)} {
			got := q.cost(t, q.acking(cs)...)
			if want := []string{"Index Scan using jobs_pkey"}; !slices.Equal(got.scans, want) {
				t.Errorf("%d jobs, acknowledged %d: found by %q, want %q", n, len(ds), got.scans, want)
			}
		}
	}
}

// cost is what a statement has done: the blocks it has looked at, the rows of the step of
// its plan that had most, and how it has read the table.
type cost struct {
	blocks, rows int64
	scans        []string
}

// cost executes statements, takes them back, and says what the last one was like.
func (q *Queue) cost(t testing.TB, stmts ...stmt) cost {
	t.Helper()
	tx, err := q.pool.Begin(t.Context())
	ok(t, err)
	defer tx.Rollback(t.Context())
	s := stmts[len(stmts)-1]
	for _, before := range stmts[:len(stmts)-1] {
		_, err = tx.Exec(t.Context(), before.sql)
		ok(t, err)
	}
	r := tx.Conn().PgConn().ExecParams(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+s.sql, s.values(), nil, nil, nil).Read()
	ok(t, r.Err)
	var plans []struct{ Plan step }
	ok(t, json.Unmarshal(r.Rows[0][0], &plans))
	top := plans[0].Plan
	return cost{blocks: top.Hit + top.Read, rows: top.mostRows(), scans: top.scans()}
}

// step is a node of a plan. Its blocks are those of its sub-plans, too; its rows are per loop.
type step struct {
	Hit   int64   `json:"Shared Hit Blocks"`
	Read  int64   `json:"Shared Read Blocks"`
	Rows  float64 `json:"Actual Rows"`
	Loops float64 `json:"Actual Loops"`
	Type  string  `json:"Node Type"`
	Table string  `json:"Relation Name"`
	Index string  `json:"Index Name"`
	Plans []step
}

// scans are the steps that read the table of jobs.
func (s step) scans() (scans []string) {
	if s.Table == "jobs" && s.Type != "ModifyTable" {
		scans = append(scans, s.Type+" using "+s.Index)
	}
	for _, p := range s.Plans {
		scans = append(scans, p.scans()...)
	}
	return scans
}

func (s step) mostRows() int64 {
	most := int64(s.Rows * s.Loops)
	for _, p := range s.Plans {
		most = max(most, p.mostRows())
	}
	return most
}
