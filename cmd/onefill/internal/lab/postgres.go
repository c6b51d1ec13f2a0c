package lab

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed sql/postgres.sql
var postgresSchema string

// postgres is the origin in PostgreSQL: the count, the log and the wait are the
// database's.
type postgres struct {
	pool   *pgxpool.Pool
	schema string // ours; letters, digits and underscores only
}

func openPostgres(ctx context.Context, spec originSpec, connections int) (*postgres, error) {
	cfg, err := pgxpool.ParseConfig(spec.URL)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(max(connections, 1))
	cfg.ConnConfig.RuntimeParams["application_name"] = "onefill lab"
	// One round trip a statement from the first on, and poolers in between do not matter.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &postgres{pool: pool, schema: spec.Schema}, nil
}

// createSchema makes the tables, for the parent.
func (p *postgres) createSchema(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, fmt.Sprintf(postgresSchema, p.schema, failureText, overdueText))
	return err
}

func (p *postgres) Read(ctx context.Context, key string, process int) (string, error) {
	var l loaded
	begin := `WITH counted AS (
		UPDATE ` + p.schema + `.counter SET operations = operations + 1 WHERE key = $1 RETURNING operations
	) INSERT INTO ` + p.schema + `.operation (key, number, process, started)
	SELECT $1, operations, $2, clock_timestamp() FROM counted
	RETURNING number, (extract(epoch FROM started) * 1000000)::bigint`
	if err := p.pool.QueryRow(ctx, begin, key, process).Scan(&l.Operation, &l.ReadUS); err != nil {
		return "", fmt.Errorf("count the operation: %w", err)
	}
	var row *string
	err := p.pool.QueryRow(ctx, p.fetch(key), key).Scan(&row)
	if err == nil && row == nil {
		err = errNoRow
	}
	// A caller that has gone does not make the log lie.
	endCtx, cancel := cleanupContext(ctx)
	defer cancel()
	end := `UPDATE ` + p.schema + `.operation SET ended = clock_timestamp(), outcome = $3 WHERE key = $1 AND number = $2`
	if _, logErr := p.pool.Exec(endCtx, end, key, l.Operation, outcomeOf(err)); logErr != nil && err == nil {
		err = fmt.Errorf("log the operation: %w", logErr)
	}
	if err != nil {
		return "", err
	}
	l.Row = *row
	return l.encode()
}

// fetch is the slow query. It names the key, so that Waiting can find it among the
// server's activities; keys are the lab's own, letters, digits and dashes.
func (p *postgres) fetch(key string) string {
	return `SELECT ` + p.schema + `.fetch($1) /* ` + key + ` */`
}

// Waiting asks the server which queries sleep: those have read their row.
func (p *postgres) Waiting(ctx context.Context, key string) (int, error) {
	var n int
	err := p.pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
		WHERE state = 'active' AND wait_event = 'PgSleep' AND query = $1`, p.fetch(key)).Scan(&n)
	return n, err
}

func (p *postgres) Plan(ctx context.Context, key string, pl plan) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO `+p.schema+`.plan VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (key) DO UPDATE SET wait = excluded.wait, failed = excluded.failed,
			workers = excluded.workers, deadline = excluded.deadline`,
			key, pl.Wait.Seconds(), pl.Failed, pl.Workers, pl.Deadline.Seconds())
		batch.Queue(`INSERT INTO `+p.schema+`.counter VALUES ($1, 0) ON CONFLICT DO NOTHING`, key)
		if pl.Row != "" {
			batch.Queue(`INSERT INTO `+p.schema+`.item VALUES ($1, $2)
				ON CONFLICT (key) DO UPDATE SET body = excluded.body`, key, pl.Row)
		} else {
			batch.Queue(`DELETE FROM `+p.schema+`.item WHERE key = $1`, key)
		}
		return tx.SendBatch(ctx, batch).Close()
	})
}

func (p *postgres) Count(ctx context.Context, key string) (int, error) {
	var n int
	err := p.pool.QueryRow(ctx, `SELECT operations FROM `+p.schema+`.counter WHERE key = $1`, key).Scan(&n)
	return n, err
}

func (p *postgres) Operations(ctx context.Context, key string) ([]Operation, error) {
	rows, err := p.pool.Query(ctx, `SELECT number, process,
		(extract(epoch FROM started) * 1000000)::bigint,
		coalesce((extract(epoch FROM ended) * 1000000)::bigint, 0), coalesce(outcome, '')
		FROM `+p.schema+`.operation WHERE key = $1 ORDER BY number`, key)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Operation, error) {
		var o Operation
		err := row.Scan(&o.Number, &o.Process, &o.StartUS, &o.EndUS, &o.Outcome)
		return o, err
	})
}

func (p *postgres) Warm(ctx context.Context, connections int) error {
	conns := make([]*pgxpool.Conn, 0, connections)
	defer func() {
		for _, c := range conns {
			c.Release()
		}
	}()
	for range connections {
		c, err := p.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	return nil
}

// ClockOffset halves the round trip, which is exact to that half.
func (p *postgres) ClockOffset(ctx context.Context) (time.Duration, error) {
	before := time.Now()
	var us int64
	err := p.pool.QueryRow(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&us)
	middle := before.Add(time.Since(before) / 2)
	return time.Duration(us-middle.UnixMicro()) * time.Microsecond, err
}

func (p *postgres) version(ctx context.Context) (string, error) {
	var num int
	err := p.pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&num)
	return fmt.Sprintf("%d.%d", num/10000, num%10000), err
}

// room says how many more connections the server takes from an ordinary user.
func (p *postgres) room(ctx context.Context) (free, limit int, err error) {
	err = p.pool.QueryRow(ctx, `SELECT current_setting('max_connections')::int
		- current_setting('superuser_reserved_connections')::int
		- (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
		current_setting('max_connections')::int`).Scan(&free, &limit)
	return free, limit, err
}

func (p *postgres) addr() string {
	c := p.pool.Config().ConnConfig
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

func (p *postgres) Drop(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+p.schema+` CASCADE`)
	return err
}

func (p *postgres) Close() { p.pool.Close() }
