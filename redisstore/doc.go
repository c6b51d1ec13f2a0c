// Package redisstore is onefill's store on Redis and Valkey: one load per key in the
// whole fleet, by a lease that lies in the server.
//
//	s, err := redisstore.Open("redis://cache.internal:6379")
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	users, err := onefill.New(onefill.Options[int64, User]{Name: "users", Load: loadUser, Store: s})
//
// One [Store] serves any number of caches. Close the caches first, then the store.
//
// # Which constructor
//
//	                   client              pushes
//	[Open]             its own             yes, on a single server, with sentinels, and on a cluster
//	[OpenOption]       its own, your way   the same
//	[New]              yours               yes, on a single server and with sentinels; not on a cluster
//	any, [NoTracking]                      no
//
// With pushes (RESP3 client tracking) a cache hears at once what others change (at most
// 20 ms later for a key that it is writing itself in that moment), and
// who waits for somebody else's load is woken by its end. Without them local entries
// live for Local.TTL at most, and waiters poll; everything else is the same. Where the
// server has no tracking, or the user may not use it, the store does without by
// itself; [store.Features] says what it came to.
//
// With [New], a client of your own, made with any options:
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"cache.internal:6379"}})
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	s := redisstore.New(client)
//	defer s.Close() // before the client
//
// The store takes one connection of the client's pool and sends everything over it:
// the server tells a connection only of what that same connection has read, and rueidis
// spreads the commands of one client over several at random.
//
// # What it needs
//
// Redis 7.0 or later, or Valkey. It uses scripts (EVALSHA, and EVAL
// when the server has lost them) on keys of one slot. A user with these rights will do:
//
//	ACL SETUSER cache on >password resetchannels -@all ~of:* +get +mget +set +del +exists +pttl +pexpire +getrange +setrange +eval +evalsha +hello +ping +info +getex +time +client|tracking
//
// +getex and +time are for tags only. Without +client|tracking it works without pushes, if the client has DisableCache set
// where it is yours. Without +info every lost connection counts as a failover. [Confirm]
// needs +wait as well. The client also says its name to Redis 7.2 and later (+client|setinfo);
// a refusal of that does no harm.
//
// The server must be the primary.
//
// # A cluster
//
// Each node has a breaker of its own: one that is dead costs its own keys only, if the
// cluster is set to cluster-require-full-coverage no. Slots may move: while one is on its
// way, what takes or ends a lease of its keys, or changes a value, waits for it to arrive,
// within the context; behind it caches read again what they have locally. The user needs
// +cluster|slots and +cluster|nodes as well, and +cluster|shards from Redis 8 on. More in
// docs/protocols.md.
//
// # Failover
//
// A replica that takes the primary's place, or a server that is restarted with what it had
// saved, may lack the last writes, an invalidation for one. The store notices by the
// server's run id and replication id, and tells its caches (store.Events.Replaced) before
// the first operation goes to that server; they send their last invalidations again. It
// does so on a single server, with sentinels and on a cluster; on a cluster client of
// yours it is up to 250 ms late, and a second more while a node hangs.
//
// Who wants to know that an invalidation will survive takes [Confirm].
//
// # What it puts there
//
// Under the name n and the key k:
//
//	of:{n:k}      the value, an envelope (docs/format.md), with the TTL that the cache gives
//	of:{n:k}:l    while k is being loaded: the lease, "t", the token and the number of the
//	              attempt; after a failed load: "f", a time and the record, for two ErrorTTLs,
//	              of which the first one blocks
//
// A cache with tags (onefill.Options.Tags) has also, in a slot of their own, which is one
// node of a cluster:
//
//	of:{n}:e      the epoch, a number; it does not expire
//	of:{n}:t:tag  the generation of a tag, a number, for four times as long as a value may
//	              last, two hours at least; that of the whole cache does not expire
//
// A key of another type or form in these places is overwritten by the next load.
// store.Inspector, which the sessions implement for operators, shows all of it with one
// script that reads, and needs no other rights.
//
// A tracking server remembers each key that a connection has read until it changes:
// about 115 bytes a key (measured), with one connection, and tracking-table-max-keys of them (a million).
// When it forgets some, it says so, and the caches read them again.
//
// With maxmemory and noeviction a full server refuses loads and sets (OOM, counted as a
// store error; callers get their values all the same); hits and invalidations, of keys and
// of tags, go on.
// With an evicting policy a lease can be evicted, and then a key may be loaded twice;
// late values are refused all the same.
//
// # Errors
//
// Every error is a [store.Error]. It wraps store.ErrUnavailable when the server could
// not be asked or did not answer within the context, and when it said that it is not
// ready (LOADING, CLUSTERDOWN, MASTERDOWN, READONLY). Every other refusal
// (OOM, NOPERM, WRONGPASS, TRYAGAIN, ...) is an answer: the server is there. No operation outlives
// its context, whatever the server does.
package redisstore
