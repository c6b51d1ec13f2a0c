// Package otelonefill shows caches and queues of onefill to OpenTelemetry: as metrics, and as
// spans. It needs the API of OpenTelemetry only; which SDK there is, if any, is the program's
// affair.
//
// One [Telemetry] serves the whole process. It is the caches' Observer:
//
//	tel, err := otelonefill.New(otelonefill.Options{})
//	...
//	users, err := onefill.New(onefill.Options[int64, User]{Name: "users", Observer: tel, ...})
//	...
//	err = tel.Add("users", users)
//
// # Metrics
//
// docs/metrics.md lists them. Counters and gauges are read from Stats when the SDK collects, and
// cost nothing until then; counters are there from Add on, at 0. Histograms are recorded as things
// happen; one exists from its first record on, as the API has no other way. The attributes are
// onefill.cache or onefill.queue, those that the page names, each with the prefix "onefill.", and
// error.type. Of hits in the process one in 64 is recorded in onefill.served.age, once.
//
// # Spans
//
//	GET /users/42 ──┬── wait users    (the caller who began the load)      links to load users
//	                └── load users ── SELECT …                             links to every wait
//	GET /users/42 ───── wait users    (another one, in a trace of its own) links to load users
//
// A call that has to wait has a span "wait NAME" in its own trace, if it has one. The load has one
// span, "load NAME", a child of the call that began it; the loader's context carries it, so that
// the loader's own spans are its children. A refresh in the background is the root of a trace of its
// own, with a link to the call that has set it off. When they end, the load is linked to those
// who waited for it and they to the load, as far as they are sampled. Where another process loads,
// there is no load to link to. Hits have no spans.
//
//	attribute            on          holds
//	onefill.cache        both        Options.Name
//	onefill.fwd          load        why the origin was asked, in a word of RFC 9211: miss, or stale for a refresh
//	onefill.collapsed    wait        whether another call began the load, as in RFC 9211; missing if the load is unknown
//	onefill.outcome      both        as in the histograms: ok, not_found, error, panic, timeout; answered, timeout, left
//	onefill.flights      both        how many keys, if not one
//	onefill.waiters      load        sampled calls that had waited for it when it ended
//	onefill.links_dropped both       links beyond Options.MaxLinks, which are left out
//	onefill.key          both        the key, or its hash, if Options.Keys says so
//	error.type           both        canceled, timeout, panic or _OTHER
//
// Keys, and the texts of errors, which may name keys, are in no span unless the options ask for
// them.
//
// # Queues
//
// [Telemetry.AddWorker], [Telemetry.AddQueue] and [Telemetry.QueueObserver] are for the metrics.
// [Telemetry.Handler] puts a consumer's span around each call of a handler, and [Telemetry.Send] a
// producer's around what enqueues. A job carries no context of a trace, so the two are not linked;
// messaging.message.id is the same on both.
package otelonefill
