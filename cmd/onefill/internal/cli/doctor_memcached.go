package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onefill/onefill/cmd/onefill/internal/memcached"
)

// memcachedNode is one server. It is asked over a plain connection: a store would leave
// an item there, the name of the server's life.
type memcachedNode struct {
	*memcached.Conn
	d               *doctorFlags
	version         string
	stats, settings map[string]string
	asked           time.Time // the stats, and for how long
	took            time.Duration
}

var memcachedChecks = []struct {
	name string
	run  func(*memcachedNode, context.Context) result
}{
	{"version", (*memcachedNode).checkVersion},
	{"meta-commands", (*memcachedNode).meta},
	{"cas", (*memcachedNode).cas},
	{"item-size", (*memcachedNode).itemSize},
	{"memory", (*memcachedNode).memory},
	{"connections", (*memcachedNode).connections},
	{"idle-timeout", (*memcachedNode).idleTimeout},
	{"clock", (*memcachedNode).clock},
	{"round-trips", (*memcachedNode).roundTrips},
}

func examineMemcached(ctx context.Context, d *doctorFlags, addrs []string) {
	versions, sizes := map[string][]string{}, map[string][]string{}
	met := 0
	for _, addr := range addrs {
		at := "memcached at " + addr
		n, err := bounded(ctx, d.timeout, func(ctx context.Context) (*memcachedNode, error) { return meetMemcached(ctx, d, addr) })
		if err != nil {
			d.note(at, "connect", failed("The keys of this server cannot be asked; those of the others can. While that lasts caches load them from the origin, MaxLoadsDegraded at a time.", "%v", err))
			continue
		}
		for _, c := range memcachedChecks {
			d.note(at, c.name, c.run(n, ctx))
		}
		n.Close()
		met++
		versions[n.version] = append(versions[n.version], addr)
		sizes[n.settings["item_size_max"]] = append(sizes[n.settings["item_size_max"]], addr)
	}
	if met > 1 {
		d.note("memcached, all servers", "alike", alike(len(addrs), versions, sizes))
	}
}

// alike judges several servers together.
func alike(servers int, versions, sizes map[string][]string) result {
	switch {
	case len(versions) > 1:
		return warn("The store does with all of them what the oldest can. Update it.", "versions differ: %s", groups(versions))
	case len(sizes) > 1:
		return warn("Values that are too large for the smallest limit are stored nowhere. Start all with the same -I.", "item_size_max differs: %s", groups(sizes))
	}
	return fine("%d servers; every process must name them with the same words, in any order", servers)
}

func groups(by map[string][]string) string {
	var all []string
	for value, addrs := range by {
		all = append(all, value+" at "+strings.Join(addrs, ","))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// meetMemcached connects and asks what the checks are about.
func meetMemcached(ctx context.Context, d *doctorFlags, addr string) (*memcachedNode, error) {
	conn, version, err := memcached.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	n := &memcachedNode{d: d, Conn: conn, version: version}
	start := time.Now()
	n.stats, err = n.Stats(ctx, "stats")
	n.took = time.Since(start)
	n.asked = start.Add(n.took / 2)
	if err == nil {
		n.settings, err = n.Stats(ctx, "stats settings")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return n, nil
}

func (n *memcachedNode) number(name string) int64 {
	v, _ := strconv.ParseInt(n.stats[name], 10, 64)
	return v
}

// atLeast compares the version, such as 1.6.18.
func (n *memcachedNode) atLeast(want ...int) bool {
	parts := strings.FieldsFunc(n.version, func(r rune) bool { return r < '0' || r > '9' })
	for i, w := range want {
		have := 0
		if i < len(parts) {
			have, _ = strconv.Atoi(parts[i])
		}
		if have != w {
			return have > w
		}
	}
	return true
}

func (n *memcachedNode) checkVersion(context.Context) result {
	switch {
	case !n.atLeast(1, 6, 13):
		return failed("memcached 1.6.13 or newer is needed: older ones compare CAS values wrongly. Update the server.", "%s", n.version)
	case !n.atLeast(1, 6, 27):
		return result{levelOK, n.version, "Since 1.6.27 a lease whose grant was lost on the way back can be asked for again; here it ends by itself."}
	}
	return fine("%s", n.version)
}

func (n *memcachedNode) meta(ctx context.Context) result {
	answer, err := bounded(ctx, n.d.timeout, func(ctx context.Context) (string, error) { return n.Ask(ctx, "mn") })
	switch {
	case err != nil:
		return failed("The server does not answer.", "%v", err)
	case answer != "MN":
		return failed("Leases are made with the meta commands. A proxy in between that does not know them will not do.", "mn answered %.80q", answer)
	}
	return fine("understood")
}

func (n *memcachedNode) cas(context.Context) result {
	if n.settings["cas_enabled"] == "no" {
		return failed("Leases need compare-and-swap: start the server without -C.", "off")
	}
	return fine("on")
}

func (n *memcachedNode) itemSize(context.Context) result {
	most, err := strconv.ParseInt(n.settings["item_size_max"], 10, 64)
	switch {
	case err != nil:
		return unknown("the settings have no item_size_max")
	case most < 1<<20:
		return warn("Options.MaxValueBytes is 1 MiB unless it is set. Values above the server's limit are stored nowhere: each process loads them for itself. Start it with -I 1m or more, or set MaxValueBytes lower, to know it.", "%d bytes", most)
	}
	return fine("%d bytes, of which a value may fill all but 16 KiB", most)
}

func (n *memcachedNode) memory(context.Context) result {
	text := fmt.Sprintf("%s of %s, %d evicted since the start", mebibytes(n.number("bytes")), mebibytes(n.number("limit_maxbytes")), n.number("evictions"))
	if n.number("evictions") > 0 {
		return warn("It evicts what was not used for longest, at times a lease: then a key is loaded twice, and the late value is refused. Also lost are epochs of tags, which makes all that was tagged void. Give it more memory (-m).", "%s", text)
	}
	if n.settings["evictions"] == "off" {
		return warn("It refuses what is loaded when it is full (-M), instead of evicting something.", "%s, evictions are off", text)
	}
	return fine("%s", text)
}

func (n *memcachedNode) connections(context.Context) result {
	now, most := n.number("curr_connections"), n.settings["maxconns"]
	limit, _ := strconv.ParseInt(most, 10, 64)
	text := fmt.Sprintf("%d of %s", now, most)
	if n.number("listen_disabled_num") > 0 || limit > 0 && now*10 >= limit*9 {
		return warn("When there are too many, new ones wait. Start it with a larger -c, or give the stores fewer (Options.Conns).", "%s, the limit was reached %d times", text, n.number("listen_disabled_num"))
	}
	return fine("%s", text)
}

func (n *memcachedNode) idleTimeout(context.Context) result {
	if idle := n.settings["idle_timeout"]; idle != "" && idle != "0" {
		return warn("A store that is quiet for so long loses its connections and makes new ones, which its first operations after that wait for. Leave out -o idle_timeout.", "connections are cut after %s s", idle)
	}
	return fine("none")
}

func (n *memcachedNode) clock(context.Context) result {
	at, err := strconv.ParseInt(n.stats["time"], 10, 64)
	if err != nil {
		return unknown("the stats have no time")
	}
	// It counts whole seconds, and looks at the clock once a second.
	return clockResult(time.Unix(at, 0).Add(500*time.Millisecond), n.asked, 1500*time.Millisecond+n.took/2)
}

func (n *memcachedNode) roundTrips(ctx context.Context) result {
	took, err := n.d.measure(ctx, func(ctx context.Context) error {
		_, err := n.Ask(ctx, "mn")
		return err
	})
	if err != nil {
		return failed("The server does not answer.", "%v", err)
	}
	return n.d.roundTripResult(took, n.d.storeTimeout, "StoreTimeout")
}
