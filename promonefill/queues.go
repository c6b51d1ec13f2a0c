package promonefill

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/onefill/onefill/metrics"
	"github.com/onefill/onefill/queue"
	"github.com/prometheus/client_golang/prometheus"
)

// Worker is what a [QueueCollector] reads: a *queue.Worker.
type Worker interface {
	Stats() queue.WorkerStats
}

// Queue is what a [QueueCollector] asks: a queue.Queue of any sort.
type Queue interface {
	Stats(ctx context.Context) (queue.Stats, error)
}

// QueueOptions of a [QueueCollector]. The zero value is useful.
type QueueOptions struct {
	Options
	// Every is how old the numbers of a queue's backend may be, which it is asked for: however
	// many scrapes there are, one question is asked in this time. Default 15 s.
	Every time.Duration
	// Timeout bounds that question, and so what a scrape may wait for it; of a queue that has
	// not answered onefill_queue_up is 0, and the numbers are missing. Default 2 s; it should be
	// well below Prometheus's scrape_timeout.
	Timeout time.Duration
}

// QueueCollector is a prometheus.Collector of queues and their workers. Of registering two
// the same is true as of a [Collector].
type QueueCollector struct {
	opts          QueueOptions
	workerStats   []reading[queue.WorkerStats]
	backendStats  []reading[metrics.Backend]
	distributions []distribution

	mu        sync.Mutex // guards the maps, by name; nothing blocks under it
	workers   map[string]Worker
	queues    map[string]*metrics.Poll
	observers map[string]*kinds
}

// NewQueues makes a QueueCollector. Its error names the option that is wrong.
func NewQueues(o QueueOptions) (*QueueCollector, error) {
	if o.Every < 0 || o.Timeout < 0 {
		return nil, fmt.Errorf("promonefill: QueueOptions.Every %v and Timeout %v must not be negative", o.Every, o.Timeout)
	}
	ds, err := distributions(o.Options, metrics.QueueHistograms(), "queue", "kind")
	if err != nil {
		return nil, err
	}
	return &QueueCollector{
		opts:          o,
		workerStats:   readings(metrics.Workers(), "queue"),
		backendStats:  readings(metrics.Backends(), "queue"),
		distributions: ds,
		workers:       map[string]Worker{},
		queues:        map[string]*metrics.Poll{},
		observers:     map[string]*kinds{},
	}, nil
}

// AddWorker shows a worker from now on, under the label queue=name. It is an error if a worker
// of that name is shown already.
func (c *QueueCollector) AddWorker(name string, w Worker) error {
	if err := checkName("worker", name, w == nil); err != nil {
		return err
	}
	return add(c, c.workers, "worker", name, w)
}

// AddQueue shows the numbers that a queue's backend tells (jobs, lag, dead letters), under the
// label queue=name. One process of a fleet is enough to ask, and all get the same answer.
// It is an error if a queue of that name is shown already.
func (c *QueueCollector) AddQueue(name string, q Queue) error {
	if err := checkName("queue", name, q == nil); err != nil {
		return err
	}
	return add(c, c.queues, "queue", name, metrics.NewPoll(q, c.opts.Every, c.opts.Timeout))
}

func add[T any](c *QueueCollector, to map[string]T, what, name string, v T) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := to[name]; ok {
		return fmt.Errorf("promonefill: a %s named %q is shown already; give it a name of its own, or Remove the other one first", what, name)
	}
	to[name] = v
	return nil
}

// Remove ends the showing of everything of that name. It says whether there was something.
func (c *QueueCollector) Remove(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, q, o := c.workers[name] != nil, c.queues[name] != nil, c.observers[name] != nil
	delete(c.workers, name)
	delete(c.queues, name)
	delete(c.observers, name)
	return w || q || o
}

// Observer returns what to set as WorkerOptions.Observer: it fills the histograms of the queue,
// which are shown from now on. Jobs are told apart by those kinds that are given here; the others
// count under kind="other", so that what lies in a queue does not make series without end. Asked
// again for the same name, it returns the same one, and the kinds are added.
func (c *QueueCollector) Observer(name string, kinds ...string) queue.Observer {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.observers[name]
	if o == nil {
		o = metrics.NewKinds(func(string) *recorder { return newRecorder(c.distributions) })
		c.observers[name] = o
	}
	o.Know(kinds...)
	return o
}

type kinds = metrics.Kinds[*recorder]

// Describe is for the registry.
func (c *QueueCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, r := range c.workerStats {
		ch <- r.desc
	}
	for _, r := range c.backendStats {
		ch <- r.desc
	}
	for _, d := range c.distributions {
		ch <- d.desc
	}
}

// Collect is for the registry. It waits for the backends of all queues at once.
func (c *QueueCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	workers, queues, observers := maps.Clone(c.workers), maps.Clone(c.queues), maps.Clone(c.observers)
	c.mu.Unlock()

	var asked sync.WaitGroup
	defer asked.Wait()
	for name, poll := range queues {
		asked.Go(func() {
			b := poll.Get(context.Background())
			for i := range c.backendStats {
				c.backendStats[i].collect(ch, &b, name)
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		s := workers[name].Stats()
		for i := range c.workerStats {
			c.workerStats[i].collect(ch, &s, name)
		}
	}
	for name, o := range observers {
		o.Each(func(kind string, r *recorder) { r.collect(ch, c.distributions, name, kind) })
	}
}
