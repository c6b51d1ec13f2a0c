package redisstore

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

// attachOwned is a session of that owner.
func attachOwned(t *testing.T, s *Store, name, owner string) *rig {
	t.Helper()
	r := attach(t, s, name)
	sess, err := s.Attach(r.ctx, store.Config{Name: name, Owner: owner})
	ok(t, err)
	t.Cleanup(func() { sess.Close() })
	r.Session = sess
	return r
}

func (r *rig) leaseInfo(key string) store.LeaseInfo {
	r.t.Helper()
	return must(r.inspector().Inspect(r.ctx, key))(r.t).Lease
}

// The bytes are a format, as those in TestClaimBytes: docs/format.md describes them.
func TestOwnerBytes(t *testing.T) {
	s := variants[0].store(t)
	a := attachOwned(t, s, unique(t), "web-3:4711")
	token := store.Token{0: 0xa0, 15: 0xaf}
	claim := "t" + string(token[:]) + "\x00\x00\x00\x01"
	a.acquire("k", store.Request{Token: token, Try: 1, TTL: time.Minute})
	if got, want := lies(t, s, a, "k"), claim+"@web-3:4711 "; got != want {
		t.Errorf("a lease: %q, want %q", got, want)
	}
	a.mustFail(a.win("failed"), "down", time.Minute)
	if got := lies(t, s, a, "failed"); got != "f60000:down" {
		t.Errorf("a failure: %q, want f60000:down", got)
	}
	ok(t, raw(t, s, "PEXPIRE", leaseKey(valueKey(sessionPrefix(a.name), "failed")), "50000").Error())
	a.acquire("failed", store.Request{Token: token, Try: 1, TTL: time.Minute})
	left, found := strings.CutPrefix(lies(t, s, a, "failed"), claim+"@web-3:4711 ")
	left, record, _ := strings.Cut(left, ":")
	if ms, err := strconv.Atoi(left); !found || err != nil || ms > 50000 || ms < 40000 || record != "down" {
		t.Errorf("a lease that was won over a failure: %q %q, want the claim, the owner, 50000:down", left, record)
	}
}

// What no terminal should get is not shown, whoever has written it.
func TestInspectHidesAStrangersOwner(t *testing.T) {
	s := variants[0].store(t)
	a := attach(t, s, unique(t))
	claim := "t" + strings.Repeat("x", 20)
	for rest, want := range map[string]string{"@ok ": "ok", "@ok 5:down": "ok", "@ ": "", "@\x1b[2J ": "", "@\xff ": "", "@noend": "", "@": "", "5:a @b ": "",
		"@" + strings.Repeat("o", store.MaxOwnerBytes+1) + " ": ""} {
		ok(t, raw(t, s, "SET", leaseKey(valueKey(sessionPrefix(a.name), "k")), claim+rest, "PX", "60000").Error())
		if l := a.leaseInfo("k"); l.Owner != want || l.ID == "" {
			t.Errorf("%q: %+v, want the owner %q", rest, l, want)
		}
	}
}

// before runs a script as it was before leases had an owner (testdata/without-owner); those
// that are not there have not changed.
func before(t *testing.T, s *Store, script string, keys, args []string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "without-owner", script+".lua"))
	ok(t, err)
	result := raw(t, s, append(append([]string{"EVAL", string(text), strconv.Itoa(len(keys))}, keys...), args...)...)
	if n, err := result.AsInt64(); err == nil {
		return []string{strconv.FormatInt(n, 10)}
	}
	fields, err := result.ToArray()
	ok(t, err)
	var texts []string
	for _, f := range fields {
		if n, err := f.AsInt64(); err == nil {
			texts = append(texts, strconv.FormatInt(n, 10))
			continue
		}
		text, err := f.ToString()
		ok(t, err)
		texts = append(texts, text)
	}
	return texts
}

// deploy is a key in the middle of a rolling upgrade: its old processes write leases without
// an owner, its new ones with one. Each side must do by the other's leases as by its own.
type deploy struct {
	*rig
	s     *Store
	keys  []string
	token store.Token
}

func newDeploy(t *testing.T, owner string) *deploy {
	s := variants[0].store(t)
	a := attachOwned(t, s, unique(t), owner)
	value := valueKey(sessionPrefix(a.name), "k")
	return &deploy{rig: a, s: s, keys: []string{value, leaseKey(value)}, token: store.NewToken()}
}

// oldAsks is an acquire of an old process.
func (d *deploy) oldAsks(token store.Token, ttl time.Duration) []string {
	d.t.Helper()
	return before(d.t.(*testing.T), d.s, "acquire", d.keys, []string{claim(store.Request{Token: token, Try: 1}), millis(ttl), "", markBytes})
}

// lie puts a lease there, the format's own bytes, by hand; as an old process writes it if rest begins with no owner.
func (d *deploy) lie(rest string) {
	d.t.Helper()
	ok(d.t, raw(d.t.(*testing.T), d.s, "SET", d.keys[1], "t"+string(d.token[:])+"\x00\x00\x00\x01"+rest, "PX", "60000").Error())
}

// An old process holds: a new one waits for it, shows it, and does nothing to it; and its
// flight can do all that it could, with a new library's scripts as well (they compare the
// claim only).
func TestUpgradeOldLease(t *testing.T) {
	for _, rest := range []string{"", "30000:down"} {
		d := newDeploy(t, "new:1")
		d.lie(rest)
		if got := d.acquire("k", store.Request{Token: store.NewToken(), TTL: time.Minute}); got.State != store.Held || got.Remaining < 50*time.Second {
			t.Errorf("%q: another's acquire: %v, %v left, want held", rest, got.State, got.Remaining)
		}
		h := must(d.inspector().Inspect(d.ctx, "k"))(t)
		if h.Lease.Token != d.token || h.Lease.Try != 1 || h.Lease.Owner != "" || h.Lease.Left < 50*time.Second || string(h.Failure.Record) != strings.TrimPrefix(rest, "30000:") {
			t.Errorf("%q: inspected: %+v", rest, h)
		}
		l := &lease{session: d.session(), key: "k", value: d.keys[0], lease: d.keys[1], claim: claim(store.Request{Token: d.token, Try: 1})}
		if !must(l.Renew(d.ctx, time.Hour))(t) || leaseTTL(t, d.s, d.rig, "k") < 59*time.Minute {
			t.Errorf("%q: the lease was not renewed", rest)
		}
		if !must(l.Fill(d.ctx, []byte("v"), time.Minute))(t) {
			t.Errorf("%q: the fill was refused", rest)
		}
	}
}

// A lease, of an old process or a new one, ends in each of the ways that read what is behind the
// claim: the record is put back as before.
func TestUpgradeLeaseKeepsTheFailure(t *testing.T) {
	for what, end := range map[string]func(t *testing.T, d *deploy) bool{
		"Release": func(t *testing.T, d *deploy) bool {
			l := &lease{session: d.session(), key: "k", value: d.keys[0], lease: d.keys[1], claim: claim(store.Request{Token: d.token, Try: 1})}
			return must(l.Release(d.ctx))(t)
		},
		"BreakLease": func(t *testing.T, d *deploy) bool { return must(d.inspector().BreakLease(d.ctx, "k", ""))(t) },
		"a later try": func(t *testing.T, d *deploy) bool {
			won := d.acquire("k", store.Request{Token: d.token, Try: 2, TTL: time.Minute})
			if won.State != store.Won || string(won.Failure) != "down" || d.leaseInfo("k").Owner != "new:1" {
				t.Errorf("%v, failure %q, %+v", won.State, won.Failure, d.leaseInfo("k"))
			}
			return must(won.Lease.Release(d.ctx))(t)
		},
	} {
		for _, owner := range []string{"", "@other:1 "} {
			d := newDeploy(t, "new:1")
			d.lie(owner + "30000:down")
			if !end(t, d) {
				t.Errorf("%s of %q: it is no lease", what, owner)
			}
			if got := lies(t, d.s, d.rig, "k"); got != "f30000:down" {
				t.Errorf("%s of %q: %q lies there, want f30000:down", what, owner, got)
			}
		}
	}
}

// A new process holds: an old one waits for it, gets the failure behind it when it is its
// turn, and a flight's own later try (which no process of two versions makes) loses at most
// the owner. fill, fail and renew are the same in both: that of an old process is refused.
func TestUpgradeNewLease(t *testing.T) {
	d := newDeploy(t, "new:1")
	won := d.acquire("k", store.Request{Token: d.token, Try: 1, TTL: time.Minute})
	if got := d.oldAsks(store.NewToken(), time.Minute); got[0] != "3" {
		t.Errorf("an old process' acquire: %q, want held", got)
	}
	strange := &lease{session: d.session(), key: "k", value: d.keys[0], lease: d.keys[1], claim: claim(store.Request{Token: store.NewToken(), Try: 1})}
	if must(strange.Fill(d.ctx, []byte("v"), time.Minute))(t) || before(t, d.s, "release", d.keys[1:], []string{strange.claim})[0] != "0" {
		t.Error("another's token was taken for the lease's")
	}
	if got := before(t, d.s, "break", d.keys[1:], []string{strange.claim[1:17]}); got[0] != "0" {
		t.Errorf("another's token has broken the lease: %q", got)
	}
	if d.leaseInfo("k").Owner != "new:1" {
		t.Errorf("%+v", d.leaseInfo("k"))
	}
	d.mustFail(won.Lease, "down", 30*time.Second)
	if got := d.oldAsks(store.NewToken(), time.Minute); got[0] != "4" || got[2] != "down" {
		t.Errorf("the failure that a new process has left: %q", got)
	}
	ok(t, raw(t, d.s, "PEXPIRE", d.keys[1], "20000").Error())
	if got := d.oldAsks(d.token, time.Minute); got[0] != "2" || got[1] != "down" {
		t.Errorf("the failure is over: %q, want won", got)
	}
	if l := d.leaseInfo("k"); l.Owner != "" || l.Token != d.token {
		t.Errorf("an old process' lease: %+v", l)
	}
}

// Those of an old process that read what is behind the claim do not know the owner: to end a
// new lease over a failure works, and forgets that failure. docs/format.md says so.
func TestUpgradeOldBreakOfANewLease(t *testing.T) {
	for what, end := range map[string]func(d *deploy) []string{
		"break":   func(d *deploy) []string { return before(t, d.s, "break", d.keys[1:], []string{""}) },
		"by name": func(d *deploy) []string { return before(t, d.s, "break", d.keys[1:], []string{string(d.token[:])}) },
	} {
		d := newDeploy(t, "new:1")
		d.mustFail(d.win("k"), "down", 30*time.Second)
		ok(t, raw(t, d.s, "PEXPIRE", d.keys[1], "20000").Error())
		won := d.acquire("k", store.Request{Token: d.token, Try: 1, TTL: time.Minute})
		if string(won.Failure) != "down" {
			t.Fatalf("%v, %q", won.State, won.Failure)
		}
		if got := end(d); got[0] != "1" {
			t.Errorf("%s: %q, want it broken", what, got)
		}
		if must(won.Lease.Fill(d.ctx, []byte("late"), time.Minute))(t) {
			t.Errorf("%s: the holder's fill was accepted", what)
		}
		if next := d.acquire("k", store.Request{Token: store.NewToken(), TTL: time.Minute}); next.State != store.Won || next.Failure != nil {
			t.Errorf("%s: the next one: %v, failure %q", what, next.State, next.Failure)
		}
	}
}

// session is the one behind the rig.
func (d *deploy) session() *session {
	d.t.Helper()
	sess, isOne := d.rig.Session.(*session)
	if !isOne {
		d.t.Fatalf("%T", d.rig.Session)
	}
	return sess
}
