package memcachestore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/onefill/onefill/store"
)

func TestCommands(t *testing.T) {
	for want, got := range map[string][]byte{
		"mg k v c t f O7\r\n":                    appendGet(nil, "k", 0, 0, 7),
		"mg k v c t f N30 O7\r\n":                appendGet(nil, "k", 30, 0, 7),
		"mg k v c t f N30 E9 O4294967295\r\n":    appendGet(nil, "k", 30, 9, math.MaxUint32),
		"mg k c t O7\r\n":                        appendLook(nil, "k", 7),
		"ms k 2 c T60 F3239169 C5 O7\r\na\n\r\n": appendSet(nil, "k", write{cas: 5, ttl: "60", data: []byte("a\n")}, 7),
		"ms k 0 c T0 F3239169 ME E8 O7\r\n\r\n":  appendSet(nil, "k", write{ttl: "0", explicit: 8}, 7),
		"ms k 1 c T60 F3239169 O7\r\nx\r\n":      appendSet(nil, "k", write{any: true, ttl: "60", data: []byte("x")}, 7),
		"md k O7\r\n":                            appendDelete(nil, "k", 0, 7),
		"md k C18446744073709551615 O7\r\n":      appendDelete(nil, "k", math.MaxUint64, 7),
		"before mg k v c t f O7\r\n":             appendGet([]byte("before "), "k", 0, 0, 7),
	} {
		if string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestReadReply(t *testing.T) {
	for line, want := range map[string]reply{
		"VA 0 c1 t30 f0 O1 W\r\n\r\n":                                {code: codeValue, value: []byte{}, cas: 1, left: 30, opaque: 1, won: true},
		"VA 5 c18446744073709551615 t-1 f7 O9 Z X\r\na\r\nb\x00\r\n": {code: codeValue, value: []byte("a\r\nb\x00"), cas: math.MaxUint64, left: forever, flags: 7, opaque: 9, already: true},
		"HD c2 O3\r\n":                   {code: codeDone, cas: 2, opaque: 3},
		"HD O3 \r\n":                     {code: codeDone, opaque: 3},
		"EN O3\r\n":                      {code: codeMiss, opaque: 3},
		"NF O3\r\n":                      {code: codeMissing, opaque: 3},
		"EX O3\r\n":                      {code: codeExists, opaque: 3},
		"NS c0 O3\r\n":                   {code: codeNot, opaque: 3},
		"MN\r\n":                         {code: codeNoop},
		"SERVER_ERROR out of memory\r\n": {code: codeRefused, message: "out of memory"},
	} {
		const next = "MN\r\n"
		// One byte at a time, and with the next reply behind it, which stays unread.
		r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(line + next)))
		got, err := readReply(r, 5)
		if err != nil || !sameReply(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", line, got, err, want)
		}
		if rest, _ := io.ReadAll(r); string(rest) != next {
			t.Errorf("%q: %q is left, want %q", line, rest, next)
		}
	}
}

func sameReply(a, b reply) bool {
	av, bv := a.value, b.value
	a.value, b.value = nil, nil
	return bytes.Equal(av, bv) && (av == nil) == (bv == nil) &&
		a.code == b.code && a.opaque == b.opaque && a.cas == b.cas && a.left == b.left && a.flags == b.flags &&
		a.won == b.won && a.already == b.already && a.message == b.message
}

func TestReadReplySurprises(t *testing.T) {
	for _, line := range []string{
		"\r\n", "\n", "MN\n", "HELLO\r\n", "ERROR\r\n", "CLIENT_ERROR bad data chunk\r\n", "VA\r\n", "VA x O1\r\n", "VA -1 O1\r\n", "VA 6 O1\r\nabcdef\r\n",
		"VA 99999999999999999999 O1\r\n", "VA 2 O1\r\nabc\r\n", "HD O4294967296\r\n", "HD O-1\r\n", "HD cx\r\n", "HD t-2\r\n", "HD f4294967296\r\n",
		"HD q\r\n", "HD kabc\r\n", "STAT pid 1\r\n", "END\r\n", "+PONG\r\n", "-ERR unknown command\r\n", "HTTP/1.1 400 Bad Request\r\n",
		strings.Repeat("x", maxLine+1) + "\r\n",
	} {
		if got, err := readReply(bufio.NewReader(strings.NewReader(line)), 5); !errors.Is(err, errProtocol) {
			t.Errorf("%.60q: %+v, %v, want a protocol error", line, got, err)
		}
	}
	for _, cut := range []string{"", "H", "HD O1", "HD O1\r", "VA 3 O1\r\n", "VA 3 O1\r\nab", "VA 3 O1\r\nabc\r"} {
		if got, err := readReply(bufio.NewReader(strings.NewReader(cut)), 5); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %+v, %v, want an unexpected end", cut, got, err)
		}
	}
}

// A server that claims to have a huge value costs no memory before it has sent it.
func TestClaimedSizeIsNotBelieved(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readReply(bufio.NewReader(strings.NewReader("VA 1000000000 O1\r\nabc")), math.MaxInt32); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want an unexpected end", err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
		t.Errorf("three bytes of a claimed 1 GB took %d bytes", took)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // more than two steps
	got, err := readReply(bufio.NewReader(strings.NewReader("VA 3200000 O1\r\n"+string(big)+"\r\n")), 4_000_000)
	if err != nil || !bytes.Equal(got.value, big) {
		t.Errorf("%d bytes, %v, want %d", len(got.value), err, len(big))
	}
}

func FuzzReadReply(f *testing.F) {
	for _, seed := range []string{"VA 3 c1 t30 f0 O1 W\r\nabc\r\nMN\r\n", "HD c2 O3\r\n", "EN\r\n", "NS\r\n", "SERVER_ERROR x\r\n", "VA 0 Z\r\n\r\n", "VA 5", "CLIENT_ERROR\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 16
		br := bufio.NewReader(bytes.NewReader(data))
		got, err := readReply(br, limit)
		if err != nil {
			if !errors.Is(err, errProtocol) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("error %v is neither a protocol error nor an end", err)
			}
			return
		}
		// What was read is one line and at most one value, and nothing beyond.
		rest, _ := io.ReadAll(br)
		read := data[:len(data)-len(rest)]
		line := bytes.IndexByte(read, '\n') + 1
		want := line
		if got.code == codeValue {
			want += len(got.value) + len(crlf)
		}
		if len(read) != want || !bytes.HasSuffix(read, []byte(crlf)) || len(got.value) > limit {
			t.Fatalf("%q: read %q as %+v", data, read, got)
		}
		again, err := readReply(bufio.NewReader(iotest.OneByteReader(bytes.NewReader(read))), limit)
		if err != nil || !sameReply(got, again) {
			t.Fatalf("%q: %+v, byte by byte %+v, %v", read, got, again, err)
		}
	})
}

func FuzzDecodeItem(f *testing.F) {
	failure, _ := (&item{valued: true, value: []byte("v"), left: 600}).failedFor(30, []byte("record"))
	f.Add(failure.encode("key"), "key", int64(595), uint32(frameFlags))
	next, _ := failure.leasedTo(owner{store.Token{1}, 7}, "web-3:4711", 30)
	f.Add(next.encode("key"), "key", int64(500), uint32(frameFlags))
	after, _ := failure.released()
	f.Add(after.encode("key"), "key", int64(590), uint32(frameFlags))
	f.Add((&item{valued: true}).encode(""), "", int64(1), uint32(frameFlags))
	f.Add([]byte("1m\x01\x31\x00\x00"), "", int64(-1), uint32(frameFlags))
	f.Add([]byte("stranger"), "", int64(5), uint32(0))
	f.Fuzz(func(t *testing.T, data []byte, kept string, left int64, flags uint32) {
		if left < 0 {
			left = forever
		}
		it := decodeItem(reply{code: codeValue, cas: 1, left: left % (1 << 31), value: data, flags: flags}, kept)
		if it.valued != (it.valueLeft() > 0) || (it.claim != unclaimed) != (it.claimLeft() > 0) || it.recorded != (it.recordLeft() > 0) {
			t.Fatalf("%q: %+v lasts %d, its claim %d, its record %d", data, it, it.valueLeft(), it.claimLeft(), it.recordLeft())
		}
		if len(kept) > math.MaxUint16 {
			return
		}
		lease, failure, rest := it, it, it
		lease.claim, lease.by, lease.holder = leased, owner{store.Token{9}, math.MaxUint32}, "a:1"
		failure.claim, failure.recorded, failure.record = failed, true, []byte("r")
		rest.claim = unclaimed
		for _, c := range []struct {
			want        item
			claim, memo int64
			become      func() (item, int64)
		}{
			{lease, 7, it.recordLeft(), func() (item, int64) { return it.leasedTo(lease.by, lease.holder, 7) }},
			{failure, 7, 14, func() (item, int64) { return it.failedFor(7, failure.record) }},
			{rest, 0, it.recordLeft(), it.released},
		} {
			next, ttl := c.become()
			if (ttl == 0) != (!c.want.valued && c.claim == 0 && c.memo == 0) || next.timed() && ttl > longestRelative {
				t.Fatalf("%+v from %+v lasts %d s", next, it, ttl)
			}
			if ttl == 0 {
				continue
			}
			back := decodeItem(reply{code: codeValue, cas: 1, left: ttl, value: next.encode(kept), flags: frameFlags}, kept)
			if back.claim != c.want.claim || back.claimLeft() != c.claim || back.recordLeft() != c.memo || !bytes.Equal(back.record, c.want.record) ||
				back.valueLeft() != it.valueLeft() || !bytes.Equal(back.value, it.value) || back.claim == leased && (back.by != lease.by || back.holder != lease.holder) {
				t.Fatalf("%+v became %+v with %d s, want %+v with %d s of the claim and %d s of the record", it, back, ttl, c.want, c.claim, c.memo)
			}
		}
	})
}

// The life of a value and of a claim on it, second by second as a server counts them.
func TestItemEnds(t *testing.T) {
	for _, c := range []struct {
		name               string
		valueLeft, lease   int64
		ttl                int64
		valueAt3, claimAt3 int64 // what is left of each after 3 s
	}{
		{"the value outlives the lease", 600, 30, 600, 597, 27},
		{"the lease outlives the value", 10, 30, 30, 7, 27},
		{"both end together", 30, 30, 30, 27, 27},
		{"no value", 0, 30, 30, 0, 27},
		{"the value ends at once", 2, 30, 30, 0, 27},
		{"the lease ends at once", 600, 2, 600, 597, 0},
		{"a value for ever", forever, 30, longestRelative, forever, 27},
		{"a value for a year", 365 * 86400, 30, longestRelative, 365*86400 - 3, 27},
	} {
		t.Run(c.name, func(t *testing.T) {
			it := item{valued: c.valueLeft > 0, value: []byte("v"), left: c.valueLeft}
			next, ttl := it.leasedTo(owner{store.Token{1}, 1}, "web-3:4711", c.lease)
			if ttl != c.ttl {
				t.Errorf("the item lasts %d s, want %d", ttl, c.ttl)
			}
			after := decodeItem(reply{code: codeValue, cas: 1, left: ttl - 3, value: next.encode(""), flags: frameFlags}, "")
			if got := after.valueLeft(); got != c.valueAt3 || after.valued != (got > 0) {
				t.Errorf("3 s later the value lasts %d s more (valued: %v), want %d", got, after.valued, c.valueAt3)
			}
			if got := after.claimLeft(); got != c.claimAt3 || (after.claim == leased) != (got > 0) {
				t.Errorf("3 s later the lease (%v) lasts %d s more, want %d", after.claim, got, c.claimAt3)
			}
			plain, ttl := after.plain()
			if ttl != c.valueAt3 || plain.claim != unclaimed {
				t.Errorf("released, it lasts %d s, want %d", ttl, c.valueAt3)
			}
		})
	}
}

// The life of a failure, second by second: as long as it counts it is told to everybody,
// for as long again to who tries next, whatever the value's life, and whether a lease
// was taken and lost or given back meanwhile.
func TestFailureEnds(t *testing.T) {
	for _, value := range []int64{0, 7, 30, 600, longestRelative + 1, forever} {
		for _, between := range []string{"nothing", "lease", "released lease"} {
			t.Run(fmt.Sprint(value, " ", between), func(t *testing.T) {
				it := item{valued: value > 0, value: []byte("v"), left: value}
				next, ttl := it.failedFor(10, []byte("down"))
				for second := int64(0); second < 25; second++ {
					if second == 12 && between != "nothing" {
						now := decodeItem(reply{code: codeValue, cas: 1, left: ttl - second, value: next.encode(""), flags: frameFlags}, "")
						next, ttl = now.leasedTo(owner{store.Token{1}, 1}, "web-3:4711", 2)
						ttl += second
						if between == "released lease" {
							next, ttl = next.released()
							ttl += second
						}
					}
					it := decodeItem(reply{code: codeValue, cas: 1, left: ttl - second, value: next.encode(""), flags: frameFlags}, "")
					if ttl <= second {
						it = item{} // the server has dropped it
					}
					if want := second < 10; (it.claim == failed) != want {
						t.Errorf("after %d s it counts: %v, want %v", second, it.claim == failed, want)
					}
					if want := second < 20; it.recorded != want || want && string(it.record) != "down" {
						t.Errorf("after %d s the record is %q, want it: %v", second, it.record, want)
					}
					if want := second < value; it.valued != want {
						t.Errorf("after %d s there is a value: %v, want %v", second, it.valued, want)
					}
				}
			})
		}
	}
}

// An item of ours that never ends is not ours: a stranger has touched it. Its lease and
// its failure must not hold up the key for ever.
func TestClaimOnAnEndlessItem(t *testing.T) {
	it := item{valued: true, value: []byte("v"), left: 600}
	lease, _ := it.leasedTo(owner{store.Token{1}, 1}, "", 30)
	failure, _ := it.failedFor(30, []byte("down"))
	for _, r := range []reply{
		{code: codeValue, cas: 1, left: forever, value: lease.encode(""), flags: frameFlags},
		{code: codeValue, cas: 1, left: forever, value: failure.encode(""), flags: frameFlags},
		{code: codeValue, cas: 1, left: forever, already: true},
	} {
		got := decodeItem(r, "")
		if got.claim != unclaimed || got.recorded || got.valued != (len(r.value) > 0) {
			t.Errorf("%+v is %+v", r, got)
		}
	}
}

// Each attempt has a CAS of its own, which tells it from the flight's others and from
// those of other flights.
func TestTriesByCAS(t *testing.T) {
	none, all := store.Token{}, store.Token{}
	for i := range all {
		all[i] = 0xff
	}
	for _, token := range []store.Token{none, all, store.NewToken(), store.NewToken()} {
		seen := map[uint64]bool{0: true} // 0 is no CAS
		for _, try := range []uint32{0, 1, 2, 255, 256, 1 << 16, math.MaxInt32, math.MaxUint32} {
			cas := owner{token, try}.cas()
			if seen[cas] {
				t.Errorf("%v: try %d has the CAS %d again", token, try, cas)
			}
			seen[cas] = true
			stub := item{cas: cas, claim: leased, stub: true}
			for as, want := range map[uint32]standing{0: later, try: mine, math.MaxUint32: earlier} {
				if as == try {
					want = mine
				}
				if got := (owner{token, as}).standing(&stub, false, true); got != want {
					t.Errorf("%v: try %d finds the lease of try %d: %d, want %d", token, as, try, got, want)
				}
			}
			if got := (owner{store.NewToken(), try}).standing(&stub, false, true); got != others {
				t.Errorf("%v: another flight takes the lease of try %d for its own", token, try)
			}
			if got := (owner{token, try}).standing(&stub, false, false); got != others {
				t.Errorf("%v: on a server that counts its CAS values itself, one is taken for a token's", token)
			}
		}
	}
}

func TestTTLs(t *testing.T) {
	const now = 1_800_000_000
	for d, want := range map[time.Duration]string{
		1: "1", time.Second: "1", time.Second + 1: "2", 30 * 24 * time.Hour: "2592000",
		30*24*time.Hour + 1: "1802592001", 31 * 24 * time.Hour: "1802678400", 365 * 24 * time.Hour: "1831536000",
		100 * 365 * 24 * time.Hour: "0", math.MaxInt64 - 1: "0", math.MaxInt64: "0",
	} {
		if got := ttlArg(seconds(d), now); got != want {
			t.Errorf("%v is T%s, want T%s", d, got, want)
		}
	}
	for _, d := range []time.Duration{0, -1, math.MinInt64} {
		if got := seconds(d); got != 0 {
			t.Errorf("%v is %d s, want 0", d, got)
		}
	}
	for d, want := range map[time.Duration]int64{math.MinInt64: 2, 0: 2, time.Second: 2, 3 * time.Second: 3, math.MaxInt64: longestRelative} {
		if got := claimSeconds(d, shortestClaim); got != want {
			t.Errorf("a lease of %v is one of %d s, want %d", d, got, want)
		}
	}
}

func TestItemKeys(t *testing.T) {
	seen := map[string]string{}
	for _, key := range []string{"", "k", "a b", "a\r\nb", "a\x00", "\x7f", "ключ", strings.Repeat("x", 242), strings.Repeat("x", 243), strings.Repeat("x", maxKey), "#", ":", "a:b"} {
		name, kept, err := itemKey(sha, "users", key)
		if err != nil {
			t.Fatal(err)
		}
		if len(name) > maxItemKey || !printable(name) {
			t.Errorf("%.40q becomes %q, which memcached does not take", key, name)
		}
		if plain := strings.HasSuffix(name, ":"+key) && strings.HasPrefix(name, plainPrefix); plain == (kept == key && key != "") {
			t.Errorf("%.40q becomes %q and keeps %.40q", key, name, kept)
		}
		if other, twice := seen[name]; twice {
			t.Errorf("%.40q and %.40q both become %q", key, other, name)
		}
		seen[name] = key
	}
	if _, _, err := itemKey(sha, "users", strings.Repeat("x", maxKey+1)); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("a key of %d bytes: %v, want ErrTooLarge", maxKey+1, err)
	}
}
