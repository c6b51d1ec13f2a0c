package memqueue

import (
	"bytes"
	"container/heap"
	"encoding/json"
	"time"

	"github.com/onefill/onefill/queue"
)

// item is a job that is alive.
type item struct {
	id        int64
	job       queue.Job
	enqueued  time.Time
	due       time.Time // when it may be claimed: the end of its delay, or of its lease
	held      bool      // claimed, and not given back
	claims    int       // the fence: it only grows
	uncounted int       // claims that are no attempts
	lastError string
	index     int // in due, -1 if it stands in line behind another one of its key
}

// add makes a job of j, if there is room.
func (q *Queue) add(op Kind, j queue.Job, now, due time.Time) (*item, error) {
	if len(q.jobs)+len(q.dead) >= q.options.MaxJobs {
		return nil, fail(op, ErrFull)
	}
	q.lastID++
	it := &item{id: q.lastID, job: j, enqueued: now, due: due, index: -1}
	if j.Merge && !q.options.NoMerge {
		q.merges[mergeID{j.Kind, j.Key}] = it
	}
	it.job.Delay, it.job.Merge = 0, false
	q.jobs[it.id] = it
	if q.ordered(it) {
		q.lines[j.Key] = append(q.lines[j.Key], it)
		if len(q.lines[j.Key]) > 1 {
			return it, nil
		}
	}
	heap.Push(&q.due, it)
	q.wake()
	return it, nil
}

func (q *Queue) ordered(it *item) bool { return q.options.OrderedKeys && it.job.Key != "" }

// remove takes a job out, and lets the next one of its key move up.
func (q *Queue) remove(it *item) {
	delete(q.jobs, it.id)
	q.unmerge(it)
	heap.Remove(&q.due, it.index)
	if !q.ordered(it) {
		return
	}
	line := q.lines[it.job.Key][1:]
	if len(line) == 0 {
		delete(q.lines, it.job.Key)
		return
	}
	q.lines[it.job.Key] = line
	heap.Push(&q.due, line[0])
	q.wake()
}

// unmerge ends that other jobs are merged with this one.
func (q *Queue) unmerge(it *item) {
	if k := (mergeID{it.job.Kind, it.job.Key}); q.merges[k] == it {
		delete(q.merges, k)
	}
}

func (q *Queue) reschedule(it *item, due time.Time) {
	earlier := due.Before(it.due)
	it.due = due
	if it.index < 0 {
		return
	}
	heap.Fix(&q.due, it.index)
	if earlier {
		q.wake()
	}
}

// wake makes every Receive that waits look again.
func (q *Queue) wake() {
	close(q.more)
	q.more = make(chan struct{})
}

func clonePayload(p json.RawMessage) json.RawMessage {
	if len(p) == 0 {
		return json.RawMessage("null")
	}
	return bytes.Clone(p)
}

// dueHeap orders items by when they are due, then by when they were enqueued.
type dueHeap []*item

func (h dueHeap) Len() int { return len(h) }

func (h dueHeap) Less(i, j int) bool {
	if h[i].due.Equal(h[j].due) {
		return h[i].id < h[j].id
	}
	return h[i].due.Before(h[j].due)
}

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *dueHeap) Push(x any) {
	it := x.(*item)
	it.index = len(*h)
	*h = append(*h, it)
}

func (h *dueHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	it.index = -1
	*h = old[:len(old)-1]
	return it
}
