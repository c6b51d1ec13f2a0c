package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
)

// postgresServer is the queue's database.
type postgresServer struct {
	d      *doctorFlags
	config *pgx.ConnConfig
	schema string
	queue  *pgqueue.Queue
	db     *pgx.Conn
	stats  *queue.Stats // nil: they could not be counted
}

var postgresChecks = []struct {
	name string
	run  func(*postgresServer, context.Context) result
}{
	{"version", (*postgresServer).version},
	{"queue", (*postgresServer).check},
	{"writes", (*postgresServer).writes},
	{"lag", (*postgresServer).lag},
	{"dead-letters", (*postgresServer).dead},
	{"snapshots", (*postgresServer).snapshots},
	{"autovacuum", (*postgresServer).autovacuum},
	{"dead-rows", (*postgresServer).deadRows},
	{"clock", (*postgresServer).clock},
	{"round-trips", (*postgresServer).roundTrips},
}

// openDatabase does not talk to the server; the error is for URLs that are none.
func openDatabase(url, schema string) (*postgresServer, error) {
	q, err := openQueue(url, schema) // its error shows no password
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(withoutPool(url))
	if err != nil {
		q.Close()
		return nil, badInput("--postgres: not a PostgreSQL URL")
	}
	config.RuntimeParams["application_name"] = "onefill doctor"
	return &postgresServer{config: config, schema: schema, queue: q}, nil
}

// withoutPool leaves out the parameters that are for a pool: the server would refuse them.
func withoutPool(url string) string {
	before, query, ok := strings.Cut(url, "?")
	if !ok {
		return url
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if !strings.HasPrefix(part, "pool_") {
			kept = append(kept, part)
		}
	}
	return before + "?" + strings.Join(kept, "&")
}

func (p *postgresServer) examine(ctx context.Context, d *doctorFlags) {
	p.d = d
	defer p.queue.Close()
	at := fmt.Sprintf("postgres at %s:%d/%s", p.config.Host, p.config.Port, p.config.Database)
	db, err := bounded(ctx, d.timeout, func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, p.config) })
	if err != nil {
		d.note(at, "connect", failed("Nothing can be enqueued, and no job is done.", "%v", err))
		return
	}
	p.db = db
	defer db.Close(context.WithoutCancel(ctx))
	for _, c := range postgresChecks {
		d.note(at, c.name, c.run(p, ctx))
	}
}

// row reads one row.
func (p *postgresServer) row(ctx context.Context, sql string, args []any, to ...any) error {
	_, err := bounded(ctx, p.d.timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.db.QueryRow(ctx, sql, args...).Scan(to...)
	})
	return err
}

func notAnswered(err error) result {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) {
		return unknown("the server refused the question: %s", refusal.Message)
	}
	return failed("The server does not answer.", "%v", err)
}

func (p *postgresServer) version(ctx context.Context) result {
	var number int
	var text string
	if err := p.row(ctx, "SELECT current_setting('server_version_num')::int, current_setting('server_version')", nil, &number, &text); err != nil {
		return notAnswered(err)
	}
	if number < 130000 {
		return failed("The queue needs PostgreSQL 13 or newer.", "%s", text)
	}
	return fine("%s", text)
}

// check is pgqueue's own: the tables, their version, the rights.
func (p *postgresServer) check(ctx context.Context) result {
	_, err := bounded(ctx, p.d.timeout, func(ctx context.Context) (struct{}, error) { return struct{}{}, p.queue.Check(ctx) })
	if err != nil {
		return failed("No worker can work on it.", "%v", err)
	}
	return fine("the tables in schema %s are those that this program needs, and the role has its rights", p.schema)
}

func (p *postgresServer) writes(ctx context.Context) result {
	var standby, readOnly bool
	if err := p.row(ctx, "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool", nil, &standby, &readOnly); err != nil {
		return notAnswered(err)
	}
	switch {
	case standby:
		return failed("Give the address of the primary: the queue is written to.", "the server is a standby")
	case readOnly:
		return failed("Transactions are read only: nothing can be enqueued. Look at default_transaction_read_only of the database and the role.", "read only")
	}
	return fine("allowed")
}

func (p *postgresServer) lag(ctx context.Context) result {
	stats, err := bounded(ctx, p.d.timeout, p.queue.Stats)
	if err != nil {
		return unknown("the jobs cannot be counted: %v", err)
	}
	p.stats = &stats
	text := fmt.Sprintf("%v, %s due, %d not due yet or claimed", stats.Lag.Round(time.Millisecond), plural(int(stats.Ready), "job"), stats.NotReady)
	if stats.Lag > p.d.maxLag {
		return failed("What was committed has not reached the cache since then. Is a worker running, and does it know the jobs' kinds? See onefill queue status.", "%s", text)
	}
	return fine("%s", text)
}

func (p *postgresServer) dead(context.Context) result {
	if p.stats == nil {
		return unknown("they cannot be counted, as the jobs cannot")
	}
	if p.stats.Dead > 0 {
		return warn("Nobody tries them any more: what they were to invalidate may be stale. onefill dead list shows them; mend the cause, then onefill dead replay.", "%s", plural(int(p.stats.Dead), "letter"))
	}
	return fine("none")
}

// snapshots looks for what keeps the rows of finished jobs from being vacuumed.
func (p *postgresServer) snapshots(ctx context.Context) result {
	var seconds float64
	var who string
	var sees bool
	err := p.row(ctx, `SELECT coalesce(extract(epoch FROM clock_timestamp() - since), 0)::float8, coalesce(who, ''),
			pg_has_role(current_user, 'pg_read_all_stats', 'MEMBER')
		FROM (SELECT 1) AS one LEFT JOIN (
			SELECT xact_start AS since, format('process %s of %s (%s, %s)', pid, usename, application_name, state) AS who
			FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
			UNION ALL SELECT prepared, format('the prepared transaction %s of %s', gid, owner) FROM pg_prepared_xacts WHERE database = current_database()
			ORDER BY 1 LIMIT 1) AS oldest ON true`, nil, &seconds, &who, &sees)
	if err != nil {
		return notAnswered(err)
	}
	var slot string
	var age int64
	err = p.row(ctx, `SELECT coalesce(slot_name, ''), coalesce(age, 0) FROM (SELECT 1) AS one LEFT JOIN (
		SELECT slot_name, greatest(age(xmin), age(catalog_xmin))::bigint AS age FROM pg_replication_slots
		WHERE xmin IS NOT NULL ORDER BY 2 DESC NULLS LAST LIMIT 1) AS slots ON true`, nil, &slot, &age)
	if err != nil {
		return notAnswered(err)
	}
	const advice = "The rows of jobs that are done cannot be removed while somebody might still look at them: the tables grow, and every claim has more to skip. "
	oldest := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	switch {
	case oldest > p.d.maxSnapshot:
		return warn(advice+"End that transaction (pg_terminate_backend, or ROLLBACK PREPARED); idle_in_transaction_session_timeout keeps it from coming again.", "open since %v: %s", oldest, who)
	case age > 1_000_000:
		return warn(advice+"Whoever reads from the slot is far behind, or gone: pg_drop_replication_slot.", "the replication slot %s holds %d transactions back", slot, age)
	case !sees:
		return unknown("the oldest of this role's own is %v old; those of others are seen by members of pg_read_all_stats only", oldest)
	}
	return fine("the oldest is %v old", oldest)
}

func (p *postgresServer) autovacuum(ctx context.Context) result {
	var on bool
	var tables string
	err := p.row(ctx, `SELECT current_setting('autovacuum')::bool AND current_setting('track_counts')::bool,
			coalesce((SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname LIKE 'jobs%' AND c.reloptions::text ~* 'autovacuum_enabled=(false|off|no|0)'), '')`,
		[]any{p.schema}, &on, &tables)
	if err != nil {
		return notAnswered(err)
	}
	const advice = "Each job that is done leaves dead rows; without it they stay, and every claim has more to skip. "
	switch {
	case !on:
		return failed(advice+"ALTER SYSTEM SET autovacuum = on, and track_counts = on.", "off")
	case tables != "":
		return failed(advice+"ALTER TABLE … RESET (autovacuum_enabled).", "off for %s", tables)
	}
	return fine("on")
}

func (p *postgresServer) deadRows(ctx context.Context) result {
	var live, dead int64
	err := p.row(ctx, "SELECT coalesce(sum(n_live_tup), 0)::bigint, coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_all_tables WHERE schemaname = $1 AND relname LIKE 'jobs%'",
		[]any{p.schema}, &live, &dead)
	if err != nil {
		return notAnswered(err)
	}
	if dead > 100_000 && dead > 10*live {
		return warn("The vacuum does not keep up: see snapshots and autovacuum above; VACUUM the queue's tables once that is mended.", "about %d, and %d live ones", dead, live)
	}
	return fine("about %d, and %d live ones", dead, live)
}

func (p *postgresServer) clock(ctx context.Context) result {
	var at time.Time
	start := time.Now()
	if err := p.row(ctx, "SELECT clock_timestamp()", nil, &at); err != nil {
		return notAnswered(err)
	}
	half := time.Since(start) / 2
	return clockResult(at, start.Add(half), half)
}

func (p *postgresServer) roundTrips(ctx context.Context) result {
	took, err := p.d.measure(ctx, func(ctx context.Context) error {
		_, err := p.db.Exec(ctx, "SELECT 1")
		return err
	})
	if err != nil {
		return notAnswered(err)
	}
	return p.d.roundTripResult(took, time.Second, "a second")
}
