package onefill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill"
	"github.com/onefill/onefill/store"
	"github.com/onefill/onefill/store/memstore"
)

// Keys and values: any bytes, no markers, no collisions.

// oddKeys are strings that meet or break something in one store or another.
var oddKeys = []string{
	" ", "\r\n", "a\r\nset b 0 0 1\r\n", "\x00", "a\x00b", "a", "a:l", "{a}", "}{", "{a", "a}:l", "*", "a b", "a\tb",
	strings.Repeat("k", 249), strings.Repeat("k", 250), strings.Repeat("k", 251), strings.Repeat("k", onefill.MaxKeyBytes),
	"\xff\xfe", "schlüssel", "schlu\u0308ssel", "🗝", "-1", "0", "00", "0x0", "A",
}

// CR LF, spaces, NUL, 251 bytes and braces in keys (gomemcache 79): each is a key of
// its own, for every kind of call.
func TestOddKeys(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		caches := fleet(t, st, options{Load: func(_ context.Context, k string) (string, error) { return "of " + k, nil }})
		for _, k := range oddKeys {
			wantAll(t, herd(bg, 1, k, caches...), "of "+k)
		}
		for _, k := range oddKeys {
			must(t, caches[0].Set(bg, k, "set "+k))
		}
		many, err := caches[0].GetMany(bg, oddKeys)
		if err != nil || len(many) != len(oddKeys) {
			t.Errorf("GetMany: %d of %d, %v", len(many), len(oddKeys), err)
		}
		for _, k := range oddKeys {
			get(t, caches[0], k, "set "+k)
			if many[k] != "set "+k {
				t.Errorf("GetMany(%q) = %q", abbreviated(k), many[k])
			}
		}
		for i, k := range oddKeys { // one at a time: an invalidation takes no other key along
			must(t, caches[0].Invalidate(bg, k))
			peek(t, caches[0], k, "")
			if i+1 < len(oddKeys) {
				peek(t, caches[0], oddKeys[i+1], "set "+oddKeys[i+1])
			}
		}
	})
}

func abbreviated(k string) string { return k[:min(len(k), 20)] }

// Bad keys are errors that say what to do, on every call, and nothing hangs.
func TestBadKeys(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		c := newCache(t, with(options{Load: newOrigin("v1", 0).load}, st))
		for key, want := range map[string]string{
			"":                                "Options.Key",
			strings.Repeat("k", 1<<20):        "MaxKeyBytes",
			strings.Repeat("k", 64<<10) + "k": "65537 bytes",
		} {
			_, errGet := c.Get(bg, key)
			_, errMany := c.GetMany(bg, []string{key})
			_, _, errPeek := c.Peek(bg, key)
			for call, err := range map[string]error{"Get": errGet, "GetMany": errMany, "Peek": errPeek, "Set": c.Set(bg, key, "v"),
				"Invalidate": c.Invalidate(bg, "fine", key), "Expire": c.Expire(bg, key)} {
				if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 || errors.Is(err, store.ErrTooLarge) != (key != "") {
					t.Errorf("%s of a key of %d bytes: %v; want %q", call, len(key), err, want)
				}
			}
		}
	})
}

// A key that is not equal to itself can never be found, and would fill local.
func TestNaNKey(t *testing.T) {
	c, err := onefill.New(onefill.Options[pair, string]{
		Key:  func(k pair) string { return fmt.Sprint(k) },
		Load: func(context.Context, pair) (string, error) { return "v", nil },
	})
	must(t, err)
	defer c.Close()
	if _, err := c.Get(bg, pair{F: math.NaN()}); err == nil || !strings.Contains(err.Error(), "not equal to itself") {
		t.Errorf("Get(NaN): %v", err)
	}
	if v, err := c.Get(bg, pair{F: 1.5}); v != "v" || err != nil {
		t.Errorf("Get(1.5) = %q, %v", v, err)
	}
}

type (
	userID int16
	name   string
)

// Strings, integer kinds and named types of those are keys as they are; different keys
// are different strings, extremes too. Other kinds have no default.
func TestDefaultKeys(t *testing.T) {
	distinct(t, []int64{0, 1, -1, math.MinInt64, math.MaxInt64})
	distinct(t, []uint64{0, 1, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64})
	distinct(t, []userID{0, -1, math.MaxInt16, math.MinInt16})
	distinct(t, []uint8{0, 255})
	distinct(t, []uintptr{0, 1})
	distinct(t, []name{"a", "A", "1", "-1"})
	distinct(t, oddKeys)
	if onefill.DefaultKey[pair]() != nil || onefill.DefaultKey[[2]string]() != nil || onefill.DefaultKey[any]() != nil || onefill.DefaultKey[*int]() != nil {
		t.Error("a kind whose strings may meet has a default key")
	}
}

func distinct[K comparable](t *testing.T, keys []K) {
	t.Helper()
	seen := make(map[string]K)
	for _, k := range keys {
		s := onefill.DefaultKey[K]()(k)
		if other, ok := seen[s]; ok || s != fmt.Sprint(k) {
			t.Errorf("%T: %v is %q, like %v", k, k, s, other)
		}
		seen[s] = k
	}
}

type pair struct {
	A, B string
	F    float64
}

// Structured keys that collide: {"a-b","c"} and {"a","b-c"} (sturdyc, jetcache).
// There is no default for them; New asks for Key.
func TestStructuredKeys(t *testing.T) {
	load := func(_ context.Context, k pair) (string, error) { return k.A + "|" + k.B, nil }
	if _, err := onefill.New(onefill.Options[pair, string]{Load: load}); err == nil || !strings.Contains(err.Error(), "Key") {
		t.Errorf("New without Key for a struct: %v", err)
	}
	c, err := onefill.New(onefill.Options[pair, string]{Name: "pairs", Store: memstore.New(), Load: load,
		Key: func(k pair) string { return fmt.Sprintf("%q%q", k.A, k.B) }})
	must(t, err)
	defer c.Close()
	for _, k := range []pair{{A: "a-b", B: "c"}, {A: "a", B: "b-c"}, {A: "", B: "a-b-c"}} {
		if v, err := c.Get(bg, k); err != nil || v != k.A+"|"+k.B {
			t.Errorf("Get(%v) = %q, %v", k, v, err)
		}
	}
}

// oddValues are bytes that look like something: markers of other caches, numbers,
// our own envelope.
func oddValues() [][]byte {
	env := (&store.Envelope{Kind: store.KindNotFound}).Encode()
	failure := (&store.Envelope{Kind: store.KindFailure, Payload: []byte("broken")}).Encode()
	return [][]byte{{}, []byte("*"), []byte("1f"), []byte("1f\x01v"), []byte("rueidisaside:lock"), []byte("__placeholder__"),
		[]byte("null"), []byte("\x00"), {0xff}, env, failure, bytes.Repeat([]byte{0}, 70_000)}
}

// A value that begins with its marker: 1,555 loads in half a second (rueidisaside);
// a real "*" reads as not found (jetcache). Here no value is a marker: each
// round-trips byte by byte, over the store into another process, with one load.
func TestAnyBytesAreAValue(t *testing.T) {
	layouts(t, func(t *testing.T, st *memstore.Store) {
		for i, want := range oddValues() {
			loads := 0
			o := onefill.Options[string, []byte]{Name: "bytes", Load: func(context.Context, string) ([]byte, error) { loads++; return want, nil }}
			if st != nil {
				o.Store = st
			}
			for range 2 { // the second one has a local cache of its own
				c, err := onefill.New(o)
				must(t, err)
				for range 2 {
					if got, err := c.Get(bg, fmt.Sprint(i)); err != nil || !bytes.Equal(got, want) {
						t.Errorf("value %d: %q, %v; want %q", i, got, err, want)
					}
				}
				must(t, c.Close())
			}
			if most := map[bool]int{true: 2, false: 1}[st == nil]; loads != most {
				t.Errorf("value %d: %d loads", i, loads)
			}
		}
	})
}

// Nil bytes, and zero values of other types, are values too.
func TestZeroValues(t *testing.T) {
	zero[[]byte](t)
	zero[string](t)
	zero[*pair](t)
}

func zero[V any](t *testing.T) {
	t.Helper()
	st := memstore.New()
	loads := 0
	for range 2 {
		c, err := onefill.New(onefill.Options[string, V]{Name: "zero", Store: st, Load: func(context.Context, string) (v V, err error) { loads++; return }})
		must(t, err)
		for range 2 {
			if v, err := c.Get(bg, "k"); err != nil || fmt.Sprint(v) != fmt.Sprint(*new(V)) {
				t.Errorf("%T: %v, %v", v, v, err)
			}
		}
		must(t, c.Close())
	}
	if loads != 1 {
		t.Errorf("%T: %d loads, want 1", *new(V), loads)
	}
}

// What cannot be decoded is a miss, counted, reloaded and overwritten (G9): foreign
// bytes, cut ones, every single bit flipped, a failure's record under a value's key.
func TestUnreadableEntries(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		c := newCache(t, with(options{Load: db.load}, st))
		get(t, c, "k", "v1")
		good, _ := st.Raw("test", "k")
		bad := [][]byte{{}, []byte("x"), []byte("1f"), []byte(`{"id":1}`), good[:len(good)-1], good[:store.HeaderBytes], append(slices.Clone(good), 'x'),
			(&store.Envelope{Kind: store.KindFailure, Payload: []byte("v1")}).Encode()}
		for bit := range len(good) * 8 {
			if i := bit / 8; i >= store.SoftExpiryOffset && i < store.SoftExpiryOffset+8 {
				continue // the field that may change in place, so no checksum covers it
			} else if i >= store.RowVersionOffset && i < store.RowVersionOffset+8 && !replacesVersioned(t, st) {
				continue
			}
			flipped := slices.Clone(good)
			flipped[bit/8] ^= 1 << (bit % 8)
			bad = append(bad, flipped)
		}
		for i, data := range bad {
			st.PutRaw("test", "k", data, time.Hour)
			other := newCache(t, with(options{Load: db.load}, st)) // nothing in local
			peek(t, other, "k", "")
			get(t, other, "k", "v1")
			if n := other.Stats().Undecodable; n == 0 {
				t.Errorf("unreadable entry %d was not counted", i)
			}
			wantStored(t, st, "k", "v1")
			db.wantLoads(t, int64(2+i))
		}
	})
}

type account1 struct{ Name string }
type account2 struct{ Name []string } // after a deploy

// The struct changed in a rolling deploy and old entries crash (rubygems 6548). Here
// they are misses, in both directions.
func TestChangedStructIsAMiss(t *testing.T) {
	st := memstore.New()
	older, err := onefill.New(onefill.Options[string, *account1]{Name: "accounts", Store: st,
		Load: func(context.Context, string) (*account1, error) { return &account1{"a"}, nil }})
	must(t, err)
	defer older.Close()
	newer, err := onefill.New(onefill.Options[string, *account2]{Name: "accounts", Store: st,
		Load: func(context.Context, string) (*account2, error) { return &account2{[]string{"a"}}, nil }})
	must(t, err)
	defer newer.Close()
	for range 3 {
		v1, err1 := older.Get(bg, "k")
		v2, err2 := newer.Get(bg, "k")
		if err1 != nil || err2 != nil || v1.Name != "a" || len(v2.Name) != 1 {
			t.Fatalf("%v, %v; %v, %v", v1, err1, v2, err2)
		}
		must(t, older.Invalidate(bg, "unrelated"))
	}
}

type named struct {
	onefill.Codec[string]
	name string
}

func (n named) Name() string { return n.name }

// A codec that gets another name reads nothing that it wrote under the old one.
func TestCodecOfAnotherName(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		db := newOrigin("v1", 0)
		a := newCache(t, with(options{Load: db.load, Codec: named{onefill.JSON[string](), "json 1"}}, st))
		b := newCache(t, with(options{Load: db.load, Codec: named{onefill.JSON[string](), "json 2"}}, st))
		get(t, a, "k", "v1")
		get(t, b, "k", "v1")
		db.wantLoads(t, 2)
		if n := b.Stats().Undecodable; n == 0 {
			t.Error("the other codec's entry was not counted")
		}
	})
}

// Two callers share and change one pointer (spicedb 2629). With Clone each has its
// own, from a load, from local, and as a joiner.
func TestClone(t *testing.T) {
	for _, st := range []*memstore.Store{nil, memstore.New()} {
		o := onefill.Options[string, *pair]{Name: "pairs", Clone: func(p *pair) *pair { c := *p; return &c },
			Load: func(context.Context, string) (*pair, error) { return &pair{A: "ours"}, nil }}
		if st != nil {
			o.Store = st
		}
		c, err := onefill.New(o)
		must(t, err)
		defer c.Close()
		for range 3 {
			a, err := c.Get(bg, "k")
			must(t, err)
			r, _, err := c.Peek(bg, "k")
			must(t, err)
			many, err := c.GetMany(bg, []string{"k"})
			must(t, err)
			for _, p := range []*pair{a, r.Value, many["k"]} {
				if p.A != "ours" {
					t.Fatalf("somebody's change was seen: %q", p.A)
				}
				p.A = "changed"
			}
		}
	}
}

// Who has loaded a value, or Set it, goes on to change it. With Clone that is nobody else's
// business; it would be a data race, too.
func TestClonesWhatComesIn(t *testing.T) {
	for _, st := range []*memstore.Store{nil, memstore.New()} {
		row, set := &pair{A: "loaded"}, &pair{A: "set"}
		o := onefill.Options[string, *pair]{Name: "pairs", Clone: func(p *pair) *pair { c := *p; return &c },
			Load: func(context.Context, string) (*pair, error) { return row, nil }}
		if st != nil {
			o.Store = st
		}
		c, err := onefill.New(o)
		must(t, err)
		defer c.Close()
		_, err = c.Get(bg, "loaded")
		must(t, err)
		must(t, c.Set(bg, "set", set))
		row.A, set.A = "changed", "changed"
		for _, key := range []string{"loaded", "set"} {
			p, err := c.Get(bg, key)
			must(t, err)
			if p.A != key {
				t.Errorf("%s: the change was seen", key)
			}
		}
	}
}

// A value above MaxValueBytes is served and kept in local, not stored, and no load in
// series for whoever comes next; Set refuses it and names the option.
func TestValueAboveMaxValueBytes(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		large := strings.Repeat("v", 2000)
		db := newOrigin(large, 0)
		c := newCache(t, with(options{Load: db.load, MaxValueBytes: 1000}, st))
		get(t, c, "k", large)
		get(t, c, "k", large)
		db.wantLoads(t, 1)
		if data, _ := st.Raw("test", "k"); len(data) != store.HeaderBytes {
			t.Errorf("the store holds %d bytes, want the %d of a mark without a value", len(data), store.HeaderBytes)
		}
		nothingHeld(t, st)
		err := c.Set(bg, "k", large)
		if !errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), "MaxValueBytes") {
			t.Errorf("Set: %v", err)
		}
		if n := c.Stats().Unstorable; n != 1 {
			t.Errorf("%d unstorable values counted, want 1", n)
		}
	})
}

// A value that cannot be encoded is served to whoever waits, counted, kept in local.
func TestValueThatCannotBeEncoded(t *testing.T) {
	st := memstore.New()
	type unencodable struct{ F func() }
	c, err := onefill.New(onefill.Options[string, *unencodable]{Name: "funcs", Store: st, Logger: slog.New(slog.DiscardHandler),
		Load: func(context.Context, string) (*unencodable, error) { return &unencodable{func() {}}, nil }})
	must(t, err)
	defer c.Close()
	for range 2 {
		if v, err := c.Get(bg, "k"); v == nil || err != nil {
			t.Errorf("%v", err)
		}
	}
	if s := c.Stats(); s.Unstorable != 1 || s.Loads != 1 {
		t.Errorf("%+v", s)
	}
	if err := c.Set(bg, "k", &unencodable{}); err == nil || !strings.Contains(err.Error(), "encoding") {
		t.Errorf("Set: %v", err)
	}
	nothingHeld(t, st)
}

// Caches of different names on one store do not meet, and those of one name share.
func TestNamesDoNotMeet(t *testing.T) {
	stores(t, func(t *testing.T, st *memstore.Store) {
		a, b := newOrigin("a", 0), newOrigin("b", 0)
		ca := newCache(t, with(options{Name: "a", Load: a.load}, st))
		cb := newCache(t, with(options{Name: "b", Load: b.load}, st))
		ca2 := newCache(t, with(options{Name: "a", Load: b.load}, st))
		get(t, ca, "k", "a")
		get(t, cb, "k", "b")
		get(t, ca2, "k", "a")
		must(t, cb.Invalidate(bg, "k"))
		get(t, ca, "k", "a")
		a.wantLoads(t, 1)
	})
}
