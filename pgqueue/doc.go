// Package pgqueue is the queue of package queue in PostgreSQL, 13 or newer: a job is a
// row, so it can be enqueued in the transaction that changes the data, and then there is
// one if and only if the other was committed.
//
//	q, err := pgqueue.Open("postgres://app:secret@localhost/shop") // or New, on a pgxpool.Pool
//	...
//	defer q.Close()
//
//	tx, err := pool.Begin(ctx) // a pgx.Tx, or a *sql.Tx
//	...
//	_, err = tx.Exec(ctx, "UPDATE users SET name = $1 WHERE id = $2", name, id)
//	...
//	_, err = q.EnqueueTx(ctx, tx, queue.Job{Kind: "mail", Payload: payload})
//	...
//	err = tx.Commit(ctx)
//
// Workers are those of package queue; give them the queue.
//
// # Tables
//
// They are made by "onefill migrate up", or [Queue.MigrateUp], and never by anything
// else; [Script] prints the SQL. They lie in a schema of their own, "onefill", see
// [Schema]. [Queue.Check], which a worker asks at its start, says what is missing: the
// tables, their version, rights. Whoever only enqueues needs USAGE on the schema and on the
// sequence jobs_id_seq, and INSERT on jobs; with [queue.Job].Merge also SELECT and UPDATE.
// A worker needs SELECT, INSERT, UPDATE and DELETE on jobs, jobs_dead and jobs_once, and
// SELECT on jobs_migrations.
//
// Jobs can be added from any language: INSERT INTO onefill.jobs (kind, payload) VALUES (…).
//
// # How it works
//
// A claim takes the rows that have been due for longest and moves their run_at to the end
// of the lease, in one statement; that is the lease, and a worker that dies needs nobody
// to clean up after it. Success deletes the row. Each claim makes the row's fence grow,
// and every later statement names the fence, so that the claim of one who is late touches
// nothing. docs/queue.md tells what the details are for, docs/decisions/0011 how a claim
// stays quick while somebody holds an old snapshot open.
//
// # Connections
//
// Every call is one transaction in one round trip. Nothing is prepared under a name and
// nothing is left on a connection, so PgBouncer in transaction mode will do. A Receive that
// waits polls (see [PollInterval]) and holds no connection in between. With [Notify] one
// more connection listens.
//
// # Errors
//
// Errors are a [*queue.Error] with Service "postgres" and the address as
// host:port/database, without user and password. Unavailable covers a server that is not
// there, is starting or going down, does not answer in time, or has become a standby.
// After an unavailable error nobody knows whether the call was applied.
//
// # Limits
//
// A payload has at most 1 MiB, a Receive returns at most 1,000 jobs, durations are rounded
// up to a microsecond. Payloads are jsonb, so they come back with other white space, order
// of members and spelling of numbers.
package pgqueue
