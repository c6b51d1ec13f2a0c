// Package memcachestore is onefill's store on memcached.
//
//	cache, err := onefill.New(onefill.Options[int64, User]{
//		Name:  "users",
//		Load:  loadUser,
//		TTL:   time.Minute,
//		Store: memcachestore.New("10.0.0.1:11211", "10.0.0.2:11211"),
//	})
//
// [New] takes host:port or unix:/path and connects when it is used first;
// onefill.New asks every server whether it answers. [NewWith] has TLS, time-outs and
// the number of connections. One [Store] serves any number of caches.
//
// # Servers
//
// memcached 1.6.13 or newer is needed, with compare-and-swap (that is, without -C);
// onefill.New says so otherwise. The suite has been run on 1.6.18, 1.6.27 and
// 1.6.45. What differs: since 1.6.27 clients may choose CAS values, and a lease whose grant was
// lost on the way back can be asked for again (store.Features.KeepsToken).
//
// Several servers share the keys by consistent hashing of their addresses: a server
// more moves only the keys that it gets. Every process must write the addresses alike,
// in any order. There are no replicas: the keys of a server that is down cannot be
// asked until it is back, which is noticed within about a second.
//
// Passwords (SASL, authfile) are not supported.
//
// # What it costs
//
// Every operation is one command to one server, a round trip, unless said otherwise:
//
//	hit, miss                     mg
//	many reads (GetMany)          mg for each key, 256 of them at once
//	lease of an absent key        the same mg: reading and winning are one step
//	fill, fail, renew, release    ms or md
//	lease over a stale value, or after a failure   mg, ms
//	fill, fail, renew, release there               mg, ms
//	Set                           ms; with a row version mg, ms
//	Invalidate                    md for each key, all at once
//	Expire                        mg, ms for each key, all at once
//	VoidTags                      mg, ms of the epoch; mg, ms for each tag, all at once
//	Epoch                         mg
//	Generations                   mg for each tag, all at once; for those that are not there
//	                              mg of the epoch and ms each
//	Inspect                       mg
//	InspectTags                   mg of the epoch and of each tag, all at once
//	BreakLease                    mg, and md or ms
//
// The winner of a lease on an absent key makes two round trips in all. A lease over a
// stale value is written into the value's item, with the value: large values cost their
// size at each step, renewals included.
//
// # Without pushes
//
// memcached tells nobody of changes. So other processes learn of an Invalidate, and of an
// InvalidateTag, when their local entries' Local.TTL ends, and who waits for another
// process's load asks again with growing pauses. Give caches a short Local.TTL, or set Local.Off.
//
// # Time
//
// memcached counts whole seconds: times to live are rounded up, and may end one second
// early or late. A lease lasts two seconds at least and, like the record of a failure,
// 30 days at most. A value's time may be longer; its end is then a date by the server's
// own clock, and what would end after 2038-01-19 does not end. While a value that lasts
// longer than 30 days is leased, or a failed load of it is remembered, 30 days are what
// remains of it should nobody load it again. The server alone decides whether a lease is
// over.
//
// Tags are ordered by an epoch that lies in one item for each cache. While that is there no
// clock matters. When it is lost (its server is restarted, or evicts it) it is made anew of
// the clock of the process that needs it, so clocks should agree: what was loaded under an
// epoch that is still ahead of that clock outlives an InvalidateTag.
//
// # Limits
//
// Keys of up to 8 KiB and of any bytes: those that memcached does not take are hashed,
// and the key itself is kept with the value, so that a collision is a miss. Values of
// up to item_size_max (1 MiB unless the server is told otherwise) less 16 KiB; see
// store.Features.MaxValueBytes.
//
// # What a restart, a flush and an eviction mean
//
// They lose leases as well as values. The fill of a lost lease is refused, also after
// a restart, where the server counts its CAS values from 1 again: a lease is used only
// on a connection to the same life of the server, or where its CAS is a random number.
// For that there is one item more on each server, "of::life". A connection that breaks
// costs no lease. A server that is short of memory evicts leases, so its keys are
// loaded more often than once, but nothing late or foreign is ever stored or read.
//
// # A server that hangs
//
// Every operation ends with its context. One connection that brings no answer for half of
// Options.StallTimeout is avoided, while another one answers. Connections that bring none for
// Options.StallTimeout are given up, and new ones tried, one at a time for each of
// Options.Conns. A server that goes on later does what had reached it: a lease that it
// grants so is given back when its answer arrives; where the connection was given up
// nobody hears of it, and it ends by itself.
package memcachestore
