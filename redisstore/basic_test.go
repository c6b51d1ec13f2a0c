package redisstore

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

func TestLeaseLifecycle(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		if got := a.Features().Push; got != v.push {
			t.Fatalf("Push = %v, want %v", got, v.push)
		}
		a.wantMiss("k")
		token := store.NewToken()
		first := a.acquire("k", store.Request{Token: token})
		if first.State != store.Won {
			t.Fatalf("first: %s", first.State)
		}
		if again := a.acquire("k", store.Request{Token: token}); again.State != store.Won {
			t.Fatalf("the same token again: %s, want won", again.State)
		}
		held := a.acquire("k", store.Request{Token: store.NewToken()})
		if held.State != store.Held || held.Remaining <= 59*time.Second || held.Remaining > time.Minute {
			t.Fatalf("other token: %s, remaining %s", held.State, held.Remaining)
		}
		if (held.Watch != nil) != v.push {
			t.Fatalf("watch %v with push %v", held.Watch, v.push)
		}
		if !must(first.Lease.Renew(a.ctx, time.Hour))(t) {
			t.Fatal("renew refused")
		}
		if held := a.acquire("k", store.Request{Token: store.NewToken()}); held.Remaining <= 59*time.Minute {
			t.Fatalf("after renew: remaining %s", held.Remaining)
		}
		if !must(first.Lease.Fill(a.ctx, []byte("data"), time.Minute))(t) {
			t.Fatal("fill refused")
		}
		a.wantValue("k", "data")
		if held.Watch != nil {
			woken(t, held.Watch) // by the fill of the own process
		}
		for name, late := range map[string]func() (bool, error){
			"fill":    func() (bool, error) { return first.Lease.Fill(a.ctx, []byte("late"), time.Minute) },
			"fail":    func() (bool, error) { return first.Lease.Fail(a.ctx, []byte("late"), time.Minute) },
			"renew":   func() (bool, error) { return first.Lease.Renew(a.ctx, time.Minute) },
			"release": func() (bool, error) { return first.Lease.Release(a.ctx) },
		} {
			if must(late())(t) {
				t.Errorf("%s after the lease's end was accepted", name)
			}
		}
		a.wantValue("k", "data")
		if hit := a.acquire("k", store.Request{Token: store.NewToken()}); hit.State != store.Hit || string(hit.Item.Data) != "data" {
			t.Fatalf("after the fill: %s %q", hit.State, hit.Item.Data)
		}
	})
}

func TestSeenValueIsReplaced(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		for _, old := range []string{"", "short", strings.Repeat("x", 100), "\x00\xff"} {
			a.set("k", old)
			seen := store.MarkOf([]byte(old))
			if hit := a.acquire("k", store.Request{Token: store.NewToken(), Seen: []byte("other")}); hit.State != store.Hit {
				t.Fatalf("%q: another mark: %s", old, hit.State)
			}
			won := a.acquire("k", store.Request{Token: store.NewToken(), Seen: seen})
			if won.State != store.Won {
				t.Fatalf("%q: its mark: %s", old, won.State)
			}
			if held := a.acquire("k", store.Request{Token: store.NewToken(), Seen: seen}); held.State != store.Held {
				t.Fatalf("%q: its mark, another token: %s", old, held.State)
			}
			a.wantValue("k", old)
			if !must(won.Lease.Release(a.ctx))(t) {
				t.Fatal("release refused")
			}
		}
	})
}

func TestFailureRecord(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		for _, record := range []string{"", "boom", "t0123456789abcdef", "\x00"} {
			a.set("k", "old")
			seen := store.MarkOf([]byte("old"))
			l := a.acquire("k", store.Request{Token: store.NewToken(), Seen: seen}).Lease
			if !must(l.Fail(a.ctx, []byte(record), time.Minute))(t) {
				t.Fatal("fail refused")
			}
			got := a.acquire("k", store.Request{Token: store.NewToken(), Seen: seen})
			if got.State != store.Failed || string(got.Failure) != record || got.Remaining <= 50*time.Second {
				t.Fatalf("%s %q, remaining %s; want failed %q", got.State, got.Failure, got.Remaining, record)
			}
			a.wantValue("k", "old") // an error deletes nothing
			ok(t, a.Invalidate(a.ctx, "k"))
			if err := must(a.win("k").Release(a.ctx))(t); !err {
				t.Fatal("release refused")
			}
		}
		l := a.win("gone")
		if !must(l.Fail(a.ctx, []byte("x"), 0))(t) {
			t.Fatal("fail refused")
		}
		a.win("gone") // a record of 0 is none
	})
}

func TestVoiding(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		voids := map[string]func() error{
			"set":        func() error { _, err := a.Set(a.ctx, "k", []byte("new"), time.Minute); return err },
			"set 0":      func() error { _, err := a.Set(a.ctx, "k", []byte("new"), 0); return err },
			"invalidate": func() error { return a.Invalidate(a.ctx, "other", "k") },
			"expire":     func() error { return a.Expire(a.ctx, time.Now(), "k", "other") },
		}
		for name, void := range voids {
			ok(t, a.Invalidate(a.ctx, "k"))
			l := a.win("k")
			ok(t, void())
			if must(l.Fill(a.ctx, []byte("late"), time.Minute))(t) {
				t.Errorf("%s: the voided lease's fill was accepted", name)
			}
			if name == "set" {
				a.wantValue("k", "new")
			} else {
				a.wantMiss("k")
			}
		}
	})
}

func envelope(kind store.Kind, row uint64, soft time.Time, payload string) []byte {
	e := store.Envelope{Kind: kind, Version: store.NewVersion(time.Now()), Created: time.Now(),
		SoftExpiry: soft, RowVersion: row, Payload: []byte(payload)}
	return e.Encode()
}

// Row versions are big-endian numbers with bytes of all values. Lua's < would
// compare them in the server's locale.
func TestRowVersions(t *testing.T) {
	versions := []uint64{1, 0x7f, 0x80, 0xff, 0x100, 0x61, 0x41, 1 << 32, 0x80 << 56, math.MaxUint64}
	forEach(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		soft := time.Now().Add(time.Hour)
		for _, there := range versions {
			for _, mine := range append(versions, 0) {
				ok(t, a.Invalidate(a.ctx, "k"))
				old := envelope(store.KindValue, there, soft, "old")
				a.set("k", string(old))
				want := mine == 0 || mine >= there
				data := envelope(store.KindValue, mine, soft, "new")
				l := a.acquire("k", store.Request{Token: store.NewToken(), Seen: store.MarkOf(old)}).Lease
				if got := must(l.Fill(a.ctx, data, time.Minute))(t); got != want {
					t.Fatalf("fill of %#x over %#x: %v", mine, there, got)
				}
				if must(l.Renew(a.ctx, time.Minute))(t) {
					t.Fatalf("fill of %#x over %#x left the lease", mine, there)
				}
				a.set("k", string(envelope(store.KindValue, 0, soft, "any")))
				a.set("k", string(old))
				l = a.acquire("k", store.Request{Token: store.NewToken(), Seen: store.MarkOf(old)}).Lease
				if got := must(a.Set(a.ctx, "k", data, time.Minute))(t); got != want {
					t.Fatalf("set of %#x over %#x: %v", mine, there, got)
				}
				if must(l.Renew(a.ctx, time.Minute))(t) {
					t.Fatalf("set of %#x over %#x left the lease", mine, there)
				}
				if wantData := map[bool][]byte{true: data, false: old}[want]; string(a.get("k").Data) != string(wantData) {
					t.Fatalf("set of %#x over %#x: wrong value there", mine, there)
				}
			}
		}
		// What is no envelope has no row version.
		a.set("k", "1f\x01v"+strings.Repeat("\xff", 51))
		if !must(a.Set(a.ctx, "k", envelope(store.KindValue, 1, soft, ""), time.Minute))(t) {
			t.Error("55 bytes were taken for an envelope")
		}
	})
}

func TestExpire(t *testing.T) {
	now := time.UnixMicro(0x0061_80ff_0041_7f80)
	forEach(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		for _, d := range []time.Duration{-time.Hour, -time.Microsecond, 0, time.Microsecond, 128 * time.Microsecond, time.Hour} {
			data := envelope(store.KindValue, 7, now.Add(d), "payload")
			a.set("k", string(data))
			ok(t, a.Expire(a.ctx, now, "k"))
			want, _ := store.Expired(data, now)
			a.wantValue("k", string(want))
			if _, err := store.Decode(a.get("k").Data); err != nil {
				t.Fatal(err)
			}
			ttl := must(ask(t, s, a, "PTTL", "k").AsInt64())(t)
			if ttl < 50_000 || ttl > 60_000 {
				t.Fatalf("TTL after Expire: %d ms", ttl)
			}
		}
		for _, data := range []string{"", "foreign", string(envelope(store.KindNotFound, 0, now, "")), string(envelope(store.KindFailure, 0, now, ""))} {
			a.set("k", data)
			ok(t, a.Expire(a.ctx, now, "k"))
			a.wantMiss("k")
		}
	})
}

func TestKeysAndValuesOfAllKinds(t *testing.T) {
	keys := []string{"", " ", ":", "}", "{", "{}", "a}b", "a{b}c", "}:l", "x:l", "\x00\r\n\xff", "é", strings.Repeat("k", 70_000), "of:{x:y}:l"}
	values := []string{"", "\x00", "t", "f", "\r\n$5", strings.Repeat("v", 1<<20)}
	forEach(t, func(t *testing.T, v variant) {
		a := attach(t, v.store(t), unique(t))
		for i, key := range keys {
			value := values[i%len(values)] + key
			if !must(a.win(key).Fill(a.ctx, []byte(value), time.Minute))(t) {
				t.Fatalf("%.20q: fill refused", key)
			}
		}
		for i, key := range keys {
			a.wantValue(key, values[i%len(values)]+key)
		}
		ok(t, a.Invalidate(a.ctx, keys...))
		for _, key := range keys {
			a.wantMiss(key)
		}
	})
}

func TestTTLs(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		for _, ttl := range []time.Duration{math.MinInt64, -1, 0} {
			a.set("k", "old")
			l := a.acquire("k", store.Request{Token: store.NewToken(), Seen: []byte("old")}).Lease
			if !must(l.Fill(a.ctx, []byte("v"), ttl))(t) {
				t.Fatal("fill refused")
			}
			a.wantMiss("k")
		}
		if !must(a.Set(a.ctx, "k", []byte("v"), math.MaxInt64))(t) {
			t.Fatal("set refused")
		}
		a.wantValue("k", "v")
		if ms := must(ask(t, s, a, "PTTL", "k").AsInt64())(t); ms < longest.Milliseconds()-60_000 {
			t.Errorf("the longest TTL became %d ms", ms)
		}
		if !must(a.Set(a.ctx, "k", []byte("v"), 1))(t) {
			t.Fatal("set refused")
		}
		deadline := time.Now().Add(patience)
		for a.get("k").Found {
			if time.Now().After(deadline) {
				t.Fatal("1 ns never ended")
			}
		}
		for _, ttl := range []time.Duration{-1, 1, math.MaxInt64} {
			ok(t, a.Invalidate(a.ctx, "k"))
			if got := a.acquire("k", store.Request{Token: store.NewToken(), TTL: ttl}); got.State != store.Won {
				t.Fatalf("lease of %d: %s", ttl, got.State)
			}
		}
	})
}

// A key of a foreign type is there and readable as nothing; the next fill replaces it.
func TestForeignTypes(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		foreign := func() { ok(t, ask(t, s, a, "LPUSH", "k", "x").Error()) }
		foreign()
		it := a.get("k")
		if !it.Found || len(it.Data) != 0 {
			t.Fatalf("found %v, %q", it.Found, it.Data)
		}
		if hit := a.acquire("k", store.Request{Token: store.NewToken()}); hit.State != store.Hit {
			t.Fatalf("unseen: %s", hit.State)
		}
		won := a.acquire("k", store.Request{Token: store.NewToken(), Seen: store.MarkOf(it.Data)})
		if won.State != store.Won {
			t.Fatalf("seen: %s", won.State)
		}
		if !must(won.Lease.Fill(a.ctx, envelope(store.KindValue, 1, time.Now(), ""), time.Minute))(t) {
			t.Fatal("fill refused")
		}
		for name, write := range map[string]func() error{
			"set": func() error {
				_, err := a.Set(a.ctx, "k", envelope(store.KindValue, 1, time.Now(), ""), time.Minute)
				return err
			},
			"invalidate": func() error { return a.Invalidate(a.ctx, "k") },
			"expire":     func() error { return a.Expire(a.ctx, time.Now(), "k") },
		} {
			ok(t, a.Invalidate(a.ctx, "k"))
			foreign()
			if err := write(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		ok(t, a.Invalidate(a.ctx, "k"))
		// A lease that is no lease of ours holds up nobody: a list, a string of another
		// form, one without a deadline.
		lease := leaseKey(valueKey(sessionPrefix(a.name), "k"))
		for _, command := range [][]string{{"LPUSH", lease, "x"}, {"SET", lease, "x", "EX", "60"}, {"SET", lease, "tTOKEN"}, {"SET", lease, "frecord"}} {
			ok(t, raw(t, s, command...).Error())
			l := a.win("k")
			if !must(l.Release(a.ctx))(t) {
				t.Errorf("%v: release refused", command)
			}
		}
	})
}

func TestErrorsAfterClose(t *testing.T) {
	forEach(t, func(t *testing.T, v variant) {
		s := v.store(t)
		a := attach(t, s, unique(t))
		b := attach(t, s, a.name)
		ok(t, a.Close())
		ok(t, a.Close())
		_, err := a.Get(a.ctx, "k")
		var typed *store.Error
		if !errors.As(err, &typed) || typed.Op != "get" || typed.Unavailable {
			t.Errorf("closed session: %v", err)
		}
		b.wantMiss("k")
		ok(t, s.Close())
		ok(t, s.Close())
		if _, err = b.Get(b.ctx, "k"); err == nil {
			t.Error("closed store: no error")
		}
		if _, err = s.Attach(b.ctx, store.Config{Name: "x", AllowDown: true}); err == nil {
			t.Error("attach to a closed store: no error")
		}
	})
}

func TestParseKey(t *testing.T) {
	for _, name := range []string{"n", "users/v2"} {
		for _, key := range []string{"", "k", "}", "}:l", ":", "{a}", "a:b}:l"} {
			value := valueKey(sessionPrefix(name), key)
			tag := tagPrefix(name) + key
			for full, want := range map[string]parsed{
				value: {isValue, name, key, value}, leaseKey(value): {isLease, name, key, value}, tag: {isTag, name, key, tag},
				epochKey(name): {isEpoch, name, "", epochKey(name)},
			} {
				if got, ok := parseKey(full); !ok || got != want {
					t.Errorf("parseKey(%q) = %+v %v, want %+v", full, got, ok, want)
				}
			}
		}
	}
	foreign := []string{"", "k", "of:{", "of:{}", "of:{n}", "of:{n:k", "xof:{n:k}", "of:{n:k}:x", "of:{n:k}:w", "of:{n}:t", "of:{n}:x:t", "of:{n}:k}", "of:{n}:k}:l"}
	for _, foreign := range append(foreign, epochKey("n")+confirmSuffix) {
		if got, ok := parseKey(foreign); ok {
			t.Errorf("parseKey(%q) = %+v", foreign, got)
		}
	}
}
