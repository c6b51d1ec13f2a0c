package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// database is the origin of one mode: a timer that counts. Nothing is behind it, so that the
// page runs everywhere; the lab has the same herd on PostgreSQL.
type database struct {
	rec *recorder

	mu      sync.Mutex // guards what follows; not held while anything waits
	takes   time.Duration
	failPct int
	failing bool          // every operation fails
	resumed chan struct{} // open while paused; nil: not paused
	aborted chan struct{} // closed to make what runs fail at once
	rows    int
}

var (
	errDatabase = errors.New("the database fails, as it was told to")
	errAborted  = errors.New("the database was reset")
)

func newDatabase(rec *recorder) *database {
	return &database{rec: rec, aborted: make(chan struct{})}
}

// query is one operation: what a loader calls. It counts from its first moment, whatever
// becomes of it.
func (d *database) query(ctx context.Context, process int) (string, error) {
	end := d.rec.beginOperation(process)
	row, err := d.work(ctx)
	end(err != nil && ctx.Err() == nil) // who is called off has not failed
	return row, err
}

func (d *database) work(ctx context.Context) (string, error) {
	d.mu.Lock()
	takes, aborted := d.takes, d.aborted
	d.mu.Unlock()
	elapsed := make(chan struct{})
	timer := time.AfterFunc(takes, func() { close(elapsed) })
	defer timer.Stop()
	for until := elapsed; until != nil; until = d.held() {
		select {
		case <-until:
		case <-aborted:
			return "", errAborted
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failing || rand.IntN(100) < d.failPct {
		return "", errDatabase
	}
	d.rows++
	return fmt.Sprintf("row %d", d.rows), nil
}

// held is closed when the pause of this moment ends; nil: there is none.
func (d *database) held() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.resumed
}

func (d *database) set(takes time.Duration, failPct int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.takes, d.failPct = takes, failPct
}

func (d *database) fail(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failing = yes
}

// pause holds all operations at their end until it is ended.
func (d *database) pause(yes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case yes && d.resumed == nil:
		d.resumed = make(chan struct{})
	case !yes && d.resumed != nil:
		close(d.resumed)
		d.resumed = nil
	}
}

// abort makes everything that runs fail at once, so that what waits for it can be closed.
func (d *database) abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.aborted)
	d.aborted = make(chan struct{})
}
