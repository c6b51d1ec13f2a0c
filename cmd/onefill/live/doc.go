// Package live is a web page that shows what becomes of a miss: callers ask for one key at
// once, with plain cache-aside, in-process coalescing, the common lock and onefill beside each
// other, and the page draws who waits, who holds the lease and what the database has to do.
//
// "onefill live" serves it on this machine. A [Handler] may also be mounted in a server of one's
// own, at any path:
//
//	page, err := live.New(live.Options{})
//	if err != nil {
//		return err
//	}
//	defer page.Close()
//	mux.Handle("/onefill/", http.StripPrefix("/onefill", page))
//
// What it drives is the real engine: each mode has as many caches as the page has processes, on
// one store, which is memory or a Redis. They are in this program, so the processes are
// simulated; and the database is simulated, a timer and a counter. The page says both.
//
// Whoever can open the page can make this program work: it is for a developer's machine. It
// answers requests only whose Host is an IP address, "localhost" or one of Options.Hosts, so that
// no other site's name can be made to lead here, and none that another site's page sends. All it is told
// is checked against [Limits], and at most Options.MaxSessions pages are open at once. A page's
// engine ends when the page's stream does.
package live
