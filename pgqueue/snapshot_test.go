package pgqueue

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onefill/onefill/internal/servers"
	"github.com/onefill/onefill/internal/servers/servertest"
	"github.com/onefill/onefill/queue"
)

// TestTrap4OldSnapshot: somebody holds a snapshot open, a report, a forgotten psql.
// Nothing that was deleted since can be vacuumed, and every claim begins where it all
// lies. 500 jobs come each second; none of them may be late.
//
// ONEFILL_LONG=1 does it for two minutes, and with the ways that were rejected, for
// docs/decisions/0011.
func TestTrap4OldSnapshot(t *testing.T) {
	d := 12 * time.Second
	ways := []string{"floor"}
	if long() {
		d = 2 * time.Minute
		ways = []string{"plain", "paced", "floor"}
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			lag := underOldSnapshot(t, way, d)
			if way == "floor" && lag > 2*time.Second {
				t.Errorf("a lag of %v, want less than 2s", lag)
			}
		})
	}
}

// underOldSnapshot returns the longest lag of a job while a snapshot is held.
func underOldSnapshot(t *testing.T, way string, d time.Duration) time.Duration {
	server := servertest.Postgres(t, servers.PostgresOptions{})
	q := openedOn(t, server.URL(), fresh())
	q.opts.noFloor = way != "floor"

	holder, err := conn(t, server.URL()).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	ok(t, err)
	q.enqueued(t, queue.Job{Kind: "k"}) // the snapshot sees that there was something
	_, err = holder.Exec(t.Context(), inSchema("SELECT count(*) FROM {schema}.jobs", q.opts.schema))
	ok(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var writer sync.WaitGroup
	defer writer.Wait()
	total := 1
	writer.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := q.Enqueue(t.Context(), jobs(10)...); err != nil {
					t.Errorf("Enqueue: %v", err)
					return
				}
				total += 10
			case <-ctx.Done():
				return
			}
		}
	})
	var lags, claims []time.Duration
	claim := func() int {
		start := time.Now()
		ds, err := q.claim(t.Context(), queue.Request{Max: 100, Lease: time.Minute}, false)
		ok(t, err)
		claims = append(claims, time.Since(start))
		for _, d := range ds {
			lags = append(lags, d.Lag)
		}
		ok(t, q.Ack(t.Context(), tokens(ds)...))
		return len(ds)
	}
	pause := 5 * time.Millisecond // the writers' pace; a worker comes back at once
	if way == "paced" {
		pause = 100 * time.Millisecond
	}
	atThreeQuarters := 0
	for began := time.Now(); ctx.Err() == nil; {
		if time.Since(began) < d*3/4 {
			atThreeQuarters = len(claims)
		}
		if claim() < 100 {
			<-time.After(pause)
		}
	}
	writer.Wait()
	for len(lags) < total {
		claim()
	}
	slices.Sort(lags)
	late := slices.Clone(claims[atThreeQuarters:])
	slices.Sort(late)
	t.Logf("%s: a snapshot held for %v at 500 jobs/s: lag median %v, worst %v; %d claims, in the last quarter of the time: median %v, 90%% below %v, worst %v; %d of %d jobs done",
		way, d, lags[len(lags)/2], lags[len(lags)-1], len(claims), late[len(late)/2], late[len(late)*9/10], late[len(late)-1], len(lags), total)
	if len(lags) != total {
		t.Errorf("%d deliveries of %d jobs", len(lags), total)
	}
	ok(t, holder.Rollback(t.Context()))
	return lags[len(lags)-1]
}
