// Package metrics is the list of what caches and queues of onefill can be measured by: names,
// units, labels, what each number means, and how it is read. promonefill and otelonefill
// export this list; so can whoever needs another exporter. docs/metrics.md explains it.
//
// A number is either read, from a snapshot ([Caches] from onefill.Stats, [Workers] from
// queue.WorkerStats, [Backends] from queue.Stats), or recorded when something happens
// ([RecordCache], [RecordQueue]). A snapshot costs what runs nothing, so all counters are read.
//
// Every label has a fixed list of values, and none holds a key or an error's text. Besides its
// own label a metric has the name of what it is about: a cache, or a queue.
//
// Names follow OpenTelemetry. [Metric.PrometheusName] is what OpenTelemetry's rules make of one
// for Prometheus, so that dashboards and alert rules fit either way of export.
package metrics
