package pgqueue_test

import (
	"context"
	"database/sql"
	"log"
	"time"

	"github.com/onefill/onefill/pgqueue"
	"github.com/onefill/onefill/queue"
)

// A writer changes a row and enqueues what follows from it, and a worker does it. (It needs
// a server, so it is compiled and not run.)
func Example() {
	ctx := context.Background()
	q, err := pgqueue.Open("postgres://app:secret@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()

	worker, err := queue.NewWorker(queue.WorkerOptions{
		Queue: q,
		Handlers: map[string]queue.Handler{"mail": {Job: func(ctx context.Context, d queue.Delivery) error {
			log.Printf("attempt %d to mail %s", d.Attempt, d.Payload)
			return nil
		}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Start(ctx); err != nil { // "there are no tables …: onefill migrate up"
		log.Fatal(err)
	}
	stop, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	defer worker.Stop(stop)

	db, err := sql.Open("pgx", "postgres://app:secret@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", 17); err != nil {
		log.Fatal(err)
	}
	if _, err := q.EnqueueTx(ctx, tx, queue.Job{Kind: "mail", Payload: []byte(`{"order":17}`)}); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
}
