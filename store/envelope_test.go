package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onefill/onefill/store"
)

var epoch = time.UnixMicro(1_700_000_000_123_456)

// envelopes are of every kind and with every limit.
func envelopes() map[string]store.Envelope {
	return map[string]store.Envelope{
		"zero value": {Kind: store.KindValue, Created: time.UnixMicro(0), SoftExpiry: time.UnixMicro(0)},
		"value": {Kind: store.KindValue, Codec: 7, Version: store.NewVersion(epoch), Created: epoch, SoftExpiry: epoch.Add(time.Minute),
			Cost: 250 * time.Millisecond, RowVersion: 42, Payload: []byte("row")},
		"tagged": {Kind: store.KindValue, Version: store.NewVersion(epoch), Created: epoch, SoftExpiry: epoch, Epoch: math.MaxUint64,
			Tags: []string{"", "team:7", strings.Repeat("t", store.MaxTagBytes)}, Payload: []byte("row")},
		"an epoch and no tags": {Kind: store.KindNotFound, Created: epoch, SoftExpiry: epoch, Epoch: 1},
		"not found":            {Kind: store.KindNotFound, Version: store.NewVersion(epoch), Created: epoch, SoftExpiry: epoch},
		"failure":              {Kind: store.KindFailure, Version: store.NewVersion(epoch), Created: epoch, SoftExpiry: epoch, Payload: []byte("no route to host")},
		"unstorable":           {Kind: store.KindUnstorable, Version: store.NewVersion(epoch), Created: epoch, SoftExpiry: epoch.Add(time.Minute)},
		"limits": {Kind: store.KindValue, Codec: math.MaxUint32, Created: time.UnixMicro(math.MaxInt64), SoftExpiry: time.UnixMicro(math.MaxInt64),
			Cost: math.MaxUint32 * time.Microsecond, RowVersion: math.MaxUint64, Payload: bytes.Repeat([]byte{0xff}, 1<<16)},
		"an envelope in an envelope": {Kind: store.KindValue, Created: epoch, SoftExpiry: epoch,
			Payload: (&store.Envelope{Kind: store.KindValue, Created: epoch, SoftExpiry: epoch}).Encode()},
	}
}

func same(a, b store.Envelope) bool {
	return a.Kind == b.Kind && a.Codec == b.Codec && a.Version == b.Version && a.Created.Equal(b.Created) &&
		a.SoftExpiry.Equal(b.SoftExpiry) && a.Cost == b.Cost && a.RowVersion == b.RowVersion && bytes.Equal(a.Payload, b.Payload) &&
		a.Epoch == b.Epoch && slices.Equal(a.Tags, b.Tags) && a.Failures == b.Failures
}

func TestEnvelopeRoundTrip(t *testing.T) {
	for name, e := range envelopes() {
		t.Run(name, func(t *testing.T) {
			data := e.Encode()
			if e.Epoch == 0 && len(data) != store.HeaderBytes+len(e.Payload) {
				t.Errorf("%d bytes, want a header of %d and %d", len(data), store.HeaderBytes, len(e.Payload))
			}
			got, err := store.Decode(data)
			if err != nil || !same(got, e) {
				t.Errorf("Decode = %+v, %v, want %+v", got, err, e)
			}
			if store.RowVersionOf(data) != e.RowVersion {
				t.Errorf("RowVersionOf = %d, want %d", store.RowVersionOf(data), e.RowVersion)
			}
			// Append writes behind what is there.
			if appended := e.Append([]byte("before")); string(appended) != "before"+string(data) {
				t.Error("Append differs from Encode")
			}
		})
	}
}

// The bytes themselves are a format: others read them, and a rolling deploy has
// both versions of the code.
func TestEnvelopeBytes(t *testing.T) {
	e := store.Envelope{Kind: store.KindValue, Codec: 0x01020304, Version: store.Version{0: 0xa0, 15: 0xaf},
		Created: time.UnixMicro(0x0b0c0d), SoftExpiry: time.UnixMicro(0x0e0f10), Cost: 0x11 * time.Microsecond, RowVersion: 0x1213, Payload: []byte("row")}
	want := "31660176" + "01020304" + "a00000000000000000000000000000af" + "00000000000b0c0d" + "00000000000e0f10" +
		"00000011" + "0000000000001213" + "1915d939" + "00000000" + "726f77"
	if got := fmt.Sprintf("%x", e.Encode()); got != want {
		t.Errorf("encoded\n%s, want\n%s", got, want)
	}
}

func TestEnvelopeSaturates(t *testing.T) {
	for _, tt := range []struct{ cost, want time.Duration }{
		{-time.Second, 0}, {time.Nanosecond, 0}, {math.MaxInt64, math.MaxUint32 * time.Microsecond},
	} {
		e := store.Envelope{Kind: store.KindValue, Cost: tt.cost}
		if got, err := store.Decode(e.Encode()); err != nil || got.Cost != tt.want {
			t.Errorf("a cost of %v comes back as %v, %v, want %v", tt.cost, got.Cost, err, tt.want)
		}
	}
	for _, at := range []time.Time{{}, time.UnixMicro(-1), time.UnixMicro(math.MinInt64)} {
		e := store.Envelope{Kind: store.KindValue, Created: at, SoftExpiry: at}
		if got, err := store.Decode(e.Encode()); err != nil || got.Created.UnixMicro() != 0 || got.SoftExpiry.UnixMicro() != 0 {
			t.Errorf("%v comes back as %v and %v, %v, want 1970", at, got.Created, got.SoftExpiry, err)
		}
	}
}

func TestDecodeTruncated(t *testing.T) {
	for name, e := range envelopes() {
		data := e.Encode()
		if len(data) > 200 {
			continue
		}
		for n := range len(data) {
			if got, err := store.Decode(data[:n]); !errors.Is(err, store.ErrUndecodable) {
				t.Errorf("%s, cut to %d of %d bytes: %+v, %v", name, n, len(data), got, err)
			}
		}
		if _, err := store.Decode(append(data, 0)); !errors.Is(err, store.ErrUndecodable) {
			t.Errorf("%s with a byte more: %v", name, err)
		}
	}
}

// Every flipped bit is found, but for those of the soft expiry: that field is
// written in place, so the checksum leaves it out.
func TestDecodeFlippedBits(t *testing.T) {
	e := envelopes()["value"]
	data := e.Encode()
	for i := range len(data) {
		for bit := range 8 {
			flipped := bytes.Clone(data)
			flipped[i] ^= 1 << bit
			got, err := store.Decode(flipped)
			if i < store.SoftExpiryOffset || i >= store.SoftExpiryOffset+8 {
				if !errors.Is(err, store.ErrUndecodable) {
					t.Errorf("byte %d, bit %d flipped: %+v, %v, want an error", i, bit, got, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("byte %d, bit %d of the soft expiry flipped: %v", i, bit, err)
				continue
			}
			if got.SoftExpiry.Equal(e.SoftExpiry) {
				t.Errorf("byte %d, bit %d of the soft expiry flipped: not seen", i, bit)
			}
			if got.SoftExpiry = e.SoftExpiry; !same(got, e) {
				t.Errorf("byte %d, bit %d of the soft expiry flipped: %+v", i, bit, got)
			}
		}
	}
}

func TestDecodeForeign(t *testing.T) {
	unknown := store.Envelope{Kind: 'x'}
	for _, data := range [][]byte{nil, {}, []byte("*"), []byte("1f"), []byte(strings.Repeat(" ", 100)), make([]byte, 100),
		[]byte(`{"id": 42, "name": "a row that somebody else has stored as JSON here"}`), unknown.Encode()} {
		if e, err := store.Decode(data); !errors.Is(err, store.ErrUndecodable) {
			t.Errorf("Decode(%q) = %+v, %v", data, e, err)
		}
		if v := store.RowVersionOf(data[:min(len(data), 10)]); v != 0 {
			t.Errorf("RowVersionOf(%q) = %d", data, v)
		}
	}
}

func TestExpired(t *testing.T) {
	now := epoch
	later := store.Envelope{Kind: store.KindValue, Version: store.NewVersion(epoch), Created: epoch, SoftExpiry: now.Add(time.Minute), RowVersion: 3, Payload: []byte("row")}
	data := later.Encode()
	original := bytes.Clone(data)
	expired, ok := store.Expired(data, now)
	if !ok || !bytes.Equal(data, original) {
		t.Fatalf("Expired = %v, and has changed its input: %v", ok, !bytes.Equal(data, original))
	}
	got, err := store.Decode(expired)
	if err != nil || !got.SoftExpiry.Equal(now) {
		t.Fatalf("soft expiry %v, %v, want %v", got.SoftExpiry, err, now)
	}
	if got.SoftExpiry = later.SoftExpiry; !same(got, later) {
		t.Errorf("Expired has changed more than the soft expiry: %+v", got)
	}
	if field := store.ExpiryField(now); string(expired[store.SoftExpiryOffset:store.SoftExpiryOffset+8]) != string(field[:]) {
		t.Error("ExpiryField differs from what Expired writes")
	}
	if store.SameMark(store.MarkOf(data), expired) {
		t.Error("the mark of an expired value is still the old one")
	}

	for _, softExpiry := range []time.Time{now, now.Add(-time.Second)} {
		past := later
		past.SoftExpiry = softExpiry
		if same, ok := store.Expired(past.Encode(), now); !ok || !bytes.Equal(same, past.Encode()) {
			t.Errorf("a soft expiry of %v, now %v: changed", softExpiry, now)
		}
	}
	for name, data := range map[string][]byte{
		"not found": (&store.Envelope{Kind: store.KindNotFound, SoftExpiry: now.Add(time.Hour)}).Encode(),
		"failure":   (&store.Envelope{Kind: store.KindFailure, SoftExpiry: now.Add(time.Hour)}).Encode(),
		"foreign":   make([]byte, 100), "empty": {}, "nil": nil, "cut": original[:store.HeaderBytes-1],
	} {
		if got, ok := store.Expired(data, now); ok {
			t.Errorf("%s: has a soft expiry: %q", name, got)
		}
	}
}

func TestMark(t *testing.T) {
	one := store.Envelope{Kind: store.KindValue, Version: store.NewVersion(epoch), Created: epoch, SoftExpiry: epoch, Payload: []byte("same row")}
	two := one
	two.Version = store.NewVersion(epoch)
	long := append(one.Encode(), bytes.Repeat([]byte{'x'}, 1000)...)
	for _, tt := range []struct {
		name       string
		seen, data []byte
		want       bool
	}{
		{"itself", store.MarkOf(one.Encode()), one.Encode(), true},
		{"another version", store.MarkOf(one.Encode()), two.Encode(), false},
		{"nothing seen, a value there", nil, one.Encode(), false},
		{"nothing seen, empty value there", nil, nil, false},
		{"empty value seen", store.MarkOf(nil), []byte{}, true},
		{"empty value seen, a value there", store.MarkOf([]byte{}), one.Encode(), false},
		{"short value seen", store.MarkOf([]byte("abc")), []byte("abc"), true},
		{"short value seen, a longer one there", store.MarkOf([]byte("abc")), []byte("abcd"), false},
		{"long value", store.MarkOf(long), long, true},
	} {
		if got := store.SameMark(tt.seen, tt.data); got != tt.want {
			t.Errorf("%s: SameMark = %v, want %v", tt.name, got, tt.want)
		}
	}
	if n := len(store.MarkOf(long)); n != store.MarkBytes {
		t.Errorf("a mark of %d bytes, want %d", n, store.MarkBytes)
	}
	if store.MarkOf(nil) == nil || store.MarkOf([]byte{}) == nil {
		t.Error("the mark of an empty value is nil: it would say that nothing was seen")
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range envelopes() {
		if len(e.Payload) < 1000 {
			f.Add(e.Encode())
		}
	}
	f.Add([]byte{})
	f.Add([]byte("1f\x01v"))
	f.Add(make([]byte, store.HeaderBytes))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		store.RowVersionOf(data)
		if !store.SameMark(store.MarkOf(data), data) {
			t.Fatal("a value does not have its own mark")
		}
		if expired, ok := store.Expired(data, epoch); ok && len(expired) != len(data) {
			t.Fatalf("Expired has made %d bytes of %d", len(expired), len(data))
		}
		e, err := store.Decode(data)
		if !bytes.Equal(data, before) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if !errors.Is(err, store.ErrUndecodable) {
				t.Fatalf("error %v does not wrap ErrUndecodable", err)
			}
			return
		}
		again, err := store.Decode(e.Encode())
		if err != nil || !same(again, e) {
			t.Fatalf("Decode(Encode(e)) = %+v, %v, want %+v", again, err, e)
		}
		if e.RowVersion != store.RowVersionOf(data) {
			t.Fatalf("RowVersionOf = %d, Decode says %d", store.RowVersionOf(data), e.RowVersion)
		}
	})
}

// FuzzEnvelope begins with the fields, which random bytes with a matching
// checksum would hardly ever reach.
func FuzzEnvelope(f *testing.F) {
	f.Add(byte('v'), uint32(1), []byte("version"), int64(1), int64(2), int64(3), uint64(4), []byte("row"))
	f.Add(byte('n'), uint32(0), []byte{}, int64(math.MinInt64), int64(math.MaxInt64), int64(math.MaxInt64), uint64(math.MaxUint64), []byte{})
	f.Fuzz(func(t *testing.T, kind byte, codec uint32, version []byte, created, soft, cost int64, row uint64, payload []byte) {
		e := store.Envelope{Kind: store.Kind(kind), Codec: codec, Created: time.UnixMicro(created), SoftExpiry: time.UnixMicro(soft),
			Cost: time.Duration(cost), RowVersion: row, Epoch: uint64(len(version)), Payload: payload}
		if e.Epoch != 0 {
			e.Tags = []string{string(version)}
		}
		if e.Kind == store.KindFailure {
			e.RowVersion, e.Failures = 0, row
		}
		copy(e.Version[:], version)
		got, err := store.Decode(e.Encode())
		if known := strings.ContainsRune("vnfu", rune(kind)); known != (err == nil) {
			t.Fatalf("kind %q: %v", kind, err)
		}
		if err != nil {
			return
		}
		e.Created, e.SoftExpiry = time.UnixMicro(max(created, 0)), time.UnixMicro(max(soft, 0))
		e.Cost = min(max(e.Cost, 0).Truncate(time.Microsecond), math.MaxUint32*time.Microsecond)
		if !same(got, e) {
			t.Fatalf("decoded %+v, want %+v", got, e)
		}
	})
}
