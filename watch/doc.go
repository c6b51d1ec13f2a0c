// Package watch is a window into the caches of a process: which keys are missed, by how many
// callers, for how long, and how many loads that cost; which keys are hot, and which loads are
// slow. A [Recorder] is an [onefill.Observer] of any number of caches and an [http.Handler]
// that the commands `onefill watch` and `onefill top` read.
//
//	recorder := watch.New(watch.Options{})
//	cache, err := onefill.New(onefill.Options[int64, User]{Name: "users", Observer: recorder, ...})
//	...
//	debug := http.NewServeMux() // a port of its own, like that of net/http/pprof
//	debug.Handle("/debug/onefill", recorder)
//	go http.ListenAndServe("127.0.0.1:6060", debug)
//
// # Who may see it
//
// It shows keys and the texts of errors. Both may be personal data, and whoever reaches the
// port sees them: bind it to loopback or to a private network, never to a public address. The
// handler answers GET only, and only where the Host of the request is an IP address, localhost or
// one of [Options.Hosts]: a page in somebody's browser cannot read it through a name of its own that
// resolves to 127.0.0.1. [Options.HideKeys] shows hashes instead of keys, and no texts.
//
// # What it costs
//
// Its memory is bounded whatever the number of keys: 24 sketches of [Options.Keys] keys each, a ring of
// [Options.Groups] miss groups, and the flights of this moment, [Options.Flights] at most. A key
// longer than 256 bytes is kept as its beginning and a hash. The cache tells an observer of
// one local hit in 64, at random; what is shown of hits is estimated from those, with
// the error said. A reader of the stream who is slower than the events is cut off, never waited for.
//
// # What is served
//
// GET gives a [Snapshot] as JSON: the last minute. With Accept: text/event-stream, or ?follow=1 (as
// NDJSON, a line each), it is a stream of [Group]: each miss group that ends, and those
// that have been waited for longer than a second and go on. ?cache=NAME and ?key=KEY filter both,
// ?top=N sets how many keys of each kind a snapshot has (20; at most Options.Keys).
package watch
