package pgqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onefill/onefill/queue"
)

const (
	// DefaultSchema is where the tables are if [Schema] does not say otherwise.
	DefaultSchema = "onefill"
	// DefaultPollInterval is how often a Receive that waits looks, at least.
	DefaultPollInterval = 200 * time.Millisecond

	maxBatch   = 1000    // jobs in one statement
	maxPayload = 1 << 20 // bytes
	maxBytes   = 4 << 20 // of payloads in one statement, more or less
)

// Option changes how a queue is made.
type Option func(*options)

type options struct {
	schema  string
	poll    time.Duration
	notify  bool
	logger  *slog.Logger
	noFloor bool // for measurements
}

// Schema is the PostgreSQL schema that the tables are in. Default "onefill".
func Schema(name string) Option { return func(o *options) { o.schema = name } }

// PollInterval is how long a Receive that waits lets pass between two looks, at most;
// at least half of it. Default 200 ms. A look at an empty queue takes the server about
// 0.1 ms.
func PollInterval(d time.Duration) Option { return func(o *options) { o.poll = d } }

// Notify makes enqueued jobs wake every Receive that waits, with NOTIFY. It is off by
// default, because it makes commits wait for each other: a third to a half of the
// throughput of enqueueing. A wake-up saves waiting, nothing depends on it; polling goes
// on as without it. So it pays with few jobs and a long [PollInterval]. All queues on
// the tables, those that enqueue as well, need it.
//
// NOTIFY does not pass PgBouncer in transaction mode. The queue probes whether it hears
// itself, and says so in the log if it does not ([Queue.Listening]).
func Notify() Option { return func(o *options) { o.notify = true } }

// Logger is told when notifications do not arrive. Default slog.Default().
func Logger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// Queue is a queue in PostgreSQL. Its methods are safe for concurrent use.
type Queue struct {
	pool    *pgxpool.Pool
	owned   bool // Close closes the pool
	addr    string
	opts    options
	sql     statements
	floor   floor
	wakeups wakeups
}

var _ queue.Queue = (*Queue)(nil)

// New makes a queue on a pool of yours, whatever its settings are: nothing here depends
// on its QueryExecMode or the server's default isolation level. The pool stays yours.
// New does not talk to the server; [Queue.Check] does.
func New(pool *pgxpool.Pool, opts ...Option) (*Queue, error) {
	if pool == nil {
		return nil, errors.New("pgqueue.New: the pool is nil")
	}
	o, err := apply(opts)
	if err != nil {
		return nil, fmt.Errorf("pgqueue.New: %w", err)
	}
	config := pool.Config().ConnConfig
	q := &Queue{
		pool: pool,
		addr: fmt.Sprintf("%s:%d/%s", config.Host, config.Port, config.Database),
		opts: o,
		sql:  newStatements(o.schema),
	}
	q.wakeups.init(q)
	return q, nil
}

// Open makes a queue on a pool of its own. The URL is as pgx takes it, for example
// "postgres://user:password@host:5432/database?pool_max_conns=10". Close the queue after
// its workers. Open does not talk to the server; [Queue.Check] does.
func Open(url string, opts ...Option) (*Queue, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("pgqueue.Open: %w", redacted(err))
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("pgqueue.Open: %w", err)
	}
	q, err := New(pool, opts...)
	if err != nil {
		pool.Close()
		return nil, err
	}
	q.owned = true
	return q, nil
}

// Close ends what listens for notifications and closes the pool if the queue has made it.
// Stop the workers before. Closing twice is harmless.
func (q *Queue) Close() {
	q.wakeups.close()
	if q.owned {
		q.pool.Close()
	}
}

func apply(opts []Option) (options, error) {
	o := options{schema: DefaultSchema, poll: DefaultPollInterval}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.logger == nil {
		o.logger = slog.Default()
	}
	if o.poll <= 0 {
		return o, fmt.Errorf("PollInterval is %v, it must be positive", o.poll)
	}
	return o, validSchema(o.schema)
}

// validSchema refuses names that PostgreSQL would refuse, or cut.
func validSchema(name string) error {
	// Braces would be our own placeholders.
	odd := func(r rune) bool {
		return unicode.IsControl(r) || strings.ContainsRune("\\{}", r) || r == utf8.RuneError
	}
	switch {
	case name == "":
		return errors.New("Schema is empty")
	case len(name) > 63:
		return fmt.Errorf("Schema %.70q has %d bytes, PostgreSQL's names have at most 63", name, len(name))
	case strings.HasPrefix(name, "pg_"):
		return fmt.Errorf("Schema %q: PostgreSQL keeps names that begin with pg_ for itself", name)
	case strings.ContainsFunc(name, odd):
		return fmt.Errorf("Schema %q: control characters, backslashes and braces are not allowed", name)
	}
	return nil
}

// Caps implements queue.Queue.
func (q *Queue) Caps() queue.Caps {
	return queue.Caps{
		TxEnqueue:     true,
		FencedAck:     true,
		AtomicDead:    true,
		Replay:        true,
		AttemptsExact: true,
		LastError:     true,
		Merge:         true,
		MaxBatch:      maxBatch,
		MaxWait:       math.MaxInt64,
		MaxPayload:    maxPayload,
		Granularity:   time.Microsecond,
	}
}
