package lab

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// rowPrefix and a number that grows by one with each commit are a row's text.
const rowPrefix = "version "

// fillRows writes n rows, numbered as those of the traffic are, in their first version.
func (p *postgres) fillRows(ctx context.Context, cell string, n int, wait time.Duration) error {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = trafficKey(cell, i)
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		_, plans := tx.Exec(ctx, `INSERT INTO `+p.schema+`.plan SELECT k, $2, false, 0, 0 FROM unnest($1::text[]) AS k`, keys, wait.Seconds())
		_, counters := tx.Exec(ctx, `INSERT INTO `+p.schema+`.counter SELECT k, 0 FROM unnest($1::text[]) AS k`, keys)
		_, items := tx.Exec(ctx, `INSERT INTO `+p.schema+`.item SELECT k, $2 FROM unnest($1::text[]) AS k`, keys, rowPrefix+"1")
		return errors.Join(plans, counters, items)
	})
}

// change gives a row its next version.
func (p *postgres) change(ctx context.Context, tx pgx.Tx, key string) error {
	var version int64
	return tx.QueryRow(ctx, `UPDATE `+p.schema+`.item SET body = $2 || (substr(body, length($2) + 1)::bigint + 1)
		WHERE key = $1 RETURNING substr(body, length($2) + 1)::bigint`, key, rowPrefix).Scan(&version)
}

// rows returns the rows' texts and how many commits there were.
func (p *postgres) rows(ctx context.Context, cell string, n int) (bodies []string, commits int, err error) {
	for i := range n {
		var body string
		if err := p.pool.QueryRow(ctx, `SELECT body FROM `+p.schema+`.item WHERE key = $1`, trafficKey(cell, i)).Scan(&body); err != nil {
			return nil, 0, err
		}
		version, err := strconv.Atoi(strings.TrimPrefix(body, rowPrefix))
		if err != nil {
			return nil, 0, fmt.Errorf("the row %s is %q: %w", trafficKey(cell, i), body, err)
		}
		bodies, commits = append(bodies, body), commits+version-1
	}
	return bodies, commits, nil
}
