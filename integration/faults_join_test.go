package integration

import (
	"testing"
	"time"

	"github.com/onefill/onefill/internal/faultproxy"
)

// G8 for those who join a flight, while pushes are swallowed and nobody knows of it:
//
//	A: lease, reads v1 | A's network swallows everything | row := v2, C: Invalidate, nil
//	| Local.TTL passes | another caller of A: joins the old load's flight?
//
// He must not: he would get a row that is older than Local.TTL allows.
func TestJoinInABlackHole(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, on := range bothStores {
		t.Run(on, func(t *testing.T) {
			w := newWorld(t, on, 2, func(o *worldOptions) {
				o.StoreTimeout, o.Local.TTL = 250*time.Millisecond, 300*time.Millisecond
			})
			a, c := w.members[0], w.members[1]
			key := w.origin.add(0)
			release := w.origin.hold(key)
			defer release()
			old := storming([]*member{a}, 2, key)
			poll(t, "the load has read the row", func() bool { return w.origin.loads(key) == 1 })
			w.origin.letPass(key)
			a.proxy.SetBoth(faultproxy.Faults{BlackHole: true})
			w.origin.write(key)
			c.invalidated(t, key)
			applied := time.Now()
			poll(t, "Local.TTL is over", func() bool { return time.Since(applied) > w.opts.Local.TTL })

			joined := storming([]*member{a}, 1, key)
			poll(t, "he waits", func() bool { return a.cache.Stats().Coalesced > 1 || w.origin.loads(key) > 1 })
			release()
			for _, r := range joined()[0] {
				if r.Class != "" || r.Row.Version != 2 {
					t.Errorf("a Get that began %v after Invalidate had returned nil brought version %d, %q (joined: %v); Local.TTL is %v",
						r.Start.Sub(applied), r.Row.Version, r.Err, r.Coalesced, w.opts.Local.TTL)
				}
			}
			for _, r := range old()[0] {
				if r.Class != "" || r.Row.Version != 1 {
					t.Errorf("who waited before got version %d, %q", r.Row.Version, r.Err)
				}
			}
			a.proxy.Heal()
		})
	}
}
