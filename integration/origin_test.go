package integration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// database is the test's own view of the origin.
type database struct {
	url  string
	pool *pgxpool.Pool
}

var opened struct {
	once sync.Once
	pool *pgxpool.Pool
	err  error
}

func origin(t testing.TB) *database {
	t.Helper()
	server := sharedPostgres.Get(t) // skips or fails the test if it is not installed
	opened.once.Do(func() { opened.pool, opened.err = createOrigin(server.URL()) })
	if opened.err != nil {
		t.Fatal(opened.err)
	}
	return &database{url: server.URL(), pool: opened.pool}
}

func createOrigin(url string) (*pgxpool.Pool, error) {
	ctx := context.Background()
	pool, err := openPool(ctx, url, 4)
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE origin (
		key     text PRIMARY KEY,
		loads   bigint NOT NULL DEFAULT 0,           -- one for each call of a loader
		value   text,                                -- NULL: the row does not exist
		version bigint NOT NULL DEFAULT 1,           -- raised by each write
		wait    double precision NOT NULL DEFAULT 0, -- seconds that a load takes
		gate    bigint,                              -- the advisory lock that a load waits for
		fails   boolean NOT NULL DEFAULT false
	) WITH (fillfactor = 20)`)
	return pool, err
}

func (d *database) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// serial numbers what must not be the same in two tests.
var serial atomic.Int64

// add makes a row that is not used by any other test and returns its key.
func (d *database) add(t testing.TB, wait time.Duration) string {
	t.Helper()
	key := fmt.Sprintf("%s/%d", t.Name(), serial.Add(1))
	d.exec(t, `INSERT INTO origin (key, value, wait) VALUES ($1, 'v1', $2)`, key, wait.Seconds())
	return key
}

func (d *database) addMany(t testing.TB, n int, wait time.Duration) []string {
	t.Helper()
	all := make([]string, n)
	for i := range all {
		all[i] = d.add(t, wait)
	}
	return all
}

// write commits the next version of a row and returns its number.
func (d *database) write(t testing.TB, key string) int64 {
	t.Helper()
	var version int64
	err := d.pool.QueryRow(t.Context(), `UPDATE origin SET version = version + 1, value = 'v' || (version + 1)
		WHERE key = $1 RETURNING version`, key).Scan(&version)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// loads is how often the row was loaded, by any process.
func (d *database) loads(t testing.TB, keys ...string) int {
	t.Helper()
	var n int
	if err := d.pool.QueryRow(t.Context(), `SELECT coalesce(sum(loads), 0) FROM origin WHERE key = any($1)`, keys).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (d *database) wantLoads(t testing.TB, want int, keys ...string) {
	t.Helper()
	if got := d.loads(t, keys...); got != want {
		t.Errorf("the origin counted %d loads, want %d", got, want)
	}
}

// gate holds loads of a row up, between their read and their return.
type gate struct {
	conn *pgx.Conn
	once sync.Once
}

// close makes the loads of key that begin from now on wait until open. Each gate is
// a lock of its own: loads that wait at an earlier one still wait there.
func (d *database) close(t testing.TB, key string) *gate {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.url)
	if err != nil {
		t.Fatal(err)
	}
	g, id := &gate{conn: conn}, serial.Add(1)
	t.Cleanup(g.open)
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, id); err != nil {
		t.Fatal(err)
	}
	d.exec(t, `UPDATE origin SET gate = $2 WHERE key = $1`, key, id)
	return g
}

// unset makes the loads of key that begin from now on wait nowhere.
func (d *database) unset(t testing.TB, key string) {
	t.Helper()
	d.exec(t, `UPDATE origin SET gate = NULL WHERE key = $1`, key)
}

// open lets the loads that wait at the gate go on. The lock ends with its connection.
func (g *gate) open() {
	g.once.Do(func() { g.conn.Close(context.Background()) })
}
