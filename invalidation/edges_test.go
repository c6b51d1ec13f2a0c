package invalidation_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/internal/bubble"
	"github.com/onefill/onefill/invalidation"
	"github.com/onefill/onefill/queue"
	"github.com/onefill/onefill/queue/memqueue"
	"github.com/onefill/onefill/store/memstore"
)

// A trigger that makes its payload of a column that is NULL: that is no key, and not 0.
func TestNullKey(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q := memqueue.New()
		numbers := must(onefill.New(onefill.Options[int32, string]{Name: "n", Store: memstore.New(), Logger: quiet}))
		defer numbers.Close()
		numbers.Set(bg, 0, "v")
		enqueue(t, q, queue.Job{Kind: invalidation.KindInvalidate, Payload: json.RawMessage(`{"cache":"n","key":null}`)})
		startWorker(t, q, invalidation.For("n", numbers))
		after(time.Second)
		if _, found, _ := numbers.Peek(bg, 0); !found {
			t.Error("key 0 was invalidated")
		}
		if left := q.Jobs(); len(left) != 1 || !strings.Contains(left[0].LastError, "null") {
			t.Errorf("left: %+v; want the job, whose error says that the key is null", left)
		}
	})
}

// Interleaving: a refresh about version 2, which is cached already; before a worker comes,
// a refresh without a version, as of an operator who has mended the row by hand, is merged
// with it. Coalesced in one batch (handler.sort) it is not forgotten; nor must it be merged.
func TestMergedWithoutAVersion(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		q, st := memqueue.New(), memstore.New()
		db := newDatabase(q)
		db.rows["ann"] = row{"old", 2}
		c := newCache(t, st, options{Load: db.load, Version: versionOf})
		get(t, c, "ann", "old")
		for _, version := range []uint64{2, 0} {
			js := must(invalidation.Refresh("users", "ann"))
			js[0].Version, js[0].Merge = version, true
			enqueue(t, q, js...)
		}
		db.rows["ann"] = row{"mended", 2}
		startWorker(t, q, invalidation.Versioned("users", c, versionOf))
		after(time.Second)
		wantDone(t, q)
		get(t, c, "ann", "mended")
	})
}
