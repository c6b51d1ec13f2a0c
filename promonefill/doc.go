// Package promonefill shows caches and queues of onefill to Prometheus.
//
// One [Collector] serves any number of caches. It is their Observer, for the histograms, and
// reads their Stats at each scrape, for everything else:
//
//	metrics, err := promonefill.New(promonefill.Options{})
//	prometheus.MustRegister(metrics)
//
//	users, err := onefill.New(onefill.Options[int64, User]{Name: "users", Observer: metrics, ...})
//	...
//	err = metrics.Add("users", users)
//
// A [QueueCollector] does the same for the workers and the backends of queues.
//
// docs/metrics.md lists every metric. What they have in common:
//
//   - A key is in no label; neither is the text of an error. The labels are the names of the
//     caches and queues, and words from fixed lists. One cache makes about 270 series.
//   - Every series is there from the moment of Add, at 0, so that rate and increase see the
//     first event.
//   - A hit in the process costs nothing here: Stats counts it, and the Observer hears of one
//     hit in 64.
//   - A scrape waits for no server, but for a queue's backend, and for that at most
//     QueueOptions.Timeout.
//
// The directory dashboards holds a dashboard for Grafana and alert rules for Prometheus.
package promonefill
