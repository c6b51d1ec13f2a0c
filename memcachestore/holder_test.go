package memcachestore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

// attachOwned is a session of that owner, on the server of another one and under its name.
func attachOwned(r *rig, st *Store, owner string) *rig {
	r.t.Helper()
	s, err := st.Attach(r.ctx, store.Config{Name: r.name, Owner: owner, Grace: time.Minute})
	ok(r.t, err)
	r.t.Cleanup(func() { s.Close() })
	return &rig{Session: s, t: r.t, ctx: r.ctx, name: r.name}
}

// oldFrame is a lease as a version wrote it whose leases had no holder: the format's bytes,
// by hand. The lease has 60 s, an item that has something to keep has 600.
func oldFrame(token store.Token, value, record string) (frame []byte, ttl int) {
	parts, ttl, claimEnd, valueEnd, recordEnd := byte(1), 60, int64(0), int64(endsNever), int64(60)
	if value != "" {
		parts, ttl, claimEnd, valueEnd, recordEnd = parts|16, 600, 540, 0, 600
	}
	if record != "" {
		parts, recordEnd = parts|32, claimEnd+30
	}
	b := append([]byte("1m\x01"), parts, 0, 0)
	for _, end := range []int64{claimEnd, valueEnd, recordEnd} {
		b = binary.BigEndian.AppendUint64(b, uint64(end))
	}
	b = append(append(b, token[:]...), 0, 0, 0, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(record)))
	return append(append(b, record...), value...), ttl
}

// readBefore reads a frame, of a key that is not hashed, as those read it that know no
// holder.
func readBefore(b []byte, left int64) (it item, readable bool) {
	if len(b) < headBytes+claimBytes || string(b[:3]) != "1m\x01" {
		return it, false
	}
	it = item{left: left, claim: claim(b[3] &^ 48), valued: b[3]&16 != 0, recorded: b[3]&32 != 0}
	n := it.parseEnds(b[headBytes:])
	rest := b[headBytes+claimBytes:]
	if it.claim > failed || n > len(rest) {
		return it, false
	}
	it.record, it.value = rest[:n], rest[n:]
	it.outlive()
	return it, true
}

// A lease of an old process in a rolling upgrade: a new one waits for it, shows it, and
// does nothing to it; what its flight does, over the same bytes, works in a new process.
func TestUpgradeOldLease(t *testing.T) {
	server := shared.Get(t)
	st := open(t, server.Addr())
	w := dialWire(t, server.Addr())
	for _, value := range []string{"", envelope("old")} {
		for _, record := range []string{"", "down", "\x02ab"} { // the last looks like a holder
			for what, end := range map[string]func(l *lease, r *rig) (bool, error){
				"Fill":       func(l *lease, r *rig) (bool, error) { return l.Fill(r.ctx, []byte("new"), long) },
				"Release":    func(l *lease, r *rig) (bool, error) { return l.Release(r.ctx) },
				"BreakLease": func(_ *lease, r *rig) (bool, error) { return r.Session.(*session).BreakLease(r.ctx, "k", "") },
			} {
				name := fmt.Sprintf("%s, value %v, record %q", what, value != "", record)
				r := attachOwned(attach(t, st), st, "new:1")
				s := r.Session.(*session)
				key, _, _ := itemKey(sha, r.name, "k")
				token := store.NewToken()
				frame, ttl := oldFrame(token, value, record)
				if got := w.say("ms %s %d T%d F%d\r\n%s", key, len(frame), ttl, frameFlags, frame); got != "HD" {
					t.Fatal(got)
				}
				seen := []byte(nil)
				if value != "" {
					seen = mark(value)
				}
				r.finds("k", seen, store.Held)
				h, err := s.Inspect(r.ctx, "k")
				ok(t, err)
				if l := h.Lease; l.Token != token || l.Try != 1 || l.Owner != "" || l.Left < 50*time.Second || string(h.Item.Data) != value || string(h.Failure.Record) != record {
					t.Errorf("%s: inspected: %+v", name, h)
				}
				p, err := s.at("test", "k")
				ok(t, err)
				c, err := p.node.get(r.ctx)
				ok(t, err)
				l := &lease{s: s, place: p, by: owner{token, 1}, conn: c, turn: make(chan struct{}, 1), unsure: true} // so it looks for its item
				if renewed, err := l.Renew(r.ctx, 50*time.Second); err != nil || !renewed {
					t.Fatalf("%s: Renew = %v, %v", name, renewed, err)
				}
				if done, err := end(l, r); err != nil || !done {
					t.Fatalf("%s = %v, %v", name, done, err)
				}
				h, err = s.Inspect(r.ctx, "k")
				ok(t, err)
				want, remembered := value, record
				if what == "Fill" {
					want, remembered = "new", ""
				}
				if string(h.Item.Data) != want || string(h.Failure.Record) != remembered || h.Lease.ID != "" {
					t.Errorf("%s: then %+v", name, h)
				}
			}
		}
	}
}

// A lease of a new process in a rolling upgrade: to an old one it is the same lease over the
// same value. A failure before it is hidden from it, which docs/format.md says.
func TestUpgradeNewLease(t *testing.T) {
	for _, value := range []string{"", envelope("old")} {
		for _, record := range []string{"", "down"} {
			it := item{valued: value != "", value: []byte(value), left: 600, recorded: record != "", record: []byte(record), recordEnds: 570}
			by := owner{store.NewToken(), 7}
			next, ttl := it.leasedTo(by, "new:1", 60)
			frame := next.encode("")
			old, readable := readBefore(frame, ttl)
			if !readable || old.claim != leased || old.claimLeft() != 60 || old.by != by {
				t.Errorf("an old process reads the lease as %+v (%v)", old, readable)
			}
			if string(old.value) != value || old.valueLeft() != it.valueLeft() || old.recorded {
				t.Errorf("an old process reads the rest as %+v", old)
			}
			// What an old process makes of it, once the lease is over, has no holder.
			over, _ := readBefore(frame, ttl-60)
			if over.claim != unclaimed || (over.valueLeft() > 0) != (value != "") {
				t.Errorf("after the lease: %+v", over)
			}
			after, ttl := over.leasedTo(owner{store.NewToken(), 1}, "", 60)
			if bytes.Contains(after.encode(""), []byte("new:1")) {
				t.Error("the holder outlives its lease")
			}
			// Without a holder the bytes are the old ones.
			none, ttl2 := over.leasedTo(owner{store.Token{1}, 1}, "", 60)
			if back, readable := readBefore(none.encode(""), ttl2); !readable || back.recorded != over.recorded || ttl != ttl2 {
				t.Errorf("%+v", back)
			}
		}
	}
}

// The bytes are a format: docs/format.md describes them.
func TestHolderBytes(t *testing.T) {
	value := "v"
	it := item{valued: true, value: []byte(value), left: 600, recorded: true, record: []byte("down"), recordEnds: 570}
	next, _ := it.leasedTo(owner{store.Token{0: 0xa0, 15: 0xaf}, 0x01020304}, "web-3:4711", 60)
	want := "316d01" + "11" + "0000" + "000000000000021c" + "0000000000000000" + "000000000000023a" + "a00000000000000000000000000000af" + "01020304" +
		"0000000f" + "8a" + fmt.Sprintf("%x", "web-3:4711") + fmt.Sprintf("%x", "down") + fmt.Sprintf("%x", value)
	if got := fmt.Sprintf("%x", next.encode("")); got != want {
		t.Errorf("encoded\n%s, want\n%s", got, want)
	}
}

// What does not fit, or is nothing to be shown, is no holder, and the lease is one all the same.
func TestBadHolders(t *testing.T) {
	it := item{valued: true, value: []byte("v"), left: 600}
	next, ttl := it.leasedTo(owner{store.Token{1}, 1}, "abcd", 60)
	frame := next.encode("")
	at := bytes.Index(frame, []byte("\x04abcd"))
	for bytesThere, want := range map[string]string{"\x04abcd": "abcd", "\x02abcd": "ab", "\x00abcd": "", "\x05abcd": "", "\x7fabcd": "", "\xffabcd": "", "\x04a cd": "", "\x04\x1b[2J": "", "\x04ab\xff\xff": ""} {
		bad := append(append(append([]byte{}, frame[:at]...), bytesThere...), frame[at+5:]...)
		got := decodeItem(reply{code: codeValue, cas: 1, left: ttl, value: bad, flags: frameFlags}, "")
		if got.claim != leased || got.by != next.by || string(got.value) != "v" || got.holder != want || got.recorded {
			t.Errorf("%q: %+v, want the holder %q", bytesThere, got, want)
		}
	}
}

// A lease on an absent key is an empty item, where nobody can be named; the first renewal
// says who it is. Nothing is sent in addition.
func TestHolderOfABareLease(t *testing.T) {
	server := shared.Get(t)
	st := open(t, server.Addr())
	r := attachOwned(attach(t, st), st, strings.Repeat("o", store.MaxOwnerBytes))
	l := r.wins("k", nil)
	info := func() store.LeaseInfo {
		h, err := r.Session.(*session).Inspect(r.ctx, "k")
		ok(t, err)
		return h.Lease
	}
	if i := info(); i.ID == "" || i.Owner != "" || i.Token != (store.Token{}) {
		t.Errorf("before a renewal: %+v", i)
	}
	if renewed, err := l.Renew(r.ctx, long); err != nil || !renewed {
		t.Fatal(renewed, err)
	}
	if i := info(); i.Owner != strings.Repeat("o", store.MaxOwnerBytes) || i.Token == (store.Token{}) {
		t.Errorf("after a renewal: %+v", i)
	}
	r.fill(l, "v", true)
}
