package pgqueue

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/queue"
)

// Whatever passes the contract's checks PostgreSQL can store: a refusal of its own would
// come too late, since it ends the caller's transaction.
func TestExtremePayloads(t *testing.T) {
	t.Parallel()
	q := opened(t)
	digits := strings.Repeat("7", 1000)
	for _, payload := range []string{
		`-0.5e+10`, digits, `-0.` + digits, `1e1000`, `-1E-1000`, digits + `e1000`, `0.` + digits + `e-1000`, `"1e999999"`, `{"1e999999":"\u0000"}`,
		strings.Repeat("[", 9999) + strings.Repeat("]", 9999), strings.Repeat(`{"":`, 9999) + `0` + strings.Repeat("}", 9999),
		`[` + strings.Repeat(`0,`, maxPayload/2-10) + `0]`, `"` + strings.Repeat("x", maxPayload-2) + `"`,
	} {
		if q.Caps().Check(queue.Job{Kind: "k", Payload: json.RawMessage(payload)}) != nil {
			continue // it is refused beforehand: fine
		}
		tx := beginPgx(t, q)
		if err := tx.Enqueue(queue.Job{Kind: "k", Payload: json.RawMessage(payload)}); err != nil {
			t.Errorf("payload %.40s of %d bytes: %.200v", payload, len(payload), err)
		}
		ok(t, tx.Commit())
		d := q.one(t)
		ok(t, q.Dead(t.Context(), queue.Death{Token: d.Token}))
	}
}

// What the server refuses and nobody has foreseen: the jobs beside it are none the worse.
func TestRefusedByTheServer(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.run(t, "CREATE FUNCTION {schema}.check_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.kind = 'bad' THEN RAISE EXCEPTION 'I do not like it' USING ERRCODE = '22000'; END IF; RETURN NEW; END $$")
	q.run(t, "CREATE TRIGGER check_it BEFORE INSERT ON {schema}.jobs FOR EACH ROW EXECUTE FUNCTION {schema}.check_it()")
	merge := queue.Job{Kind: "bad", Key: "key", Merge: true}
	ids, err := q.Enqueue(t.Context(), queue.Job{Kind: "good"}, queue.Job{Kind: "bad"}, merge, merge, queue.Job{Kind: "good"})
	for i, bad := range []bool{false, true, true, true, false} {
		err := queue.ErrorOf(err, i)
		if errors.Is(err, queue.ErrInvalid) != bad || (ids[i] == "") != bad {
			t.Errorf("job %d: ID %q, %v", i, ids[i], err)
		}
		if bad {
			contains(t, err, "PostgreSQL refuses the job", "I do not like it")
		}
	}
	if n := q.count(t, "SELECT count(*) FROM {schema}.jobs"); n != 2 {
		t.Errorf("%d jobs, want 2", n)
	}
}

// More bytes than one statement should have are split, and merged jobs with them.
func TestManyBytes(t *testing.T) {
	t.Parallel()
	q := opened(t)
	payload := json.RawMessage(`"` + strings.Repeat("x", maxPayload-2) + `"`)
	js := make([]queue.Job, 11)
	for i := range js {
		js[i] = queue.Job{Kind: "k", Payload: payload}
		if i%2 == 0 {
			js[i].Key, js[i].Merge = "key", true
		}
	}
	if parts := q.parts(js, 0, len(js), make(queue.Errors, len(js))); len(parts) != 2 {
		t.Errorf("%d parts", len(parts))
	}
	ids := q.enqueued(t, js...)
	distinct := map[string]bool{}
	for i, id := range ids {
		distinct[id] = true
		if i%2 == 0 && id != ids[0] {
			t.Errorf("job %d has ID %s, it was merged with %s", i, id, ids[0])
		}
	}
	if len(distinct) != 6 {
		t.Errorf("%d jobs, want 6", len(distinct))
	}
}

// Jobs may come from elsewhere: whoever speaks SQL can insert a row.
func TestInsertedByHand(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.run(t, `INSERT INTO {schema}.jobs (kind, payload) VALUES ('mail', '{"to":"a"}'), ('mail', '{"to":"b"}')`)
	ds := q.received(t, 10, time.Minute)
	if len(ds) != 2 || ds[0].Kind != "mail" || ds[0].DedupeKey == "" || ds[0].DedupeKey == ds[1].DedupeKey || ds[0].Key != "" || ds[0].Version != 0 {
		t.Errorf("delivered %+v", ds)
	}
}

// A job whose run_at is another program's zero time has been due for longer than a
// time.Duration can say.
func TestDueForAges(t *testing.T) {
	t.Parallel()
	q := opened(t)
	q.run(t, "INSERT INTO {schema}.jobs (kind, run_at) VALUES ('k', '0001-01-01')")
	s, err := q.Stats(t.Context())
	ok(t, err)
	if most := math.MaxInt64 / time.Microsecond * time.Microsecond; s.Lag != most {
		t.Errorf("a lag of %v in Stats, want the most there is", s.Lag)
	}
	if d := q.one(t); d.Lag != s.Lag {
		t.Errorf("a lag of %v, in Stats %v", d.Lag, s.Lag)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for text, good := range map[queue.Token]bool{
		"1.1": true, "9223372036854775807.2147483647": true, "": false, ".": false, "1": false, "1.": false, ".1": false, "1.0": false, "0.1": false,
		"-1.1": false, "1.-1": false, "+1.1": false, "01.1": false, "1.01": false, "1.1.1": false, "9223372036854775808.1": false,
		"1.2147483648": false, "1 .1": false, "x.1": false,
	} {
		if c, parsed := parseToken(text); parsed != good || good && c.token() != text {
			t.Errorf("%q: %v, %t", text, c, parsed)
		}
	}
}

// An operation of thousands of entries whose context ends in the middle says of each
// what became of it.
func TestSplitStopsAtAFailure(t *testing.T) {
	t.Parallel()
	q := opened(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := 0
	err := q.split(ctx, "ack", 2*maxBatch+1, func(from, to int, errs queue.Errors) error {
		if calls++; calls == 2 {
			cancel()
			return ctx.Err()
		}
		errs[from] = queue.ErrUnknown
		return nil
	})
	for i, want := range map[int]error{0: queue.ErrUnknown, 1: nil, maxBatch - 1: nil, maxBatch: context.Canceled, 2 * maxBatch: context.Canceled} {
		if got := queue.ErrorOf(err, i); !errors.Is(got, want) || want == nil && got != nil {
			t.Errorf("entry %d: %v, want %v", i, got, want)
		}
	}
	if calls != 2 {
		t.Errorf("%d calls", calls)
	}
}

// Ready and the others are counted up to a limit, and estimated beyond it.
func TestStatsOfMany(t *testing.T) {
	t.Parallel()
	n := 200_000
	if long() {
		n = 1_000_000
	}
	q := opened(t)
	q.fill(t, n)
	q.run(t, "UPDATE {schema}.jobs SET run_at = now() + interval '1 hour' WHERE id % 100 = 0")
	q.run(t, "ANALYZE {schema}.jobs")
	start := time.Now()
	s, err := q.Stats(t.Context())
	ok(t, err)
	took := time.Since(start)
	t.Logf("stats of %d jobs in %v: %+v", n, took, s)
	if ready := int64(n) * 99 / 100; s.Ready < countLimit || s.Ready < ready*9/10 || s.Ready > ready*11/10 {
		t.Errorf("%d ready, want about %d", s.Ready, ready)
	}
	if want := int64(n / 100); s.NotReady != want || s.Lag <= 0 || s.Dead != 0 {
		t.Errorf("%+v, want %d not ready, a lag and no dead letters", s, want)
	}
	var plan string
	rows, err := q.pool.Query(t.Context(), inSchema("EXPLAIN SELECT run_at FROM {schema}.jobs WHERE run_at <= now() ORDER BY run_at LIMIT 1", q.opts.schema))
	ok(t, err)
	for rows.Next() {
		var line string
		ok(t, rows.Scan(&line))
		plan += line + "\n"
	}
	ok(t, rows.Err())
	if !strings.Contains(plan, "Index Only Scan using jobs_run_at") {
		t.Errorf("the lag is not looked up in the index:\n%s", plan)
	}
}
