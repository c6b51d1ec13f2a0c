package onefill_test

import (
	"context"
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// Bad input: New names every field that is wrong, and nothing hangs.

func TestBadOptions(t *testing.T) {
	st := memstore.New()
	for want, change := range map[string]func(*options){
		"TTL is negative":              func(o *options) { o.TTL = -1 },
		"StaleFor is negative":         func(o *options) { o.StaleFor = -1 },
		"StaleOnError is negative":     func(o *options) { o.StaleOnError = math.MinInt64 },
		"NotFoundTTL is negative":      func(o *options) { o.NotFoundTTL = -1 },
		"ErrorTTL is negative":         func(o *options) { o.ErrorTTL = -1 },
		"LoadTimeout is negative":      func(o *options) { o.LoadTimeout = -time.Second },
		"WaitTimeout is negative":      func(o *options) { o.WaitTimeout = -1 },
		"LeaseTTL is negative":         func(o *options) { o.LeaseTTL = -1 },
		"StoreTimeout is negative":     func(o *options) { o.StoreTimeout = -1 },
		"Local.TTL is negative":        func(o *options) { o.Local.TTL = -1 },
		"MaxLoads is negative":         func(o *options) { o.MaxLoads = -1 },
		"MaxLoadsDegraded is negative": func(o *options) { o.MaxLoadsDegraded = -1 },
		"MaxBatch is negative":         func(o *options) { o.MaxBatch = -1 },
		"MaxValueBytes is negative":    func(o *options) { o.MaxValueBytes = -1 },
		"Local.MaxEntries is negative": func(o *options) { o.Local.MaxEntries = -1 },
		"Jitter is -0.1":               func(o *options) { o.Jitter = -0.1 },
		"Jitter is 1.1":                func(o *options) { o.Jitter = 1.1 },
		"Jitter is NaN":                func(o *options) { o.Jitter = math.NaN() },
		"EarlyRefresh is -1":           func(o *options) { o.EarlyRefresh = -1 },
		"EarlyRefresh is NaN":          func(o *options) { o.EarlyRefresh = math.NaN() },
		"EarlyRefresh is +Inf":         func(o *options) { o.EarlyRefresh = math.Inf(1) },
		"OnStoreDown is 7":             func(o *options) { o.OnStoreDown = 7 },
		"Name, which is needed with a Store: the name is empty": func(o *options) { o.Store = st },
		`"a b" holds ' '`: func(o *options) { o.Store, o.Name = st, "a b" },
		"129 bytes":       func(o *options) { o.Store, o.Name = st, strings.Repeat("n", 129) },
		`Owner: the owner "web 3" holds ' ' at byte 3`:   func(o *options) { o.Store, o.Name, o.Owner = st, "test", "web 3" },
		"Owner: the owner has 65 bytes":                  func(o *options) { o.Store, o.Name, o.Owner = st, "test", strings.Repeat("o", 65) },
		"Local.Off":                                      func(o *options) { o.Local.Off = true },
		"AllowStoreDown":                                 func(o *options) { o.AllowStoreDown = true },
		"MaxLoadsDegraded (5) is more than MaxLoads (4)": func(o *options) { o.MaxLoads, o.MaxLoadsDegraded = 4, 5 },
	} {
		o := options{Load: newOrigin("v", 0).load}
		change(&o)
		if c, err := onefill.New(o); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "onefill: ") {
			t.Errorf("New: %v; want %q", err, want)
			if c != nil {
				c.Close()
			}
		}
	}
	if u := st.Usage(); u.Sessions != 0 {
		t.Errorf("%d sessions were left by caches that were not made", u.Sessions)
	}
}

// All that is wrong is said at once.
func TestBadOptionsTogether(t *testing.T) {
	_, err := onefill.New(onefill.Options[pair, string]{TTL: -1, Jitter: 2, MaxLoads: -1, Store: memstore.New()})
	for _, field := range []string{"TTL", "Jitter", "MaxLoads", "Name", "Key"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

// The zero value of each field is its default: a cache of nothing but a loader works.
func TestZeroOptions(t *testing.T) {
	db := newOrigin("v1", 0)
	c := newCache(t, options{Load: db.load})
	get(t, c, "k", "v1")
	get(t, c, "k", "v1")
	db.wantLoads(t, 1)
	if s := c.Stats(); s.Loads != 1 || s.LocalHits != 1 || s.LocalEntries != 1 {
		t.Errorf("%+v", s)
	}
}

// A store that does not answer: New says which one, where, what and why; with
// AllowStoreDown the cache works, and better when the store comes up.
func TestStoreDownAtNew(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		st.Down()
		db := newOrigin("v1", 0)
		o := with(options{Name: "test", Load: db.load}, st)
		_, err := onefill.New(o)
		var se *onefill.StoreError
		if !errors.As(err, &se) || se.Service != "memory" || se.Addr != "in-process" || se.Op != "attach" || !errors.Is(err, memstore.ErrDown) || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("New: %v", err)
		}
		if !strings.Contains(err.Error(), `"test"`) {
			t.Errorf("New: %v does not name the cache", err)
		}
		o.AllowStoreDown = true
		c := newCache(t, o)
		get(t, c, "k", "v1")
		st.Up()
		time.Sleep(3 * time.Second)
		get(t, c, "k", "v1")
		wantStored(t, st, "k", "v1")
	})
}

// A store that hangs at New does not hang New.
func TestStoreHangsAtNew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		st := memstore.New()
		st.SetFault(func(memstore.Op) memstore.Fault { return memstore.Fault{Hold: make(chan struct{})} })
		start := time.Now()
		_, err := onefill.New(options{Name: "test", Store: st, Load: newOrigin("v", 0).load})
		if !errors.Is(err, store.ErrUnavailable) || time.Since(start) > 10*time.Second {
			t.Errorf("New: %v after %v", err, time.Since(start))
		}
	})
}

// Without the in-process cache every Get asks the store, and herds still share.
func TestLocalOff(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", loadTime)
		caches := fleet(t, st, options{Load: db.load, Local: onefill.LocalOptions{Off: true}})
		wantAll(t, herd(bg, 100, "k", caches...), "v1")
		r, err := caches[0].Fetch(bg, "k")
		if err != nil || r.Source != onefill.SourceStore || r.Value != "v1" {
			t.Errorf("%+v, %v", r, err)
		}
		db.wantLoads(t, 1)
		db.write("v2")
		must(t, caches[1].Invalidate(bg, "k"))
		wantAll(t, herd(bg, 1, "k", caches...), "v2")
	})
}

// Local keeps at most MaxEntries.
func TestMaxEntries(t *testing.T) {
	c, err := onefill.New(options{Local: onefill.LocalOptions{MaxEntries: 50}, Load: newOrigin("v", 0).load})
	must(t, err)
	defer c.Close()
	for i := range 5000 {
		must(t, first(c.Get(bg, strconv.Itoa(i))))
	}
	eventually(t, "at most MaxEntries are left", func() bool { return c.Stats().LocalEntries <= 50 })
}

// Calls without keys are fine.
func TestNoKeys(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, with(options{Load: newOrigin("v", 0).load}, st))
		must(t, c.Invalidate(bg))
		must(t, c.Expire(bg))
		if m, err := c.GetMany(bg, nil); len(m) != 0 || err != nil {
			t.Errorf("GetMany of nothing: %v, %v", m, err)
		}
	})
}

// Whoever inspects a key that is being loaded is told which process loads it: by default
// host and process ID, else what the options say.
func TestOwner(t *testing.T) {
	host, err := os.Hostname()
	must(t, err)
	for owner, want := range map[string]string{"": onefill.OwnerOf(host, os.Getpid()), "web-3": "web-3"} {
		st := memstore.New()
		began, goOn := make(chan struct{}), make(chan struct{})
		c := newCache(t, options{Name: "test", Store: st, Owner: owner, Load: func(context.Context, string) (string, error) {
			close(began)
			<-goOn
			return "v", nil
		}})
		looker, err := st.Attach(bg, store.Config{Name: "test"})
		must(t, err)
		got := make(chan error, 1)
		go func() { _, err := c.Get(bg, "k"); got <- err }()
		<-began
		if h, err := looker.(store.Inspector).Inspect(bg, "k"); err != nil || h.Lease.Owner != want {
			t.Errorf("Owner %q: %+v, %v, want it held by %q", owner, h.Lease, err, want)
		}
		close(goOn)
		must(t, <-got)
		if h, err := looker.(store.Inspector).Inspect(bg, "k"); err != nil || h.Lease != (store.LeaseInfo{}) {
			t.Errorf("after the load: %+v, %v", h.Lease, err)
		}
		looker.Close()
	}
}

// Whatever the host is called, the default is an owner that every store takes, and ends in
// the process ID.
func TestDefaultOwner(t *testing.T) {
	long := strings.Repeat("h", 300)
	for host, want := range map[string]string{"web-3": "web-3:4711", "": ":4711", "a b\x00ä\x7f": "a-b----:4711", long: long[:59] + ":4711"} {
		got := onefill.OwnerOf(host, 4711)
		if err := store.ValidOwner(got); err != nil || got != want {
			t.Errorf("of %q: %q, %v, want %q", host, got, err, want)
		}
	}
}
